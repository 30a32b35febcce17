-- The line of newcomers who wait: how many there are, by the time of their arrival, and the mark, the place up to which
-- waiters are called. `LineRequest` and `LineView` in src/line say what the numbers mean, and src/line/waiting.rs has
-- the same arithmetic.
--
-- The line is a hash. The field "sums" has seven words: the mark, 1 if all newcomers may take seats, the waiters who
-- are called, all waiters, those who were served, those who left, and the time of the last call. The field "points" has
-- the points of the view. Each epoch has one more hash, with the number of waiters in each bin of arrivals, and in "c"
-- the number of those who are called. These hashes expire, so a waiter who does not come back vanishes.
local bin_micros, epoch_micros = 8388608, 16777216
local called_per_seat, called_in_addition = 1.03, 2
local most_points = 16
local most_bins = 4096 -- nine hours
local call_every, shown_for = 250, 1000 -- ms
local line_kept_for = 3600000 -- ms

local function read_line_state(state)
  local fields = redis.pcall('HMGET', state, 'sums', 'points')
  local text, points = fields[1], fields[2]
  local read = text and #text <= 256 and points and #points <= 1024
    and { text:match('^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$') } or {}
  for at = 1, #read do
    read[at] = tonumber(read[at])
    if read[at] >= 2 ^ 53 then
      read = {}
      break
    end
  end
  return {
    mark = read[1] or 0, open = read[2] or 1, called = read[3] or 0, waiting = read[4] or 0, served = read[5] or 0,
    left = read[6] or 0, called_at = read[7] or 0, points = read[1] and points or '',
  }
end

-- Returns the counts of an epoch, the waiters who are called apart. Deletes what no server has written.
local function read_epoch(key)
  local epoch = { key = key, called = 0, bins = {} }
  local length = redis.pcall('HLEN', key)
  local fields = type(length) == 'number' and length <= most_bins and redis.pcall('HGETALL', key) or { err = '' }
  for at = 1, #fields, 2 do
    local bin, count = fields[at]:match('^%d+$'), fields[at + 1]:match('^-?%d+$')
    count = count and #count <= 12 and tonumber(count)
    if fields[at] == 'c' and count then
      epoch.called = count
    elseif bin and #bin <= 12 and count then
      epoch.bins[tonumber(bin)] = count
    else
      fields.err = ''
    end
  end
  if fields.err then
    redis.pcall('DEL', key)
    return { key = key, called = 0, bins = {} }
  end
  return epoch
end

