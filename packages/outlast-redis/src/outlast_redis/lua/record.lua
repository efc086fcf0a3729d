-- What the scripts on one scope share.
-- KEYS: 1 head, 2 index, 3 empty, 4 floor. ARGV: 1-4 epoch ('': unclaimed), claim_id, seq, op of a
-- mutation; 5 member.
-- ARGV[6] of a write is its register; no other script uses what is read by it.
-- The head holds the fence, `version` (of its newest register write), `parts` (bits: which
-- registers and logs hold data), index attributes and registers. `empty` orders the scopes without
-- data by their last change; `floor` is what no swept scope was above.
local stored = redis.call('HMGET', KEYS[1], 'epoch', 'claim', 'seq', 'op', 'version', 'parts',
  'parent', (ARGV[6] or '') .. '.version')
local exists = stored[1] ~= false
local epoch = tonumber(stored[1] or '0')
local version = tonumber(stored[5] or '0')
local parts = tonumber(stored[6] or '0')
local floor = 0
if epoch == 0 then
  floor = tonumber(redis.call('GET', KEYS[4]) or '0')
  if not exists then version = floor end
end

-- Nothing may fail once something is written; a key of another type would, and TIME, if the user
-- may not ask. For scripts that are about to write to `index` or `empty`.
local function check_lists()
  clock()
  redis.call('ZCARD', KEYS[2])
  redis.call('ZCARD', KEYS[3])
end

-- The stored fence, if it does not admit the mutation; the driver says what that means.
local function refusal()
  if ARGV[1] == '' then
    if epoch == 0 then return nil end
  elseif exists and epoch == tonumber(ARGV[1]) and stored[2] == ARGV[2]
    and tonumber(stored[3]) < tonumber(ARGV[3]) then
    return nil
  end
  return {'refused', stored[1], stored[2], stored[3], stored[4]}
end

-- Stores fields (name, value, ...) and which parts now hold data; makes the record if need be.
local function store(fields, new_parts)
  local all = {'parts', digits(new_parts)}
  if not exists then
    all = {'epoch', '0', 'claim', '', 'seq', '0', 'op', '', 'version', digits(floor), unpack(all)}
  end
  for _, field in ipairs(fields) do all[#all + 1] = field end
  redis.call('HSET', KEYS[1], unpack(all))
  if not exists then
    redis.call('ZADD', KEYS[2], 0, ARGV[5])
  end
  if new_parts == 0 then
    redis.call('ZADD', KEYS[3], digits(clock()), ARGV[5])
  elseif parts == 0 and exists then
    redis.call('ZREM', KEYS[3], ARGV[5])
  end
end

-- The fields by which an accepted mutation is remembered.
local function mark()
  if ARGV[1] == '' then return {} end
  return {'seq', ARGV[3], 'op', ARGV[4]}
end

-- Makes `parent` ('' for none) the parent by which the scope is found.
local function move(parent)
  local old = stored[7] or ''
  if old == parent then return end
  if old ~= '' then redis.call('ZREM', KEYS[2], below(old, ARGV[5])) end
  if parent ~= '' then redis.call('ZADD', KEYS[2], 0, below(parent, ARGV[5])) end
  redis.call('HSET', KEYS[1], 'parent', parent)
end
