-- include claiming clock commit failures fields groups history members optional outbox passing rates scores turns
-- features flow history optional outbox passing rates turns
-- Moves due messages from pending to unack under a lease.
--
-- KEYS   pending unack messages attempts errors dead paused remembered records claims bytes groups grouped [outbox] [history] [flow]
-- ARGV   instance, number of the claim (each claim of an instance has a larger one), limit (0 to 1000: 0 takes
--        nothing), maximum bytes of bodies, lease in us, suspects: "few" or the ms by which they are deferred, bodies
--        read at once, 1 for the retry of a claim without a reply, otherwise 0, maximum number of suspects in one claim
--        (1 to 1000), settings of the flows ("": none; see rates.lua), limits of the history ("": none; see history.lua)
-- reply  number of messages, now us, token us, paused 0/1, next due ms or -1, next lease us or -1, deferred suspects,
--        orphans, the id of the first orphan or an empty string, time in us of the last claim that took messages, or -1
--        if this instance made it or there was none; messages that were parked for their flow; a string of three
--        MessagePack arrays: the ids, their bodies, their scores in pending; then an array with three values for each
--        message that failed or crashed: index of its id (from 1), failures, 0 | 1 (a suspect) | 2 (it
--        crashed as often as a message does that dies); then an
--        array with two values for each message that waited for its flow: index of its id, ms from its due time
--
-- A claim that took messages and is repeated with the same number returns them again: under the same lease, or under a
-- new lease if that has expired and was not recovered. A claim with a smaller number was overtaken and takes nothing.
-- The first message is returned at any size. An id without a body becomes dead with the reason orphan and a marker body
-- of one zero byte.
local pending, unack, messages, attempts, errors, dead, paused, remembered, records, claims, bytes = unpack(KEYS)
local instance, number, limit, max_bytes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local lease, suspects, chunk, max_suspects = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[9])
local groups = group_keys(KEYS, 12)
local outbox, history, flow
if #KEYS >= 14 then outbox, history, flow = optional_keys(KEYS, 14, ARGV[11]) end
if flow then flow.pending = pending end
-- Due messages that a claim reads at most when it defers suspects, so that suspects alone do not leave it empty.
local MAX_SEEN = 1000
-- Age in us at which the entry of a stopped instance is deleted, and entries that one call deletes: `unpack` takes
-- 7,999 values.
local MAX_AGE = 86400000000
local MAX_DELETED = 1000

local now = clock()
local millis = math.floor(now / 1000)
-- A value of a wrong type at any key causes an error here: a message that cannot be settled must not be delivered.
-- Usually none of these keys exists. The other keys are read below.
local is_paused, has_attempts = false, false
local found, has_groups = existing(groups, { attempts, errors, dead, remembered, records, paused })
if has_groups then
  redis.call('HLEN', groups.groups)
  redis.call('ZCARD', groups.grouped)
end
if found > 0 then
  redis.call('ZCARD', dead)
  redis.call('ZCARD', remembered)
  redis.call('HLEN', errors)
  redis.call('HLEN', records)
  has_attempts = redis.call('HLEN', attempts) > 0
  is_paused = redis.call('GET', paused) and true or false
end
local counts_bytes = redis.call('GET', bytes)
-- The field `latest` is the last claim of any instance that took messages.
local known = redis.call('HMGET', claims, instance, 'latest')
local last, last_token = string.match(known[1] or '0 0', '^(%d+) (%d+)$')
local elsewhere = known[2] and string.find(known[2], instance, 1, true) ~= 1 and string.match(known[2], '^%x+ (%d+)$')
local repeated, overtaken = tonumber(last) == number, tonumber(last) > number

-- The second member has the next due time when only the first is due.
local first, first_score, _, second_score = unpack(redis.call('ZRANGE', pending, '0', '1', 'WITHSCORES'))
local next_due, next_lease = tonumber(first_score), head(unack)
local gate = flow and head(flow.gates)
local is_due = (next_due and next_due <= millis) or (gate and gate <= millis)

-- The token is unique among current leases: a repeated claim finds its messages by it.
local token = now + lease
local score = whole(token)
while next_lease and redis.call('ZCOUNT', unack, score, score) > 0 do
  token = token + 1
  score = whole(token)
end

local steps, tried = {}, {}
local ids, bodies, scores, orphans, orphan_scores = {}, {}, {}, {}, {}
-- On a route with flows: the result of `pass`, or the turn, and the times (ms) from which its messages could be delivered.
local passed, turn, since, taken_scores
local deferred = { ids = {}, scores = {}, at = {} }
if repeated then
  -- Messages that this instance claimed under this number and that are still leased.
  local claimed = redis.call('ZRANGEBYSCORE', unack, last_token, last_token)
  if has_attempts then trials(attempts, claimed, tried) end
  -- Orphans are not reported: recovery returns them to pending, and the next claim finds them.
  ids, bodies, scores = read_bodies(messages, claimed, nil, chunk, max_bytes)
  if tonumber(last_token) > now then
    token = tonumber(last_token)
  elseif #ids > 0 then
    remove(steps, { 'ZREM', unack, unpack(ids) }, last_token)
    insert(steps, scored(unack, score, ids))
    add(steps, 'HSET', claims, { instance, last .. ' ' .. score }, {})
  end
