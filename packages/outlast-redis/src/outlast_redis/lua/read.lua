-- KEYS: 1 head. ARGV: 1 register.
return {digits(clock()), unpack(redis.call('HMGET', KEYS[1], 'epoch', 'claim', 'seq', 'op',
  'parent', ARGV[1], ARGV[1] .. '.version', ARGV[1] .. '.time'))}
