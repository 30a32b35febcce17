-- Numbers, instants, and the answers that every policy gives.
--
-- Numbers in Lua are doubles, exact up to 2^53. An instant is therefore two numbers, seconds and nanoseconds, and the
-- policies compute with distances between instants, which are exact up to 104 days.
--
-- Dragonfly has Lua 5.4, where numbers without a fraction are integers of 64 bits, which wrap around. So the large
-- constants here are written as doubles, and every number is read as one.
local floor, ceil, fmod, max, min = math.floor, math.ceil, math.fmod, math.max, math.min
local format, match = string.format, string.match
local NEVER = math.huge
local EXACT = 9007199254740992.0
local SECOND = 1e9
-- The last instant that the library can represent: 2^64 - 1 ns.
local LAST_S, LAST_N, LAST = 18446744073, 709551615, 18446744073709551615

local function since(s, n, earlier_s, earlier_n)
  return (s - earlier_s) * SECOND + (n - earlier_n)
end

local function moved(s, n, by)
  local nanos = n + by
  local rest = fmod(nanos, SECOND)
  if rest < 0 then rest = rest + SECOND end
  -- The rest of a negative number may be a negative zero, which would be printed as -0.
  rest = rest + 0
  s = s + floor((nanos - rest) / SECOND + 0.5)
  if s < 0 then return 0, 0 end
  if s > LAST_S or (s == LAST_S and rest > LAST_N) then return LAST_S, LAST_N end
  return s, rest
end

-- An instant as one number. It is rounded to some hundred nanoseconds, so the result serves only as a bound.
local function whole(s, n)
  return s * SECOND + n
end

-- The whole quotient and the rest of a·b/c. The three numbers and the quotient must be exact, that is, at most 2^53.
local function muldiv(a, b, c)
  local product = a * b
  if product < EXACT then
    local rest = fmod(product, c)
    return (product - rest) / c, rest
  end
  -- The multiplication goes bit by bit, and no intermediate rest exceeds c, so every step is exact.
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

-- `div` is a/b rounded down, `div_up` is a/b rounded up. Both numbers are whole and not negative.
local function div(a, b)
  return (a - fmod(a, b)) / b
end

local function div_up(a, b)
  local rest = fmod(a, b)
  if rest > 0 then return (a - rest) / b + 1 end
  return a / b
end

-- The time since the beginning of the span that holds the instant. Spans of `length` follow each other from the epoch
-- on.
local function offset(s, n, length)
  if fmod(length, SECOND) == 0 then return fmod(s, length / SECOND) * SECOND + n end
  if fmod(SECOND, length) == 0 then return fmod(n, length) end
  local _, of_seconds = muldiv(s, SECOND, length)
  local of_nanos = fmod(n, length)
  if of_seconds >= length - of_nanos then return of_seconds - (length - of_nanos) end
  return of_seconds + of_nanos
end

-- The number of spans of `length`, as in `offset`, that begin after the earlier instant and not after the later one.
local function begun(s, n, earlier_s, earlier_n, length)
  local distance = since(s, n, earlier_s, earlier_n)
  return floor((distance + offset(earlier_s, earlier_n, length) - offset(s, n, length)) / length + 0.5)
end

local function words(text)
  local all = {}
  for word in string.gmatch(text, '%S+') do all[#all + 1] = word end
  return all
end

-- A word of a policy or a state as a number; nil if it is none, or outside of the range that is ever written.
local function number(word)
  local found = word and tonumber(word)
  -- The bounds exclude infinite numbers and NaN.
  return found and found >= -LAST and found <= LAST and found * 1.0 or nil
end

-- Grants `cost` permits. They may be used after `wait`, which is at the instant act_s, act_n. `mark` is what a policy
-- needs in addition to cancel them; nil if it needs nothing.
local function grant(wait, cost, act_s, act_n, mark)
  return { granted = true, time = wait, cost = cost, act_s = act_s, act_n = act_n, mark = mark }
end

local function refuse(retry, because)
  return { granted = false, time = retry, because = because }
end

-- Refuses, because the permits are used up and the wait for more is longer than the request allows.
local function too_long(wait, max_wait)
  return refuse(wait - max_wait, 'used')
end

-- An instant, in the form in which it is stored in a log and returned.
local function stamp(s, n)
  return format('%d%09d', s, n)
end
