-- The line of newcomers who wait: how many there are, by the time of their arrival, and the mark, the rank up to which
-- waiters are called. `LineRequest` and `LineView` in src/line say what the numbers mean, and src/line/waiting.rs has
-- the same arithmetic.
--
-- The line is a hash. The field "sums" has ten words: the mark, 1 if all newcomers may take seats, the waiters who are
-- called, all waiters, those who were served, those who left, the time of the last call, and what those who were called
-- lately have done: thousandths of those who took a seat and of those who did not come back, and those who had been
-- served at the last call. The field "points" has the points of the view. Each epoch has one more hash, with the number
-- of waiters in each bin of arrivals, and in "c" the number of those who are called. These hashes expire, so a waiter
-- who does not come back vanishes. One more hash has the arrivals by part, a 64th of a bin. These counts only grow.
-- They say how a bin's waiters are spread.
local bin_micros, epoch_micros, part_micros = 8388608, 16777216, 131072
local parts_of_bin = 64
local most_parts = 65536 -- two hours
local called_per_seat, called_in_addition, taken_to_have_come = 1.03, 2, 20
local forgotten = 32 -- one part of this many, of counts whose sum is 0, when an epoch ends
local most_points = 16
local most_bins = 4096 -- nine hours
local call_every, shown_for = 250, 1000 -- ms
local line_kept_for, arrivals_kept_for = 3600000, 7200000 -- ms

local function read_line_state(state)
  local fields = redis.pcall('HMGET', state, 'sums', 'points')
  local text, points = fields[1], fields[2]
  local read = text and #text <= 256 and points and #points <= 1024
    and { text:match('^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$') } or {}
  for at = 1, #read do
    read[at] = tonumber(read[at])
    if read[at] >= 2 ^ 53 then
      read = {}
      break
    end
  end
  return {
    mark = read[1] or 0, open = read[2] or 1, called = read[3] or 0, waiting = read[4] or 0, served = read[5] or 0,
    left = read[6] or 0, called_at = read[7] or 0, came = read[8] or 0, lost = read[9] or 0,
    served_before = read[10] or 0, points = read[1] and points or '',
  }
end

-- Returns a number as Redis writes it; nil for another text.
local function whole(text)
  local number = #text <= 12 and text:match('^-?%d+$') and tonumber(text)
  return number and string.format('%d', number) == text and number or nil
end

-- Returns the counts of an epoch, the waiters who are called apart. Deletes what no server has written.
local function read_epoch(key)
  local epoch = { key = key, called = 0, bins = {} }
  local length = redis.pcall('HLEN', key)
  local fields = type(length) == 'number' and length <= most_bins and redis.pcall('HGETALL', key) or { err = '' }
  for at = 1, #fields, 2 do
    local bin, count = whole(fields[at]), whole(fields[at + 1])
    if fields[at] == 'c' and count then
      epoch.called = count
    elseif bin and bin >= 0 and count then
      epoch.bins[bin] = count
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

-- Returns the last number of the part that a number is in.
local function end_of_part(number)
  return (math.floor(number / part_micros) + 1) * part_micros - 1
end

-- Returns the ranks of a bin: those after the first number, and up to the second.
local function ranks_of(line, bin, now)
  local first = bin * bin_micros
  local from, last = math.max(line.mark, first - 1), first + bin_micros - 1
  -- Nobody has arrived later than now.
  if from < end_of_part(now) then
    last = math.min(last, end_of_part(now))
  end
  return from, math.max(last, from)
end

