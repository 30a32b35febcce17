-- Stores the operator's word if it is the latest.
--
-- KEYS[1] override: hash { body }, JSON that begins with its version: { number, writer }
-- ARGV[1] version's number · ARGV[2] its writer, who decides between equal numbers · ARGV[3] body · ARGV[4] ms to keep it
--
-- Returns 1 if it was stored, 0 if a later one is there.
--
-- Atomic, so that the latest word wins whichever server is slower. What no server can read stands for no word.
local number, writer = nil, ''
local body = redis.call('HSTRLEN', KEYS[1], 'body') <= 4096 and redis.call('HGET', KEYS[1], 'body')
local readable, word = pcall(cjson.decode, body or '')
if readable and type(word) == 'table' and type(word.version) == 'table' then
  number, writer = tonumber(word.version.number), tostring(word.version.writer)
end
local ours = tonumber(ARGV[1])
if number and (number > ours or (number == ours and writer >= ARGV[2])) then return 0 end
redis.call('HSET', KEYS[1], 'body', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1
