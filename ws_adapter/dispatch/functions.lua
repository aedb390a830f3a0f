#!lua name=antiphon_v1

-- The queue for the slots of a pool of workers, shared by all adapters. KEYS[1] of each function is the prefix of
-- the pool, antiphon:{<pool>}: (in `announce` and `pools` the prefix of the directory). All keys begin with it, so
-- that a pool is in one hash slot of a Redis Cluster. Nothing runs in the background: each function of a pool first
-- drops what has expired, then does its own work, then gives free slots to the first tickets, and answers last.
--
-- Keys, after the prefix:
--   clock, boot                  milliseconds: the time of `tick`; the first call on an empty database
--   seq, epoch                   order of arrival; the fencing of leases
--   queue                        waiting tickets by seq
--   waiting                      how many of each kind wait
--   ticket_exp, worker_exp       when a ticket or a worker without a heartbeat is dropped
--   grant_exp                    when a lease that is not attached is revoked, by <worker>/<slot>
--   t:<ticket>                   adapter, kind, label, since, weights, revision; once granted worker, slot, epoch,
--                                target
--   w:<worker>                   target, accepting, slots, load, revision
--   turns                        revision -> credit, where revisions have weights: see `choose`
--   avail                        workers that take a session, by their busy slots
--   free:<worker>                free slots, by the time since which they are free
--   l:<worker>                   slot -> "epoch state since kind ticket"; granted, attached, revoked
--   holders                      ticket -> holder, of tickets and leases whose holder's slots are bounded
--   held                         holder -> how many tickets and leases it has
--   mean:<kind>                  moving mean of session lengths in milliseconds, and the number of sessions

local SETTLE_MS = 3000
local GRANT_MS = 10000
local LONGEST_STEP_MS = 2000
local EPOCH_LEAP = 1000
local ALPHA = 0.3
local STABLE = 'stable' -- the revision of a worker that names none
local AHEAD = 2 ^ 52 -- subtracted from the seq of a ticket at the head of the queue
local MEMBERS = 1000 -- the most members of one ZADD: a call takes some thousand arguments

local function call(...)
  return redis.call(...)
end

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function whole(number)
  return string.format('%.0f', number)
end

-- ------------------------------------------------------------------------------------------------ holders

-- Counts a ticket, and later its lease, for the holder. Idempotent.
local function hold(p, ticket, holder)
  if call('HSETNX', p .. 'holders', ticket, holder) == 1 then
    call('HINCRBY', p .. 'held', holder, 1)
  end
end

-- Stops counting a ticket that is gone, or whose lease has ended.
local function let_go(p, ticket)
  local holder = call('HGET', p .. 'holders', ticket)
  if not holder then
    return
  end
  call('HDEL', p .. 'holders', ticket)
  if call('HINCRBY', p .. 'held', holder, -1) <= 0 then
    call('HDEL', p .. 'held', holder)
  end
end

