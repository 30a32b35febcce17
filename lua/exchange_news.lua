-- Appends a server's news to the news logs of some minutes, and returns what the server has not read of these logs.
--
-- KEYS[1], … logs, one per minute: strings of 16 bytes of identity, then entries that this script does not read
-- ARGV[1] the most bytes of a log to return · ARGV[2] the size, in bytes, from which on nothing is appended to a log
-- then five for each log: the identity of the log that the server has read, or an identity for a new one · the
-- position up to which it has read that log · the 8 bytes before that position · an entry to append, '' for none · ms
-- to keep the log at most
--
-- Returns for each log { identity, '' if there is no log; the position of the bytes; the bytes; the position at which
-- the entry was appended, 0 if it was not }. The bytes are those that the server has not read, without its entry.
--
-- Atomic, so that nothing is appended between the bytes and the entry. If the identity of the log, or the 8 bytes
-- before the server's position, differ from those in ARGV, the log is another one, for example from an older copy of
-- Redis. Then it is read from its beginning. A failed append is not an error: if Redis is a replica or has no memory
-- left, a server can still read.
local id_bytes = 16
local answers = {}
for i = 1, #KEYS do
  local log, at = KEYS[i], 5 * i - 2
  local id, read_to, last_read, entry = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3]
  local length = redis.pcall('STRLEN', log)
  if type(length) == 'table' or (length > 0 and length < id_bytes) then
    -- No server writes such a value.
    redis.pcall('DEL', log)
    length = 0
  end
  local found, from, bytes = '', id_bytes, ''
  if length > 0 then
    found = redis.call('GETRANGE', log, 0, id_bytes - 1)
    local is_ours = found == id and read_to >= id_bytes and read_to <= length
    if is_ours and (read_to == id_bytes or redis.call('GETRANGE', log, read_to - 8, read_to - 1) == last_read) then
      from = read_to
    end
    if from < length then
      bytes = redis.call('GETRANGE', log, from, math.min(length, from + ARGV[1]) - 1)
    end
  end
  local appended = 0
  if entry ~= '' and length < tonumber(ARGV[2]) then
    local answer = redis.pcall('APPEND', log, length == 0 and id .. entry or entry)
    if type(answer) ~= 'table' then
      if length == 0 then
        found, length = id, id_bytes
      end
      -- A log that no server has created may be without an expiry, or live for years.
      local left = redis.pcall('PTTL', log)
      if type(left) ~= 'number' or left < 0 or left > tonumber(ARGV[at + 4]) then
        redis.call('PEXPIRE', log, ARGV[at + 4])
      end
      appended = length
    end
  end
  answers[i] = { found, from, bytes, appended }
end
return answers
