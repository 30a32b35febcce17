-- Replaces the values of minutes by staged values, each only if the minute's value has not changed since it was read.
-- Without staged values, it only returns which minutes have not changed.
--
-- KEYS[1] to KEYS[n] slots: strings, "ts\nvalue" · the next n: the staged values, in the same form; none to ask only
-- ARGV[1] ms to keep them · ARGV[2] the ts that was read from the first slot, '' for none · ARGV[3] its new ts · and so
-- on, two for each slot
--
-- Returns for each slot 1 if its value was replaced or, without staged values, has not changed; 0 if another server was
-- first, or if the staged value is missing or another one.
--
-- Atomic, because news that another server writes between the comparison and the write would be lost. A staged value is
-- not an argument but a key, which is renamed: a script with an argument of 4 MB blocks Redis, and every limiter on it,
-- for 7 ms. A slot of another type, or one whose ts no server has written, has the version '!', as in look.lua. A
-- server replaces it.
local n = (#ARGV - 1) / 2

local function ts_of(key)
  local head = redis.pcall('GETRANGE', key, 0, 64)
  if type(head) ~= 'string' then return '!' end
  return head == '' and '' or string.match(head, '^([%w%-]+)\n') or '!'
end

local answers = {}
for i = 1, n do
  local slot, staged, read, new = KEYS[i], KEYS[n + i], ARGV[2 * i], ARGV[2 * i + 1]
  local unchanged = ts_of(slot) == read
  if staged and unchanged then
    -- The staged value may have expired, or belong to an earlier attempt of this server.
    unchanged = ts_of(staged) == new
    if unchanged then
      redis.call('RENAME', staged, slot)
      redis.call('PEXPIRE', slot, ARGV[1])
    end
  elseif staged then
    redis.call('DEL', staged)
  end
  answers[i] = unchanged and 1 or 0
end
return answers