-- Returns the bins that have waiters, in ascending order, and the number of waiters in each.
local function merge(epochs)
  local totals, bins = {}, {}
  for _, epoch in ipairs(epochs) do
    for bin, count in pairs(epoch.bins) do
      totals[bin] = (totals[bin] or 0) + count
    end
  end
  for bin, count in pairs(totals) do
    if count > 0 then
      bins[#bins + 1] = bin
    end
  end
  table.sort(bins)
  return bins, totals
end

-- Calls `called` of the `count` waiters of a bin, those who came first.
local function call_of(line, epochs, bin, count, called, now)
  local first = bin * bin_micros
  local from, last = math.max(line.mark, first - 1), first + bin_micros - 1
  if from < now then
    last = math.min(last, now)
  end
  last = math.max(last, from)
  local of, to_call = 0, called
  for _, epoch in ipairs(epochs) do
    of = of + math.max(epoch.bins[bin] or 0, 0)
  end
  for _, epoch in ipairs(epochs) do
    local here = epoch.bins[bin] or 0
    if here > 0 then
      local part = math.floor((here * to_call + math.floor(of / 2)) / of)
      of, to_call = of - here, to_call - part
      epoch.bins[bin] = here - part
      epoch.called = epoch.called + part
      if part > 0 then
        redis.call('HINCRBY', epoch.key, 'c', part)
      end
      if called < count and part > 0 then
        redis.call('HINCRBY', epoch.key, bin, -part)
      end
    end
    if called == count and epoch.bins[bin] then
      if here <= 0 then
        -- An epoch that has been counted stays, as in src/line/waiting.rs.
        redis.call('HINCRBY', epoch.key, 'c', 0)
      end
      redis.call('HDEL', epoch.key, bin)
      epoch.bins[bin] = nil
    end
  end
  line.mark = called == count and last or from + math.floor((last - from) * called / count)
end

-- Calls waiters for the free seats, and writes what everybody may know into `line`.
local function call_waiters(line, keys, first, free, soon, now)
  local epochs, left = {}, 0
  for at, key in ipairs(keys) do
    local epoch = read_epoch(key)
    if first + at - 1 < math.floor(now / epoch_micros) then
      left = left + epoch.called
      for _, count in pairs(epoch.bins) do
        left = left + count
      end
      redis.call('DEL', key)
    else
      epochs[#epochs + 1] = epoch
    end
  end
  line.left = line.left + math.max(left, 0)
  local called = 0
  for _, epoch in ipairs(epochs) do
    called = called + epoch.called
  end
  local seats = free + soon
  local wanted = seats > 0 and math.floor(seats * called_per_seat + called_in_addition) or 0
  local missing = wanted - math.max(called, 0)
  local bins, totals = merge(epochs)
  for _, bin in ipairs(bins) do
    if missing <= 0 then
      break
    end
    local count = totals[bin]
    local part = math.min(count, missing)
    call_of(line, epochs, bin, count, part, now)
    missing, called, totals[bin] = missing - part, called + part, count - part
  end
  local uncalled, points, before, next_part = 0, {}, 0, 1
  for _, bin in ipairs(bins) do
    uncalled = uncalled + totals[bin]
  end
  for _, bin in ipairs(bins) do
    before = before + totals[bin]
    if totals[bin] > 0 and before * most_points >= next_part * uncalled then
      points[#points + 1] = string.format('%d:%d', bin, before)
      next_part = math.floor(before * most_points / uncalled) + 1
    end
  end
  line.called = math.max(called, 0)
  line.waiting = line.called + uncalled
  line.open = (line.waiting == 0 or (uncalled == 0 and line.called < free)) and 1 or 0
  line.points = table.concat(points, ' ')
end

-- Counts what a server tells, calls waiters if the `free` seats are known and it is time, and returns what is known of
-- the line: { mark, 1 if all newcomers may take seats, called, waiting, served, left, points }, or an empty list if
-- waiters have not been called lately. `now` is in ms.
--
-- keys: the line, then the epochs from the one before the server's on. ARGV from `at` on: waiters served, the highest
-- mark that the server was told, the server's epoch, the number of changes, then three for each change: epoch, bin or
-- "c", number of waiters.
local function exchange_line(keys, at, free, soon, now)
  local state = table.remove(keys, 1)
  local line = read_line_state(state)
  local micros, first = now * 1000, tonumber(ARGV[at + 2]) - 1
  local is_changed = ARGV[at] ~= '0' or ARGV[at + 3] ~= '0'
  local told = math.min(tonumber(ARGV[at + 1]), micros)
  if told > line.mark then
    line.mark, is_changed = told, true
  end
  line.served = line.served + ARGV[at]
  local changes = tonumber(ARGV[at + 3])
  for change = 1, changes do
    local place = at + 1 + 3 * change
    local epoch, by = tonumber(ARGV[place]), tonumber(ARGV[place + 2])
    local key = keys[epoch - first + 1]
    local is_live = key and epoch >= math.floor(micros / epoch_micros)
    if is_live and (by > 0 or redis.pcall('HLEN', key) ~= 0) then
      if type(redis.pcall('HINCRBY', key, ARGV[place + 1], by)) == 'number' then
        redis.call('PEXPIRE', key, math.ceil((epoch + 2) * epoch_micros / 1000) - now)
      else
        redis.pcall('DEL', key)
      end
    end
  end
  local is_due = now < line.called_at or now - line.called_at >= call_every
  if free and is_due then
    call_waiters(line, keys, first, free, soon, micros)
    line.called_at, is_changed = now, true
  end
  if is_changed then
    local sums = string.format('%d %d %d %d %d %d %d', line.mark, line.open, line.called, line.waiting, line.served,
      line.left, line.called_at)
    if type(redis.pcall('HSET', state, 'sums', sums, 'points', line.points)) ~= 'number' then
      redis.pcall('DEL', state)
    end
    redis.pcall('PEXPIRE', state, line_kept_for)
  end
  if now < line.called_at or now - line.called_at >= shown_for then
    return {}
  end
  return { line.mark, line.open, line.called, line.waiting, line.served, line.left, line.points }
end

