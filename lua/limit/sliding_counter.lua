-- The policy `SlidingCounter`: a weighted count of two windows. Its arithmetic is that of
-- src/limit/policy/sliding_counter.rs.
--
-- Policy: sliding_counter WINDOW LIMIT
-- State: the instant, and the counts of the previous and the current window
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

-- The first offset in a window at which `wanted` fits beside `current` and the weighted `before`; nil if none does.
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
  answer.next_in, answer.reset_after = wait(p, now, 1), wait(p, now, p.limit)
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
  -- With another window length, the estimate becomes the count of the current window.
  if old.window ~= p.window then now.previous, now.current = 0, min(seen(old, now), MOST) end
  keep(st, now)
end

return P
