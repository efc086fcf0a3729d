-- Marks a namespace as ours, unless the user may not run all commands that scripts and driver use: a
-- script that may not go on would stay half done.
-- KEYS: 1 format, 2 a key that is never there. ARGV: 1 the format to store if there is none, or '';
-- 2 a key of a bucket; 3 whether this is a cluster ('1').
-- Returns the format, commands that are refused, that are unknown, whether keys are ('1'), and
-- whether the user may read everything and write nothing ('1').
local check = redis.acl_check_cmd

-- Before Redis 7 these are really run: with no effect on `none`, which is not there, and refused on
-- `text`, which holds a string.
local function reads(none)
  local commands = {
    {'EVAL', '', '1', none}, {'EVALSHA', '', '1', none}, {'TIME'}, {'EXISTS', none}, {'GET', none},
    {'HEXISTS', none, ''}, {'HGET', none, ''}, {'HLEN', none}, {'HMGET', none, ''},
    {'LINDEX', none, '0'}, {'LLEN', none}, {'LRANGE', none, '0', '0'},
    {'ZCARD', none}, {'ZSCORE', none, ''}, {'ZRANGEBYSCORE', none, '0', '0'},
    {'ZRANGEBYLEX', none, '-', '+'},
  }
  if ARGV[3] == '1' then table.insert(commands, {'ASKING'}) end
  return commands
end
local function writes(none, text)
  return {
    {'SET', none, '', 'XX'}, {'UNLINK', none}, {'RENAME', none, none},
    {'HSET', text, '', ''}, {'HSETNX', text, '', ''}, {'HDEL', none, ''},
    {'RPUSH', text, ''}, {'ZADD', none, 'XX', '0', ''}, {'ZREM', none, ''},
  }
end

-- What the server says against a command: 'unknown', 'refused' or nothing.
local function objection(command)
  local text = ''
  if check then
    local done, answer = pcall(check, unpack(command))
    if done then return not answer and 'refused' or nil end
    text = type(answer) == 'table' and answer.err or tostring(answer)
  else
    local answer = redis.pcall(unpack(command))
    text = type(answer) == 'table' and answer.err or ''
  end
  if string.find(text, 'Unknown %w* ?command') or string.find(text, 'Invalid command') then
    return 'unknown'
  end
  for _, part in ipairs({'user executing the script', 'ACL failure in script', 'NOPERM'}) do
    if string.find(text, part) then return 'refused' end
  end
end

local format = redis.pcall('GET', KEYS[1])
local is_blind = type(format) == 'table'
if is_blind then
  if not objection({'GET', KEYS[1]}) then return format end
  if not check then return {false, {'GET'}, {}, '', ''} end
elseif not format and ARGV[1] == '' then
  return {false, {}, {}, '', ''}
end
local is_new = not format
if is_new and not check then
  -- What is really run needs it.
  local answer = redis.pcall('SET', KEYS[1], ARGV[1])
  if answer.err then
    return objection({'SET', KEYS[2], '', 'XX'}) and {false, {'SET'}, {}, '', ''} or answer
  end
end

local found = {refused = {}, unknown = {}}
local is_key = ''
-- How many commands may not be run; `known` are the same on keys that the user may use.
local function count(commands, known)
  local sum = 0
  for place, command in ipairs(commands) do
    local what = objection(command)
    if what then
      sum = sum + 1
      if check and what == 'refused' and not objection(known[place]) then
        is_key = '1'
      else
        table.insert(found[what], command[1])
      end
    end
  end
  return sum
end

local none, text = KEYS[2], KEYS[1]
if check then none, text = ARGV[2], ARGV[2] end
local unread = count(reads(none), reads(KEYS[2]))
local all = writes(none, text)
local unwritten = count(all, writes(KEYS[2], KEYS[2]))
if is_new then
  if unread + unwritten == 0 then
    redis.call('SET', KEYS[1], ARGV[1])
  elseif not check then
    redis.pcall('UNLINK', KEYS[1])
  end
  format = ARGV[1]
end
if is_blind and #found.refused == 0 then is_key = '1' end
local is_reader = unread == 0 and #found.unknown == 0 and is_key == '' and unwritten == #all
return {format, found.refused, found.unknown, is_key, is_reader and '1' or ''}
