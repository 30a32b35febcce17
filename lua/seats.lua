-- The ledger of seats: how many newcomers have been published, and what each server holds of the room. `SeatRequest` in
-- src/round/messages.rs says what it promises.
--
-- A ledger is a hash of packed numbers, which Redis reads faster than text. The field "sums" has thirteen: the time
-- until which nothing is granted, the time of the last audit, the newcomers whom logs have published, those whom rounds
-- have published, the beginning of the newest minute with such newcomers, and the sums of the lines: unused seats,
-- unpublished newcomers, demand, servers that share, servers that read the logs, and their number; then the permits
-- (src/room/permits.rs) in millionths, and the time up to which they are filled. The epoch (a name) is behind them. The
-- field "w:" .. server is that server's line: the time, the number of the request, unused seats, unpublished newcomers,
-- demand, 1 if it shares, 1 if it reads the logs, taken seats, and the number of the request with which its lease
-- began, or 0 if the lease has ended.
--
-- Nothing in Redis says that a ledger is right: somebody may delete it, change it, or put an older copy back. Then a
-- new one begins, and is quiet until all servers have written their lines.
local sums_format, line_format = '>dddddddddddddc16', '>ddddddddd'
local most_lines = 4096
local audits = 10 -- in the time of a lease
local where_asked = 0.75 -- of the room; the rest goes to all servers alike
-- The part of the room that is not leased while any server gets shares with its rounds: such a server knows of no
-- leases. Each may have got a share since its last line. Those that reject newcomers get a quarter of the room
-- together, and each other one a quarter divided by the number of servers.
local kept_for_shares = 0.5
local most_per_minute = 10000000 -- newcomers
local permit = 1000000
local most_published = 2 ^ 48 -- the newcomers whom a server can have read
local soon_per_minute = 12 -- five seconds
local burst = 30 -- the permits of this part of a minute can be saved up

-- Unpacks a field that has `count` whole numbers, or returns nil if no server has written it.
local function unpacked(field, format, count)
  if not field or #field ~= struct.size(format) then
    return nil
  end
  local found = { struct.unpack(format, field) }
  for at = 1, count do
    local number = found[at]
    if not (number >= 0 and number < 1e15 and number % 1 == 0) then
      return nil
    end
  end
  return found
end

local function read_sums(field)
  local read = unpacked(field, sums_format, 13)
  if not read or read[3] + read[4] > most_published or not read[14]:match('^[0-9a-f]+$') then
    return nil
  end
  return {
    quiet = read[1], audited = read[2], logged = read[3], valued = read[4], minute = read[5], unused = read[6],
    unpublished = read[7], demand = read[8], shares = read[9], readers = read[10], lines = read[11],
    permits = read[12], filled = read[13], epoch = read[14],
  }
end

local function read_line(field)
  local read = unpacked(field, line_format, 9)
  return read and {
    at = read[1], number = read[2], unused = read[3], unpublished = read[4], demand = read[5], shares = read[6],
    readers = read[7], taken = read[8], began = read[9],
  }
end

local function write_sums(sums)
  return struct.pack(sums_format, sums.quiet, sums.audited, sums.logged, sums.valued, sums.minute, sums.unused,
    sums.unpublished, sums.demand, sums.shares, sums.readers, sums.lines, sums.permits, sums.filled, sums.epoch)
end

local function write_line(line)
  return struct.pack(line_format, line.at, line.number, line.unused, line.unpublished, line.demand, line.shares,
    line.readers, line.taken, line.began)
end

-- Returns the sums and the line of a server. Either is nil if it is not there or no server has written it.
local function read_ledger(ledger, name)
  local fields = redis.pcall('HMGET', ledger, 'sums', name)
  local sums = read_sums(fields[1])
  local line = sums and read_line(fields[2])
  return sums, line
end

-- Adds `line` to the sums `times` times, 1 or -1.
local function add(sums, line, times)
  sums.unused = sums.unused + times * line.unused
  sums.unpublished = sums.unpublished + times * line.unpublished
  sums.demand = sums.demand + times * line.demand
  sums.shares = sums.shares + times * line.shares
  sums.readers = sums.readers + times * line.readers
  sums.lines = sums.lines + times