-- Returns how the arrivals of a bin are spread over some of its ranks, in pieces, and their number.
local function spread_of(line, bin, from, last)
  local names = {}
  for part = bin * parts_of_bin, (bin + 1) * parts_of_bin - 1 do
    names[#names + 1] = string.format('%d', part)
  end
  local counts = redis.pcall('HMGET', line.arrivals, unpack(names))
  local pieces, all = {}, 0
  for at, name in ipairs(names) do
    local count = counts[at]
    count = count and #count <= 12 and count:match('^%d+$') and tonumber(count) or 0
    local first = name * part_micros
    local piece = { from = math.max(from, first - 1), last = math.min(last, first + part_micros - 1) }
    piece.arrivals = count * (math.max(piece.last - piece.from, 0) / part_micros)
    if piece.arrivals > 0 then
      pieces[#pieces + 1] = piece
      all = all + piece.arrivals
    end
  end
  if all == 0 then
    return { { from = from, last = last, arrivals = 1 } }, 1
  end
  return pieces, all
end

-- Returns the rank up to which `some` of the `count` waiters have arrived.
local function rank_of(line, bin, from, last, some, count)
  local pieces, all = spread_of(line, bin, from, last)
  local wanted, before = all * some / count, 0
  for _, piece in ipairs(pieces) do
    if before + piece.arrivals >= wanted then
      return piece.from + math.floor((piece.last - piece.from) * ((wanted - before) / piece.arrivals))
    end
    before = before + piece.arrivals
  end
  return pieces[#pieces].last
end

-- Takes those out of an epoch that has ended who have left, and returns their number, and how many of them were called.
-- What remains belongs to waiters who were taken out of other epochs, and goes to the epoch `to`.
local function end_epoch(epoch, to, current, now)
  local fields, left = {}, epoch.called
  for bin, count in pairs(epoch.bins) do
    fields[#fields + 1] = bin
    left = left + count
  end
  table.sort(fields)
  local rest = left
  local function without_left(count)
    local part = rest > 0 and math.min(math.max(count, 0), rest) or math.max(math.min(count, 0), rest)
    rest = rest - part
    return count - part
  end
  local called, all, counts = without_left(epoch.called), 0, {}
  local lost = math.max(epoch.called - called, 0)
  for _, bin in ipairs(fields) do
    local count = without_left(epoch.bins[bin])
    -- Counts that do not meet their counterparts are an error: the mark was put where nobody waits any more.
    local part = math.ceil(math.abs(count) / forgotten)
    counts[bin] = count > 0 and count - part or count + part
    all = all + counts[bin]
  end
  lost = lost + math.max(called + all, 0)
  counts.c = -all
  table.insert(fields, 1, 'c')
  for _, field in ipairs(to and fields or {}) do
    local count = counts[field]
    if count ~= 0 then
      redis.call('HINCRBY', to.key, field, count)
      redis.call('PEXPIRE', to.key, math.ceil((current + 2) * epoch_micros / 1000 - now / 1000))
      if field == 'c' then
        to.called = to.called + count
      else
        to.bins[field] = (to.bins[field] or 0) + count
      end
    end
  end
  redis.call('DEL', epoch.key)
  return math.max(left, 0), lost
end

-- Calls all waiters of the bins before this one.
local function call_before(epochs, first)
  for _, epoch in ipairs(epochs) do
    for bin, count in pairs(epoch.bins) do
      if bin < first then
        -- An epoch that has been counted stays, as in src/line/waiting.rs.
        redis.call('HINCRBY', epoch.key, 'c', count)
        redis.call('HDEL', epoch.key, bin)
        epoch.called = epoch.called + count
        epoch.bins[bin] = nil
      end
    end
  end
end

-- Calls `called` of the `count` waiters of a bin, those who came first.
local function call_of(line, epochs, bin, count, called, now)
  local from, last = ranks_of(line, bin, now)
  if called == count then
    line.mark = last
    return call_before(epochs, bin + 1)
  end
  line.mark = rank_of(line, bin, from, last, called, count)
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
        redis.call('HINCRBY', epoch.key, bin, -part)
      end
    end
  end
end

-- Returns at most sixteen ranks, and how many of those who are not called have arrived until then.
local function points_of(line, bins, totals, uncalled, now)
  local points, before, next_part = {}, 0, 1
  local function note(rank, arrived)
    if arrived * most_points >= next_part * uncalled then
      points[#points + 1] = string.format('%.0f:%.0f', rank, arrived)
      next_part = math.floor(arrived * most_points / uncalled) + 1
    end
  end
  for _, bin in ipairs(bins) do
    local count = totals[bin]
    if count > 0 then
      local from, last = ranks_of(line, bin, now)
      -- A bin with many of them is shown more exactly.
      if count * most_points > uncalled then
        local pieces, all = spread_of(line, bin, from, last)
        local arrived = 0
        for _, piece in ipairs(pieces) do
          arrived = arrived + piece.arrivals
          note(piece.last, before + math.floor(count * (arrived / all)))
        end
      else
        note(last, before + count)
      end
      before = before + count
    end
  end
  return table.concat(points, ' ')
end

-- Returns the part of those who are called who come for their seats.
local function part_who_come(line)
  line.came = line.came - math.floor(line.came / 100) + 1000 * math.max(line.served - line.served_before, 0)
  line.lost = line.lost - math.floor(line.lost / 100)
  line.served_before = line.served
  local came = line.came / 1000 + taken_to_have_come
  return came / (came + line.lost / 1000)
end

-- Calls waiters for the free seats, and writes what everybody may know into `line`.
local function call_waiters(line, keys, first, free, soon, now)
  local ended, epochs, current = {}, {}, math.floor(now / epoch_micros)
  for at, key in ipairs(keys) do
    local into = first + at - 1 < current and ended or epochs
    into[#into + 1] = read_epoch(key)
  end
  for _, epoch in ipairs(ended) do
    local gone, lost = end_epoch(epoch, epochs[1], current, now)
    line.left, line.lost = line.left + gone, line.lost + 1000 * lost
  end
  -- Somebody may have written another mark, or the clock may have gone back.
  line.mark = math.min(line.mark, end_of_part(now))
  call_before(epochs, math.floor(line.mark / bin_micros))
  local called = 0
  for _, epoch in ipairs(epochs) do
    called = called + epoch.called
  end
  local seats, comes = free + soon, part_who_come(line)
  local wanted = seats > 0 and math.floor(seats * called_per_seat / comes + called_in_addition) or 0
  local missing = wanted - math.max(called, 0)
  local bins, totals = merge(epochs)
  for _, bin in ipairs(bins) do
    if missing <= 0 then
      break
    end
    local count = totals[bin]
    local part = math.min(count, missing)
    call_of(line, epochs, bin, count, part, now)
    missing, totals[bin] = missing - part, count - part
  end
  called = 0
  for _, epoch in ipairs(epochs) do
    called = called + epoch.called
  end
  local uncalled = 0
  for _, bin in ipairs(bins) do
    uncalled = uncalled + totals[bin]
  end
  line.called = math.max(called, 0)
  line.waiting = line.called + uncalled
  line.open = (line.waiting == 0 or (uncalled == 0 and line.called * comes < free)) and 1 or 0
  line.points = points_of(line, bins, totals, uncalled, now)
end

-- Forgets the arrivals before the mark once there are many, or all of them if that does not suffice.
local function forget_arrivals(line)
  local length = redis.pcall('HLEN', line.arrivals)
  if type(length) ~= 'number' or length <= most_parts then
    return
  end
  local first = math.floor(line.mark / bin_micros) * parts_of_bin
  for _, part in ipairs(redis.call('HKEYS', line.arrivals)) do
    if not (tonumber(part) and tonumber(part) >= first) then
      redis.call('HDEL', line.arrivals, part)
      length = length - 1
    end
  end
  if length > most_parts then
    redis.call('DEL', line.arrivals)
  end
end

-- Counts what a server tells, calls waiters if the `free` seats are known and it is time, and returns what is known of
-- the line: { mark, 1 if all newcomers may take seats, called, waiting, served, left, points }, or an empty list if
-- waiters have not been called lately. `now` is in ms.
--
-- keys: the line, the arrivals, then the epochs from the one before the server's on. ARGV from `at` on: waiters served,
-- the highest mark that the server was told, the server's epoch, the numbers of changes and of parts, 1 if newcomers
-- gather for an opening; then three for each change: epoch, bin or "c", number of waiters; then two for each part: its
-- number, arrivals.
local function exchange_line(keys, at, free, soon, now)
  local state = table.remove(keys, 1)
  local line = read_line_state(state)
  line.arrivals = table.remove(keys, 1)
  local micros, first = now * 1000, tonumber(ARGV[at + 2]) - 1
  local is_changed = ARGV[at] ~= '0' or ARGV[at + 3] ~= '0'
  local told = math.min(tonumber(ARGV[at + 1]), micros)
  if told > line.mark then
    line.mark, is_changed = told, true
  end
  line.served = line.served + ARGV[at]
  local changes = tonumber(ARGV[at + 3])
  for change = 1, changes do
    local place = at + 3 + 3 * change
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
  for part = 1, tonumber(ARGV[at + 4]) do
    local place = at + 4 + 3 * changes + 2 * part
    if type(redis.pcall('HINCRBY', line.arrivals, ARGV[place], ARGV[place + 1])) ~= 'number' then
      redis.pcall('DEL', line.arrivals)
    end
    redis.pcall('PEXPIRE', line.arrivals, arrivals_kept_for)
  end
  local is_due = now < line.called_at or now - line.called_at >= call_every
  if free and is_due then
    if ARGV[at + 5] == '1' then
      free, soon = 0, 0 -- nobody is called before the opening
    end
    call_waiters(line, keys, first, free, soon, micros)
    forget_arrivals(line)
    line.called_at, is_changed = now, true
  end
  if is_changed then
    local sums = string.format('%d %d %d %d %d %d %d %d %d %d', line.mark, line.open, line.called, line.waiting,
      line.served, line.left, line.called_at, line.came, line.lost, line.served_before)
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

