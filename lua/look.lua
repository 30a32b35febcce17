-- Reads the state of the fleet and the versions of all minutes, and records that this server is alive.
--
-- KEYS[1] fleet: hash. since = the slot in which the namespace was first used. beat = the last heartbeat: ms of the
--                last look of any node. silent = ms until which a node without beats counts. The last period in which
--                no node was alive: gap_from = ms of the last look before it; gap_to and gap_by = ms and writer id of
--                the first look after it
-- KEYS[2] nodes: sorted set. Member: writer id, a space, name of the node; score: ms of its last look. Dead nodes stay
--                for a window, so that they can be listed
-- KEYS[3] override: hash { body }, bytes that this script does not interpret
-- KEYS[4] generations: sorted set, generations by ms of their last look; the one key that all generations share
-- KEYS[5] wanting: sorted set. Member: writer id; score: ms of the last look in which the server reported that it had
--                rejected newcomers
-- KEYS[6…] slots, one per minute: hashes { ts, value }, or strings "ts\nvalue" if ARGV[7] says so
-- ARGV[1] writer id · ARGV[2] ms after which a node is dead · ARGV[3] ms to keep keys · ARGV[4] generation
-- ARGV[5] name of the node · ARGV[6] the number of nodes to list, dead ones included: 0 unless an admin page is open
-- ARGV[7] 'string' if slots are strings, as large values are; 'hash' otherwise
-- ARGV[8] 1 if this server has rejected newcomers since its last look · ARGV[9] the longest override, in bytes
-- ARGV[10] 1 if this server has beats; without, it counts as one without for ARGV[2] ms
--
-- Returns { seconds, microseconds, since, the heartbeat before this look, gap_from, gap_to, gap_by, override, number of
--           nodes that are not dead, number of nodes that reject newcomers, error of a failed write, ms of this
--           server's previous look, ms of its previous look with ARGV[8] = 1 ('' if ARGV[8] is not 1 now), ms of the
--           previous look of any server of this generation, 1 if there may be more generations than are returned, 1 if
--           a node without beats counts, ts and size of each slot in the order of KEYS,
--           { other generation, 1 if one of its servers has looked in the last ARGV[2] ms, … },
--           { member of nodes, ms, … } };
-- '' stands for nothing, '!' for a value that no server has written. versions.lua is put before this script.
--
-- Atomic, so that the clock, the versions and the nodes belong to one moment. A failed write is reported and does not
-- fail the look: if Redis is a replica or has no memory left, a server can still read.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local refusal = ''

