-- KEYS: 5 list, 6 ids. ARGV: 6 the log's part, entries.
local refused = refusal()
if refused then return refused end
check_lists()
local part = tonumber(ARGV[6])
local without = bit.band(parts, bit.bnot(part))
if #ARGV > 6 then
  store(mark(), without + part)
  redis.call('UNLINK', KEYS[5], KEYS[6])
  push(KEYS[5], KEYS[6], 7, 0)
elseif exists then
  -- Removal comes first, so that a server without memory left lets it pass.
  redis.call('UNLINK', KEYS[5], KEYS[6])
  store(mark(), without)
end
return {'done'}
