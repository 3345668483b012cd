-- include attempts clock commit failures fields scores
-- Moves due messages from pending to unack under a lease.
--
-- KEYS   pending unack messages attempts errors dead paused remembered records claims bytes
-- ARGV   instance, number of the claim (larger for each of an instance), limit (1 to 1000), most bytes of bodies, lease
--        in us, suspects: "one" or the ms by which they are put off, bodies read at once, 1 for the retry of a claim
--        without a reply, else 0
-- reply  now us, token us, paused 0/1, next due ms or -1, next lease us or -1, suspects put off, orphans, the id of the
--        first orphan or an empty string, time of the last claim that took messages, us, or -1 if it was of this
--        instance or there was none, then for each message: id, body, failures, score in pending, 1 for a suspect else 0
--
-- Repeated with the same number, a claim that took messages returns them again, under the same lease, or under a new
-- one when that has expired and was not recovered. A request with a smaller number was overtaken and takes nothing. The
-- first message is returned at any size. An id without a body becomes dead, reason orphan: its marker body is a zero
-- byte.
local pending, unack, messages, attempts, errors, dead, paused, remembered, records, claims, bytes = unpack(KEYS)
local instance, number, limit, max_bytes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local lease, suspects, chunk = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])
local SUSPECT_CRASHES = 2
-- Between suspects that are put off, ms: each is claimed alone.
local SPACING = 20
-- Due messages that a claim reads when it puts suspects off, so that suspects alone do not make it empty.
local MAX_SEEN = 1000
-- Age in us at which the entry of a stopped instance is deleted, and how many one call deletes: `unpack` takes 7,999
-- values.
local MAX_AGE = 86400000000
local MAX_DELETED = 1000
-- Scores and times in ms are below it.
local MAX_MILLIS = 2 ^ 53

local now = clock()
-- A value of a wrong type at any key is an error here: a message that cannot be settled must not be delivered.
for _, set in ipairs({ pending, unack, dead, remembered }) do redis.call('ZCARD', set) end
for _, hash in ipairs({ messages, attempts, errors, records }) do redis.call('HLEN', hash) end
local counts_bytes = redis.call('GET', bytes)
local is_paused = redis.call('GET', paused) and true or false
-- The field `latest` is the last claim that took messages, of any instance.
local known = redis.call('HMGET', claims, instance, 'latest')
local last, last_token = string.match(known[1] or '0 0', '^(%d+) (%d+)$')
local latest, latest_at = string.match(known[2] or '', '^(%x+) (%d+)$')
local repeated, overtaken = tonumber(last) == number, tonumber(last) > number

-- Unique among current leases: a repeated claim finds its messages by it.
local token = now + lease
while redis.call('ZCOUNT', unack, whole(token), whole(token)) > 0 do token = token + 1 end

-- `put_off` as { id, score }, `put_off_at` with the new scores as ZADD takes them.
local taken, orphans, put_off, put_off_at = {}, {}, {}, {}

-- The due time inside a body, 0 in a damaged one: a claimed message has no score in pending.
local function due_inside(body)
  local due = #body >= 17 and struct.unpack('>I8', body, 2) or 0
  return due < MAX_MILLIS and due or 0
end

