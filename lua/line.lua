-- The line of newcomers who wait: how many there are, by the time of their arrival, and the mark, the rank up to which
-- waiters are called. `LineRequest` and `LineView` in src/line say what the numbers mean, and src/line/waiting.rs
-- and src/line/classes.rs have the same arithmetic.
--
-- The line is a hash. The field "sums" has five words: 1 if all newcomers may take seats, the time of the last call,
-- and what those who were called lately have done: thousandths of those who took a seat and of those who did not come
-- back, and those who had been served at the last call. For each class, numbered from 0, the field "class:N" has six
-- words: the mark, the waiters who are called, all waiters, those who were served, those who left, and the turns of the
-- class; "points:N" has the points of the view. Each epoch has one more hash, with the number of waiters in each bin of
-- arrivals, and in "c" the number of those who are called. These hashes expire, so a waiter who does not come back
-- vanishes. One more hash has the arrivals by part, a 64th of a bin. These counts only grow. They say how a bin's
-- waiters are spread. The bins and parts of the class N, unless it is 0, begin with "N:", and so does its "c".
local bin_micros, epoch_micros, part_micros = 8388608, 16777216, 131072
local parts_of_bin = 64
local most_parts = 65536 -- two hours
local called_per_seat, called_in_addition, taken_to_have_come = 1.03, 2, 20
local forgotten = 32 -- one part of this many, of counts whose sum is 0, when an epoch ends
local most_points = 16
local turn, divided_by, most_turns = 1048576, 256, 4294967296
local most_bins = 4096 -- nine hours
local call_every, shown_for = 250, 1000 -- ms
local line_kept_for, arrivals_kept_for = 3600000, 7200000 -- ms

