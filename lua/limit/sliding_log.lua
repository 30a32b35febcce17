-- The policy `SlidingLog`: the times of the last attempts. Its arithmetic is that of src/limit/policy/sliding_log.rs.
--
-- Policy: sliding_log COUNTS-FOR GAP LIMIT GRAIN 0|1
--   1 if refusals are recorded
-- State: a list. Its first element is 'sliding_log|SECONDS NANOSECONDS HELD': the instant, and the number of attempts.
-- The others are runs of attempts at one instant: 'instant' for one attempt, 'instant*count' for several.
local P = {}
-- The number of elements that one call reads.
local CHUNK = 16

function P.parse(text)
  local w = words(text)
  local p = { counts_for = number(w[2]), gap = number(w[3]), limit = number(w[4]), grain = number(w[5]) }
  p.records = w[6] == '1'
  p.most = p.limit and p.limit * (p.records and 1 or 64)
  return p.counts_for and p.gap and p.limit and p.grain and p
end

-- The state of a key without a log. The runs of a state are the stored ones from `first` to `last`, without the first
-- `cut` attempts, and then those of `more`. `cache` holds the stored runs that were already read.
function P.fresh()
  return { as = 0, an = 0, held = 0, first = 1, last = 0, cut = 0, more = {}, cache = {} }
end

local function fetch(st, from)
  local texts = redis.call('LRANGE', st.key, from, from + CHUNK - 1)
  for i, text in ipairs(texts) do st.cache[from + i - 1] = text end
end

-- One run. An element that cannot be read is an error, after which the key counts as having no state.
local function run(st, i)
  if i > st.last then return st.more[i - st.last] or error('the log is truncated') end
  if type(st.cache[i]) == 'string' or not st.cache[i] then
    if not st.cache[i] then fetch(st, i) end
    -- The pattern takes long for a long text.
    if st.cache[i] and #st.cache[i] > 64 then error('an element is too long') end
    local s, n, count = match(st.cache[i] or '', '^(%d+)(%d%d%d%d%d%d%d%d%d)%*?(%d*)$')
    if not s then error('an element is not an instant') end
    s, n, count = number(s), number(n), count == '' and 1 or number(count)
    if not s or not count or count < 1 then error('a run has no attempts') end
    st.cache[i] = { s = s, n = n, count = count }
  end
  return st.cache[i]
end

-- Reads the beginning of a key's log; nil if there is none.
function P.load(key)
  local texts = redis.pcall('LRANGE', key, 0, CHUNK - 1)
  if texts.err or not texts[1] then return nil end
  local as, an, held = match(texts[1], '^sliding_log|(%d+) (%d+) (%d+)$')
  if not as then return nil end
  local st = P.fresh()
  st.key, st.as, st.an, st.held = key, number(as), number(an), number(held)
  if not st.as or not st.an or not st.held then return nil end
  for i = 2, #texts do st.cache[i - 1] = texts[i] end
  st.last = #texts < CHUNK and #texts - 1 or redis.call('LLEN', key) - 1
  -- Each run has an attempt at least.
  if st.last > st.held then return nil end
  st.stored = st.last
  return st
end

local function text_of(one, cut)
  local count = one.count - (cut or 0)
  return stamp(one.s, one.n) .. (count > 1 and format('*%.0f', count) or '')
end

-- The text of the first run, if some of its attempts are gone; otherwise false.
function P.front(st)
  return st.cut > 0 and text_of(run(st, st.first), st.cut)
end

function P.store(st, front)
  local key = st.key
  local header = format('sliding_log|%d %d %d', st.as, st.an, st.held)
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
    if st.held < 0 then error('the log is truncated') end
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

-- The nth attempt, counted from 0, as a distance from an instant.
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

-- Removes runs, beginning with the newest, until `visit` returns nil for a run. For each removed run, `visit` returns
-- how many of its attempts are to be kept. Returns these attempts as runs, the oldest first.
local function cut_off(st, visit)
  local kept, i = {}, st.last + #st.more
  while i >= st.first do
    local one = run(st, i)
    local there = one.count - (i == st.first and st.cut or 0)
    local left = visit(one, there)
    if not left then break end
    if left > 0 then kept[#kept + 1] = { s = one.s, n = one.n, count = left } end
    if i == st.first then st.cut = 0 end
    i = i - 1
  end
  while #st.more > max(i - st.last, 0) do st.more[#st.more] = nil end
  st.last = min(st.last, i)
  local later = {}
  for k = #kept, 1, -1 do later[#later + 1] = kept[k] end
  return later
end

local function append(st, later)
  for _, one in ipairs(later) do st.more[#st.more + 1] = one end
end

-- Removes `count` attempts at the instant.
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

-- The time until `wanted` more attempts fit, if `pending` more are recorded now.
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

-- The instant that counts for the log: not before the instant of its state, and rounded down to the grain.
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
        -- A recorded refusal takes a place itself.
        recorded, answer.time = cost, wait(p, st, s, n, cost, cost)
      end
      answer.because = too_soon and (used and 'both' or 'soon') or 'used'
    end
  end
  P.record(p, st, act_s, act_n, recorded)
  if since(s, n, st.as, st.an) > 0 then st.as, st.an = s, n end
  st.changed = true
  answer.limit, answer.remaining = p.limit, max(p.limit - st.held, 0)
  answer.available, answer.next_in, answer.reset_after = answer.remaining, wait(p, st, s, n, 1, 0), 0
  last = newest(st)
  if last then answer.reset_after = max(since(last.s, last.n, s, n) + max(p.counts_for, p.gap), 0) end
  return answer
end

function P.record(p, st, s, n, count)
  if count == 0 then return end
  local before = st.held
  -- Recorded refusals may lie before reservations that were made under an earlier policy.
  local later = cut_off(st, function(one, there)
    return since(one.s, one.n, s, n) > 0 and there or nil
  end)
  st.more[#st.more + 1] = { s = s, n = n, count = count }
  append(st, later)
  st.held = st.held + count
  -- Attempts above a limit that was lowered count again if it is raised.
  local most = max(p.most, before)
  if p.records and st.held > most then drop(st, st.held - most) end
end

-- Records a refusal in a list, whose other changes are undone.
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

-- Removes the oldest attempts, because nothing shows which attempts the permits belong to. The oldest would leave first
-- anyway.
function P.refund(p, st, now_s, now_n, permits)
  expire(p, st, own_now(p, st, now_s, now_n))
  drop(st, min(permits, st.held))
  st.changed = true
end

return P
