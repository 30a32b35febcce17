-- The step: reads the keys, asks or gives permits back, and writes.

-- --- reading ---

local kinds = {}
local function kind_of(text)
  local name = match(text, '^[%l_]*')
  kinds[name] = kinds[name] or make(name)
  return kinds[name]
end

local function parse(text)
  local kind = kind_of(text)
  return kind and kind.parse(text) or nil
end

-- The stored state of a key; nil if there is none of this kind of policy. If it was written under another policy than
-- the key's, that policy is in its `p` and `home`.
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
  -- Redis before version 5 replicates a script itself, unless the script asks for its effects to be replicated. A
  -- script that reads a clock must ask.
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
    step.q = {
      said = said, all = said == 'all', cost = tonumber(said), max_wait = tonumber(max_wait), take = mode == 't',
    }
  else
    local w = words(asked)
    step.r = { cost = tonumber(w[1]), act_s = tonumber(w[2]), act_n = tonumber(w[3]), mark = w[4] }
  end
  steps[i] = step
end

-- The keys whose stored state turned out to be invalid, the states by key, and the key that is worked on.
local broken, states, at_work = {}, {}, nil

-- The key's state for a step: as earlier steps have left it, and converted to the policy of the key.
local function state_for(step)
  local st = states[step.key]
  if st and st.kind ~= step.kind then st = nil end
  if not st and not states[step.key] and not broken[step.key] then st = read(step) end
  if not st then
    st = step.kind.fresh(step.p)
    st.foreign, st.absent = true, true
  elseif st.home and st.home ~= step.home and step.kind.carry then
    step.kind.carry(step.home_p, st.p, st, now_s, now_n)
    -- Written even if the request is refused, or else the key would stay under the old policy until one is granted.
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
  -- NaN in an answer means that a stored number was invalid.
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
    -- A key without a state was not charged.
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

-- Everything that will be written, computed before the first write.
local function prepare()
  local writes = {}
  for _, st in pairs(states) do
    at_work = st.key
    if st.changed and not (st.absent and st.kind.is_fresh(st.own, st, now_s, now_n)) then
      local due, of_own = st.kind.due(st.p, st, now_s, now_n), st.kind.due(st.own, st, now_s, now_n)
      due = due and of_own and max(due, of_own)
      local ahead = st.as and since(st.as, st.an, now_s, now_n) or 0
      local ttl = due and max(ceil(max(due, ahead) / 1000000), 1)
      -- Keys expire by the server's clock, which is not the clock of a test.
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

-- '%d' is faster, but works only below 2^63.
local function whole_text(x)
  if x < 9e18 then return format('%d', x) end
  if x == NEVER then return 'never' end
  return format('%.0f', x)
end

local texts = {}
for i, a in ipairs(done.answers) do
  local cost = a.cost or 0
  -- The text of the question, because a large number of permits is not exact in Lua.
  local said = cost > 0 and cost == steps[i].q.cost and steps[i].q.said or whole_text(cost)
  local available = a.available
  texts[i] = format('%s %s %s %s %s %s %s %s %s %s %s', a.granted and 'g' or 'r', whole_text(a.time), a.because or '-',
    whole_text(a.limit), whole_text(a.remaining),
    available == floor(available) and available < 9e15 and available > -9e15
      and format('%d', available) or format('%.17g', available),
    whole_text(a.next_in), whole_text(a.reset_after), said, stamp(a.act_s or 0, a.act_n or 0), a.mark or '0')
end
return texts
