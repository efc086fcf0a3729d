-- Helpers of all scripts. A script reads and checks first and writes last: what fails has changed
-- nothing. Every key that it touches is in KEYS. Payloads and ids are opaque bytes.

-- Microseconds since 1970 by this server's clock; frozen while a script runs.
local now
local function clock()
  if not now then
    local time = redis.call('TIME')
    now = tonumber(time[1]) * 1000000 + tonumber(time[2])
  end
  return now
end

-- A number as decimal digits: exact up to 2^53, where tostring() would round and use exponents.
local function digits(number)
  return string.format('%.0f', number)
end

-- An entry of a log is the length of its id (two bytes), the id, the payload.
local function id_of(entry)
  local high, low = string.byte(entry, 1, 2)
  return string.sub(entry, 3, 2 + high * 256 + low)
end

-- Where a scope is found by its parent. `member` is the kind ('t' or 'r') and the id.
local function below(parent, member)
  return string.upper(string.sub(member, 1, 1)) .. redis.sha1hex(parent) .. string.sub(member, 2)
end
