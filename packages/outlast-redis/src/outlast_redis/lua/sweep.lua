-- Removes records without data and staged lists that are old still.
-- KEYS: 1 index, 2 empty, 3 floor, 4 staged, heads, then list and ids of each generation.
-- ARGV: 1 age in microseconds, 2 how many heads, their members, generations.
local before = clock() - tonumber(ARGV[1])
local heads = tonumber(ARGV[2])
local floor = tonumber(redis.call('GET', KEYS[3]) or '0')
redis.call('ZCARD', KEYS[1])

local function is_old(key, member)
  local changed = redis.call('ZSCORE', key, member)
  return changed and tonumber(changed) <= before
end

local old, lists = {}, {}
for i = 1, heads do
  local member = ARGV[2 + i]
  if is_old(KEYS[2], member) then
    local head = redis.call('HMGET', KEYS[4 + i], 'epoch', 'version', 'parent')
    floor = math.max(floor, tonumber(head[1] or '0'), tonumber(head[2] or '0'))
    old[#old + 1] = {KEYS[4 + i], member, head[3] or ''}
  end
end
for i = 1, #ARGV - 2 - heads do
  if is_old(KEYS[4], ARGV[2 + heads + i]) then
    lists[#lists + 1] = {ARGV[2 + heads + i], KEYS[3 + heads + 2 * i], KEYS[4 + heads + 2 * i]}
  end
end

for _, record in ipairs(old) do
  redis.call('ZREM', KEYS[2], record[2])
  redis.call('ZREM', KEYS[1], record[2])
  if record[3] ~= '' then redis.call('ZREM', KEYS[1], below(record[3], record[2])) end
  redis.call('UNLINK', record[1])
end
if #old > 0 then redis.call('SET', KEYS[3], digits(floor)) end
for _, staged in ipairs(lists) do
  redis.call('ZREM', KEYS[4], staged[1])
  redis.call('UNLINK', staged[2], staged[3])
end
return {#old, #lists}
