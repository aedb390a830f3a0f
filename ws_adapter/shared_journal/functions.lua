#!lua name=antiphon_journal_v1
-- The journals of sessions. The adapter that owns a session writes its journal.
--
-- KEYS[1] is a prefix with a hash tag. The keys below it are
--   alive:<adapter>     expires without heartbeats of the adapter
--   session:<session>   HASH owner: the adapter, empty once the session was handed over
--                            last: the number of the newest entry
--                            nonce, used: nonces of the tokens that resume the session; `used` may be empty
--                            path: the dialect and mode of the session
--                            first, newest: the numbers of the first and the last stored event
--                            settings: the settings of the session at its worker
--                            claimed, from: time of a claim and the previous owner, until the claimant writes the session
--                            over: the session has ended, and no adapter may write it
--   stream:<session>    STREAM entry -> d: the data of the entry
--
-- All keys of a session expire together.

local MOST_ENTRIES = 16384
local OVER_MS = 60000
-- A claim expires after this time if its adapter has not written the session, since its answer may have been lost.
local CLAIM_MS = 2000

local function append(p, session, ttl, args, from)
  local stream = p .. 'stream:' .. session
  for i = from, #args, 2 do
    redis.call('XADD', stream, 'MAXLEN', MOST_ENTRIES, args[i] .. '-1', 'd', args[i + 1])
  end
  redis.call('PEXPIRE', stream, ttl)
  redis.call('PEXPIRE', p .. 'session:' .. session, ttl)
end

-- Returns whether another adapter owns the session, or whether it has ended.
local function is_anothers(p, session, adapter)
  local found = redis.call('HMGET', p .. 'session:' .. session, 'owner', 'over')
  return found[2] or (found[1] and found[1] ~= adapter)
end

-- begin(session, adapter, ttl, last, nonce, used, first, newest, path, settings, {entry, data}...): replaces the
-- whole journal. Answers 1, or 2 if another adapter owns the session.
local function begin(keys, args)
  local p, session, adapter, ttl = keys[1], args[1], args[2], args[3]
  if is_anothers(p, session, adapter) then return 2 end
  redis.call('DEL', p .. 'stream:' .. session)
  redis.call('HSET', p .. 'session:' .. session, 'owner', adapter, 'last', args[4], 'nonce', args[5],
    'used', args[6], 'first', args[7], 'newest', args[8], 'path', args[9], 'settings', args[10])
  redis.call('HDEL', p .. 'session:' .. session, 'claimed', 'from')
  append(p, session, ttl, args, 11)
  return 1
end

-- append(session, adapter, ttl, last, nonce, used, first, newest, before, gone, entry to delete...,
-- {entry, data}...): appends to a journal whose newest entry is `before`; `gone` is the number of entries to
-- delete. Answers 1, 0 if entries are missing in between, or 2 if another adapter owns the session.
local function go_on(keys, args)
  local p, session, adapter, ttl = keys[1], args[1], args[2], args[3]
  local hash, stream = p .. 'session:' .. session, p .. 'stream:' .. session
  if is_anothers(p, session, adapter) then return 2 end
  if redis.call('HGET', hash, 'last') ~= args[9] then return 0 end
  redis.call('HSET', hash, 'last', args[4], 'nonce', args[5], 'used', args[6], 'first', args[7],
    'newest', args[8])
  local gone = tonumber(args[10])
  for i = 11, 10 + gone do redis.call('XDEL', stream, args[i] .. '-1') end
  append(p, session, ttl, args, 11 + gone)
  return 1
end

-- beat(adapter, life, ttl, session...): a heartbeat of the adapter and of these sessions. Answers for each session
-- 1, 0 if it is missing, or 2 if another adapter owns it.
local function beat(keys, args)
  local p, adapter, ttl = keys[1], args[1], args[3]
  redis.call('SET', p .. 'alive:' .. adapter, '1', 'PX', args[2])
  local answers = {}
  for i = 4, #args do
    local hash = p .. 'session:' .. args[i]
    if is_anothers(p, args[i], adapter) then
      answers[#answers + 1] = 2
    else
      answers[#answers + 1] = redis.call('PEXPIRE', hash, ttl)
      redis.call('PEXPIRE', p .. 'stream:' .. args[i], ttl)
    end
  end
  return answers
end

-- claim(session, adapter, dead, ttl, nonce, next_nonce, path, last_event, most): takes over a session whose adapter
-- sends no heartbeats or is `dead`. Answers {none}, {alive}, {behind} if the client has events that are not here,
-- {lost} if events are missing or there are more than `most` bytes, or {taken, was handed over, settings, data...}.
local function claim(keys, args)
  local p, session, adapter, dead, ttl = keys[1], args[1], args[2], args[3], args[4]
  local nonce, event = args[5], tonumber(args[8])
  local hash, stream = p .. 'session:' .. session, p .. 'stream:' .. session
  local found = redis.call('HMGET', hash, 'owner', 'nonce', 'used', 'path', 'first', 'newest', 'settings',
    'over', 'claimed', 'from')
  local owner, is_known = found[1], found[2] == nonce or found[3] == nonce
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  if not owner or found[8] or not is_known or found[4] ~= args[7] then return {'none'} end
  if found[9] then
    if now - tonumber(found[9]) < CLAIM_MS then return {'alive'} end
    owner = found[10]
  end
  if owner == adapter then return {'none'} end
  if owner ~= '' and owner ~= dead and redis.call('EXISTS', p .. 'alive:' .. owner) == 1 then
    return {'alive'}
  end
  if event > tonumber(found[6]) then return {'behind'} end
  if event < tonumber(found[5]) - 1 then return {'lost'} end
  local entries, size = redis.call('XRANGE', stream, '-', '+'), #found[7]
  for _, entry in ipairs(entries) do size = size + #entry[2][2] end
  if args[9] and size > tonumber(args[9]) then return {'lost'} end
  redis.call('HSET', hash, 'owner', adapter, 'nonce', args[6], 'used', nonce, 'claimed', now, 'from', owner)
  redis.call('PEXPIRE', hash, ttl)
  redis.call('PEXPIRE', stream, ttl)
  local answer = {'taken', owner == '' and 1 or 0, found[7]}
  for _, entry in ipairs(entries) do answer[#answer + 1] = entry[2][2] end
  return answer
end

-- release(session, adapter): hands the session over: any adapter may take it.
local function release(keys, args)
  if is_anothers(keys[1], args[1], args[2]) then return 2 end
  return redis.call('HSET', keys[1] .. 'session:' .. args[1], 'owner', '') == 0 and 1 or 0
end

-- forget(session, adapter): deletes an ended session. A mark stays for a while, so that a frozen adapter cannot
-- write the session again.
local function forget(keys, args)
  local p, session = keys[1], args[1]
  if is_anothers(p, session, args[2]) then return 2 end
  redis.call('DEL', p .. 'stream:' .. session, p .. 'session:' .. session)
  redis.call('HSET', p .. 'session:' .. session, 'over', '1')
  redis.call('PEXPIRE', p .. 'session:' .. session, OVER_MS)
  return 1
end

redis.register_function('antiphon_journal_v1_begin', begin)
redis.register_function('antiphon_journal_v1_append', go_on)
redis.register_function('antiphon_journal_v1_beat', beat)
redis.register_function('antiphon_journal_v1_claim', claim)
redis.register_function('antiphon_journal_v1_release', release)
redis.register_function('antiphon_journal_v1_forget', forget)
