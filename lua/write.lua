-- Writes a minute's filter if it has not changed since it was read.
--
-- KEYS[1] slot: hash { ts, value }
-- ARGV[1] the ts that was read, '' for none · ARGV[2] the new ts · ARGV[3] the value · ARGV[4] ms to keep it
--
-- Returns 1 if it was written, 0 if another server was first.
--
-- Atomic, because news that another server writes between the comparison and the write would be lost. A key that is
-- not a hash, or whose ts no server has written, has the version '!', as in look.lua. A server replaces it.
local kind = redis.call('TYPE', KEYS[1]).ok
local ts = ''
if kind == 'hash' then
  local size = redis.call('HSTRLEN', KEYS[1], 'ts')
  if size > 64 then
    ts = '!'
  elseif size > 0 then
    ts = redis.call('HGET', KEYS[1], 'ts')
    if not string.match(ts, '^[%w%-]+$') then ts = '!' end
  elseif redis.call('HSTRLEN', KEYS[1], 'value') > 0 then
    ts = '!'
  end
elseif kind ~= 'none' then
  ts = '!'
end
if ts ~= ARGV[1] then return 0 end
if ts == '!' then redis.call('DEL', KEYS[1]) end
redis.call('HSET', KEYS[1], 'ts', ARGV[2], 'value', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1
