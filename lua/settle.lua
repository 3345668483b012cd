-- include attempts bodies bytes clock commit failures fields leases remembered scores wake
-- Settles claims: each message is completed, pending again, or dead.
--
-- KEYS   pending unack messages attempts errors dead remembered records bytes
-- ARGV   wake channel, how long to remember an acknowledged one (ms), how many at most, then for each lease: id, token,
--        bytes of its body, and its end: ack | retry, delay ms, error | bury, 1 when the attempt counts else 0,
--        "<reason>: <error>" | release, score | defer, pause ms
-- reply  for each lease: 1 done | 0 stale
--
-- A settlement, also a stale one, proves that its claim did not crash: it resets the crashes of the message.
local pending, unack, messages, attempts, errors, dead, remembered, records, bytes = unpack(KEYS)
local channel, keep, max = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local ARGUMENTS = { ack = 0, retry = 2, bury = 2, release = 1, defer = 1 }

-- Adds the steps that set the failures of ids and reset their crashes. An id with neither has no field.
local function count(steps, attempts, ids, failures, old)
  local set, changed, changed_old, cleared, cleared_old = {}, {}, {}, {}, {}
  for i, id in ipairs(ids) do
    local value = failures[i] > 0 and failures[i] .. ' 0'
    if value and value ~= old[i] then
      changed[#changed + 1], changed_old[#changed_old + 1] = id, old[i]
      set[#set + 1], set[#set + 2] = id, value
    elseif old[i] and not value then
      cleared[#cleared + 1], cleared_old[#cleared_old + 1] = id, old[i]
    end
  end
  -- When all are stale this is the first write, which must shrink: see below.
  if #steps == 0 then add(steps, 'HDEL', attempts, changed, restore(attempts, changed, changed_old)) end
  add(steps, 'HSET', attempts, set, restore(attempts, changed, changed_old))
  add(steps, 'HDEL', attempts, cleared, restore(attempts, cleared, cleared_old))
end

local ids, tokens, ends, places = {}, {}, {}, {}
local at = 4
while at <= #ARGV do
  local n = #ids + 1
  ids[n], tokens[n], ends[n], places[n] = ARGV[at], ARGV[at + 1], ARGV[at + 3], at + 4
  at = at + 4 + ARGUMENTS[ends[n]]
end

local now = math.floor(clock() / 1000)
local earliest = head(pending)
local reply = held(unack, ids, tokens)
local values = redis.call('EXISTS', attempts) == 1 and redis.call('HMGET', attempts, unpack(ids)) or {}
local settled, moved, back = {}, {}, { 'ZADD', unack }
local completed, dues, waiting, dead_scores, buried, texts = {}, {}, {}, {}, {}, {}
local counted, failures, old = {}, {}, {}
local wake_up, left = false, 0

-- Failures that the message had, and `more`.
local function failures_of(i, more)
  return (counts(values[i])) + more
end

local function keep_count(i, count)
  local n = #counted + 1
  counted[n], failures[n], old[n] = ids[i], count, values[i]
end

for i, id in ipairs(ids) do
  if reply[i] == 1 then
    local how, place = ends[i], places[i]
    settled[id] = true
    moved[#moved + 1] = id
    back[#back + 1], back[#back + 2] = tokens[i], id
    if how == 'ack' then
      completed[#completed + 1] = id
      left = left + ARGV[place - 2]
    elseif how == 'bury' then
      left = left + ARGV[place - 2]
      buried[#buried + 1] = id
      dead_scores[#dead_scores + 1], dead_scores[#dead_scores + 2] = whole(now), id
      texts[#texts + 1], texts[#texts + 2] = id, failure(now, failures_of(i, ARGV[place]), ARGV[place + 1])
      keep_count(i, 0)
    else
      local due = tonumber(ARGV[place]) + (how == 'release' and 0 or now)
      waiting[#waiting + 1] = id
      dues[#dues + 1], dues[#dues + 2] = whole(due), id
      local count = failures_of(i, how == 'retry' and 1 or 0)
      if how == 'retry' then texts[#texts + 1], texts[#texts + 2] = id, failure(now, count, ARGV[place + 1]) end
      keep_count(i, count)
      if not earliest or due < earliest then wake_up = true end
    end
  end
end
for i, id in ipairs(ids) do
  if values[i] and not settled[id] then
    settled[id] = true
    keep_count(i, failures_of(i, 0))
  end
end

-- The shrinking write first: at maxmemory only a script's first write is refused, and settling must work.
local steps = {}
add(steps, 'ZREM', unack, moved, { back })
add(steps, 'ZADD', pending, dues, { { 'ZREM', pending, unpack(waiting) } })
add(steps, 'ZADD', dead, dead_scores, { { 'ZREM', dead, unpack(buried) } })
count(steps, attempts, counted, failures, old)
if #texts > 0 then
  local named = {}
  for i = 1, #texts, 2 do named[#named + 1] = texts[i] end
  add(steps, 'HSET', errors, texts, restore(errors, named, redis.call('HMGET', errors, unpack(named))))
end
grow(steps, bytes, -left)
remember(steps, remembered, records, completed, false, keep, max)
delete(steps, attempts, errors, messages, completed)
local failed = commit(steps)
if failed then return failed end
if wake_up then wake(channel) end
return reply
