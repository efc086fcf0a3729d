-- Makes a staged list the log. KEYS: 5 list, 6 ids, 7 staged, 8 list and 9 ids of the generation.
-- ARGV: 6 the log's part, 7 generation, 8 how many entries it must have.
local part = tonumber(ARGV[6])
local outcome = refusal()
check_lists()
if not outcome and (redis.call('LLEN', KEYS[8]) ~= tonumber(ARGV[8])
  or redis.call('HLEN', KEYS[9]) ~= tonumber(ARGV[8])) then
  outcome = {'absent'}
end
redis.call('ZCARD', KEYS[7])
if outcome then
  redis.call('UNLINK', KEYS[8], KEYS[9])
else
  store(mark(), bit.band(parts, bit.bnot(part)) + part)
  -- Before RENAME, which would free a long list of old in one go.
  redis.call('UNLINK', KEYS[5], KEYS[6])
  redis.call('RENAME', KEYS[8], KEYS[5])
  redis.call('RENAME', KEYS[9], KEYS[6])
  outcome = {'done'}
end
redis.call('ZREM', KEYS[7], ARGV[7])
return outcome
