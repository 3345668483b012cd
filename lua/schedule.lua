-- Schedules a batch: each id becomes pending, or is kept or replaced where it is live already.
--
-- KEYS   pending unack messages attempts errors dead route remembered records bytes
-- ARGV   wake channel, most bytes of bodies to read, what `route` must begin with ("<version> <partitions> <number> "),
--        how long an ended one is remembered (ms), then for each message: id, "+<delay ms>" | "<due ms>",
--        "keep" | "replace", the record it stands for ("" is none; see newer), body from the metadata's length on
--        (checked by the caller)
-- reply  for each message: status, due ms
--        status: scheduled | pending, unack, dead (kept there) | replaced | revived (it was dead) |
--        in_flight (not replaced) | delivered, cancelled (remembered, and it stands for no record: nothing changed; the
--        time is that of its end) | known (its record was applied before: nothing changed; the time is 0) |
--        limit_messages, limit_bytes, limit_delay (a limit of the route: nothing changed);
--        error `PUNCTUAL split <text>`, nothing written, when several messages need more bytes of
--        stored bodies than that: the caller sends fewer at once; `PUNCTUAL unregistered <text>` when the partition is
--        not open: the caller registers the route first
local pending, unack, messages, attempts, errors, dead, route, remembered, records, held_bytes = unpack(KEYS)
local channel, max_bytes, layout, keep = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local FIRST, EACH = 5, 5

local refusal, settings = closed(route, layout)
if refusal then return refusal end

local now = math.floor(clock() / 1000)
local earliest = head(pending)
local ids = {}
for i = FIRST, #ARGV, EACH do ids[#ids + 1] = ARGV[i] end

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

-- Stored bodies are read where their due time is asked for, and to undo a replacement. Those that wait count in `bytes`.
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

-- The due time inside a body; the score says something else once it is claimed or dead.
local inside = {}
local function due_inside(id)
  if not inside[id] then
    local body = redis.call('HGET', messages, id)
    inside[id] = body and #body >= 17 and struct.unpack('>I8', body, 2) or 0
  end
  return inside[id]
end

-- The score of those that ended.
local ended = {}
if redis.call('EXISTS', remembered) == 1 then
  local scores = redis.call('ZMSCORE', remembered, unpack(ids))
  for i, id in ipairs(ids) do ended[id] = scores[i] end
end

-- The record that was last applied to each id that comes with one: as stored, and as the batch goes on.
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
-- The limit that stands in the way of a body of `size` bytes more, if one does.
local function over(is, size, wait)
  if wait > left.delay then return 'limit_delay' end
  if is ~= 'pending' and left.messages < 1 then return 'limit_messages' end
  if size > 0 and size > left.bytes then return 'limit_bytes' end
end

local reply = {}
local bodies, old_ids, old_bodies, scores, fresh, revived = {}, {}, {}, {}, {}, {}
local back_alive, endings = {}, { 'ZADD', remembered }
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
    status, due = ending(ended[id], keep, now)
  end
  if status then
    -- Neither kept nor replaced: it is over, or was done before.
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
    status = limited and over(is, size, due - now)
    if not status then
      added = added + size
      if limited then
        if is ~= 'pending' then left.messages = left.messages - 1 end
        left.bytes = left.bytes - size
      end
      if is then size_of[id] = new end
      if not is then
        fresh[#fresh + 1] = id
        if ended[id] then
          back_alive[#back_alive + 1] = id
          endings[#endings + 1], endings[#endings + 2] = ended[id], id
        end
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
add(steps, 'ZREM', remembered, back_alive, { endings })
-- A replaced message starts anew.
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
