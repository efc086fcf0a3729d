-- Which of some scopes match, with their registers. KEYS: heads. ARGV: 1 register, 2 parent,
-- 3 status, 4 updated before ('' for any), 5 whether scopes without data count ('1').
local found = {digits(clock())}
for i = 1, #KEYS do
  local head = redis.call('HMGET', KEYS[i], 'epoch', 'parent', 'status', 'updated')
  if head[1] and (ARGV[2] == '' or head[2] == ARGV[2]) and (ARGV[3] == '' or head[3] == ARGV[3])
    and (ARGV[4] == '' or tonumber(head[4] or '0') < tonumber(ARGV[4]))
    and (ARGV[5] == '1' or redis.call('HEXISTS', KEYS[i], ARGV[1]) == 1) then
    found[#found + 1] = {i - 1, unpack(redis.call('HMGET', KEYS[i], 'epoch', 'claim', 'seq', 'op',
      'parent', ARGV[1], ARGV[1] .. '.version', ARGV[1] .. '.time'))}
  end
end
return found
