#!lua name=antiphon_tenants_v1
-- The usage of all accounts, and the keys that the adapters share.
--
-- KEYS[1] is a prefix with a hash tag. The keys below it are
--   day:<day>:<account>   HASH ms, tokens: the usage of an account on that day (days since 1970, in UTC)
--   last:<adapter>        HASH seq, answer: the last call of an adapter. A call that is repeated because its
--                         answer was lost gets the same answer and is booked once
--   keys                  the text of a file of keys

local DAY_S = 86400
local KEPT_MS = 2 * DAY_S * 1000
local LAST_MS = 3600 * 1000

-- Books `spent`, and as much of `want` as the quota has; `_booked` in store.py has the same rule.
local function book(used, spent, want, most, is_today)
  if spent > 0 or is_today then used = math.max(0, used + spent) end
  local got = want
  if most > 0 then got = math.min(want, math.max(0, most - used)) end
  return used + got, got
end

-- take(adapter, seq, takes): takes are JSON, each {account, day, spent_ms, want_ms, most_ms, spent_tokens,
-- want_tokens, most_tokens}. Answers JSON: {day, {ms, tokens}...}.
local function take(keys, args)
  local p, adapter, seq = keys[1], args[1], args[2]
  local last = p .. 'last:' .. adapter
  if redis.call('HGET', last, 'seq') == seq then return redis.call('HGET', last, 'answer') end
  local day = math.floor(redis.call('TIME')[1] / DAY_S)
  local answer = {day}
  for _, one in ipairs(cjson.decode(args[3])) do
    local key, is_today = p .. 'day:' .. day .. ':' .. one[1], one[2] == day
    local used = redis.call('HMGET', key, 'ms', 'tokens')
    local ms, got_ms = book(tonumber(used[1] or 0), one[3], one[4], one[5], is_today)
    local tokens, got_tokens = book(tonumber(used[2] or 0), one[6], one[7], one[8], is_today)
    redis.call('HSET', key, 'ms', string.format('%.0f', ms), 'tokens', string.format('%.0f', tokens))
    redis.call('PEXPIRE', key, KEPT_MS)
    answer[#answer + 1] = {got_ms, got_tokens}
  end
  local text = cjson.encode(answer)
  redis.call('HSET', last, 'seq', seq, 'answer', text)
  redis.call('PEXPIRE', last, LAST_MS)
  return text
end

-- read_keys(): answers the text of the file of keys, or nil if there is none.
local function read_keys(keys, args)
  return redis.call('GET', keys[1] .. 'keys')
end

-- write_keys(text): replaces all keys.
local function write_keys(keys, args)
  redis.call('SET', keys[1] .. 'keys', args[1])
  return 1
end

redis.register_function('antiphon_tenants_v1_take', take)
redis.register_function('antiphon_tenants_v1_read_keys', read_keys)
redis.register_function('antiphon_tenants_v1_write_keys', write_keys)
