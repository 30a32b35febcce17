-- The common beginning of look.lua and look_beside.lua: reading without failing, and the version of a slot.
--
-- A slot is a hash { ts, value }, or a string "ts\nvalue" for large values.

-- Returns the answer of a command: '' for nil, '!' for an error.
local function read(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then return '!' end
  return answer or ''
end

local function version_of_hash(key)
  local ts, size = read('HGET', key, 'ts'), read('HSTRLEN', key, 'value')
  if #ts > 64 then
    -- No server has written it, and each look would read it. A replica keeps it, and a fetch returns it.
    redis.pcall('HDEL', key, 'ts')
    return '!', size + #ts
  elseif size ~= '!' and size > 0 and ts == '' or ts ~= '' and not string.match(ts, '^[%w%-]+$') then
    return '!', size
  end
  return ts, size
end

local function version_of_string(key)
  local head = read('GETRANGE', key, 0, 64)
  if head == '' then return '', 0 end
  local ts, size = string.match(head, '^([%w%-]+)\n'), read('STRLEN', key)
  if not ts then return '!', size end
  return ts, size - #ts - 1
end

-- Returns the version of a slot, and the size of its value. The version is '' if there is no value, and '!' if no
-- server has written it.
local function version_of(key, kind)
  if kind == 'string' then return version_of_string(key) end
  return version_of_hash(key)
end

