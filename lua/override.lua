-- Stores an override if the stored one has not changed since it was read.
--
-- KEYS[1] override: hash { body }
-- ARGV[1] the body that was read: '' for none, '!' for one that is too long to be read · ARGV[2] the new body, '' for
-- none
-- ARGV[3] ms to keep it · ARGV[4] the longest body that is read, in bytes
--
-- Returns 1 if it was stored or deleted, 0 if the stored body is no longer the one that was read.
--
-- Atomic, because an override that another server stores between the comparison and the write would be lost. The script
-- does not check a body. Each server that reads one checks its content and its author.
local size = redis.call('HSTRLEN', KEYS[1], 'body')
local body = ''
if size > tonumber(ARGV[4]) then
  body = '!'
elseif size > 0 then
  body = redis.call('HGET', KEYS[1], 'body')
end
if body ~= ARGV[1] then return 0 end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('HSET', KEYS[1], 'body', ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return 1
