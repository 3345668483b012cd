-- Put in front of every script but produce.lua, which brings its own copy: all writes, or none.
--
-- Redis keeps what a failed script wrote, so a script checks and reads first, then hands its writes over as
-- steps { { command... }, { { undo command... }, ... } }. When one fails, those before it are undone in
-- reverse. The last step needs no undo. Returns nothing, or the error reply for the script to return.
local function commit(steps)
  for i, step in ipairs(steps) do
    local reply = redis.pcall(unpack(step[1]))
    if type(reply) == 'table' and reply.err then
      for j = i - 1, 1, -1 do
        for _, undo in ipairs(steps[j][2]) do
          redis.pcall(unpack(undo))
        end
      end
      return reply
    end
  end
end

-- Adds the step `command key values...`, unless there are no values.
local function add(steps, command, key, values, undo)
  if #values > 0 then
    steps[#steps + 1] = { { command, key, unpack(values) }, undo }
  end
end

-- Commands that give the hash `key` its old values back: fields[i] had old[i], false where it had none.
local function restore(key, fields, old)
  local set, del = { 'HSET', key }, { 'HDEL', key }
  for i, field in ipairs(fields) do
    if old[i] then
      set[#set + 1] = field
      set[#set + 1] = old[i]
    else
      del[#del + 1] = field
    end
  end
  local undo = {}
  if #set > 2 then undo[#undo + 1] = set end
  if #del > 2 then undo[#undo + 1] = del end
  return undo
end

-- Takes fields out of a hash that is often not even there.
local function drop(steps, key, fields)
  if #fields == 0 or redis.call('EXISTS', key) == 0 then return end
  add(steps, 'HDEL', key, fields, restore(key, fields, redis.call('HMGET', key, unpack(fields))))
end

-- Removes what `attempts` and `errors` keep about ids, and their bodies last: nothing could bring those back.
local function forget(steps, attempts, errors, messages, ids)
  drop(steps, attempts, ids)
  drop(steps, errors, ids)
  add(steps, 'HDEL', messages, ids, {})
end

-- Microseconds since the epoch. TIME moves inside a script: it is read once.
local read_at
local function clock()
  if not read_at then
    local time = redis.call('TIME')
    read_at = time[1] * 1000000 + time[2]
  end
  return read_at
end

-- "failures crashes" as `attempts` keeps it; absent means none.
local function counts(value)
  if not value then return 0, 0 end
  local failures, crashes = string.match(value, '^(%d+) (%d+)$')
  return tonumber(failures), tonumber(crashes)
end

-- For each id, 1 when tokens[i] is its current lease, else 0. Named again in the same call, a lease is stale.
local function held(unack, ids, tokens)
  local scores = redis.call('ZMSCORE', unack, unpack(ids))
  local verdicts, seen = {}, {}
  for i, id in ipairs(ids) do
    local current = scores[i] and not seen[id] and tonumber(scores[i]) == tonumber(tokens[i])
    if current then seen[id] = true end
    verdicts[i] = current and 1 or 0
  end
  return verdicts
end

-- Gives ids their numbers of failures. A settled claim was no crash: what had neither has no entry.
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
  -- At maxmemory a script's first write must not be one that grows: settling what is stale writes nothing before this.
  if #steps == 0 then add(steps, 'HDEL', attempts, changed, restore(attempts, changed, changed_old)) end
  add(steps, 'HSET', attempts, set, restore(attempts, changed, changed_old))
  add(steps, 'HDEL', attempts, cleared, restore(attempts, cleared, cleared_old))
end

-- A number in full: `..` cuts it to 14 digits.
local function whole(number)
  return string.format('%.0f', number)
end

-- Adds `more` to `bytes`, those of the bodies that wait or are in flight. Without any there is no such key.
local function grow(steps, bytes, more)
  if more == 0 then return end
  local was = redis.call('GET', bytes)
  local is = math.max(0, (tonumber(was) or 0) + more)
  local undo = { was and { 'SET', bytes, was } or { 'DEL', bytes } }
  steps[#steps + 1] = { is > 0 and { 'SET', bytes, whole(is) } or { 'DEL', bytes }, undo }
end

-- The bytes of the bodies of `ids`, together.
local function sizes(messages, ids)
  local sum = 0
  for _, id in ipairs(ids) do sum = sum + redis.call('HSTRLEN', messages, id) end
  return sum
end

-- Remembers how ids that were live ended, for `keep` ms, at most `max` of them: the score is the time in ms, of a
-- cancelled one half a millisecond more. Lets go of what was kept long enough or is too much, MAX_LET_GO at once at most:
-- twice as many as may come in, so that a set that is too large shrinks. What is not remembered loses its record.
local MAX_LET_GO = 2000
local function remember(steps, remembered, records, ids, cancelled, keep, max)
  if #ids == 0 then return end
  local known = redis.call('ZCARD', remembered)
  local fresh = keep > 0 and math.min(#ids, max) or 0
  local unknown = { unpack(ids, 1, #ids - fresh) }
  local now = known + fresh > 0 and math.floor(clock() / 1000)
  local old = keep > 0 and known > 0 and redis.call('ZCOUNT', remembered, '-inf', '(' .. whole(now - keep)) or known
  old = math.min(math.max(old, known + fresh - max), known, MAX_LET_GO)
  if old > 0 then
    local found = redis.call('ZRANGE', remembered, 0, old - 1, 'WITHSCORES')
    local gone, back = {}, { 'ZADD', remembered }
    for i = 1, #found, 2 do
      gone[#gone + 1], unknown[#unknown + 1] = found[i], found[i]
      back[#back + 1], back[#back + 2] = found[i + 1], found[i]
    end
    add(steps, 'ZREM', remembered, gone, { back })
  end
  drop(steps, records, unknown)
  if fresh > 0 then
    local latest, scores = { unpack(ids, #ids - fresh + 1) }, {}
    local at = string.format('%.1f', now + (cancelled and 0.5 or 0))
    for _, id in ipairs(latest) do scores[#scores + 1], scores[#scores + 2] = at, id end
    add(steps, 'ZADD', remembered, scores, { { 'ZREM', remembered, unpack(latest) } })
  end
end

-- What lives again is not remembered as ended.
local function revive(steps, remembered, ids)
  if #ids == 0 or redis.call('EXISTS', remembered) == 0 then return end
  local gone, back = {}, { 'ZADD', remembered }
  for i, score in ipairs(redis.call('ZMSCORE', remembered, unpack(ids))) do
    if score then
      gone[#gone + 1] = ids[i]
      back[#back + 1], back[#back + 2] = score, ids[i]
    end
  end
  add(steps, 'ZREM', remembered, gone, { back })
end

-- What `records` is to hold of an id once `record` was applied to it: "<offset> <timestamp ms> <place>"; `stored` is
-- what it holds, or false. Nothing when the record is old: that place was read again. A smaller offset with a later time
-- is of a log that was made anew. The time is the latest of all, because those of a log need not ascend.
local function newer(record, stored)
  local offset, at, place = string.match(record, '^(%d+) (%d+) (.+)$')
  local last, latest, same = string.match(stored or '', '^(%d+) (%d+) (.+)$')
  if place ~= same then return record end
  if tonumber(offset) <= tonumber(last) and tonumber(at) <= tonumber(latest) then return end
  return offset .. ' ' .. (tonumber(at) > tonumber(latest) and at or latest) .. ' ' .. place
end

-- How an id ended, and when in ms, by its score in `remembered`; nothing once `keep` ms have passed.
local function ending(score, keep, now)
  if not score or tonumber(score) < now - keep then return end
  local at = math.floor(tonumber(score))
  return at < tonumber(score) and 'cancelled' or 'delivered', at
end

-- The error reply for the script to return, unless the partition is open as `layout` says, with which `route` begins:
-- "<version> <partitions> <number> ". What is written into another one nobody reads. Then what `route` holds.
local function closed(route, layout)
  local settings = redis.call('GET', route)
  if not settings or string.sub(settings, 1, #layout) ~= layout then
    local text = 'PUNCTUAL unregistered the partition is open as `%s`, not `%s`'
    return redis.error_reply(string.format(text, settings or '', layout))
  end
  return nil, settings
end

-- What a partition still takes by the limits in its `settings`: `messages` and `bytes` of bodies, which count while they
-- wait or are in flight, and the longest `delay` in ms. Without a limit it is math.huge.
local function quota(settings, pending, unack, bytes)
  local left = { messages = math.huge, bytes = math.huge, delay = math.huge }
  local most, largest, longest = string.match(settings, '^%d+ %d+ %d+ %d+ %d+ (%d+) (%d+) (%d+)$')
  if not most then return left end
  if most ~= '0' then
    left.messages = tonumber(most) - redis.call('ZCARD', pending) - redis.call('ZCARD', unack)
  end
  if largest ~= '0' then left.bytes = tonumber(largest) - (tonumber(redis.call('GET', bytes)) or 0) end
  if longest ~= '0' then left.delay = tonumber(longest) end
  return left
end

-- The score of a set's head, or nil.
local function head(key)
  return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
end

-- A score of another program as ms since the epoch, rounded up; `unit` is the ms in 1 of it. What is less than a
-- microsecond is noise: 1700000000.123 * 1000 is not whole.
local function due_ms(score, unit)
  return math.max(0, math.ceil(score * unit - 0.001))
end

-- Tells sleeping schedulers to look. Last of all, and never the reason to fail: a lost wake-up costs time only.
local function wake(channel)
  redis.pcall('PUBLISH', channel, '')
end
