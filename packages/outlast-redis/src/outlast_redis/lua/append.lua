-- KEYS: 5 list, 6 ids. ARGV: 6 the log's part, 7 how many ids must be present, these ids, entries.
local refused = refusal()
if refused then return refused end
local count = redis.call('LLEN', KEYS[5])
if count ~= redis.call('HLEN', KEYS[6]) then
  return redis.error_reply('CORRUPT a log and its ids differ in length')
end
if not exists or parts == 0 then check_lists() end
local first = 8 + tonumber(ARGV[7])
for i = 8, first - 1 do
  if redis.call('HEXISTS', KEYS[6], ARGV[i]) == 0 then return {'absent', ARGV[i]} end
end
-- The usual case in fewer calls.
if first == #ARGV then
  local id = id_of(ARGV[first])
  if redis.call('HSETNX', KEYS[6], id, digits(count)) == 0 then
    return {'known', {redis.call('LINDEX', KEYS[5], redis.call('HGET', KEYS[6], id))}}
  end
  redis.call('RPUSH', KEYS[5], ARGV[first])
  store(mark(), bit.bor(parts, tonumber(ARGV[6])))
  return {'done'}
end
local known = {}
for i = first, #ARGV do
  local place = redis.call('HGET', KEYS[6], id_of(ARGV[i]))
  if place then known[#known + 1] = redis.call('LINDEX', KEYS[5], place) end
end
if #known > 0 then return {'known', known} end
if first > #ARGV then
  if exists then store(mark(), parts) end
  return {'done'}
end
store(mark(), bit.bor(parts, tonumber(ARGV[6])))
push(KEYS[5], KEYS[6], first, count)
return {'done'}
