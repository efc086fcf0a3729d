-- KEYS: 1 format. ARGV: 1 the format to store if there is none, or ''.
local format = redis.call('GET', KEYS[1])
if not format and ARGV[1] ~= '' then
  redis.call('SET', KEYS[1], ARGV[1])
  return ARGV[1]
end
return format
