-- The policy `Gcra`: one theoretical arrival time per key. Its arithmetic is that of src/limit/policy/gcra.rs.
--
-- Policy: gcra INTERVAL SPAN LIMIT b|a f|e s|z|i h|r u|l
--   b (paid before) or a (paid after) · f (full at the start) or e (empty) · a rate that is s (some), z (zero) or i
--   (infinite) · a clock that goes back is h (held) or r (recounted) · after a change of the limit a key keeps u (what
--   it has used) or l (what it has left)
-- State: the arrival time and the instant at which it was computed, in seconds and nanoseconds
local P = {}

function P.parse(text)
  local interval, span, limit, paid, start, rate, back, kept =
    match(text, '^gcra (%d+) (%d+) (%d+) (%a) (%a) (%a) (%a) (%a)$')
  interval, span, limit = number(interval), number(span), number(limit)
  local free = rate == 'i'
  if not limit or not span or not interval or (interval == 0 and not free) then return nil end
  return {
    interval = interval, span = span, limit = limit, after = paid == 'a', empty = start == 'e', zero = rate == 'z',
    free = free, recount = back == 'r', preserves_remaining = kept == 'l',
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

-- The distance to which a request adds its cost.
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
  answer.reset_after = unless_never(from)
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
  -- Later reservations keep their turns, so permits on which they depend stay charged.
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
      -- As after an endless pause. With a debt, the other branch applies: it must still be waited for.
      st.s, st.n = as, an
    else
      -- A debt stays the same, and saved permits are kept as time.
      st.s, st.n = moved(s, n, tat + p.span - old.span)
    end
  else
    local _, _, of_new = at(old, P.fresh(old), s, n)
    local used = old.free and 0 or max(base(tat) - base(of_new), 0)
    if p.preserves_remaining and used > 0 then
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
