-- ARGV: 1 claim_id, 2 at_least or '', 3 parent or '', 4 register, 5 member,
-- 6 if_epoch or ''.
check_lists()
if epoch == 0 or stored[2] ~= ARGV[1] then
  if ARGV[6] ~= '' and tonumber(ARGV[6]) ~= epoch then
    return {'refused', stored[1], stored[2], stored[3], stored[4]}
  end
  local next = math.max(epoch, floor) + 1
  if ARGV[2] ~= '' then
    next = tonumber(ARGV[2])
    if next <= epoch then
      return {'refused', stored[1], stored[2], stored[3], stored[4]}
    end
  end
  store({'epoch', digits(next), 'claim', ARGV[1], 'seq', '0', 'op', ''}, parts)
end
-- What holds data is found by the parent that came with them.
if ARGV[3] ~= '' and redis.call('HEXISTS', KEYS[1], ARGV[4]) == 0 then move(ARGV[3]) end
return {'done', digits(clock()), unpack(redis.call('HMGET', KEYS[1], 'epoch', 'claim', 'seq', 'op',
  'parent', ARGV[4], ARGV[4] .. '.version', ARGV[4] .. '.time'))}
