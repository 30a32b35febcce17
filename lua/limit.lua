-- Asks one limiter, or a list of them as one step; or takes back what one has granted.
--
-- KEYS[1] the first limiter's key, KEYS[2…] those of the others
-- ARGV[1] 'ask', 'cancel' or 'refund' · ARGV[2] '' for the server's clock, or 'seconds nanoseconds' since the epoch: a time
-- of a test's own, at which keys are kept an hour longer
-- ARGV[1+2i] the policy of KEYS[i], in which all times are whole nanoseconds:
--   t INTERVAL SPAN LIMIT b|a f|e s|z|i h|r u|l   Gcra: paid before or after; full or empty at the start; some rate, zero
--                                             or infinite; hold or recount when the clock goes back; what a key has used
--                                             stays, or what it has left, when the limit changes
--   k TICK PER-TICK CAPACITY INITIAL 0|1 0|1  PeriodicRefill: 1 if more than the capacity may be asked for; 1 if a key keeps what it
--                                             has left when the limit changes
--   s WINDOW LIMIT                            SlidingCounter
--   l COUNTS-FOR GAP LIMIT GRAIN 0|1          SlidingLog: 1 if refusals are recorded
--   w 0|1 STABLE THRESHOLD MAX SLOPE COOL-DOWN   WarmUp: 1 if the rate is infinite; floating point, in microseconds
--   or two of them, 'own/home': asked under the first, while the key is that of the second
-- ARGV[2+2i] what is asked of it, or taken back:
--   ask: PERMITS|all LONGEST-WAIT t|p (take, peek) · cancel: PERMITS SECONDS NANOSECONDS MARK · refund: PERMITS
--
-- Returns for 'ask' one text per limiter, 'VERDICT TIME BECAUSE LIMIT REMAINING AVAILABLE NEXT-IN FULL-IN COST ACT-AT MARK':
-- g (granted, after TIME) or r (refused, until TIME); 'never' is a time that does not come. Numbers travel as text, because
-- those that a script returns are cut to integers. For the others nothing.
--
-- A key holds 'policy|state'; that of a log is a list, first 'l|as-of held', then the instants, as one number each or as
-- 'instant*count'. The policy is that which the state was told in: under another one it is converted first. What is none of
-- these, or belongs to another kind of policy, stands for a key that was never asked for.
--
-- Atomic, because whatever came between the question and the charge would be granted from the same permits. Nothing is
-- written before everything is read and computed, and the first write is one that a full server refuses, so that a list is
-- never charged by half.
--
-- Numbers in Lua are doubles, exact up to 2^53. An instant is therefore two numbers, seconds and nanoseconds, and all
-- arithmetic is on distances from now: exact up to 104 days.
local floor, ceil, fmod, max, min = math.floor, math.ceil, math.fmod, math.max, math.min
local format, match = string.format, string.match
local NEVER = math.huge
local EXACT = 9007199254740992
local SECOND = 1000000000
-- The last instant that the other side can count: 2^64 ns.
local LAST_S, LAST_N, LAST = 18446744073, 709551615, 18446744073709551615

local function since(s, n, earlier_s, earlier_n)
  return (s - earlier_s) * SECOND + (n - earlier_n)
end

local function moved(s, n, by)
  local nanos = n + by
  local rest = fmod(nanos, SECOND)
  if rest < 0 then rest = rest + SECOND end
  -- The rest of a negative number may be a negative zero, which is printed as such.
  rest = rest + 0
  s = s + floor((nanos - rest) / SECOND + 0.5)
  if s < 0 then return 0, 0 end
  if s > LAST_S or (s == LAST_S and rest > LAST_N) then return LAST_S, LAST_N end
  return s, rest
end

-- The instant as one number: for comparisons with small ones.
local function whole(s, n)
  return s * SECOND + n
end

-- a·b/c in whole numbers and the rest, for numbers that are exact and a result that is.
local function muldiv(a, b, c)
  local product = a * b
  if product < EXACT then
    local rest = fmod(product, c)
    return (product - rest) / c, rest
  end
  -- Bit by bit, and never a sum above c.
  local part = fmod(b, c)
  local result, quotient, rest, bit = a * ((b - part) / c), 0, 0, 1
  while bit * 2 <= a do bit = bit * 2 end
  while bit >= 1 do
    quotient = quotient * 2
    if rest >= c - rest then rest, quotient = rest - (c - rest), quotient + 1 else rest = rest + rest end
    if a >= bit then
      a = a - bit
      if rest >= c - part then rest, quotient = rest - (c - part), quotient + 1 else rest = rest + part end
    end
    bit = bit / 2
  end
  return result + quotient, rest
end

local function muldiv_up(a, b, c)
  local result, rest = muldiv(a, b, c)
  if rest > 0 then return result + 1 end
  return result
end

-- a/b, both whole and not below zero, rounded down and up.
local function div(a, b)
  return (a - fmod(a, b)) / b
end

local function div_up(a, b)
  local rest = fmod(a, b)
  if rest > 0 then return (a - rest) / b + 1 end
  return a / b
end

-- How far an instant lies in its span, if spans of `length` follow each other from the epoch on.
local function offset(s, n, length)
  if fmod(length, SECOND) == 0 then return fmod(s, length / SECOND) * SECOND + n end
  if fmod(SECOND, length) == 0 then return fmod(n, length) end
  local _, of_seconds = muldiv(s, SECOND, length)
  local of_nanos = fmod(n, length)
  if of_seconds >= length - of_nanos then return of_seconds - (length - of_nanos) end
  return of_seconds + of_nanos
end

-- How many of these spans begin after the earlier instant and up to the later one.
local function begun(s, n, earlier_s, earlier_n, length)
  local distance = since(s, n, earlier_s, earlier_n)
  return floor((distance + offset(earlier_s, earlier_n, length) - offset(s, n, length)) / length + 0.5)
