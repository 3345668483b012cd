-- Schedules a batch: each id becomes pending, or is kept or replaced where it is live already.
--
-- KEYS   pending unack messages attempts errors dead route
-- ARGV   wake channel, most bytes of bodies to read, what `route` must begin with ("<version> <partitions> <number> "),
--        then for each message: id, "+<delay ms>" | "<due ms>", "keep" | "replace", body from the metadata's length
--        on (checked by the caller)
-- reply  for each message: status, due ms
--        status: scheduled | pending, unack, dead (kept there) | replaced | revived (it was dead) |
--        in_flight (not replaced); error `PUNCTUAL split <text>`, nothing written, when several messages need more bytes of
--        stored bodies than that: the caller sends fewer at once; `PUNCTUAL unregistered <text>` when the partition is
--        not open: the caller registers the route first
local pending, unack, messages, attempts, errors, dead, route = unpack(KEYS)
local channel, max_bytes, layout = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local FIRST = 4

local settings = redis.call('GET', route)
if not settings or string.sub(settings, 1, #layout) ~= layout then
  return redis.error_reply('PUNCTUAL unregistered the partition is open as `' .. (settings or '') .. '`, not `' .. layout .. '`')
end

local now = math.floor(clock() / 1000)
local earliest = head(pending)
local ids = {}
for i = FIRST, #ARGV, 4 do ids[#ids + 1] = ARGV[i] end

-- Where each id is now, and, as the batch goes on, where it will be.
local state, due_of = {}, {}
for _, set in ipairs({ { 'pending', pending }, { 'unack', unack }, { 'dead', dead } }) do
  local scores = redis.call('ZMSCORE', set[2], unpack(ids))
  for i, id in ipairs(ids) do
    if scores[i] then
      state[id] = set[1]
      due_of[id] = tonumber(scores[i])
    end
  end
end

-- Stored bodies are read where their due time is asked for, and to undo a replacement.
local bytes, counted = 0, {}
for i = FIRST, #ARGV, 4 do
  local id = ARGV[i]
  if state[id] and not counted[id] and (state[id] ~= 'pending' or ARGV[i + 2] == 'replace') then
    counted[id] = true
    bytes = bytes + redis.call('HSTRLEN', messages, id)
  end
end
if bytes > max_bytes and #ids > 1 then
  return redis.error_reply('PUNCTUAL split the stored bodies take ' .. bytes .. ' bytes')
end

-- The due time inside a body; the score says something else once it is claimed or dead.
local inside = {}
local function due_inside(id)
  if not inside[id] then
    local body = redis.call('HGET', messages, id)
    inside[id] = body and #body >= 17 and struct.unpack('>I8', body, 2) or 0
  end
  return inside[id]
end

local reply = {}
local bodies, old_ids, old_bodies, scores, fresh, revived = {}, {}, {}, {}, {}, {}
local old_score = {}
local wake_up = false
for i = FIRST, #ARGV, 4 do
  local id, when, conflict, tail = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local is = state[id]
  local status, due
  if is and conflict == 'keep' then
    status = is
    due = is == 'pending' and due_of[id] or due_inside(id)
  elseif is == 'unack' then
    status = 'in_flight'
    due = due_inside(id)
  else
    due = tonumber(when)
    if string.sub(when, 1, 1) == '+' then due = now + due end
    if not is then
      fresh[#fresh + 1] = id
    elseif not old_score[id] then
      -- Read once, also where the batch names the id again.
      old_score[id] = whole(due_of[id])
      old_ids[#old_ids + 1] = id
      old_bodies[#old_bodies + 1] = redis.call('HGET', messages, id)
      if is == 'dead' then revived[#revived + 1] = id end
    end
    status = is == 'dead' and 'revived' or is and 'replaced' or 'scheduled'
    bodies[#bodies + 1] = id
    bodies[#bodies + 1] = struct.pack('>BI8I8', 1, due, now) .. tail
    scores[#scores + 1] = whole(due)
    scores[#scores + 1] = id
    if not is then old_score[id] = '' end
    state[id], due_of[id] = 'pending', due
    if not earliest or due < earliest then wake_up = true end
  end
  reply[#reply + 1] = status
  reply[#reply + 1] = due
end

-- The growing write first: at maxmemory it is the one that is refused, before anything changed.
local steps = {}
local undo = restore(messages, old_ids, old_bodies)
if #fresh > 0 then undo[#undo + 1] = { 'HDEL', messages, unpack(fresh) } end
add(steps, 'HSET', messages, bodies, undo)
if #revived > 0 then
  local graves = { 'ZADD', dead }
  for _, id in ipairs(revived) do
    graves[#graves + 1] = old_score[id]
    graves[#graves + 1] = id
  end
  add(steps, 'ZREM', dead, revived, { graves })
end
-- A replaced message starts anew.
if #old_ids > 0 then
  for _, key in ipairs({ attempts, errors }) do
    add(steps, 'HDEL', key, old_ids, restore(key, old_ids, redis.call('HMGET', key, unpack(old_ids))))
  end
end
add(steps, 'ZADD', pending, scores, {})

local failed = commit(steps)
if failed then return failed end
if wake_up then wake(channel) end
return reply
