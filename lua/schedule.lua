-- include bytes clock commit ending fields layout limits records scores wake
-- Schedules a batch: each id becomes pending; a live one is kept or replaced.
--
-- KEYS   pending unack messages attempts errors dead route remembered records bytes
-- ARGV   wake channel, most bytes of bodies to read, what `route` must begin with ("<version> <partitions> <number> "),
--        how long a completed one is remembered (ms), then for each message: id, "+<delay ms>" | "<due ms>",
--        "keep" | "replace", its record ("" is none; see records.lua), body from the metadata's length on
--        (checked by the caller)
-- reply  for each message: status, due ms
--        status: scheduled | pending, unack, dead (kept there) | replaced | revived (it was dead) |
--        in_flight (not replaced) | delivered, cancelled (remembered, and it has no record: nothing changed; the time
--        is that of its completion) | known (its record was applied before: nothing changed; the time is 0) |
--        limit_messages, limit_bytes, limit_delay (a limit of the route: nothing changed);
--        error `PUNCTUAL split <text>`, nothing written, when the stored bodies of several messages exceed the most
--        bytes: the caller sends fewer at once; `PUNCTUAL unregistered <text>` when the partition is not open: the
--        caller registers the route first
local pending, unack, messages, attempts, errors, dead, route, remembered, records, held_bytes = unpack(KEYS)
local channel, max_bytes, layout, keep = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local FIRST, EACH = 5, 5

local refusal, settings = closed(route, layout)
if refusal then return refusal end

local now = math.floor(clock() / 1000)
local earliest = head(pending)
local ids = {}
for i = FIRST, #ARGV, EACH do ids[#ids + 1] = ARGV[i] end

-- The state of each id, updated as the batch proceeds.
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

-- Stored bodies are read for their due time, and to undo a replacement. Those in pending count in `bytes`.
local bytes, counted, size_of = 0, {}, {}
for i = FIRST, #ARGV, EACH do
  local id = ARGV[i]
  if state[id] and not counted[id] and (state[id] ~= 'pending' or ARGV[i + 2] == 'replace') then
    counted[id] = true
    local size = redis.call('HSTRLEN', messages, id)
    bytes = bytes + size
    if state[id] == 'pending' then size_of[id] = size end
  end
end
if bytes > max_bytes and #ids > 1 then
  return redis.error_reply('PUNCTUAL split the stored bodies take ' .. bytes .. ' bytes')
end

-- The due time inside a body: the score is another one in unack and dead.
local inside = {}
local function due_inside(id)
  if not inside[id] then
    local body = redis.call('HGET', messages, id)
    inside[id] = body and #body >= 17 and struct.unpack('>I8', body, 2) or 0
  end
  return inside[id]
end

-- The scores of completed ids.
local completed = {}
if redis.call('EXISTS', remembered) == 1 then
  local scores = redis.call('ZMSCORE', remembered, unpack(ids))
  for i, id in ipairs(ids) do completed[id] = scores[i] end
end

-- The record last applied to each id that has one in the batch: as stored, and updated as the batch proceeds.
local recorded, stored, record_of = {}, {}, {}
for i = FIRST, #ARGV, EACH do
  local id = ARGV[i]
  if ARGV[i + 3] ~= '' and record_of[id] == nil then
    recorded[#recorded + 1], record_of[id] = id, false
  end
end
if #recorded > 0 then
  stored = redis.call('HMGET', records, unpack(recorded))
  for i, id in ipairs(recorded) do record_of[id] = stored[i] end
end

local left, added = quota(settings, pending, unack, held_bytes), 0
local limited = math.min(left.messages, left.bytes, left.delay) < math.huge
-- The limit that `size` more bytes would exceed, if one.
local function exceeded(is, size, wait)
  if wait > left.delay then return 'limit_delay' end
  if is ~= 'pending' and left.messages < 1 then return 'limit_messages' end
  if size > 0 and size > left.bytes then return 'limit_bytes' end
end

local reply = {}
local bodies, old_ids, old_bodies, scores, fresh, revived = {}, {}, {}, {}, {}, {}
local reused, reused_scores = {}, { 'ZADD', remembered }
local old_score = {}
local wake_up = false
for i = FIRST, #ARGV, EACH do
  local id, when, conflict, tail = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 4]
  local is = state[id]
  local record = ARGV[i + 3] ~= '' and newer(ARGV[i + 3], record_of[id])
  local status, due
  if record == nil then
    status, due = 'known', 0
  elseif not is and not record and keep > 0 then
    status, due = ending(completed[id], keep, now)
  end
  if status then
    -- Completed, or its record was applied before.
  elseif is and conflict == 'keep' then
    status = is
    due = is == 'pending' and due_of[id] or due_inside(id)
  elseif is == 'unack' then
    status = 'in_flight'
    due = due_inside(id)
  else
    due = tonumber(when)
    if string.sub(when, 1, 1) == '+' then due = now + due end
    local new = 17 + #tail
    local size = is == 'pending' and new - (size_of[id] or old_score[id]) or new
    status = limited and exceeded(is, size, due - now)
    if not status then
      added = added + size
      if limited then
        if is ~= 'pending' then left.messages = left.messages - 1 end
        left.bytes = left.bytes - size
      end
      if is then size_of[id] = new end
      if not is then
        fresh[#fresh + 1] = id
        if completed[id] then
          reused[#reused + 1] = id
          reused_scores[#reused_scores + 1], reused_scores[#reused_scores + 2] = completed[id], id
        end
      elseif not old_score[id] then
        -- Read once, also when the batch names the id again.
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
      -- No score, but its size: the batch may name it again.
      if not is then old_score[id] = new end
      state[id], due_of[id] = 'pending', due
      if record then record_of[id] = record end
      if not earliest or due < earliest then wake_up = true end
    end
  end
  reply[#reply + 1] = status
  reply[#reply + 1] = due
end

-- The growing write first: at maxmemory only a script's first write is refused.
local steps = {}
local undo = restore(messages, old_ids, old_bodies)
if #fresh > 0 then undo[#undo + 1] = { 'HDEL', messages, unpack(fresh) } end
add(steps, 'HSET', messages, bodies, undo)
if #revived > 0 then
  local dead_scores = { 'ZADD', dead }
  for _, id in ipairs(revived) do
    dead_scores[#dead_scores + 1] = old_score[id]
    dead_scores[#dead_scores + 1] = id
  end
  add(steps, 'ZREM', dead, revived, { dead_scores })
end
add(steps, 'ZREM', remembered, reused, { reused_scores })
-- A replaced message starts again: no failures.
drop(steps, attempts, old_ids)
drop(steps, errors, old_ids)
local noted, note_ids, notes = {}, {}, {}
for i, id in ipairs(recorded) do
  if record_of[id] ~= stored[i] then
    local n = #note_ids + 1
    note_ids[n], notes[n] = id, stored[i]
    noted[2 * n - 1], noted[2 * n] = id, record_of[id]
  end
end
add(steps, 'HSET', records, noted, restore(records, note_ids, notes))
grow(steps, held_bytes, added)
add(steps, 'ZADD', pending, scores, {})

local failed = commit(steps)
if failed then return failed end
if wake_up then wake(channel) end
return reply