-- Returns the whole numbers of a text; nil if there are not `count` of them.
local function numbers_of(text, count)
  local numbers = {}
  for word in (text and #text <= 256 and text or ''):gmatch('%S+') do
    local number = word:match('^%d+$') and tonumber(word)
    if not number or number >= 2 ^ 53 then
      return nil
    end
    numbers[#numbers + 1] = number
  end
  return #numbers == count and numbers or nil
end

-- Reads the line, with as many classes as are asked for.
local function read_line_state(state, count)
  local names = { 'sums' }
  for class = 0, count - 1 do
    names[#names + 1], names[#names + 2] = 'class:' .. class, 'points:' .. class
  end
  local fields = redis.pcall('HMGET', state, unpack(names))
  local sums = numbers_of(fields[1], 5)
  local open, called_at, came, lost, served_before = unpack(sums or { 1, 0, 0, 0, 0 })
  local line = {
    open = open, called_at = called_at, came = came, lost = lost, served_before = served_before, classes = {},
  }
  for class = 0, count - 1 do
    local points = fields[2 * class + 3]
    local read = sums and points and #points <= 1024 and numbers_of(fields[2 * class + 2], 6)
    local mark, called, waiting, served, left, turns = unpack(read or { 0, 0, 0, 0, 0, 0 })
    line.classes[class + 1] = {
      prefix = class > 0 and class .. ':' or '', mark = mark, called = called, waiting = waiting, served = served,
      left = left, turns = math.min(turns, most_turns), points = read and points or '',
    }
  end
  return line
end

-- Returns a number as Redis writes it; nil for another text.
local function whole(text)
  local number = #text <= 12 and text:match('^-?%d+$') and tonumber(text)
  return number and string.format('%d', number) == text and number or nil
end

-- Returns the class that a field is of, and the rest of its name.
local function class_and_name(field)
  local class, name = field:match('^([1-8]):(.+)$')
  return tonumber(class) or 0, name or field
end

-- Returns the counts of an epoch for each class, the waiters who are called apart. Deletes what no server has written.
local function read_epoch(key, classes)
  local counts = {}
  local function clear()
    for at, class in ipairs(classes) do
      counts[at] = { key = key, prefix = class.prefix, called = 0, bins = {} }
    end
  end
  clear()
  local length = redis.pcall('HLEN', key)
  local is_read = type(length) == 'number' and length <= most_bins * #classes
  local fields = is_read and redis.pcall('HGETALL', key) or { err = '' }
  for at = 1, #fields, 2 do
    local class, name = class_and_name(fields[at])
    local bin, count = whole(name), whole(fields[at + 1])
    -- Another server may have more classes.
    local of_class = counts[class + 1] or { bins = {} }
    if name == 'c' and count then
      of_class.called = count
    elseif bin and bin >= 0 and count then
      of_class.bins[bin] = count
    else
      fields.err = ''
    end
  end
  if fields.err then
    redis.pcall('DEL', key)
    clear()
  end
  return counts
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
local function ranks_of(class, bin, now)
  local first = bin * bin_micros
  local from, last = math.max(class.mark, first - 1), first + bin_micros - 1
  -- Nobody has arrived later than now.
  if from < end_of_part(now) then
    last = math.min(last, end_of_part(now))
  end
  return from, math.max(last, from)
end

-- Returns how the arrivals of a bin are spread over some of its ranks, in pieces, and their number.
local function spread_of(line, class, bin, from, last)
  local names, first_part = {}, bin * parts_of_bin
  for part = first_part, first_part + parts_of_bin - 1 do
    names[#names + 1] = class.prefix .. string.format('%d', part)
  end
  local counts = redis.pcall('HMGET', line.arrivals, unpack(names))
  local pieces, all = {}, 0
  for at = 1, parts_of_bin do
    local count = counts[at]
    count = count and #count <= 12 and count:match('^%d+$') and tonumber(count) or 0
    local first = (first_part + at - 1) * part_micros
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
local function rank_of(line, class, bin, from, last, some, count)
  local pieces, all = spread_of(line, class, bin, from, last)
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
      redis.call('HINCRBY', to.key, to.prefix .. field, count)
      redis.call('PEXPIRE', to.key, math.ceil((current + 2) * epoch_micros / 1000 - now / 1000))
      if field == 'c' then
        to.called = to.called + count
      else
        to.bins[field] = (to.bins[field] or 0) + count
      end
    end
  end
  return math.max(left, 0), lost
end

-- Calls all waiters of the bins before this one.
local function call_before(epochs, first)
  for _, epoch in ipairs(epochs) do
    for bin, count in pairs(epoch.bins) do
      if bin < first then
        -- An epoch that has been counted stays, as in src/line/waiting.rs.
        redis.call('HINCRBY', epoch.key, epoch.prefix .. 'c', count)
        redis.call('HDEL', epoch.key, epoch.prefix .. bin)
        epoch.called = epoch.called + count
        epoch.bins[bin] = nil
      end
    end
  end
end

-- Calls `called` of the `count` waiters of a bin, those who came first.
local function call_of(line, class, bin, count, called, now)
  local from, last = ranks_of(class, bin, now)
  if called == count then
    class.mark = last
    return call_before(class.epochs, bin + 1)
  end
  class.mark = rank_of(line, class, bin, from, last, called, count)
  local of, to_call = 0, called
  for _, epoch in ipairs(class.epochs) do
    of = of + math.max(epoch.bins[bin] or 0, 0)
  end
  for _, epoch in ipairs(class.epochs) do
    local here = epoch.bins[bin] or 0
    if here > 0 then
      local part = math.floor((here * to_call + math.floor(of / 2)) / of)
      of, to_call = of - here, to_call - part
      epoch.bins[bin] = here - part
      epoch.called = epoch.called + part
      if part > 0 then
        redis.call('HINCRBY', epoch.key, epoch.prefix .. 'c', part)
        redis.call('HINCRBY', epoch.key, epoch.prefix .. bin, -part)
      end
    end
  end
end

-- Returns at most sixteen ranks, and how many of those who are not called have arrived until then.
local function points_of(line, class, now)
  local points, before, next_part = {}, 0, 1
  local totals, uncalled = class.totals, class.uncalled
  local function note(rank, arrived)
    if arrived * most_points >= next_part * uncalled then
      points[#points + 1] = string.format('%.0f:%.0f', rank, arrived)
      next_part = math.floor(arrived * most_points / uncalled) + 1
    end
  end
  for _, bin in ipairs(class.bins) do
    local count = totals[bin]
    if count > 0 then
      local from, last = ranks_of(class, bin, now)
      -- A bin with many of them is shown more exactly.
      if count * most_points > uncalled then
        local pieces, all = spread_of(line, class, bin, from, last)
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
  local served = 0
  for _, class in ipairs(line.classes) do
    served = served + class.served
  end
  line.came = line.came - math.floor(line.came / 100) + 1000 * math.max(served - line.served_before, 0)
  line.lost = line.lost - math.floor(line.lost / 100)
  line.served_before = served
  local came = line.came / 1000 + taken_to_have_come
  return came / (came + line.lost / 1000)
end

-- Divides calls among the classes that have waiters left, by their weights. src/line/classes.rs says how.
local function divide(classes, missing)
  local together = math.max(math.floor(missing / divided_by), 1)
  for _, class in ipairs(classes) do
    class.calls, class.rest = 0, class.uncalled
  end
  local function next_class()
    local next
    for _, class in ipairs(classes) do
      if class.rest > 0 and (not next or class.turns < next.turns) then
        next = class
      end
    end
    return next
  end
  local class = next_class()
  while missing > 0 and class do
    local some = math.min(together, missing, class.rest)
    class.calls, class.rest, missing = class.calls + some, class.rest - some, missing - some
    class.turns = class.turns + some * math.floor(turn / class.weight)
    class = next_class()
  end
  local shortest = class and class.turns or math.huge
  for _, each in ipairs(classes) do
    each.turns = math.min(math.max(each.turns - shortest, 0), most_turns)
  end
end

-- Counts the waiters of a class: those who are called, the others, and all.
local function count_class(class)
  local called, uncalled = 0, 0
  for _, epoch in ipairs(class.epochs) do
    called = called + epoch.called
  end
  for _, bin in ipairs(class.bins) do
    uncalled = uncalled + class.totals[bin]
  end
  class.called, class.uncalled = math.max(called, 0), uncalled
  class.waiting = class.called + uncalled
end

-- Calls waiters for the free seats, and writes what everybody may know into `line`.
local function call_waiters(line, keys, first, free, soon, now)
  local ended, live, current = {}, {}, math.floor(now / epoch_micros)
  for at, key in ipairs(keys) do
    local into = first + at - 1 < current and ended or live
    into[#into + 1] = { key = key, classes = read_epoch(key, line.classes) }
  end
  for _, epoch in ipairs(ended) do
    for at, class in ipairs(line.classes) do
      local gone, lost = end_epoch(epoch.classes[at], live[1] and live[1].classes[at], current, now)
      class.left, line.lost = class.left + gone, line.lost + 1000 * lost
    end
    redis.call('DEL', epoch.key)
  end
  local called = 0
  for at, class in ipairs(line.classes) do
    class.epochs = {}
    for _, epoch in ipairs(live) do
      class.epochs[#class.epochs + 1] = epoch.classes[at]
    end
    -- Somebody may have written another mark, or the clock may have gone back.
    class.mark = math.min(class.mark, end_of_part(now))
    call_before(class.epochs, math.floor(class.mark / bin_micros))
    class.bins, class.totals = merge(class.epochs)
    count_class(class)
    called = called + class.called
  end
  local seats, comes = free + soon, part_who_come(line)
  local wanted = seats > 0 and math.floor(seats * called_per_seat / comes + called_in_addition) or 0
  divide(line.classes, math.max(wanted - called, 0))
  local uncalled, waiting = 0, 0
  called = 0
  for _, class in ipairs(line.classes) do
    for _, bin in ipairs(class.bins) do
      local count = class.totals[bin]
      local part = math.min(count, class.calls)
      if part == 0 then
        break
      end
      call_of(line, class, bin, count, part, now)
      class.calls, class.totals[bin] = class.calls - part, count - part
    end
    count_class(class)
    called, uncalled, waiting = called + class.called, uncalled + class.uncalled, waiting + class.waiting
    class.points = points_of(line, class, now)
  end
  line.open = (waiting == 0 or (uncalled == 0 and called * comes < free)) and 1 or 0
end

-- Forgets the arrivals before the marks once there are many, or all of them if that does not suffice.
local function forget_arrivals(line)
  local length = redis.pcall('HLEN', line.arrivals)
  local most = most_parts * #line.classes
  if type(length) ~= 'number' or length <= most then
    return
  end
  for _, field in ipairs(redis.call('HKEYS', line.arrivals)) do
    local at, name = class_and_name(field)
    local class, part = line.classes[at + 1], tonumber(name)
    if not (class and part and part >= math.floor(class.mark / bin_micros) * parts_of_bin) then
      redis.call('HDEL', line.arrivals, field)
      length = length - 1
    end
  end
  if length > most then
    redis.call('DEL', line.arrivals)
  end
end

-- Writes the line.
local function write_line_state(state, line)
  local fields = {
    'sums', string.format('%d %d %d %d %d', line.open, line.called_at, line.came, line.lost, line.served_before),
  }
  for at, class in ipairs(line.classes) do
    fields[#fields + 1] = 'class:' .. at - 1
    fields[#fields + 1] = string.format('%d %d %d %d %d %d', class.mark, class.called, class.waiting, class.served,
      class.left, class.turns)
    fields[#fields + 1] = 'points:' .. at - 1
    fields[#fields + 1] = class.points
  end
  if type(redis.pcall('HSET', state, unpack(fields))) ~= 'number' then
    redis.pcall('DEL', state)
  end
  redis.pcall('PEXPIRE', state, line_kept_for)
end

-- Counts what a server tells, calls waiters if the `free` seats are known and it is time, and returns what is known of
-- the line: { 1 if all newcomers may take seats, then for each class { mark, called, waiting, served, left, points } },
-- or an empty list if waiters have not been called lately. `now` is in ms.
--
-- keys: the line, the arrivals, then the epochs from the one before the server's on. ARGV from `at` on: the server's
-- epoch, 1 if newcomers gather for an opening, the numbers of classes, of changes and of parts; then three for each
-- class: its weight, waiters served, the highest mark that the server was told; then three for each change: epoch, bin
-- or "c", number of waiters; then two for each part: its number, arrivals.
local function exchange_line(keys, at, free, soon, now)
  local state = table.remove(keys, 1)
  local changes, parts = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local line = read_line_state(state, tonumber(ARGV[at + 2]))
  line.arrivals = table.remove(keys, 1)
  local micros, first = now * 1000, tonumber(ARGV[at]) - 1
  local is_changed = changes > 0
  local place = at + 5
  for _, class in ipairs(line.classes) do
    class.weight = math.max(tonumber(ARGV[place]), 1)
    local served, told = tonumber(ARGV[place + 1]), math.min(tonumber(ARGV[place + 2]), micros)
    if told > class.mark then
      class.mark, is_changed = told, true
    end
    class.served, is_changed = class.served + served, is_changed or served > 0
    place = place + 3
  end
  for _ = 1, changes do
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
    place = place + 3
  end
  for _ = 1, parts do
    if type(redis.pcall('HINCRBY', line.arrivals, ARGV[place], ARGV[place + 1])) ~= 'number' then
      redis.pcall('DEL', line.arrivals)
    end
    redis.pcall('PEXPIRE', line.arrivals, arrivals_kept_for)
    place = place + 2
  end
  local is_due = now < line.called_at or now - line.called_at >= call_every
  if free and is_due then
    if ARGV[at + 1] == '1' then
      free, soon = 0, 0 -- nobody is called before the opening
    end
    call_waiters(line, keys, first, free, soon, micros)
    forget_arrivals(line)
    line.called_at, is_changed = now, true
  end
  if is_changed then
    write_line_state(state, line)
  end
  if now < line.called_at or now - line.called_at >= shown_for then
    return {}
  end
  local view = { line.open }
  for _, class in ipairs(line.classes) do
    view[#view + 1] = { class.mark, class.called, class.waiting, class.served, class.left, class.points }
  end
  return view
end