elseif limit > 0 and not is_paused and not overtaken and is_due then
  local chosen, chosen_scores, most = { first }, { first_score }, limit
  local settings = flow and flow_settings(ARGV[10])
  -- Usually as many due messages as are asked for can leave.
  local is_narrow = flow and not has_attempts and not settings.ordered
  if flow then
    if not is_narrow then most = MAX_SEEN end
    if gate then most = math.min(most, MOST_READ) end
    chosen, chosen_scores = due_ones(pending, millis, '0', whole(most))
    -- Where order is asked for, only the first ones are read.
    if has_attempts and not settings.ordered then add_recent(pending, millis, chosen, chosen_scores) end
  elseif second_score and tonumber(second_score) <= millis then
    chosen, chosen_scores = due_ones(pending, millis, '0', ARGV[3])
  end
  local is_whole, few_chosen = #chosen < most, false
  if has_attempts then
    trials(attempts, chosen, tried)
    local few, few_scores = {}, {}
    if suspects == 'few' then few, few_scores = first_suspects(chosen, chosen_scores, tried, max_suspects) end
    if #few > 0 then
      chosen, chosen_scores, few_chosen, is_whole = few, few_scores, true, true
    else
      local latest_due = millis + (tonumber(suspects) or 0)
      chosen, chosen_scores, latest_due =
        ordinary(chosen, chosen_scores, tried, flow and #chosen or most, max_suspects, latest_due, deferred)
      if #chosen == 0 and #deferred.ids == limit and limit < MAX_SEEN and not flow then
        chosen, chosen_scores = due_ones(pending, millis, limit, MAX_SEEN - limit)
        trials(attempts, chosen, tried)
        chosen, chosen_scores = ordinary(chosen, chosen_scores, tried, limit, max_suspects, latest_due, deferred)
      end
    end
  end
  local values = flow and #chosen > 0 and redis.call('HMGET', flow.flows, unpack(chosen)) or {}
  local backlog = is_narrow and gate and not is_whole and is_backlog(flow, values, millis)
  passed = is_narrow and #chosen > 0 and not backlog and pass(flow, settings, values, gate, now)
  if passed then
    ids, bodies, scores, orphans, orphan_scores = read_bodies(messages, chosen, chosen_scores, chunk, max_bytes)
    local number = #ids + #orphans
    if number < #chosen then passed = pass(flow, settings, { unpack(values, 1, number) }, gate, now) end
  elseif flow then
    local due, due_scores = chosen, chosen_scores
    local function begin(most_taken)
      turn = { settings = settings, suspects = few_chosen }
      chosen, chosen_scores, since = take_turns(flow, turn, due, due_scores, values, most_taken, now, is_whole)
    end
    if not backlog then begin(limit) end
    if backlog or (is_narrow and not is_whole and #turn.parked.ids > 0) then
      local n = #due
      add_recent(pending, millis, due, due_scores)
      local others = #due > n and redis.call('HMGET', flow.flows, unpack(due, n + 1)) or {}
      for i, value in ipairs(others) do values[n + i] = value end
      if backlog or #due > n then begin(limit) end
    end
    ids, bodies, scores, orphans, orphan_scores = read_bodies(messages, chosen, chosen_scores, chunk, max_bytes)
    local number = #ids + #orphans
    if number < #chosen then begin(number) end
    taken_scores = scores
    scores = {}
    for i, score in ipairs(taken_scores) do
      local due, is_parked = due_by(score)
      scores[i] = is_parked and whole(due) or score
    end
    if has_attempts then trials(attempts, ids, tried) end
  else
    ids, bodies, scores, orphans, orphan_scores = read_bodies(messages, chosen, chosen_scores, chunk, max_bytes)
  end
  -- A write that needs no memory comes first: at maxmemory Redis refuses only the first write of a script, and claiming
  -- must work.
  if flow and #ids + #orphans == 0 then
    steps[1] = { { 'ZREM', pending, '' }, {} }
  elseif #ids > 1 and #orphans == 0 and not next(tried) and not turn then
    remove_range(steps, { 'ZREMRANGEBYRANK', pending, '0', whole(#ids - 1) }, ids, scores)
  else
    remove(steps, { 'ZREM', pending, unpack(ids) }, taken_scores or scores)
  end
  if #deferred.ids > 0 then
    remove(steps, { 'ZREM', pending, unpack(deferred.ids) }, deferred.scores)
    insert(steps, { 'ZADD', pending, unpack(deferred.at) })
  end
  if #orphans > 0 then
    remove(steps, { 'ZREM', pending, unpack(orphans) }, orphan_scores)
    local deaths, marks, reasons = scored(dead, whole(millis), orphans), {}, { 'HSET', errors }
    local former, entries = redis.call('HMGET', errors, unpack(orphans)), {}
    for i, id in ipairs(orphans) do
      local failures = tried[id] and tried[id][1] or 0
      marks[2 * i - 1], marks[2 * i] = id, '\0'
      local text = 'orphan: the body was missing'
      reasons[2 * i + 1], reasons[2 * i + 2] = id, failure(millis, failures, text, former[i])
      if history then entries[i] = entry_of('dead', id, failures, nil, text) end
    end
    insert(steps, deaths)
    if outbox then post(steps, outbox, { unpack(deaths, 3) }) end
    add(steps, 'HSET', messages, marks, { { 'HDEL', messages, unpack(orphans) } })
    put(steps, reasons, former)
    drop(steps, attempts, orphans)
    if history then keep_ends(steps, history, orphans, entries, millis) end
  end
  if #ids > 0 then
    local latest_now = instance .. ' ' .. whole(now)
    put(steps, { 'HSET', claims, instance, ARGV[2] .. ' ' .. score, 'latest', latest_now }, known)
    if last == '0' then
      local old, all = {}, redis.call('HGETALL', claims)
      for i = 1, #all, 2 do
        local is_old = tonumber(string.match(all[i + 1], '%d+$')) < now - MAX_AGE
        if is_old and all[i] ~= 'latest' and #old < MAX_DELETED then old[#old + 1] = all[i] end
      end
      drop(steps, claims, old)
    end
  end
  if passed then
    local places
    if #orphans > 0 then
      places = {}
      local place_of = {}
      for i, id in ipairs(chosen) do place_of[id] = i end
      for i, id in ipairs(ids) do places[i] = place_of[id] end
    end
    end_pass(steps, flow, passed, ids, places)
  elseif flow then
    local gone = {}
    for _, id in ipairs(orphans) do gone[id] = true end
    end_turns(steps, flow, turn, pending, millis, gone)
  end
  insert(steps, scored(unack, score, ids))
  if flow then forget_idle(steps, flow, now) end
elseif flow and limit > 0 and not overtaken then
  forget_idle(steps, flow, now)
end
-- Checks the type as above: nothing has read `messages` yet.
if #ids == 0 and #orphans == 0 then redis.call('HLEN', messages) end
-- One string is cheaper than one element of the reply for each value, for Redis and for the client.
local packed = cmsgpack.pack(ids, bodies, scores)
local failed = commit(steps)
if failed then return failed end
if ARGV[8] == '1' and #ids == 0 and not repeated and not overtaken then
  -- At maxmemory this fails, and the earlier try can still take messages, which stay leased until their lease expires.
  redis.pcall('HSET', claims, instance, ARGV[2] .. ' ' .. score)
end

if repeated then
  next_lease = head(unack)
elseif #ids > 0 then
  next_lease = math.min(next_lease or token, token)
end
if #steps > 0 and #ids + #orphans + #deferred.ids == 1 and ids[1] == first and not flow then
  next_due = tonumber(second_score)
elseif #steps > 0 then
  next_due = head(pending)
end
local is_empty = not next_due and not next_lease
if flow then
  if next_due and select(2, due_by(next_due)) then next_due = nil end
  if turn then gate = head(flow.gates) end
  if gate and gate < math.huge then next_due = math.min(next_due or gate, gate) end
end
-- Bodies that were deleted by hand count in `bytes` until the partition is empty.
if counts_bytes and is_empty then redis.pcall('DEL', bytes) end

local rare = {}
if next(tried) then
  for i, id in ipairs(ids) do
    local n, one = #rare, tried[id]
    if one then rare[n + 1], rare[n + 2], rare[n + 3] = i, one[1], crash_class(tried, id) end
  end
end
local waits = {}
if turn then
  local place
  for i, entry in ipairs(turn.taken) do
    if since[i] > entry.due then
      if not place then
        place = {}
        for n, id in ipairs(ids) do place[id] = n end
      end
      local n = #waits
      if place[entry.id] then waits[n + 1], waits[n + 2] = place[entry.id], since[i] - entry.due end
    end
  end
end
return {
  #ids, now, token, is_paused and 1 or 0, next_due or -1, next_lease or -1, #deferred.ids, #orphans,
  orphans[1] or '', elsewhere and tonumber(elsewhere) or -1, turn and #turn.parked.ids or 0,
  packed, rare, waits,
}, #packed
