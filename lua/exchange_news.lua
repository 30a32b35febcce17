-- Appends a server's news to the news logs of some minutes, returns what the server has not read of these logs, and
-- grants it seats. lua/seats.lua comes before this file, and lua/line.lua, too, if newcomers wait in a line.
--
-- KEYS[1] the ledger of seats · KEYS[2], … logs, one per minute: strings of 16 bytes of identity, then entries that
-- this script does not read · then, if newcomers wait in a line, the keys of `exchange_line`
-- ARGV[1] the server's name · ARGV[2] ms after which a silent server is gone · ARGV[3] to ARGV[19] the fields of
-- `SeatRequest` in their order, '' for none, times in ms
-- ARGV[20] the most bytes of a log to return · ARGV[21] the size, in bytes, from which on nothing is appended to a log
-- then seven for each log: the identity of the log that the server has read, zeros for none · the position up to which
-- it has read that log · the 8 bytes before that position · an entry to append, '' for none · the newcomers in the
-- entry · ms to keep the log at most, '' to change nothing · the identity of a new log
--
-- Returns what `lease` returns, or an empty list if Redis takes no writes; then for each log { identity, '' if there is
-- no log; the position of the bytes; the bytes; the position at which the entry was appended, 0 if it was not }. The
-- bytes are those that the server has not read, without its entry.
--
-- Atomic, so that nothing is appended between the bytes and the entry. The 8 bytes before the server's position are the
-- end of an entry's MAC, and no other entry has this MAC. If they differ from those in ARGV, the log is another one, as
-- in an older copy of Redis, and is read from its beginning. A failed append is not an error: if Redis is a replica or
-- has no memory left, a server can still read.
local id_bytes, most_bytes = 16, tonumber(ARGV[20])
local ask = {
  epoch = ARGV[3], new_epoch = ARGV[4], number = tonumber(ARGV[5]), answered = tonumber(ARGV[6]),
  read = tonumber(ARGV[7]), valued = tonumber(ARGV[8]), unused = tonumber(ARGV[9]), unpublished = tonumber(ARGV[10]),
  shares = tonumber(ARGV[11]), readers = tonumber(ARGV[12]), room = tonumber(ARGV[13]), demand = tonumber(ARGV[14]),
  rounding = tonumber(ARGV[15]), per_minute = tonumber(ARGV[16]), taken = tonumber(ARGV[17]),
  lasts_for = tonumber(ARGV[18]), minute = tonumber(ARGV[19]),
}
local logged = 0
local answers = {}
local logs = tonumber(ARGV[22])
for i = 2, logs + 1 do
  local log, at = KEYS[i], 7 * i + 9
  local id, read_to, last_read, entry = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3]
  local found, from, bytes = '', id_bytes, ''
  if read_to >= id_bytes + 8 then
    local tail = redis.pcall('GETRANGE', log, read_to - 8, read_to + most_bytes - 1)
    if type(tail) == 'string' and #tail >= 8 and tail:sub(1, 8) == last_read then
      found, from, bytes = id, read_to, tail:sub(9)
    end
  end
  if found == '' then
    found = redis.pcall('GETRANGE', log, 0, id_bytes + most_bytes - 1)
    if type(found) == 'table' or (found ~= '' and #found < id_bytes) then
      -- No server writes such a value.
      redis.pcall('DEL', log)
      found = ''
    end
    found, bytes = found:sub(1, id_bytes), found:sub(id_bytes + 1)
  end
  local appended, keep_for = 0, tonumber(ARGV[at + 5])
  local length = #bytes < most_bytes and from + #bytes or redis.call('STRLEN', log)
  if entry ~= '' and length < tonumber(ARGV[21]) then
    local is_new = found == ''
    local answer = redis.pcall('APPEND', log, is_new and ARGV[at + 6] .. entry or entry)
    if type(answer) == 'number' then
      found, appended = is_new and ARGV[at + 6] or found, answer - #entry
    end
  end
  if keep_for and found ~= '' then
    -- A log that no server has created may be without an expiry, or live for years.
    local left = redis.pcall('PTTL', log)
    if type(left) ~= 'number' or left < 0 or left > keep_for then
      redis.pcall('PEXPIRE', log, keep_for)
    end
  end
  if appended > 0 then
    logged = logged + ARGV[at + 4]
  else
    ask.unpublished = ask.unpublished + ARGV[at + 4]
  end
  answers[i] = { found, from, bytes, appended }
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local reply, free, soon = lease(KEYS[1], ARGV[1], ask, logged, now, tonumber(ARGV[2]))
answers[1] = reply or {}
if reply and #KEYS > logs + 1 then
  local keys = {}
  for i = logs + 2, #KEYS do
    keys[#keys + 1] = KEYS[i]
  end
  answers[logs + 2] = exchange_line(keys, 23 + 7 * logs, free, soon, now)
end
return answers
