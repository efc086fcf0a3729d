-- KEYS: 5 and following: list and ids of each log. ARGV: 6 and following: registers.
local refused = refusal()
if refused then return refused end
check_lists()
if not exists then return {'done'} end
local fields = mark()
local written = digits(version + 1)
fields[#fields + 1] = 'version'
fields[#fields + 1] = written
local gone = {'status', 'updated'}
for i = 6, #ARGV do
  gone[#gone + 1] = ARGV[i]
  gone[#gone + 1] = ARGV[i] .. '.time'
  if redis.call('HEXISTS', KEYS[1], ARGV[i] .. '.version') == 1 then
    fields[#fields + 1] = ARGV[i] .. '.version'
    fields[#fields + 1] = written
  end
end
redis.call('HDEL', KEYS[1], unpack(gone))
for i = 5, #KEYS do redis.call('UNLINK', KEYS[i]) end
store(fields, 0)
return {'done'}
