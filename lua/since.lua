-- Records the slot in which the namespace was first used. A claim changes nothing if a slot is recorded. A slot that is
-- written back replaces a higher one.
--
-- KEYS[1] fleet: hash { since, beat } · KEYS[2] generations: sorted set by ms of their last look
-- ARGV[1] slot · ARGV[2] '1' to claim it as new, '0' to write back what the fleet knows · ARGV[3] ms to keep it
-- ARGV[4…] this generation, and others whose users the claiming server knows
--
-- Returns the recorded slot, or '' if the claim was refused: there may be active users of a generation that the server
-- does not know.
--
-- Atomic, so that two servers cannot both claim.
local known = nil
if redis.call('HSTRLEN', KEYS[1], 'since') <= 20 then
  known = tonumber(string.match(redis.call('HGET', KEYS[1], 'since') or '', '^%d+$') or '')
end
local slot = tonumber(ARGV[1])
if known and (known <= slot or ARGV[2] == '1') then return string.format('%.0f', known) end
if ARGV[2] == '1' then
  local expected = {}
  for place = 4, #ARGV do expected[ARGV[place]] = true end
  for _, generation in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
    if not expected[generation] then return '' end
  end
end
redis.call('HSET', KEYS[1], 'since', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return ARGV[1]
