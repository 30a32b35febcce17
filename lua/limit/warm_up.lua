-- The policy `WarmUp`: permits that cost more time after a pause. Its arithmetic is that of
-- src/limit/policy/warm_up.rs.
--
-- Policy: warm_up 0|1 STABLE THRESHOLD MAX SLOPE COOL-DOWN
--   1 if the rate is infinite · floating-point numbers: STABLE and COOL-DOWN in microseconds per permit, THRESHOLD and
--   MAX in permits, SLOPE in microseconds per permit for each permit above THRESHOLD
-- State: the stored permits, the next free microsecond, and the microsecond at which both were computed
local P = {}

-- A number of permits or microseconds, rounded down; 0 if it is negative or NaN.
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

-- A clock that has gone back counts as one that stands still.
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

-- The state after `cost` permits. A stored permit above THRESHOLD costs more, the more are stored (the curve in
-- warm_up.rs). Every other permit costs STABLE.
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
  answer.reset_after = time + (p.free and 0 or max(ceil((p.max - stored) * p.cool_down * 1000), 0))
  return answer
end

function P.is_fresh(p, st, now_s, now_n)
  local now = micros(now_s, now_n)
  return st.next_free <= now and st.us <= now and (at(p, st, now)) == P.fresh(p).stored
end

function P.due(p, st, now_s, now_n)
  local now = micros(now_s, now_n)
  local stored, next_free = at(p, st, max(now, st.us))
  -- One microsecond more, because a sum of rounded fractions may fall short of the maximum.
  local refill = (p.free or stored >= p.max) and 0 or ceil((p.max - stored) * p.cool_down) + 1
  return (next_free - now + refill) * 1000
end

function P.cancel(p, st, now_s, now_n, r)
  local before, next_free = tonumber(r.mark), micros(r.act_s, r.act_n)
  if next_free < micros(now_s, now_n) then return end
  -- Only the last reservation can be canceled, because the cost of a permit depends on those before it.
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
