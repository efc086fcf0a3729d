-- ARGV: 6 register, 7 its part, 8 version expected or '', 9 what becomes of the index attributes
-- ('keep', 'clear' all but the parent, 'set'), 10-12 parent, status, updated, 13 data, if any.
local name, part = ARGV[6], tonumber(ARGV[7])
local held = tonumber(stored[8] or '0')
local refused = refusal()
if refused then
  refused[6] = held
  return refused
end
if ARGV[8] ~= '' and tonumber(ARGV[8]) ~= held then return {'version', held} end
local data = ARGV[13]
if not exists and not data then return {'done', 0} end
if not exists or parts == 0 or not data
  or (ARGV[9] == 'set' and ARGV[10] ~= (stored[7] or '')) then
  check_lists()
end

local fields = mark()
local function set(field, value)
  fields[#fields + 1] = field
  fields[#fields + 1] = value
end
local written = digits(version + 1)
set('version', written)
set(name .. '.version', written)
set(name .. '.time', digits(clock()))
if data then set(name, data) end
if ARGV[9] == 'set' then
  set('status', ARGV[11])
  set('updated', ARGV[12])
end
local without = bit.band(parts, bit.bnot(part))
if data then
  store(fields, without + part)
else
  store(fields, without)
  redis.call('HDEL', KEYS[1], name)
end
if ARGV[9] == 'set' then
  move(ARGV[10])
elseif ARGV[9] == 'clear' then
  redis.call('HDEL', KEYS[1], 'status', 'updated')
end
return {'done', version + 1}
