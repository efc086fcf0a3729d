-- What a sweep of a bucket would remove. KEYS: 1 empty, 2 staged.
-- ARGV: 1 age in microseconds, 2 how many records, 3 behind how many others.
local before = digits(clock() - tonumber(ARGV[1]))
return {
  redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', before, 'LIMIT', ARGV[3], ARGV[2]),
  redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', before, 'LIMIT', 0, ARGV[2]),
}