-- Reads bodies of { id, score, failures, suspect } until the reply is full.
local function take(chosen)
  local bytes = 0
  for from = 1, #chosen, chunk do
    local ids = {}
    for i = from, math.min(from + chunk - 1, #chosen) do ids[#ids + 1] = chosen[i][1] end
    local bodies = redis.call('HMGET', messages, unpack(ids))
    for i = 1, #ids do
      local candidate, body = chosen[from + i - 1], bodies[i]
      if not body then
        orphans[#orphans + 1] = candidate
      else
        bytes = bytes + #body
        if bytes > max_bytes and #taken > 0 then return end
        candidate[2] = candidate[2] or due_inside(body)
        candidate[5] = body
        taken[#taken + 1] = candidate
      end
    end
  end
end

-- Messages that this instance claimed under this number and that are still leased.
local function claimed_before()
  local ids = redis.call('ZRANGEBYSCORE', unack, last_token, last_token)
  local chosen = {}
  if #ids == 0 then return chosen end
  for i, value in ipairs(redis.call('HMGET', attempts, unpack(ids))) do
    local failures, crashes = counts(value)
    chosen[i] = { ids[i], nil, failures, crashes >= SUSPECT_CRASHES }
  end
  return chosen
end

-- Due messages in order of score, after the first `seen`.
local function due_ones(seen, count)
  local found =
    redis.call('ZRANGEBYSCORE', pending, '-inf', whole(math.floor(now / 1000)), 'WITHSCORES', 'LIMIT', seen, count)
  local ids, list = {}, {}
  for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
  if #ids == 0 then return list end
  local values = redis.call('EXISTS', attempts) == 1 and redis.call('HMGET', attempts, unpack(ids)) or {}
  for i, id in ipairs(ids) do
    local failures, crashes = counts(values[i])
    list[i] = { id, found[2 * i], failures, crashes >= SUSPECT_CRASHES }
  end
  return list
end

-- Due messages that may be taken now.
local function candidates()
  local chosen, due = {}, math.floor(now / 1000) + (tonumber(suspects) or 0)
  local function choose(list)
    for _, candidate in ipairs(list) do
      if #chosen == limit then return end
      if not candidate[4] then
        chosen[#chosen + 1] = candidate
      elseif suspects == 'one' then
        chosen = { candidate }
        return
      else
        due = due + SPACING
        put_off[#put_off + 1] = candidate
        put_off_at[#put_off_at + 1], put_off_at[#put_off_at + 2] = whole(due), candidate[1]
      end
    end
  end
  choose(due_ones(0, limit))
  if #chosen == 0 and #put_off == limit and limit < MAX_SEEN then choose(due_ones(limit, MAX_SEEN - limit)) end
  return chosen
end

local steps = {}
if repeated then
  take(claimed_before())
  if tonumber(last_token) > now then
    token = tonumber(last_token)
  elseif #taken > 0 then
    local ids, renewed, back = {}, {}, { 'ZADD', unack }
    for _, one in ipairs(taken) do
      ids[#ids + 1] = one[1]
      renewed[#renewed + 1], renewed[#renewed + 2] = whole(token), one[1]
      back[#back + 1], back[#back + 2] = last_token, one[1]
    end
    add(steps, 'ZREM', unack, ids, { back })
    add(steps, 'ZADD', unack, renewed, { { 'ZREM', unack, unpack(ids) } })
    add(steps, 'HSET', claims, { instance, last .. ' ' .. whole(token) }, {})
  end
  -- Not reported: recovery returns it to pending, and the next claim finds it.
  orphans = {}
elseif not is_paused and not overtaken then
  take(candidates())
  local removed, back, leases, dead_scores, marks, reasons, ids = {}, { 'ZADD', pending }, {}, {}, {}, {}, {}
  for _, list in ipairs({ taken, orphans, put_off }) do
    for _, one in ipairs(list) do
      removed[#removed + 1] = one[1]
      back[#back + 1], back[#back + 2] = one[2], one[1]
    end
  end
  for _, one in ipairs(taken) do
    leases[#leases + 1], leases[#leases + 2] = whole(token), one[1]
  end
  for _, one in ipairs(orphans) do
    ids[#ids + 1] = one[1]
    dead_scores[#dead_scores + 1], dead_scores[#dead_scores + 2] = whole(math.floor(now / 1000)), one[1]
    marks[#marks + 1], marks[#marks + 2] = one[1], '\0'
    reasons[#reasons + 1], reasons[#reasons + 2] = one[1], failure(math.floor(now / 1000), one[3], 'orphan: the body was missing')
  end
  -- The shrinking write first: at maxmemory only a script's first write is refused, and claiming must work.
  add(steps, 'ZREM', pending, removed, { back })
  if #put_off > 0 then
    local others = {}
    for _, one in ipairs(put_off) do others[#others + 1] = one[1] end
    add(steps, 'ZADD', pending, put_off_at, { { 'ZREM', pending, unpack(others) } })
  end
  if #ids > 0 then
    add(steps, 'ZADD', dead, dead_scores, { { 'ZREM', dead, unpack(ids) } })
    add(steps, 'HSET', messages, marks, { { 'HDEL', messages, unpack(ids) } })
    add(steps, 'HSET', errors, reasons, restore(errors, ids, redis.call('HMGET', errors, unpack(ids))))
    drop(steps, attempts, ids)
  end
  if #taken > 0 then
    local entries = { instance, whole(number) .. ' ' .. whole(token), 'latest', instance .. ' ' .. whole(now) }
    add(steps, 'HSET', claims, entries, restore(claims, { instance, 'latest' }, known))
    if last == '0' then
      local old, entries = {}, redis.call('HGETALL', claims)
      for i = 1, #entries, 2 do
        local is_old = tonumber(string.match(entries[i + 1], '%d+$')) < now - MAX_AGE
        if is_old and entries[i] ~= 'latest' and #old < MAX_DELETED then old[#old + 1] = entries[i] end
      end
      drop(steps, claims, old)
    end
  end
  add(steps, 'ZADD', unack, leases, {})
end
local failed = commit(steps)
if failed then return failed end
if ARGV[8] == '1' and #taken == 0 and not repeated and not overtaken then
  -- At maxmemory this fails. Then the earlier try may still take messages until their lease expires.
  redis.pcall('HSET', claims, instance, whole(number) .. ' ' .. whole(token))
end

local next_due, next_lease = head(pending), head(unack)
-- The sizes of bodies that were deleted by hand are counted until the partition is empty.
if counts_bytes and not next_due and not next_lease then redis.pcall('DEL', bytes) end

local reply = {
  now, token, is_paused and 1 or 0, next_due or -1, next_lease or -1, #put_off, #orphans,
  orphans[1] and orphans[1][1] or '', latest and latest ~= instance and tonumber(latest_at) or -1,
}
for _, one in ipairs(taken) do
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3] = one[1], one[5], one[3]
  reply[n + 4], reply[n + 5] = tonumber(one[2]), one[4] and 1 or 0
end
return reply
