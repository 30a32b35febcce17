-- The policy `PeriodicRefill`: permits that arrive in ticks. Its arithmetic is that of
-- src/limit/policy/periodic_refill.rs.
--
-- Policy: periodic_refill TICK PER-TICK CAPACITY INITIAL 0|1 0|1
--   1 if a request may ask for more than the capacity · 1 if a key keeps what it has left after a change of the limit
-- State: the instant, the permits at that instant, and the permits that had been used above the new limit when the
-- limit was lowered in the tick of that instant
local P = {}

function P.parse(text)
  local w = words(text)
  local p = { tick = number(w[2]), per = number(w[3]), capacity = number(w[4]), initial = number(w[5]) }
  p.above, p.preserves_remaining = w[6] == '1', w[7] == '1'
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

-- The instant that counts, the permits at that instant, and the permits that had been used above the new limit when the
-- limit was lowered in the tick of that instant.
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
      -- The wait for more than the capacity gets shorter until the tick after the one that fills the bucket. The
      -- permits of that later tick are lost.
      local full = wait(p, s, n, permits, p.capacity)
      local best_until = full == 0 and p.tick - offset(s, n, p.tick) or full + p.tick
      if cost > p.capacity and answer.time >= best_until then answer = refuse(NEVER, 'capacity') end
    end
  end
  answer.limit, answer.remaining, answer.available = p.capacity, remaining(p, permits), permits
  answer.next_in = wait(p, s, n, permits, 1)
  answer.reset_after = wait(p, s, n, permits, p.capacity)
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
  -- Refunds only if no later request waits for a later tick. Otherwise new requests would get these permits, ahead of
  -- the waiting ones.
  if wait(p, s, n, permits, 0) <= since(r.act_s, r.act_n, s, n) then P.refund(p, st, now_s, now_n, r.cost) end
end

function P.refund(p, st, now_s, now_n, permits)
  st.as, st.an, st.permits, st.over = at(p, st, now_s, now_n)
  -- Reserved permits come back first, then those above the limit, which do not change the permits that are left.
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
  if p.preserves_remaining and used > 0 then
    st.permits = min(permits, p.capacity)
  elseif p.per >= p.capacity then
    -- A tick fills the bucket, whatever was used: use above the limit is not a debt, but reserved permits are.
    st.permits = max(left, min(permits, 0))
    st.over = min(st.permits - left, 4294967295)
  end
end

return P
