-- Stores the operator's word if it is the latest.
--
-- KEYS[1] operator: hash { version, writer, body }
-- ARGV[1] version · ARGV[2] writer id, which decides between equal versions · ARGV[3] body, JSON · ARGV[4] ms to keep it
--
-- Returns 1 if it was stored, 0 if a later one is there.
--
-- Atomic, so that the latest word wins whichever server is slower.
local version = tonumber(redis.call('HGET', KEYS[1], 'version') or '')
local ours = tonumber(ARGV[1])
if version and version > ours then return 0 end
if version == ours and (redis.call('HGET', KEYS[1], 'writer') or '') >= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'writer', ARGV[2], 'body', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1