-- Returns weights such as `stable:95 canary:5` as a list of {revision, weight}, without those of weight 0.
local function read_weights(text)
  local weights = {}
  for revision, weight in string.gmatch(text, '(%S+):(%d+)') do
    if tonumber(weight) > 0 then
      weights[#weights + 1] = { revision, tonumber(weight) }
    end
  end
  return weights
end

-- Returns whether workers of this revision get sessions; without weights all do.
local function takes(weights, revision)
  for _, each in ipairs(weights) do
    if each[1] == revision then
      return true
    end
  end
  return #weights == 0
end

-- Returns how many slots a holder may have; `most` 0 means all slots of the pool but one.
local function most_slots(p, most, weights)
  if most > 0 then
    return most
  end
  local slots = 0
  for _, worker in ipairs(call('ZRANGE', p .. 'worker_exp', 0, -1)) do
    local w = call('HMGET', p .. 'w:' .. worker, 'accepting', 'slots', 'revision')
    if w[1] == '1' and takes(weights, w[3] or STABLE) then
      slots = slots + tonumber(w[2])
    end
  end
  return math.max(1, slots - 1)
end

-- ------------------------------------------------------------------------------------------------- leases

local function place(worker, slot)
  return worker .. '/' .. slot
end

local function read_lease(text)
  local epoch, state, since, kind, ticket = string.match(text, '^(%d+) (%a+) (%d+) (%S+) (%S+)$')
  return { epoch = tonumber(epoch), state = state, since = tonumber(since), kind = kind, ticket = ticket }
end

local function lease_of(p, worker, slot)
  local text = call('HGET', p .. 'l:' .. worker, slot)
  return text and read_lease(text) or nil
end

-- Returns all leases of a worker by slot, in one call: there may be hundreds.
local function leases_of(p, worker)
  local flat, leases = call('HGETALL', p .. 'l:' .. worker), {}
  for index = 1, #flat, 2 do
    leases[flat[index]] = read_lease(flat[index + 1])
  end
  return leases
end

local function record(p, worker, slot, lease)
  local since = whole(lease.since)
  local text = table.concat({ whole(lease.epoch), lease.state, since, lease.kind, lease.ticket }, ' ')
  call('HSET', p .. 'l:' .. worker, slot, text)
end

-- Ends a pending grant, and drops the record of its ticket: the lease is attached or over.
local function close_grant(p, worker, slot, lease)
  call('ZREM', p .. 'grant_exp', place(worker, slot))
  call('DEL', p .. 't:' .. lease.ticket)
end

-- Revokes a lease. Its slot stays occupied until the worker reports it free.
local function revoke(p, worker, slot, lease)
  close_grant(p, worker, slot, lease)
  lease.state = 'revoked'
  record(p, worker, slot, lease)
  call('PUBLISH', p .. 'w:' .. worker, 'revoked ' .. slot .. ' ' .. whole(lease.epoch))
end

-- Adds a worker to `avail` if it accepts sessions and has a free slot, else removes it.
local function offer(p, worker)
  local accepting = call('HGET', p .. 'w:' .. worker, 'accepting')
  if accepting == '1' and call('ZCARD', p .. 'free:' .. worker) > 0 then
    call('ZADD', p .. 'avail', call('HLEN', p .. 'l:' .. worker), worker)
  else
    call('ZREM', p .. 'avail', worker)
  end
end

local function release(p, time, worker, slot, lease)
  close_grant(p, worker, slot, lease)
  let_go(p, lease.ticket)
  call('HDEL', p .. 'l:' .. worker, slot)
  call('ZADD', p .. 'free:' .. worker, time, slot)
end

local function forget_worker(p, worker)
  for slot, lease in pairs(leases_of(p, worker)) do
    close_grant(p, worker, slot, lease)
    let_go(p, lease.ticket)
  end
  call('ZREM', p .. 'worker_exp', worker)
  call('ZREM', p .. 'avail', worker)
  call('DEL', p .. 'w:' .. worker, p .. 'l:' .. worker, p .. 'free:' .. worker)
end

-- ------------------------------------------------------------------------------------------------ tickets

-- Removes a ticket from the queue; false if it does not wait.
local function unqueue(p, ticket)
  if call('ZREM', p .. 'queue', ticket) == 0 then
    return false
  end
  local kind = call('HGET', p .. 't:' .. ticket, 'kind')
  if call('HINCRBY', p .. 'waiting', kind, -1) == 0 then
    call('HDEL', p .. 'waiting', kind)
  end
  return true
end

local function drop_ticket(p, ticket)
  unqueue(p, ticket)
  -- The ticket of an attached lease has no record, and is counted until the lease ends.
  if call('EXISTS', p .. 't:' .. ticket) == 1 then
    let_go(p, ticket)
  end
  call('ZREM', p .. 'ticket_exp', ticket)
  call('DEL', p .. 't:' .. ticket)
end

local function granted_to(p, ticket)
  local grant = call('HMGET', p .. 't:' .. ticket, 'worker', 'slot', 'epoch', 'target')
  return grant[1] and grant or nil
end

-- --------------------------------------------------------------------------------------------------- pump

-- Returns the time of the pool, in milliseconds: the clock of Redis, in which the time between two calls counts
-- LONGEST_STEP_MS at most. An outage, in which no heartbeat can arrive, therefore expires no ticket or worker.
local function tick(p)
  local real = now()
  local clock = call('HMGET', p .. 'clock', 'real', 'time')
  local time = real
  if clock[1] then
    local step = real - tonumber(clock[1])
    time = tonumber(clock[2]) + math.max(0, math.min(step, LONGEST_STEP_MS))
  else
    call('SET', p .. 'boot', real)
    -- Above the numbers of an earlier database, for up to a million tickets a second.
    call('SET', p .. 'seq', whole(real * 1000), 'NX')
  end
  call('HSET', p .. 'clock', 'real', real, 'time', time)
  return time
end

-- First half of the pump: drops what has expired. Returns the time of the pool.
local function begin(p)
  local time = tick(p)
  for _, ticket in ipairs(call('ZRANGEBYSCORE', p .. 'ticket_exp', '-inf', time)) do
    drop_ticket(p, ticket)
  end
  for _, worker in ipairs(call('ZRANGEBYSCORE', p .. 'worker_exp', '-inf', time)) do
    forget_worker(p, worker)
  end
  for _, member in ipairs(call('ZRANGEBYSCORE', p .. 'grant_exp', '-inf', time)) do
    local worker, slot = string.match(member, '^(.*)/(%d+)$')
    revoke(p, worker, slot, lease_of(p, worker, slot))
  end
  return time
end

local function grant(p, time, ticket, worker)
  local slot = call('ZPOPMIN', p .. 'free:' .. worker)[1]
  local epoch = call('INCR', p .. 'epoch')
  local key = p .. 't:' .. ticket
  local of = call('HMGET', key, 'kind', 'adapter')
  unqueue(p, ticket)
  call('ZREM', p .. 'ticket_exp', ticket)
  local lease = { epoch = epoch, state = 'granted', since = time, kind = of[1], ticket = ticket }
  record(p, worker, slot, lease)
  call('ZADD', p .. 'grant_exp', time + GRANT_MS, place(worker, slot))
  local target = call('HGET', p .. 'w:' .. worker, 'target')
  call('HSET', key, 'worker', worker, 'slot', slot, 'epoch', whole(epoch), 'target', target)
  offer(p, worker)
  call('PUBLISH', p .. 'a:' .. of[2], 'granted ' .. ticket)
end

-- Returns the least busy worker for a ticket, nil if there is none. With weights, smooth weighted round robin over
-- the revisions with a free slot chooses the revision first, as `WeightedRoundRobin` in revisions.py does. A session
-- stays at the revision that it had, if that has a free slot.
local function choose(p, ticket)
  local t = call('HMGET', p .. 't:' .. ticket, 'weights', 'revision')
  local weights = read_weights(t[1] or '')
  if #weights == 0 then
    return call('ZRANGE', p .. 'avail', 0, 0)[1]
  end
  local least_busy, total, best = {}, 0, nil
  for _, worker in ipairs(call('ZRANGE', p .. 'avail', 0, -1)) do
    local revision = call('HGET', p .. 'w:' .. worker, 'revision') or STABLE
    least_busy[revision] = least_busy[revision] or worker
  end
  if t[2] and takes(weights, t[2]) and least_busy[t[2]] then
    return least_busy[t[2]]
  end
  for _, each in ipairs(weights) do
    total = total + (least_busy[each[1]] and each[2] or 0)
  end
  for _, each in ipairs(weights) do
    if least_busy[each[1]] then
      local credit = tonumber(call('HGET', p .. 'turns', each[1]) or 0) + each[2] / total
      call('HSET', p .. 'turns', each[1], string.format('%.17g', credit))
      if not best or credit > best[2] then
        best = { each[1], credit }
      end
    end
  end
  if best then
    call('HSET', p .. 'turns', best[1], string.format('%.17g', best[2] - 1))
    return least_busy[best[1]]
  end
end

-- Second half of the pump: gives slots of the least busy workers to the first tickets.
local function match(p, time)
  if time < tonumber(call('GET', p .. 'boot')) + SETTLE_MS then
    return
  end
  while true do
    local ticket = call('ZRANGE', p .. 'queue', 0, 0)[1]
    local worker = ticket and choose(p, ticket)
    if not worker then
      return
    end
    grant(p, time, ticket, worker)
  end
end

-- ------------------------------------------------------------------------------------------------ workers

-- Updates the leases of a worker from its report, which takes precedence. Returns the new leases by slot.
local function reconcile(p, time, worker, held)
  local leases = leases_of(p, worker)
  for slot, epoch in pairs(held) do
    local lease = leases[slot]
    if lease and lease.epoch == epoch then
      if lease.state == 'granted' then
        close_grant(p, worker, slot, lease)
        lease.state = 'attached'
        record(p, worker, slot, lease)
      end
    elseif not lease or lease.epoch < epoch or lease.state ~= 'granted' then
      -- Skipped while a later grant is pending: the report may be old, and its session about to end.
      if lease then
        close_grant(p, worker, slot, lease)
        let_go(p, lease.ticket)
      end
      call('ZREM', p .. 'free:' .. worker, slot)
      leases[slot] = { epoch = epoch, state = 'attached', since = time, kind = '-', ticket = '-' }
      record(p, worker, slot, leases[slot])
    end
  end
  for slot, lease in pairs(leases) do
    if lease.state == 'attached' and held[slot] ~= lease.epoch then
      release(p, time, worker, slot, lease)
    end
  end
  return leases
end

local function revoked_slots(leases)
  local answer = {}
  for slot, lease in pairs(leases) do
    if lease.state == 'revoked' then
      answer[#answer + 1] = tonumber(slot)
      answer[#answer + 1] = lease.epoch
    end
  end
  return answer
end

-- worker_beat(worker, target, ttl, accepting, slots, load, highest_epoch, [slot, epoch]...): the pairs are the
-- leases that are attached or being cleaned. Returns the revoked leases, [slot, epoch]..., until slot_free confirms
-- each of them. `worker_beat_as` has the revision of the worker before all these arguments.
local function beat(keys, args, revision)
  local p, worker = keys[1], args[1]
  local time = begin(p)
  if call('EXISTS', p .. 'w:' .. worker) == 0 then
    for slot = 0, tonumber(args[5]) - 1 do
      call('ZADD', p .. 'free:' .. worker, time, slot)
    end
  end
  call('ZADD', p .. 'worker_exp', time + tonumber(args[3]), worker)
  call('HSET', p .. 'w:' .. worker, 'target', args[2], 'accepting', args[4], 'slots', args[5], 'load', args[6])
  call('HSET', p .. 'w:' .. worker, 'revision', revision)
  local highest, held = tonumber(args[7]), {}
  for index = 8, #args, 2 do
    held[args[index]] = tonumber(args[index + 1])
  end
  if highest > tonumber(call('GET', p .. 'epoch') or 0) then
    call('SET', p .. 'epoch', whole(highest + EPOCH_LEAP))
  end
  local leases = reconcile(p, time, worker, held)
  offer(p, worker)
  match(p, time)
  return revoked_slots(leases)
end

local function worker_beat(keys, args)
  return beat(keys, args, STABLE)
end

local function worker_beat_as(keys, args)
  return beat(keys, args, table.remove(args, 1))
end

local function learn(p, kind, length)
  local mean = call('HMGET', p .. 'mean:' .. kind, 'mean', 'samples')
  local before = tonumber(mean[1] or length)
  local after = ALPHA * length + (1 - ALPHA) * before
  call('HSET', p .. 'mean:' .. kind, 'mean', whole(after), 'samples', tonumber(mean[2] or 0) + 1)
end

-- slot_free(worker, slot, epoch): the slot is clean. 0 if the slot has another lease.
local function slot_free(keys, args)
  local p, worker, slot = keys[1], args[1], args[2]
  local time = begin(p)
  local lease = lease_of(p, worker, slot)
  local is_current = lease ~= nil and lease.epoch == tonumber(args[3])
  if is_current then
    release(p, time, worker, slot, lease)
    if lease.state ~= 'revoked' and lease.kind ~= '-' then
      learn(p, lease.kind, time - lease.since)
    end
    offer(p, worker)
  end
  match(p, time)
  return is_current and 1 or 0
end

-- worker_leave(worker)
local function worker_leave(keys, args)
  local p = keys[1]
  local time = begin(p)
  forget_worker(p, args[1])
  match(p, time)
  return 1
end

-- ----------------------------------------------------------------------------------------------- adapters

local function enter(p, time, args)
  local ticket, kind, seq = args[1], args[4], args[6]
  local key = p .. 't:' .. ticket
  if seq == '0' then
    seq = call('INCR', p .. 'seq') - tonumber(args[11] or 0)
  elseif seq == 'head' then
    seq = call('INCR', p .. 'seq') - AHEAD
  else
    seq = tonumber(seq)
    if seq > tonumber(call('GET', p .. 'seq')) then
      call('SET', p .. 'seq', whole(seq))
    end
  end
  call('HSET', key, 'adapter', args[2], 'kind', kind, 'label', args[7] or '')
  call('HSET', key, 'since', whole(time - tonumber(args[8] or 0)))
  if args[12] then
    call('HSET', key, 'weights', args[12], 'revision', args[13])
  end
  call('ZADD', p .. 'queue', whole(seq), ticket)
  call('HINCRBY', p .. 'waiting', kind, 1)
  if (args[9] or '') ~= '' then
    hold(p, ticket, args[9])
  end
end

-- enqueue(ticket, adapter, ttl, kind, max_queue, prior_seq, [label, waited]): returns {full}, {limit, most},
-- {granted, worker, slot, epoch, target} or {queued, seq, position, length}. Idempotent.
-- prior_seq is 0 for a new ticket, `head` for a session that lost its worker, or the seq that the ticket had before
-- Redis or its adapter was unavailable. Only new tickets are refused as {full} or {limit, most}.
-- Variants with more arguments have names of their own, so that a library without them is replaced:
--   enqueue_for       holder and most: how many slots of the pool a holder may have or wait for, 0 for all but one;
--                     an empty holder is none
--   enqueue_as        also the head start of a new ticket in arrivals; a negative one puts it back
--   enqueue_weighted  also the weights of the revisions, and the revision that the session had, or none
local function enqueue(keys, args)
  local p, ticket = keys[1], args[1]
  local time = begin(p)
  local waits = call('ZSCORE', p .. 'queue', ticket)
  if not waits and not granted_to(p, ticket) then
    match(p, time)
    local length = call('ZCARD', p .. 'queue')
    if args[6] == '0' and length >= tonumber(args[5]) then
      return { 'full' }
    end
    if (args[9] or '') ~= '' and args[6] == '0' then
      local most = most_slots(p, tonumber(args[10]), read_weights(args[12] or ''))
      if tonumber(call('HGET', p .. 'held', args[9]) or 0) >= most then
        return { 'limit', most }
      end
    end
    enter(p, time, args)
    waits = true
  end
  if waits then
    call('ZADD', p .. 'ticket_exp', time + tonumber(args[3]), ticket)
  end
  match(p, time)
  local lease = granted_to(p, ticket)
  if lease then
    return { 'granted', lease[1], tonumber(lease[2]), tonumber(lease[3]), lease[4] }
  end
  local seq, rank = tonumber(call('ZSCORE', p .. 'queue', ticket)), call('ZRANK', p .. 'queue', ticket)
  return { 'queued', seq, rank + 1, call('ZCARD', p .. 'queue') }
end

-- adapter_beat(adapter, ttl, ticket...): returns {length of the queue, places, grant...}. `places` has one word for
-- each ticket: its position, `granted`, `cancelled` or `gone`. It is one string, since an adapter may have a thousand
-- tickets. For each granted ticket a grant follows, in order: {worker, slot, epoch, target}.
local function adapter_beat(keys, args)
  local p = keys[1]
  local time = begin(p)
  local expiry = time + tonumber(args[2])
  for first = 3, #args, MEMBERS do
    local members = {}
    for index = first, math.min(first + MEMBERS - 1, #args) do
      members[#members + 1] = expiry
      members[#members + 1] = args[index]
    end
    call('ZADD', p .. 'ticket_exp', 'XX', unpack(members))
  end
  match(p, time)
  local places, answer = {}, { call('ZCARD', p .. 'queue'), '' }
  for index = 3, #args do
    local ticket = args[index]
    local rank = call('ZRANK', p .. 'queue', ticket)
    local lease = not rank and granted_to(p, ticket)
    local word = 'gone'
    if rank then
      word = rank + 1
    elseif lease then
      word = 'granted'
      answer[#answer + 1] = { lease[1], tonumber(lease[2]), tonumber(lease[3]), lease[4] }
    elseif call('EXISTS', p .. 't:' .. ticket) == 1 then
      word = 'cancelled'
      drop_ticket(p, ticket)
    end
    places[#places + 1] = word
  end
  answer[2] = table.concat(places, ' ')
  return answer
end

-- leave(ticket): gives up a place, or a lease that its adapter may not know of. 0 if there is neither.
local function leave(keys, args)
  local p, ticket = keys[1], args[1]
  local time = begin(p)
  local known, lease = call('EXISTS', p .. 't:' .. ticket), granted_to(p, ticket)
  if lease then
    revoke(p, lease[1], lease[2], lease_of(p, lease[1], lease[2]))
  else
    drop_ticket(p, ticket)
  end
  match(p, time)
  return known
end

-- cancel(ticket): ends the wait of a ticket of any adapter, and notifies that adapter. 0 if it does not wait.
local function cancel(keys, args)
  local p, ticket = keys[1], args[1]
  local time = begin(p)
  local waited = unqueue(p, ticket)
  if waited then
    call('PUBLISH', p .. 'a:' .. call('HGET', p .. 't:' .. ticket, 'adapter'), 'cancelled ' .. ticket)
  end
  match(p, time)
  return waited and 1 or 0
end

-- weigh(weights, ticket...): gives waiting tickets other weights; an empty string is no weights.
local function weigh(keys, args)
  local p = keys[1]
  local time = begin(p)
  for index = 2, #args do
    if call('ZSCORE', p .. 'queue', args[index]) then
      call('HSET', p .. 't:' .. args[index], 'weights', args[1])
    end
  end
  match(p, time)
  return 1
end

-- lease_return(worker, slot, epoch): revokes an unused lease; its worker then frees the slot. 0 if the lease is
-- attached, or the slot has another one.
local function lease_return(keys, args)
  local p, worker, slot = keys[1], args[1], args[2]
  local time = begin(p)
  local lease = lease_of(p, worker, slot)
  local is_unused = lease ~= nil and lease.epoch == tonumber(args[3]) and lease.state == 'granted'
  if is_unused then
    revoke(p, worker, slot, lease)
  end
  match(p, time)
  return is_unused and 1 or 0
end

-- -------------------------------------------------------------------------------------------------- views

local function pairs_of(flat, value)
  local answer = {}
  for index = 1, #flat, 2 do
    answer[flat[index]] = value(flat[index + 1])
  end
  return answer
end

local function told_leases(p, time, worker)
  local answer = {}
  for slot, lease in pairs(leases_of(p, worker)) do
    answer[#answer + 1] = {
      slot = tonumber(slot),
      epoch = lease.epoch,
      state = lease.state,
      kind = lease.kind,
      age = time - lease.since,
    }
  end
  return answer[1] and answer or nil
end

-- stats(kind...): returns JSON {time, length, waiting: {kind: count}, means: {kind: {mean, samples}}, workers: [{id,
-- target, accepting, slots, free, load, revision, leases: [{slot, epoch, state, kind, age}]}]}. The kind of a lease
-- that is older than this database is `-`. `means` has the given kinds. Empty lists are left out.
local function stats(keys, args)
  local p = keys[1]
  local time = begin(p)
  match(p, time)
  local workers, means = {}, {}
  for _, id in ipairs(call('ZRANGE', p .. 'worker_exp', 0, -1)) do
    local w = call('HMGET', p .. 'w:' .. id, 'target', 'accepting', 'slots', 'load', 'revision')
    workers[#workers + 1] = {
      id = id,
      target = w[1],
      accepting = w[2] == '1',
      slots = tonumber(w[3]),
      load = tonumber(w[4]),
      revision = w[5] or STABLE,
      free = call('ZCARD', p .. 'free:' .. id),
      leases = told_leases(p, time, id),
    }
  end
  for _, kind in ipairs(args) do
    local mean = call('HMGET', p .. 'mean:' .. kind, 'mean', 'samples')
    if mean[1] then
      means[kind] = { mean = tonumber(mean[1]), samples = tonumber(mean[2]) }
    end
  end
  return cjson.encode({
    time = time,
    length = call('ZCARD', p .. 'queue'),
    waiting = pairs_of(call('HGETALL', p .. 'waiting'), tonumber),
    means = means,
    workers = workers[1] and workers or nil,
  })
end

local function seen(p, time, ticket)
  local t = call('HMGET', p .. 't:' .. ticket, 'adapter', 'kind', 'label', 'since')
  return { ticket = ticket, adapter = t[1], kind = t[2], label = t[3], waited = time - tonumber(t[4]) }
end

-- waiting(first, count): returns JSON [{ticket, adapter, kind, label, waited}] of the queue from index `first` on.
local function waiting(keys, args)
  local p, answer = keys[1], {}
  local time = begin(p)
  match(p, time)
  local first = tonumber(args[1])
  for _, ticket in ipairs(call('ZRANGE', p .. 'queue', first, first + tonumber(args[2]) - 1)) do
    answer[#answer + 1] = seen(p, time, ticket)
  end
  return answer[1] and cjson.encode(answer) or '[]'
end

-- find(ticket): returns {position, JSON as of `waiting`}, {0} if the ticket does not wait.
local function find(keys, args)
  local p, ticket = keys[1], args[1]
  local time = begin(p)
  match(p, time)
  local rank = call('ZRANK', p .. 'queue', ticket)
  return rank and { rank + 1, cjson.encode(seen(p, time, ticket)) } or { 0 }
end

-- ---------------------------------------------------------------------------------------------- directory

-- announce(pool, ttl): records that the pool has a worker.
local function announce(keys, args)
  local p = keys[1]
  call('ZADD', p .. 'exp', tick(p) + tonumber(args[2]), args[1])
  return 1
end

-- pools(): returns the pools that have a worker.
local function pools(keys)
  local p = keys[1]
  call('ZREMRANGEBYSCORE', p .. 'exp', '-inf', tick(p))
  return call('ZRANGE', p .. 'exp', 0, -1)
end

redis.register_function('antiphon_v1_worker_beat', worker_beat)
redis.register_function('antiphon_v1_worker_beat_as', worker_beat_as)
redis.register_function('antiphon_v1_slot_free', slot_free)
redis.register_function('antiphon_v1_worker_leave', worker_leave)
redis.register_function('antiphon_v1_enqueue', enqueue)
redis.register_function('antiphon_v1_enqueue_for', enqueue)
redis.register_function('antiphon_v1_enqueue_as', enqueue)
redis.register_function('antiphon_v1_enqueue_weighted', enqueue)
redis.register_function('antiphon_v1_weigh', weigh)
redis.register_function('antiphon_v1_adapter_beat', adapter_beat)
redis.register_function('antiphon_v1_leave', leave)
redis.register_function('antiphon_v1_cancel', cancel)
redis.register_function('antiphon_v1_lease_return', lease_return)
redis.register_function('antiphon_v1_stats', stats)
redis.register_function('antiphon_v1_waiting', waiting)
redis.register_function('antiphon_v1_find', find)
redis.register_function('antiphon_v1_announce', announce)
redis.register_function('antiphon_v1_pools', pools)
