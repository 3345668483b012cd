-- include attempts bytes clock commit failures fields flow history optional outbox recurring scores sizes wake
-- Recovers expired leases: each counts as a crash. The message becomes pending again, or dead after the last crash. A
-- schedule never dies: the instance that claims it next ends its occurrence.
--
-- KEYS   pending unack messages attempts errors dead bytes [outbox] [history] [flow]
-- ARGV   wake channel, limit (1 to 1000), 1 if the flows are ordered, otherwise 0, limits of the history ("": none;
--        see history.lua)
-- reply  number of recovered leases, number of messages that became dead, id of the first of these or an empty string,
--        1 if more expired leases remain, otherwise 0
local pending, unack, messages, attempts, errors, dead, bytes = unpack(KEYS)
local channel, limit = ARGV[1], tonumber(ARGV[2])
local outbox, history, flow = optional_keys(KEYS, 8, ARGV[4])
local is_ordered = ARGV[3] == '1'
-- A message with two crashes is a suspect and is claimed with few others. With three it is claimed alone, with five it
-- is dead.
local MAX_CRASHES = 5

local now = clock()
local earliest = head(pending)
local found = redis.call('ZRANGEBYSCORE', unack, '-inf', whole(now), 'WITHSCORES', 'LIMIT', 0, limit)
local ids = {}
for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
if #ids == 0 then return { 0, 0, '', 0 } end

local old = redis.call('HMGET', attempts, unpack(ids))
local back, dues, dead_scores, tries, texts = { 'ZADD', unack }, {}, {}, {}, {}
local waiting, waiting_old, buried, entries = {}, {}, {}, {}
local wake_up = false
for i, id in ipairs(ids) do
  local deadline = found[2 * i]
  back[#back + 1], back[#back + 2] = deadline, id
  local failures, crashes = counts(old[i])
  crashes = crashes + 1
  if crashes >= MAX_CRASHES and not is_schedule(id) then
    buried[#buried + 1] = id
    dead_scores[#dead_scores + 1], dead_scores[#dead_scores + 2] = whole(math.floor(now / 1000)), id
    local text = 'crash: ' .. crashes .. ' leases expired, the last ones alone'
    if history then
      entries[#buried] = entry_of('dead', id, failures, redis.call('HGET', messages, id), text)
    end
    texts[#texts + 1] = id
    texts[#texts + 1] = failure(math.floor(now / 1000), failures, text, redis.call('HGET', errors, id))
  else
    -- The message is due at the end of its lease, after messages that were due before that.
    local due = math.floor(tonumber(deadline) / 1000)
    waiting[#waiting + 1] = id
    waiting_old[#waiting] = old[i]
    tries[#tries + 1], tries[#tries + 2] = id, failures .. ' ' .. crashes
    dues[#dues + 1], dues[#dues + 2] = whole(due), id
    if not earliest or due < earliest then wake_up = true end
  end
end
redis.call('ZCARD', dead)

local steps = {}
add(steps, 'ZREM', unack, ids, { back })
add(steps, 'ZADD', pending, dues, { { 'ZREM', pending, unpack(waiting) } })
add(steps, 'ZADD', dead, dead_scores, { { 'ZREM', dead, unpack(buried) } })
post(steps, outbox, dead_scores)
grow(steps, bytes, -sizes(messages, buried))
add(steps, 'HSET', attempts, tries, restore(attempts, waiting, waiting_old))
drop(steps, attempts, buried)
local is_open = false
if flow then
  -- Where order is asked for, a message that becomes pending again holds its flow.
  local leaving = is_ordered and buried or ids
  local values = #leaving > 0 and redis.call('HMGET', flow.flows, unpack(leaving)) or {}
  is_open = depart(steps, flow, leaving, {}, values, math.floor(now / 1000))
end
keep_ends(steps, history, buried, entries, math.floor(now / 1000))
add(steps, 'HSET', errors, texts, {})
local failed = commit(steps)
if failed then return failed end
if wake_up or is_open then wake(channel) end
local next_lease = head(unack)
return { #ids, #buried, buried[1] or '', next_lease and next_lease <= now and 1 or 0 }
