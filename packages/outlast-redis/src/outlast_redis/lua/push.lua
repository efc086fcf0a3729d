-- Appends entries, ARGV[first] and following, to a log that holds `count` of them.
local function push(list, ids, first, count)
  for i = first, #ARGV do
    redis.call('RPUSH', list, ARGV[i])
    redis.call('HSET', ids, id_of(ARGV[i]), digits(count + i - first))
  end
end

