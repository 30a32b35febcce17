-- Puts staged values in place, each if its minute's value has not changed since it was read. Without staged values, it
-- returns which could be put in place.
--
-- KEYS[1] to KEYS[n] slots: strings, "ts\nvalue" · the next n the staged values, of the same form; left out to ask only
-- ARGV[1] ms to keep them · ARGV[2] the ts that was read of the first slot, '' for none · ARGV[3] its new ts · and so
-- on, two for each slot
--
-- Returns for each slot 1 if its value was put in place, or could be; 0 if another server was first.
--
-- Atomic, because news that another server writes between the comparison and the write would be lost. The value's key
-- is renamed, because a script with an argument of 4 MB blocks Redis, and every limiter on it, for 7 ms. A key of
-- another type, or one whose ts no server has written, counts as no value ('!' in look.lua) and is replaced.
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
    -- The staged value may have expired, or be that of an earlier attempt of this server.
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
