-- Reads the servers of another generation, and the versions of its minutes. Deletes what its own servers delete, too,
-- because no server has written it: records with times to come, and names that are too long. After the generation's
-- servers have stopped, a record with a time to come would make a server look alive for as long as somebody has written
-- once.
--
-- KEYS[1] nodes: sorted set, "writer id, space, name for people" by ms of their last look
-- KEYS[2] wanting: sorted set, writer ids by ms of the last look in which they reported rejected newcomers
-- KEYS[3…] slots, one per minute, hashes or strings: another generation's filters may be larger or smaller
-- ARGV[1] ms after which a node is dead · ARGV[2] the number of writer ids to list
--
-- Returns { number of nodes that reject newcomers, ts and size of each slot in the order of KEYS, { writer id, … } };
-- '' stands for nothing, '!' for a value that no server has written. versions.lua is put before this script.
--
-- Atomic, so that the versions and the nodes belong to one moment.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local dead = string.format('(%.0f', now - ARGV[1])
local now_ms = string.format('%.0f', now)
for key = 1, 2 do
  redis.pcall('ZREMRANGEBYSCORE', KEYS[key], '(' .. now_ms, '+inf')
end
local answer = { read('ZCOUNT', KEYS[2], dead, now_ms) }
for key = 3, #KEYS do
  local ts, size = version_of(KEYS[key], redis.call('TYPE', KEYS[key]).ok)
  answer[#answer + 1] = ts
  answer[#answer + 1] = size
end
local writers, members = {}, read('ZREVRANGEBYSCORE', KEYS[1], now_ms, dead, 'LIMIT', 0, ARGV[2])
for at = 1, members == '!' and 0 or #members do
  if #members[at] > 305 then redis.pcall('ZREM', KEYS[1], members[at]) end
  writers[at] = string.match(string.sub(members[at], 1, 64), '^[^ ]*')
end
answer[#answer + 1] = writers
return answer