-- Returns the answer of a command, or nil if Redis refuses it.
local function write(...)
  local answer = redis.pcall(...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  refusal = answer.err
end

-- Returns whether a key is of another type. No server has written it, and it would make every write fail.
local function is_foreign(answer)
  return type(answer) == 'table' and answer.err and string.find(answer.err, 'WRONGTYPE', 1, true) ~= nil
end

local now_ms = string.format('%.0f', now)
local alive_for = tonumber(ARGV[2])
local dead, outdated = string.format('(%.0f', now - alive_for), string.format('%.0f', now - ARGV[3])

local names = { 'since', 'beat', 'gap_from', 'gap_to', 'gap_by', 'silent' }
local fields = redis.pcall('HMGET', KEYS[1], unpack(names))
if is_foreign(fields) then write('DEL', KEYS[1]) end
local fleet = {}
for at, name in ipairs(names) do
  fleet[name] = fields[at] or ''
  if #fleet[name] > 64 then
    -- No server has written it, and each look would read it.
    write('HDEL', KEYS[1], name)
    fleet[name] = ''
  end
end
local last_heartbeat = tonumber(fleet.beat)
if last_heartbeat and now - last_heartbeat > alive_for then
  local from = string.format('%.0f', last_heartbeat)
  if write('HSET', KEYS[1], 'gap_from', from, 'gap_to', now_ms, 'gap_by', ARGV[1]) then
    fleet.gap_from, fleet.gap_to, fleet.gap_by = from, now_ms, ARGV[1]
  end
end
local silent = tonumber(fleet.silent) or 0
-- No server has written a time that is so far away.
if not (silent > now and silent < now + alive_for + ARGV[3]) then silent = 0 end
if ARGV[10] == '1' then
  write('HSET', KEYS[1], 'beat', now_ms)
else
  silent = math.max(silent, now + alive_for)
  write('HSET', KEYS[1], 'beat', now_ms, 'silent', string.format('%.0f', silent))
end

local override = ''
local override_size = redis.pcall('HSTRLEN', KEYS[3], 'body')
if is_foreign(override_size) then
  override = write('DEL', KEYS[3]) and '' or '!'
elseif type(override_size) == 'table' or override_size > tonumber(ARGV[9]) then
  override = '!'
elseif override_size > 0 then
  override = read('HGET', KEYS[3], 'body')
end

-- Records with a time in the future are removed before this server's own records are read: a forged record must not
-- hide that the server's own was lost.
for _, key in ipairs({ KEYS[2], KEYS[4], KEYS[5] }) do
  local answer = redis.pcall('ZREMRANGEBYSCORE', key, '(' .. now_ms, '+inf')
  if is_foreign(answer) then write('DEL', key) end
end
local looked = read('ZSCORE', KEYS[2], ARGV[1] .. ' ' .. ARGV[5])
write('ZADD', KEYS[2], now_ms, ARGV[1] .. ' ' .. ARGV[5])
local listed = read('ZSCORE', KEYS[4], ARGV[4])
write('ZADD', KEYS[4], now_ms, ARGV[4])
local wanted = ''
if ARGV[8] == '1' then
  wanted = read('ZSCORE', KEYS[5], ARGV[1])
  write('ZADD', KEYS[5], now_ms, ARGV[1])
end
write('ZREMRANGEBYSCORE', KEYS[2], '-inf', outdated)
write('ZREMRANGEBYSCORE', KEYS[4], '-inf', outdated)
write('ZREMRANGEBYSCORE', KEYS[5], '-inf', string.format('%.0f', now - alive_for))
for key = 1, 5 do write('PEXPIRE', KEYS[key], ARGV[3]) end

local nodes = read('ZCOUNT', KEYS[2], dead, '+inf')
local wanting = read('ZCOUNT', KEYS[5], '-inf', '+inf')
-- 64 generations: far more than a fleet has.
local beside, generations = {}, read('ZREVRANGE', KEYS[4], 0, 63, 'WITHSCORES')
local may_be_more = (generations == '!' or #generations == 2 * 64) and 1 or 0
if may_be_more == 1 then
  -- Names may be made up. Of a list that is too long, those are dropped that have not looked for ARGV[2] ms, instead
  -- of being kept for ARGV[3] ms.
  write('ZREMRANGEBYSCORE', KEYS[4], '-inf', dead)
end
for at = 1, generations == '!' and 0 or #generations, 2 do
  if #generations[at] ~= 16 or not string.match(generations[at], '^[0-9a-f]+$') then
    -- No server has written it. It may be megabytes long, and each look would read it.
    write('ZREM', KEYS[4], generations[at])
  elseif generations[at] ~= ARGV[4] then
    beside[#beside + 1] = generations[at]
    beside[#beside + 1] = now - generations[at + 1] < alive_for and 1 or 0
  end
end

local answer = {
  clock[1], clock[2], fleet.since, fleet.beat, fleet.gap_from, fleet.gap_to, fleet.gap_by, override, nodes, wanting,
  refusal,
}
answer[#answer + 1] = looked
answer[#answer + 1] = wanted
answer[#answer + 1] = listed
answer[#answer + 1] = may_be_more
answer[#answer + 1] = silent > now and 1 or 0
for key = 6, #KEYS do
  local ts, value_size = version_of(KEYS[key], ARGV[7])
  answer[#answer + 1] = ts
  answer[#answer + 1] = value_size
end
local named = {}
if tonumber(ARGV[6]) > 0 then
  local members = read('ZRANGE', KEYS[2], -ARGV[6], -1, 'WITHSCORES')
  for at = 1, members == '!' and 0 or #members, 2 do
    -- A server writes at most 48 + 1 + 64 * 4 bytes: its writer id, a space, and its name.
    if #members[at] <= 305 then
      named[#named + 1] = members[at]
      named[#named + 1] = members[at + 1]
    else
      write('ZREM', KEYS[2], members[at])
    end
  end
end
answer[#answer + 1] = beside
answer[#answer + 1] = named
return answer