end

-- Compares the sums with the lines, takes back the seats of servers whose leases have ended, and removes the lines of
-- servers that are gone. It keeps a line for longer than rounds count the server as alive: servers lease only while
-- each of them has a line. If Redis was away for a part of a lease, servers could not renew their leases, so those
-- leases that the audit before did not end begin anew. Returns false if sums and lines differ, and nil if Redis refuses
-- the commands.
local function audit(ledger, sums, now, lasts_for, alive_for)
  local length = redis.pcall('HLEN', ledger)
  if type(length) ~= 'number' then
    return nil
  elseif length > most_lines then
    return false
  end
  local found = { unused = 0, unpublished = 0, demand = 0, shares = 0, readers = 0, lines = 0 }
  local fields, changed = redis.pcall('HGETALL', ledger), {}
  if fields.err then
    return nil
  end
  local was_away = math.abs(now - sums.audited) >= lasts_for / 2
  local function begins_anew(line)
    return was_away and math.abs(sums.audited - line.at) < lasts_for
  end
  local gone_after = alive_for + lasts_for / 5
  for at = 1, #fields, 2 do
    if fields[at] ~= 'sums' then
      local line = read_line(fields[at + 1])
      if not line then
        return false
      end
      add(found, line, 1)
      local silent_for = math.abs(now - line.at)
      local has_ended = silent_for >= lasts_for and line.unused + line.demand > 0
      if begins_anew(line) or silent_for >= gone_after or has_ended then
        changed[fields[at]] = line
      end
    end
  end
  for name, sum in pairs(found) do
    if sums[name] ~= sum then
      return false
    end
  end
  for name, line in pairs(changed) do
    add(sums, line, -1)
    local answer
    local begins = begins_anew(line)
    if not begins and math.abs(now - line.at) >= gone_after then
      answer = redis.pcall('HDEL', ledger, name)
    else
      if begins then
        line.at = now
      else
        line.unused, line.demand, line.began = 0, 0, 0
      end
      answer = redis.pcall('HSET', ledger, name, write_line(line))
      add(sums, line, 1)
    end
    if type(answer) == 'table' then
      return nil
    end
  end
  sums.audited = now
  return true
end

-- Returns how many permits can be saved up, in millionths.
local function most_permits(per_minute)
  return math.max(math.floor(math.min(per_minute, most_per_minute) * permit / burst), permit)
end

-- Adds the permits that the time since the last call has brought, as `Permits::fill` does.
local function fill(sums, per_minute, now)
  per_minute = math.min(per_minute, most_per_minute)
  local brought = math.floor(per_minute * math.max(now - sums.filled, 0) * 1000 / 60)
  local most = math.max(most_permits(per_minute) - permit * math.min(sums.unused, most_per_minute), 0)
  sums.permits = math.min(sums.permits + brought, most)
  sums.filled = now
end

