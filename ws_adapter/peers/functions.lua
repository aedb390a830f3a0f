#!lua name=antiphon_peers_v1
-- The live adapters of a cluster, and rate limits over the connections of all of them.
--
-- KEYS[1] is a prefix with a hash tag. The keys below it are
--   seen              ZSET adapter -> ms, when it counts as dead
--   about             HASH adapter -> its description of itself
--   held:<adapter>    HASH client -> the number of its connections at that adapter
--   total             HASH client -> the sum over all adapters
--   rate:<client>     ms, when the token bucket of a client is full again; the key expires then
--
-- Each adapter reports its own counts, as absolute numbers, so that a repeated call does no harm.

local MINUTE_MS = 60000

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function add(p, client, count)
  if redis.call('HINCRBY', p .. 'total', client, count) <= 0 then
    redis.call('HDEL', p .. 'total', client)
  end
end

local function hold(p, adapter, client, count)
  local held = p .. 'held:' .. adapter
  local was = tonumber(redis.call('HGET', held, client) or 0)
  if count > 0 then
    redis.call('HSET', held, client, count)
  else
    redis.call('HDEL', held, client)
  end
  if count ~= was then add(p, client, count - was) end
end

local function forget(p, adapter)
  local held = redis.call('HGETALL', p .. 'held:' .. adapter)
  for i = 1, #held, 2 do add(p, held[i], -tonumber(held[i + 1])) end
  redis.call('DEL', p .. 'held:' .. adapter)
  redis.call('HDEL', p .. 'about', adapter)
  redis.call('ZREM', p .. 'seen', adapter)
end

local function forget_gone(p, now)
  for _, adapter in ipairs(redis.call('ZRANGEBYSCORE', p .. 'seen', '-inf', now)) do forget(p, adapter) end
end

-- Counts one attempt of a client; returns 0, or the ms until the next one is allowed.
local function attempt(p, client, per_min, now)
  local key = p .. 'rate:' .. client
  local good_at = math.max(tonumber(redis.call('GET', key) or 0), now) + MINUTE_MS / per_min
  -- The sum of fractions may exceed the minute by a rounding error.
  if good_at - now > MINUTE_MS + 1 then return math.ceil(good_at - now - MINUTE_MS) end
  redis.call('SET', key, string.format('%.3f', good_at), 'PX', math.ceil(good_at - now))
  return 0
end

-- Returns 0, 0 for an admitted connection; else the index of the exceeded demand, from 1, and the ms to wait, -1 if
-- unknown.
local function admit(p, adapter, demands, now)
  for i, demand in ipairs(demands) do
    local client, most, per_min = demand[1], demand[2], demand[3]
    if most > 0 and tonumber(redis.call('HGET', p .. 'total', client) or 0) >= most then return i, -1 end
    if per_min > 0 then
      local missing = attempt(p, client, per_min, now)
      if missing > 0 then return i, missing end
    end
  end
  for _, demand in ipairs(demands) do
    if demand[2] > 0 then
      redis.call('HINCRBY', p .. 'held:' .. adapter, demand[1], 1)
      add(p, demand[1], 1)
    end
  end
  return 0, 0
end

-- meet(adapter, ttl in ms, about, message): one heartbeat. The JSON message has `is_all` (whether `held` has all
-- clients of the adapter), `held`, and `newcomers`, the demands of new connections.
-- Answers {0} to an unknown adapter without `is_all`; else 1, and the two numbers of `admit` for each new connection.
local function meet(keys, args)
  local p, adapter, ttl, now = keys[1], args[1], tonumber(args[2]), now_ms()
  local told = cjson.decode(args[4])
  forget_gone(p, now)
  if told.is_all then
    forget(p, adapter)
  elseif not redis.call('ZSCORE', p .. 'seen', adapter) then
    return {0}
  end
  redis.call('ZADD', p .. 'seen', now + ttl, adapter)
  redis.call('HSET', p .. 'about', adapter, args[3])
  for client, count in pairs(told.held) do hold(p, adapter, client, count) end
  local answers = {1}
  for _, demands in ipairs(told.newcomers) do
    local demand, missing = admit(p, adapter, demands, now)
    answers[#answers + 1] = demand
    answers[#answers + 1] = missing
  end
  -- Without adapters all keys expire. The counts of one adapter must outlive the sum that contains them.
  for _, name in ipairs({'seen', 'about', 'total'}) do redis.call('PEXPIRE', p .. name, 2 * ttl) end
  redis.call('PEXPIRE', p .. 'held:' .. adapter, 4 * ttl)
  return answers
end

local function leave(keys, args)
  forget(keys[1], args[1])
  return 1
end

-- list(): answers the description of each live adapter.
local function list(keys, args)
  forget_gone(keys[1], now_ms())
  return redis.call('HVALS', keys[1] .. 'about')
end

redis.register_function('antiphon_peers_v1_meet', meet)
redis.register_function('antiphon_peers_v1_leave', leave)
redis.register_function('antiphon_peers_v1_list', list)
