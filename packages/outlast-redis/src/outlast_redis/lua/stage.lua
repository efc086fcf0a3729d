-- Puts entries aside, invisible until flipped. KEYS: 1 staged, 2 list, 3 ids.
-- ARGV: 1 generation, 2 how many entries are there already, entries.
local count = redis.call('LLEN', KEYS[2])
redis.call('ZCARD', KEYS[1])
if count ~= tonumber(ARGV[2]) or count ~= redis.call('HLEN', KEYS[3]) then return {'absent'} end
redis.call('ZADD', KEYS[1], digits(clock()), ARGV[1])
push(KEYS[2], KEYS[3], 3, count)
return {'done'}