-- Replaces a server's line by what `ask` says, books `logged` newcomers whom logs have published, and grants seats.
-- Returns { epoch, 1 if it is quiet, logged, valued, granted, pool, demand, lines, readers, the number of the request
-- with which the server's lease began, 1 if newcomers of a later minute than that of `ask` are published }, or nil if
-- Redis takes no writes or refuses commands. Returns the seats of the whole fleet, too: those that are free, nil if
-- they are unknown, and those that will be free in a moment.
--
-- `ask` has the fields of `SeatRequest`; `ask.room` is nil for a server that takes no seats.
local function lease(ledger, server, ask, logged, now, alive_for)
  local lasts_for = ask.lasts_for > 0 and math.min(ask.lasts_for, alive_for) or alive_for
  local name = 'w:' .. server
  local sums, line = read_ledger(ledger, name)
  local knows_more = sums and ask.epoch == sums.epoch
    and (ask.read > sums.logged + sums.valued or ask.answered > (line and line.number or 0))
  local age = sums and math.abs(now - sums.audited)
  -- Either nobody has asked for so long, or the clock has stepped. Who holds seats is unknown.
  local is_outdated = sums and age >= alive_for
  if sums and not knows_more and not is_outdated and age >= lasts_for / audits then
    local answer = redis.pcall('HSET', ledger, 'sums', write_sums(sums))
    if type(answer) == 'table' then
      return nil
    end
    local agrees = audit(ledger, sums, now, lasts_for, alive_for)
    if agrees == nil then
      return nil
    elseif agrees then
      line = read_line(redis.pcall('HGET', ledger, name))
    else
      sums = nil
    end
  end
  if not sums or knows_more or is_outdated then
    local answer = redis.pcall('DEL', ledger)
    if type(answer) == 'table' then
      return nil
    end
    line = nil
    sums = {
      epoch = ask.new_epoch, quiet = now + lasts_for, audited = now, logged = 0, valued = 0, minute = 0,
      unused = 0, unpublished = 0, demand = 0, shares = 0, readers = 0, lines = 0, permits = 0, filled = now,
    }
  end
  sums.quiet = math.min(sums.quiet, now + lasts_for)
  local is_new = ask.number > (line and line.number or 0)
  local began = line and line.began > 0 and line.began or ask.number
  if is_new then
    if line then
      add(sums, line, -1)
      if ask.per_minute then
        local left = math.max(line.unused + line.taken - ask.taken, 0)
        sums.permits = sums.permits + permit * math.min(math.max(left - ask.unused, 0), most_per_minute)
      end
    end
    line = {
      at = now, number = ask.number, unused = ask.unused, unpublished = ask.unpublished, demand = ask.demand,
      shares = ask.shares, readers = ask.readers, taken = ask.taken, began = began,
    }
    add(sums, line, 1)
    sums.valued = sums.valued + ask.valued
  end
  sums.logged = sums.logged + logged
  -- A minute after that is one of before the clock stepped back, or no server has written it.
  local latest = now + lasts_for
  if sums.minute > latest then
    sums.minute = 0
  end
  if logged + ask.valued > 0 and ask.minute <= latest then
    sums.minute = math.max(sums.minute, ask.minute)
  end
  if ask.per_minute then
    fill(sums, ask.per_minute, now)
  end
  local granted, pool, free_seats, soon = 0, 0, nil, 0
  if is_new and ask.room and ask.epoch == sums.epoch and now >= sums.quiet then
    local room = ask.read + ask.room - sums.logged - sums.valued
    local free = room - sums.unused - sums.unpublished
    if sums.shares > 0 then
      free = free - math.ceil(math.max(room, 0) * kept_for_shares)
    end
    pool = math.max(free + sums.unused, 0)
    free_seats = pool
    if ask.per_minute then
      free = math.min(free, math.floor(sums.permits / permit))
      pool = math.min(math.max(free + sums.unused, 0), math.floor(most_permits(ask.per_minute) / permit))
      free_seats, soon = pool, math.min(math.floor(ask.per_minute / soon_per_minute), math.max(free_seats - pool, 0))
    end
    local part = (1 - where_asked) / sums.lines
    part = part + where_asked * (sums.demand > 0 and line.demand / sums.demand or 1 / sums.lines)
    granted = math.max(math.min(math.floor(pool * part - line.unused + ask.rounding), free), 0)
    line.unused = line.unused + granted
    sums.unused = sums.unused + granted
    sums.permits = math.max(sums.permits - permit * granted, 0)
  end
  local fields = { 'sums', write_sums(sums), line and name, line and write_line(line) }
  if type(redis.pcall('HSET', ledger, unpack(fields))) == 'table' then
    return nil
  end
  if sums.audited == now then
    redis.call('PEXPIRE', ledger, 10 * alive_for)
  end
  local quiet = now < sums.quiet and 1 or 0
  local reply = {
    sums.epoch, quiet, sums.logged, sums.valued, granted, pool, sums.demand, sums.lines, sums.readers,
    began, ask.minute < sums.minute and 1 or 0,
  }
  return reply, free_seats, soon
end