end

local function words(text)
  local all = {}
  for word in string.gmatch(text, '%S+') do all[#all + 1] = word end
  return all
end

-- A stored number, if it is one that can have been stored.
local function number(word)
  local found = word and tonumber(word)
  -- Neither an infinite one nor one that is none.
  return found and found >= -LAST and found <= LAST and found or nil
end

local function grant(wait, cost, act_s, act_n, mark)
  return { granted = true, time = wait, cost = cost, act_s = act_s, act_n = act_n, mark = mark }
end

local function refuse(retry, because)
  return { granted = false, time = retry, because = because }
end

local function too_long(wait, max_wait)
  return refuse(wait - max_wait, 'used')
end

-- An instant, in the form in which it is stored in a log and returned.
local function stamp(s, n)
  return format('%d%09d', s, n)
end

-- The kinds of policy. Each is made when it is needed.
-- parse: the words of the policy · fresh: a key that was never asked for · read, write: the stored text
-- ask, cancel, refund, carry, is_fresh: as in the policies of the library · due: ns until fresh, nil if never
-- In one function, because each that is not called costs its making all the same.
local function make(letter)
  if letter == 't' then
    local P = {}

    function P.parse(text)
      local interval, span, limit, paid, start, rate, back, kept =
        match(text, '^t (%d+) (%d+) (%d+) (%a) (%a) (%a) (%a) (%a)$')
      interval, span, limit = number(interval), number(span), number(limit)
      local free = rate == 'i'
      if not limit or not span or not interval or (interval == 0 and not free) then return nil end
      return {
        interval = interval, span = span, limit = limit, after = paid == 'a', empty = start == 'e', zero = rate == 'z',
        free = free, recount = back == 'r', keeps_left = kept == 'l',
      }
    end

    function P.fresh(p)
      local s, n = 0, 0
      if p.empty then s, n = moved(0, 0, p.span) end
      return { s = s, n = n, as = 0, an = 0 }
    end

    function P.read(text)
      local s, n, as, an = match(text, '^(%d+) (%d+) (%d+) (%d+)$')
      s, n, as, an = number(s), number(n), number(as), number(an)
      return s and n and as and an and { s = s, n = n, as = as, an = an }
    end

    function P.write(st)
      return format('%d %d %d %d', st.s, st.n, st.as, st.an)
    end

    -- The instant from which distances count, and the distance of the theoretical arrival time.
    local function at(p, st, s, n)
      if p.zero then s, n = 0, 0 end
      local back = since(st.as, st.an, s, n)
      if back > 0 and not p.recount then return st.as, st.an, since(st.s, st.n, st.as, st.an) end
      local tat = since(st.s, st.n, s, n)
      if back > 0 then tat = max(tat - back, -whole(s, n)) end
      return s, n, tat
    end

    -- The distance from which a request counts.
    local function base(tat)
      return max(tat, 0)
    end

    local function remaining(p, from)
      if p.free then return LAST end
      if not p.after then return div(max(p.span - from, 0), p.interval) end
      if from > p.span then return 0 end
      return div(p.span - from, p.interval) + 1
    end

    local function wait(p, from, price)
      return max((from - p.span) + (p.after and 0 or price), 0)
    end

    function P.ask(p, st, now_s, now_n, q)
      local s, n, tat = at(p, st, now_s, now_n)
      local from, cost = base(tat), q.cost
      if q.all then cost = p.free and 0 or remaining(p, from) end
      local price = min(cost * p.interval, LAST)
      local answer
      if not p.after and cost > p.limit then
        answer = refuse(NEVER, 'capacity')
      else
        local time = wait(p, from, price)
        if time > 0 and p.zero then time = NEVER end
        if time <= q.max_wait then
          local act_s, act_n = moved(s, n, time)
          local to = min(from + price, LAST - whole(s, n))
          answer = grant(time, cost, act_s, act_n, stamp(moved(s, n, to)))
          if q.take then
            st.s, st.n = moved(s, n, to)
            st.as, st.an, st.changed = s, n, true
          end
          from = base(to)
        else
          answer = too_long(time, q.max_wait)
        end
      end
      local never = p.zero or (not p.after and p.limit == 0)
      local function unless_never(time)
        if never and time > 0 then return NEVER end
        return time
      end
      answer.limit, answer.remaining = p.limit, remaining(p, from)
      answer.available = p.free and NEVER or (p.span - from) / p.interval
      answer.next_in = unless_never(wait(p, from, p.interval))
      answer.full_in = unless_never(from)
      return answer
    end

    function P.is_fresh(p, st, now_s, now_n)
      local new = P.fresh(p)
      local _, _, tat = at(p, st, now_s, now_n)
      local _, _, of_new = at(p, new, now_s, now_n)
      return since(st.as, st.an, now_s, now_n) <= 0 and base(tat) == base(of_new)
    end

    function P.due(p, st, now_s, now_n)
      local new = P.fresh(p)
      if p.zero then return st.s == new.s and st.n == new.n and 0 or nil end
      return since(st.s, st.n, now_s, now_n)
    end

    function P.cancel(p, st, now_s, now_n, r)
      if since(r.act_s, r.act_n, now_s, now_n) < 0 and not p.zero then return end
      local cost = r.cost * p.interval
      -- What came later keeps its turn: as much as it leans on this one's permits stays taken.
      local leaned_on = cost
      if not p.after then
        leaned_on = max(since(st.s, st.n, r.act_s, r.act_n) - p.span, 0)
      elseif stamp(st.s, st.n) == r.mark then
        leaned_on = 0
      end
      local s, n, tat = at(p, st, now_s, now_n)
      st.s, st.n = moved(s, n, tat - max(cost - leaned_on, 0))
      st.as, st.an, st.changed = s, n, true
    end

    function P.refund(p, st, now_s, now_n, permits)
      local s, n, tat = at(p, st, now_s, now_n)
      st.s, st.n = moved(s, n, base(tat) - permits * p.interval)
      st.as, st.an, st.changed = s, n, true
    end

    function P.carry(p, old, st, now_s, now_n)
      local s, n, tat = at(old, st, now_s, now_n)
      local as, an = now_s, now_n
      if p.zero then
        as, an = 0, 0
      elseif not old.zero and since(s, n, as, an) > 0 then
        as, an = s, n
      end
      if p.after then
        if old.free and tat <= old.span then
          -- As after an endless pause, but that a debt is still to be waited for.
          st.s, st.n = as, an
        else
          -- A debt stays what it was, and what was saved is time.
          st.s, st.n = moved(s, n, tat + p.span - old.span)
        end
      else
        local _, _, of_new = at(old, P.fresh(old), s, n)
        local used = old.free and 0 or max(base(tat) - base(of_new), 0)
        if p.keeps_left and used > 0 then
          local spent = muldiv_up(base(tat), p.interval, old.interval)
          local had = div(old.span, old.interval) * p.interval
          st.s, st.n = moved(as, an, max(spent + p.span - had, 0))
        else
          local _, _, from = at(p, P.fresh(p), as, an)
          st.s, st.n = moved(as, an, base(from) + (used > 0 and muldiv_up(used, p.interval, old.interval) or 0))
        end
      end
      st.as, st.an = as, an
    end

    return P

  elseif letter == 'k' then
    local P = {}

    function P.parse(text)
      local w = words(text)
      local p = { tick = number(w[2]), per = number(w[3]), capacity = number(w[4]), initial = number(w[5]) }
      p.above, p.keeps_left = w[6] == '1', w[7] == '1'
      return p.tick and p.tick > 0 and p.per and p.capacity and p.initial and p
    end

    function P.fresh(p)
      return { as = 0, an = 0, permits = min(p.initial, p.capacity), over = 0 }
    end

    function P.read(text)
      local as, an, permits, over = match(text, '^(%d+) (%d+) (%-?%d+) (%d+)$')
      as, an, permits, over = number(as), number(an), number(permits), number(over)
      return as and an and permits and over and { as = as, an = an, permits = permits, over = over }
    end

    function P.write(st)
      return format('%d %d %.0f %d', st.as, st.an, st.permits, st.over)
    end

    -- The instant that counts, the permits then, and what was used in this tick beyond a limit that was lowered since.
    local function at(p, st, s, n)
      if since(st.as, st.an, s, n) > 0 then s, n = st.as, st.an end
      local ticks = begun(s, n, st.as, st.an, p.tick)
      if ticks == 0 then return s, n, st.permits, st.over end
      return s, n, min(st.permits + ticks * p.per, p.capacity), 0
    end

    local function wait(p, s, n, permits, wanted)
      local lacking = wanted - permits
      if lacking <= 0 then return 0 end
      if p.per == 0 then return NEVER end
      local time = div_up(lacking, p.per) * p.tick - offset(s, n, p.tick)
      if time >= LAST - whole(s, n) then return NEVER end
      return time
    end

    local function remaining(p, permits)
      return min(max(permits, 0), p.capacity)
    end

    function P.ask(p, st, now_s, now_n, q)
      local s, n, permits, over = at(p, st, now_s, now_n)
      local cost = q.all and remaining(p, permits) or q.cost
      local answer
      if cost > p.capacity and not p.above then
        answer = refuse(NEVER, 'capacity')
      else
        local time = 0
        if cost > 0 or permits < 0 then time = wait(p, s, n, permits, cost) end
        if time <= q.max_wait then
          local act_s, act_n = moved(s, n, time)
          answer = grant(time, cost, act_s, act_n)
          permits = permits - cost
          if q.take then st.as, st.an, st.permits, st.over, st.changed = s, n, permits, over, true end
        else
          answer = too_long(time, q.max_wait)
          -- The wait gets shorter until the tick after the one that fills the bucket, whose permits are lost.
          local full = wait(p, s, n, permits, p.capacity)
          local best_until = full == 0 and p.tick - offset(s, n, p.tick) or full + p.tick
          if cost > p.capacity and answer.time >= best_until then answer = refuse(NEVER, 'capacity') end
        end
      end
      answer.limit, answer.remaining, answer.available = p.capacity, remaining(p, permits), permits
      answer.next_in = wait(p, s, n, permits, 1)
      answer.full_in = wait(p, s, n, permits, p.capacity)
      return answer
    end

    function P.is_fresh(p, st, now_s, now_n)
      local _, _, permits, over = at(p, st, now_s, now_n)
      local _, _, of_new = at(p, P.fresh(p), now_s, now_n)
      return since(st.as, st.an, now_s, now_n) <= 0 and permits == of_new and over == 0
    end

    function P.due(p, st, now_s, now_n)
      local s, n, permits = at(p, st, now_s, now_n)
      local full = p.per > 0 and p.capacity or min(p.initial, p.capacity)
      local time
      if permits == full and st.over == 0 then
        time = 0
      elseif permits > p.capacity and full == p.capacity then
        time = p.tick - offset(s, n, p.tick)
      elseif p.per > 0 then
        time = wait(p, s, n, permits, p.capacity)
      end
      if not time or time == NEVER then return nil end
      return time + since(s, n, now_s, now_n)
    end

    function P.cancel(p, st, now_s, now_n, r)
      if since(r.act_s, r.act_n, now_s, now_n) < 0 then return end
      local s, n, permits = at(p, st, now_s, now_n)
      -- Where later ones wait for later ticks, this one's permits could only be given to somebody in their place.
      if wait(p, s, n, permits, 0) <= since(r.act_s, r.act_n, s, n) then P.refund(p, st, now_s, now_n, r.cost) end
    end

    function P.refund(p, st, now_s, now_n, permits)
      st.as, st.an, st.permits, st.over = at(p, st, now_s, now_n)
      -- What is promised first, then what is over the limit, which leaves the rest as it is.
      local of_over = min(st.over, permits - min(max(-st.permits, 0), permits))
      st.over = st.over - of_over
      st.permits, st.changed = min(st.permits + permits - of_over, max(p.capacity, st.permits)), true
    end

    function P.carry(p, old, st, now_s, now_n)
      local permits, over
      st.as, st.an, permits, over = at(old, st, now_s, now_n)
      local _, _, of_old = at(old, P.fresh(old), st.as, st.an)
      local _, _, of_new = at(p, P.fresh(p), st.as, st.an)
      local used = max(of_old - permits + over, 0)
      local left = of_new - used
      st.permits, st.over = left, 0
      if p.keeps_left and used > 0 then
        st.permits = min(permits, p.capacity)
      elseif p.per >= p.capacity then
        -- A tick fills it, whatever was used: what is more than the limit is no debt. What was promised is one.
        st.permits = max(left, min(permits, 0))
        st.over = min(st.permits - left, 4294967295)
      end
    end

    return P

  elseif letter == 's' then
    local P = {}
    local MOST = 4294967295

    function P.parse(text)
      local w = words(text)
      local p = { window = number(w[2]), limit = number(w[3]) }
      return p.window and p.window > 0 and p.limit and p
    end

    function P.fresh()
      return { as = 0, an = 0, previous = 0, current = 0 }
    end

    function P.read(text)
      local as, an, previous, current = match(text, '^(%d+) (%d+) (%d+) (%d+)$')
      as, an, previous, current = number(as), number(an), number(previous), number(current)
      return as and an and previous and current and { as = as, an = an, previous = previous, current = current }
    end

    function P.write(st)
      return format('%d %d %d %d', st.as, st.an, st.previous, st.current)
    end

    local function at(p, st, s, n)
      if since(st.as, st.an, s, n) > 0 then s, n = st.as, st.an end
      local now = { as = s, an = n, previous = 0, current = 0, offset = offset(s, n, p.window) }
      local windows = begun(s, n, st.as, st.an, p.window)
      if windows == 0 then
        now.previous, now.current = st.previous, st.current
      elseif windows == 1 then
        now.previous = st.current
      end
      return now
    end

    local function keep(st, now)
      st.as, st.an, st.previous, st.current, st.changed = now.as, now.an, now.previous, now.current, true
    end

    -- The estimate, rounded up to whole permits.
    local function seen(p, now)
      return now.current + muldiv_up(now.previous, p.window - now.offset, p.window)
    end

    -- The first offset in a window at which `before`, weighted, leaves room for `wanted` beside `current`.
    local function fits_from(p, before, current, wanted)
      local room = p.limit - current - wanted
      if room < 0 then return nil end
      if room >= before then return 0 end
      return p.window - min((muldiv(room, p.window, before)), p.window)
    end

    local function wait(p, now, wanted)
      if wanted > p.limit then return NEVER end
      local from = fits_from(p, now.previous, now.current, wanted)
      if from then return max(from - now.offset, 0) end
      from = fits_from(p, now.current, 0, wanted)
      return from and p.window - now.offset + from or NEVER
    end

    function P.ask(p, st, now_s, now_n, q)
      local now = at(p, st, now_s, now_n)
      local cost = q.all and max(p.limit - seen(p, now), 0) or q.cost
      local time, answer = 0, nil
      if cost > 0 then time = wait(p, now, cost) end
      if time == NEVER then
        answer = refuse(NEVER, 'capacity')
      elseif time > 0 then
        answer = refuse(time, 'used')
      else
        if cost > 0 then answer = grant(0, cost, now.as, now.an) else answer = grant(0, 0, 0, 0) end
        now.current = min(now.current + cost, MOST)
        if q.take then keep(st, now) end
      end
      answer.limit, answer.remaining = p.limit, max(p.limit - seen(p, now), 0)
      local share, rest = muldiv(now.previous, p.window - now.offset, p.window)
      answer.available = p.limit - now.current - share - rest / p.window
      answer.next_in, answer.full_in = wait(p, now, 1), wait(p, now, p.limit)
      return answer
    end

    function P.is_fresh(p, st, now_s, now_n)
      local now = at(p, st, now_s, now_n)
      return since(st.as, st.an, now_s, now_n) <= 0 and now.previous == 0 and now.current == 0
    end

    function P.due(p, st, now_s, now_n)
      local now = at(p, st, now_s, now_n)
      local time = now.current > 0 and 2 * p.window - now.offset or now.previous > 0 and p.window - now.offset or 0
      return time + since(now.as, now.an, now_s, now_n)
    end

    function P.cancel(p, st, now_s, now_n, r)
      if since(r.act_s, r.act_n, now_s, now_n) >= 0 then P.refund(p, st, now_s, now_n, r.cost) end
    end

    function P.refund(p, st, now_s, now_n, permits)
      local now = at(p, st, now_s, now_n)
      permits = min(permits, MOST)
      local of_previous = max(permits - now.current, 0)
      now.current = max(now.current - permits, 0)
      now.previous = max(now.previous - of_previous, 0)
      keep(st, now)
    end

    function P.carry(p, old, st, now_s, now_n)
      local now = at(old, st, now_s, now_n)
      -- With windows of another length, the estimate goes on as what was seen in the current one.
      if old.window ~= p.window then now.previous, now.current = 0, min(seen(old, now), MOST) end
      keep(st, now)
    end

    return P

  elseif letter == 'l' then
    local P = {}
    -- Elements that are read at once.
    local CHUNK = 16

    function P.parse(text)
      local w = words(text)
      local p = { counts_for = number(w[2]), gap = number(w[3]), limit = number(w[4]), grain = number(w[5]) }
      p.records = w[6] == '1'
      p.most = p.limit and p.limit * (p.records and 1 or 64)
      return p.counts_for and p.gap and p.limit and p.grain and p
    end

    -- The stored runs first … last, of whose first `cut` attempts are gone, and then those of `more`.
    function P.fresh()
      return { as = 0, an = 0, held = 0, first = 1, last = 0, cut = 0, more = {}, cache = {} }
    end

    local function fetch(st, from)
      local texts = redis.call('LRANGE', st.key, from, from + CHUNK - 1)
      for i, text in ipairs(texts) do st.cache[from + i - 1] = text end
    end

    -- One run of attempts at one instant. What cannot be read ends the reading of this key.
    local function run(st, i)
      if i > st.last then return st.more[i - st.last] or error('a log that was cut') end
      if type(st.cache[i]) == 'string' or not st.cache[i] then
        if not st.cache[i] then fetch(st, i) end
        local s, n, count = match(st.cache[i] or '', '^(%d+)(%d%d%d%d%d%d%d%d%d)%*?(%d*)$')
        if not s then error('no instant') end
        s, n, count = number(s), number(n), count == '' and 1 or number(count)
        if not s or not count or count < 1 then error('no attempts') end
        st.cache[i] = { s = s, n = n, count = count }
      end
      return st.cache[i]
    end

    -- Reads the key's beginning. nil if there is no log.
    function P.load(key)
      local texts = redis.pcall('LRANGE', key, 0, CHUNK - 1)
      if texts.err or not texts[1] then return nil end
      local as, an, held = match(texts[1], '^l|(%d+) (%d+) (%d+)$')
      if not as then return nil end
      local st = P.fresh()
      st.key, st.as, st.an, st.held = key, number(as), number(an), number(held)
      if not st.as or not st.an or not st.held then return nil end
      for i = 2, #texts do st.cache[i - 1] = texts[i] end
      st.last = #texts < CHUNK and #texts - 1 or redis.call('LLEN', key) - 1
      st.stored = st.last
      return st
    end

    local function text_of(one, cut)
      local count = one.count - (cut or 0)
      return stamp(one.s, one.n) .. (count > 1 and format('*%.0f', count) or '')
    end

    -- The first run, if it is no longer whole.
    function P.front(st)
      return st.cut > 0 and text_of(run(st, st.first), st.cut)
    end

    function P.store(st, front)
      local key = st.key
      local header = format('l|%d %d %d', st.as, st.an, st.held)
      if not st.stored then
        if st.foreign then redis.call('DEL', key) end
        redis.call('RPUSH', key, header)
      else
        redis.call('LSET', key, 0, header)
        if st.last < st.stored then redis.call('LTRIM', key, 0, st.last) end
      end
      for _, one in ipairs(st.more) do redis.call('RPUSH', key, text_of(one)) end
      if st.first > 1 or st.cut > 0 then
        redis.call('LTRIM', key, st.first, -1)
        if front then redis.call('LSET', key, 0, front) end
        redis.call('LPUSH', key, header)
      end
    end

    local function runs(st)
      return st.last + #st.more - st.first + 1
    end

    local function drop(st, count)
      while count > 0 do
        local left = run(st, st.first).count - st.cut
        st.held = st.held - min(left, count)
        if st.held < 0 then error('a log that was cut') end
        if left > count then
          st.cut = st.cut + count
          return
        end
        count, st.first, st.cut = count - left, st.first + 1, 0
      end
    end

    local function newest(st)
      return st.held > 0 and run(st, st.last + #st.more) or nil
    end

    -- The nth attempt, from 0 on, as a distance from an instant.
    local function attempt(st, nth, s, n)
      local i = st.first
      if runs(st) == st.held then
        i = i + nth
      else
        nth = nth + st.cut
        while run(st, i).count <= nth do
          nth, i = nth - run(st, i).count, i + 1
        end
      end
      return since(run(st, i).s, run(st, i).n, s, n)
    end

    -- Cuts the newest runs off, back to the first that `visit` does not want, and returns what `visit` leaves of them.
    local function cut_off(st, visit)
      local later, i = {}, st.last + #st.more
      while i >= st.first do
        local one = run(st, i)
        local there = one.count - (i == st.first and st.cut or 0)
        local left = visit(one, there)
        if not left then break end
        if left > 0 then table.insert(later, 1, { s = one.s, n = one.n, count = left }) end
        if i == st.first then st.cut = 0 end
        i = i - 1
      end
      while #st.more > max(i - st.last, 0) do st.more[#st.more] = nil end
      st.last = min(st.last, i)
      return later
    end

    local function append(st, later)
      for _, one in ipairs(later) do st.more[#st.more + 1] = one end
    end

    -- Takes `count` attempts at the instant away.
    local function take_away(st, count, s, n)
      append(st, cut_off(st, function(one, there)
        local distance = since(one.s, one.n, s, n)
        if count == 0 or distance < 0 then return nil end
        if distance > 0 then return there end
        local gone = min(there, count)
        st.held, count = st.held - gone, count - gone
        return there - gone
      end))
      st.changed = true
    end

    -- How long until `wanted` more fit beside the attempts, if `pending` more are recorded now.
    local function wait(p, st, s, n, wanted, pending)
      if wanted > p.limit then return NEVER end
      local too_many, time = st.held + pending + wanted - p.limit, 0
      if too_many > 0 then
        local leaves = too_many <= st.held and attempt(st, too_many - 1, s, n) or 0
        time = max(time, leaves + p.counts_for)
      end
      if wanted > 0 then
        local last = newest(st)
        if pending > 0 then
          time = max(time, p.gap)
        elseif last then
          time = max(time, since(last.s, last.n, s, n) + p.gap)
        end
      end
      return time
    end

    -- The log's own now.
    local function own_now(p, st, s, n)
      if since(st.as, st.an, s, n) > 0 then s, n = st.as, st.an end
      if p.grain > 1 then return moved(s, n, -offset(s, n, p.grain)) end
      return s, n
    end

    local function expire(p, st, s, n)
      while st.held > 0 and since(run(st, st.first).s, run(st, st.first).n, s, n) + p.counts_for <= 0 do
        drop(st, run(st, st.first).count - st.cut)
      end
    end

    function P.ask(p, st, now_s, now_n, q)
      local s, n = own_now(p, st, now_s, now_n)
      expire(p, st, s, n)
      local cost = q.all and max(p.limit - st.held, 0) or q.cost
      local last = newest(st)
      local too_soon = last and since(last.s, last.n, s, n) + p.gap > 0
      local used = st.held + cost > p.limit
      local max_wait = q.max_wait
      if p.records or st.held + cost > p.most then max_wait = 0 end
      local answer
      local recorded, act_s, act_n = 0, s, n
      if cost > p.limit then
        answer = refuse(NEVER, 'capacity')
      elseif cost == 0 then
        answer = grant(0, 0, 0, 0)
      else
        local time = wait(p, st, s, n, cost, 0)
        if time <= max_wait then
          recorded, act_s, act_n = cost, moved(s, n, time)
          answer = grant(time, cost, act_s, act_n)
        else
          answer = too_long(time, max_wait)
          if p.records then
            -- A refusal that counts is itself in the way.
            recorded, answer.time = cost, wait(p, st, s, n, cost, cost)
          end
          answer.because = too_soon and (used and 'both' or 'soon') or 'used'
        end
      end
      P.record(p, st, act_s, act_n, recorded)
      if since(s, n, st.as, st.an) > 0 then st.as, st.an = s, n end
      st.changed = true
      answer.limit, answer.remaining = p.limit, max(p.limit - st.held, 0)
      answer.available, answer.next_in, answer.full_in = answer.remaining, wait(p, st, s, n, 1, 0), 0
      last = newest(st)
      if last then answer.full_in = max(since(last.s, last.n, s, n) + max(p.counts_for, p.gap), 0) end
      return answer
    end

    function P.record(p, st, s, n, count)
      if count == 0 then return end
      local before = st.held
      -- Refusals that count may come before reservations of a policy that was in force until now.
      local later = cut_off(st, function(one, there)
        return since(one.s, one.n, s, n) > 0 and there or nil
      end)
      st.more[#st.more + 1] = { s = s, n = n, count = count }
      append(st, later)
      st.held = st.held + count
      -- Attempts beyond a limit that was lowered meanwhile count again if it is raised.
      local most = max(p.most, before)
      if p.records and st.held > most then drop(st, st.held - most) end
    end

    -- Records a refusal that a list has undone with everything else.
    function P.record_refusal(p, st, now_s, now_n, q)
      if not q.all and q.cost > p.limit then return end
      local s, n = own_now(p, st, now_s, now_n)
      expire(p, st, s, n)
      P.record(p, st, s, n, q.all and max(p.limit - st.held, 0) or q.cost)
      if since(s, n, st.as, st.an) > 0 then st.as, st.an = s, n end
      st.changed = true
    end

    function P.is_fresh(p, st, now_s, now_n)
      local last = newest(st)
      return since(st.as, st.an, now_s, now_n) <= 0
        and (not last or since(last.s, last.n, now_s, now_n) + max(p.counts_for, p.gap) <= 0)
    end

    function P.due(p, st, now_s, now_n)
      local last = newest(st)
      return last and since(last.s, last.n, now_s, now_n) + max(p.counts_for, p.gap) or 0
    end

    function P.cancel(p, st, now_s, now_n, r)
      if since(r.act_s, r.act_n, own_now(p, st, now_s, now_n)) < 0 then return end
      take_away(st, r.cost, r.act_s, r.act_n)
    end

    -- Which attempts the permits belong to is not known, so the oldest go: those that would be the first to go anyway.
    function P.refund(p, st, now_s, now_n, permits)
      expire(p, st, own_now(p, st, now_s, now_n))
      drop(st, min(permits, st.held))
      st.changed = true
    end

    return P

  elseif letter == 'w' then
    local P = {}

    -- A number of permits or microseconds, cut to a whole one.
    local function cut(x)
      if x ~= x or x < 0 then return 0 end
      return floor(x)
    end

    function P.parse(text)
      local w = words(text)
      local p = { free = w[2] == '1', stable = number(w[3]), threshold = number(w[4]), max = number(w[5]) }
      p.slope, p.cool_down = number(w[6]), number(w[7])
      return p.stable and p.threshold and p.max and p.slope and p.cool_down and p
    end

    function P.fresh(p)
      return { stored = p.free and 0 or p.max, next_free = 0, us = 0 }
    end

    function P.read(text)
      local stored, next_free, us = match(text, '^(%S+) (%d+) (%d+)$')
      stored, next_free, us = number(stored), number(next_free), number(us)
      return stored and next_free and us and { stored = stored, next_free = next_free, us = us }
    end

    function P.write(st)
      return format('%.17g %.0f %.0f', st.stored, st.next_free, st.us)
    end

    local function micros(s, n)
      return s * 1000000 + floor(n / 1000)
    end

    -- A clock that has gone back stands still.
    local function own_now(st, s, n)
      return max(micros(s, n), st.us)
    end

    local function instant(us)
      local rest = fmod(us, 1000000)
      local s, n = (us - rest) / 1000000, rest * 1000
      if s > LAST_S or (s == LAST_S and n > LAST_N) then return LAST_S, LAST_N end
      return s, n
    end

    local function at(p, st, now)
      if now <= st.next_free then return st.stored, st.next_free end
      if p.free then return 0, now end
      return min(p.max, st.stored + (now - st.next_free) / p.cool_down), now
    end

    local function time_of_stored(p, stored, taken)
      local above, us = stored - p.threshold, 0
      if above > 0 then
        local dear = min(above, taken)
        us = cut(dear * ((p.stable + above * p.slope) + (p.stable + (above - dear) * p.slope)) / 2)
        taken = taken - dear
      end
      return us + cut(p.stable * taken)
    end

    -- The state after `cost` permits: the stored ones at the height of the curve, the missing ones at the stable interval.
    local function charged(p, stored, next_free, cost)
      if p.free then return 0, next_free end
      local spent = min(cost, stored)
      local price = time_of_stored(p, stored, spent) + cut((cost - spent) * p.stable)
      return stored - spent, min(next_free + price, LAST)
    end

    function P.ask(p, st, now_s, now_n, q)
      local now = own_now(st, now_s, now_n)
      local stored, next_free = at(p, st, now)
      local time, cost = max(next_free - now, 0) * 1000, q.cost
      if q.all then cost = time > 0 and 0 or cut(stored) + 1 end
      local answer
      if time <= q.max_wait then
        local act_s, act_n = instant(next_free)
        answer = grant(time, cost, act_s, act_n, format('f%.17g', stored))
        stored, next_free = charged(p, stored, next_free, cost)
        if q.take then st.stored, st.next_free, st.us, st.changed = stored, next_free, now, true end
      else
        answer = too_long(time, q.max_wait)
      end
      time = min(max(next_free - now, 0) * 1000, LAST)
      answer.limit = p.free and LAST or cut(p.max) + 1
      answer.remaining = time > 0 and 0 or min(cut(stored) + 1, answer.limit)
      answer.available, answer.next_in = stored, time
      answer.full_in = time + (p.free and 0 or max(ceil((p.max - stored) * p.cool_down * 1000), 0))
      return answer
    end

    function P.is_fresh(p, st, now_s, now_n)
      local now = micros(now_s, now_n)
      return st.next_free <= now and st.us <= now and (at(p, st, now)) == P.fresh(p).stored
    end

    function P.due(p, st, now_s, now_n)
      local now = micros(now_s, now_n)
      local stored, next_free = at(p, st, max(now, st.us))
      -- One more, because a sum of fractions may fall short of its end.
      local refill = (p.free or stored >= p.max) and 0 or ceil((p.max - stored) * p.cool_down) + 1
      return (next_free - now + refill) * 1000
    end

    function P.cancel(p, st, now_s, now_n, r)
      local before, next_free = tonumber(r.mark), micros(r.act_s, r.act_n)
      if next_free < micros(now_s, now_n) then return end
      -- Only the last one can be taken back: what a permit costs depends on those before it.
      local stored, free_after = charged(p, before, next_free, r.cost)
      if st.stored == stored and st.next_free == free_after then
        st.stored, st.next_free, st.changed = before, next_free, true
      end
    end

    function P.refund(p, st, now_s, now_n, permits)
      st.us = own_now(st, now_s, now_n)
      local stored, next_free = at(p, st, st.us)
      st.stored, st.next_free, st.changed = min(stored + permits, p.free and 0 or p.max), next_free, true
    end

    function P.carry(p, old, st, now_s, now_n)
      st.us = own_now(st, now_s, now_n)
      local stored, next_free = at(old, st, st.us)
      st.next_free = next_free
      if old.free or p.free then
        st.stored = 0
      elseif old.max == 0 then
        st.stored = p.max
      else
        st.stored = stored * p.max / old.max
      end
    end

    return P
  end
end

-- --- reading ---

local kinds = {}
local function kind_of(text)
  local letter = string.sub(text, 1, 1)
  kinds[letter] = kinds[letter] or make(letter)
  return kinds[letter]
end

local function parse(text)
  local kind = kind_of(text)
  return kind and kind.parse(text) or nil
end

-- What is stored under a key, told in the terms of the policy that the key belongs to.
local function read(step)
  if step.kind.load then return step.kind.load(step.key) end
  local text = redis.pcall('GET', step.key)
  if type(text) ~= 'string' then return nil end
  local policy, state = match(text, '^([^|]*)|(.*)$')
  if not policy or kind_of(policy) ~= step.kind then return nil end
  local st = step.kind.read(state)
  if st and policy ~= step.home then
    st.p = parse(policy)
    if not st.p then return nil end
    st.home = policy
  end
  return st
end

-- --- the step ---

local verb, now_s, now_n = ARGV[1], nil, nil
local is_test = ARGV[2] ~= ''
if is_test then
  now_s, now_n = match(ARGV[2], '^(%d+) (%d+)$')
  now_s, now_n = tonumber(now_s), tonumber(now_n)
else
  -- Servers before 5 want to be told that effects are replicated, not the script, which reads a clock.
  if redis.replicate_commands then redis.replicate_commands() end
  local clock = redis.call('TIME')
  now_s, now_n = tonumber(clock[1]), tonumber(clock[2]) * 1000
end

local steps = {}
for i, key in ipairs(KEYS) do
  local policy, asked = ARGV[1 + 2 * i], ARGV[2 + 2 * i]
  local own, home
  if string.find(policy, '/', 1, true) then own, home = match(policy, '^(.*)/(.*)$') end
  local step = { key = key, home = home or policy, kind = kind_of(policy), p = parse(own or policy) }
  step.home_p = home and parse(home) or step.p
  if verb == 'ask' then
    local said, max_wait, mode = match(asked, '^(%S+) (%d+) (%a)$')
    step.q = { said = said, all = said == 'all', cost = tonumber(said), max_wait = tonumber(max_wait), take = mode == 't' }
  else
    local w = words(asked)
    step.r = { cost = tonumber(w[1]), act_s = tonumber(w[2]), act_n = tonumber(w[3]), mark = w[4] }
  end
  steps[i] = step
end

-- Keys whose state turned out to be none, states by key, and the key at work.
local broken, states, at_work = {}, {}, nil

-- The key's state for a step: as it was left by the steps before it, and told in the terms of the step's policy.
local function state_for(step)
  local st = states[step.key]
  if st and st.kind ~= step.kind then st = nil end
  if not st and not states[step.key] and not broken[step.key] then st = read(step) end
  if not st then
    st = step.kind.fresh(step.p)
    st.foreign, st.absent = true, true
  elseif st.home and st.home ~= step.home and step.kind.carry then
    step.kind.carry(step.home_p, st.p, st, now_s, now_n)
    -- Told anew even if it is refused: else it would go on under the old policy until it is granted something.
    st.changed = st.changed or not (step.q and not step.q.take)
  end
  st.key, st.home, st.kind, st.p, st.own = step.key, step.home, step.kind, step.home_p, step.p
  states[step.key] = st
  return st
end

local function copy(st)
  local other = {}
  for name, value in pairs(st) do other[name] = value end
  if st.more then
    other.more = {}
    for i, one in ipairs(st.more) do other.more[i] = one end
  end
  return other
end

local function ask_one(step)
  at_work = step.key
  local st = state_for(step)
  local kept = st
  if not step.q.take and st.more then st = copy(st) end
  local answer = step.kind.ask(step.p, st, now_s, now_n, step.q)
  -- A number that is none tells of a stored one that was none.
  if answer.remaining ~= answer.remaining or answer.time ~= answer.time or answer.next_in ~= answer.next_in then
    error('not a number')
  end
  states[step.key] = kept
  return answer
end

local function ask_all()
  states = {}
  local answers, all_granted = {}, true
  if #steps == 1 then return { ask_one(steps[1]) } end
  local before = {}
  for i, step in ipairs(steps) do
    at_work = step.key
    local st = state_for(step)
    if not before[step.key] then before[step.key] = copy(st) end
    answers[i] = ask_one(step)
    all_granted = all_granted and answers[i].granted
  end
  if all_granted then return answers end
  for key, st in pairs(before) do states[key] = st end
  for i, step in ipairs(steps) do
    local answer = answers[i]
    if answer.granted then
      answer.cost, answer.act_s, answer.act_n, answer.mark = 0, 0, 0, nil
    elseif step.q.take and step.p.records then
      at_work = step.key
      step.kind.record_refusal(step.p, state_for(step), now_s, now_n, step.q)
    end
  end
  return answers
end

local function take_back()
  states = {}
  for _, step in ipairs(steps) do
    at_work = step.key
    local st = state_for(step)
    -- A key that is not there has nothing to take back.
    if not st.absent then
      if verb == 'cancel' then
        step.kind.cancel(step.p, st, now_s, now_n, step.r)
      else
        step.kind.refund(step.p, st, now_s, now_n, step.r.cost)
      end
    end
  end
  return {}
end

-- What is to be written, if everything can be.
local function prepare()
  local writes = {}
  for _, st in pairs(states) do
    at_work = st.key
    if st.changed and not (st.absent and st.kind.is_fresh(st.own, st, now_s, now_n)) then
      local due, of_own = st.kind.due(st.p, st, now_s, now_n), st.kind.due(st.own, st, now_s, now_n)
      due = due and of_own and max(due, of_own)
      local ahead = st.as and since(st.as, st.an, now_s, now_n) or 0
      local ttl = due and max(ceil(max(due, ahead) / 1000000), 1)
      -- In a test the time is not the server's, by which keys expire.
      if ttl and is_test then ttl = ttl + 3600000 end
      local write = { st = st, ttl = ttl and format('%d', ttl) }
      if st.kind.store then
        write.front = st.kind.front(st)
      else
        write.text = st.home .. '|' .. st.kind.write(st)
      end
      writes[#writes + 1] = write
    end
  end
  return writes
end

local function act()
  local answers = verb == 'ask' and ask_all() or take_back()
  return { answers = answers, writes = prepare() }
end

local readable, done = pcall(act)
while not readable and at_work and not broken[at_work] do
  broken[at_work] = true
  readable, done = pcall(act)
end
if not readable then return redis.error_reply('ERR headcount: ' .. tostring(done)) end

-- --- writing ---

for _, write in ipairs(done.writes) do
  local st = write.st
  if not write.text then
    st.kind.store(st, write.front)
    if write.ttl then redis.call('PEXPIRE', st.key, write.ttl) else redis.call('PERSIST', st.key) end
  elseif write.ttl then
    redis.call('SET', st.key, write.text, 'PX', write.ttl)
  else
    redis.call('SET', st.key, write.text)
  end
end

-- '%d' is quicker, and holds up to 2^63.
local function whole_text(x)
  if x < 9e18 then return format('%d', x) end
  if x == NEVER then return 'never' end
  return format('%.0f', x)
end

local texts = {}
for i, a in ipairs(done.answers) do
  local cost = a.cost or 0
  -- As it was said, since a large number of permits is not exact here.
  local said = cost > 0 and cost == steps[i].q.cost and steps[i].q.said or whole_text(cost)
  local available = a.available
  texts[i] = format('%s %s %s %s %s %s %s %s %s %s %s', a.granted and 'g' or 'r', whole_text(a.time), a.because or '-',
    whole_text(a.limit), whole_text(a.remaining), available == floor(available) and available < 9e15 and available > -9e15
      and format('%d', available) or format('%.17g', available),
    whole_text(a.next_in), whole_text(a.full_in), said, stamp(a.act_s or 0, a.act_n or 0), a.mark or '0')
end
return texts
