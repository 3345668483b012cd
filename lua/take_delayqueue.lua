-- include commit external fields scores taking wake
-- Moves messages of a hdt3213/delayqueue into the queue: those that are due, ready, to be retried, or held by a
-- consumer beyond its deadline.
--
-- KEYS   pending unack messages dead errors paused route remembered bytes [outbox] [history] [flow] their_pending ready retry their_unack counts body...
-- ARGV   wake channel, required prefix of `route` ("<version> <partitions> <number> "), maximum number of due messages
--        in pending, maximum bytes of a payload and of all bodies, the optional keys that are there ("outbox", "history", "flow"),
--        limits of the history ("": none; see history.lua), then for
--        each id of the library: id, id of the library, metadata as JSON
-- reply  for each id: taken | invalid: <reason> (now a dead letter) | gone (absent or not due) | conflict (its id is
--        live) | left (no room, or a limit of the route); error `PUNCTUAL unregistered <text>`, nothing written, when
--        the partition is not open
--
-- A body that is too large is not read: its id becomes a dead letter, and the body stays.
local theirs, ready, retry, held_by, counts = unpack(KEYS, OWN_KEYS + 1, OWN_KEYS + 5)
local BEFORE_BODIES = OWN_KEYS + 5
-- The scores of the library are seconds.
local UNIT = 1000
-- Ids read from the end of a list, where its consumers pop them.
local WINDOW = 1000
local MAX_ATTEMPTS = 4294967295

local entries, names = {}, {}
for i = OWN_ARGUMENTS + 1, #ARGV, 3 do
  entries[#entries + 1] = { id = ARGV[i], metadata = ARGV[i + 2] }
  names[#names + 1] = ARGV[i + 1]
end
local scores = redis.call('ZMSCORE', theirs, unpack(names))
local deadlines = redis.call('ZMSCORE', held_by, unpack(names))
local lists, listed = {}, {}
for _, key in ipairs({ ready, retry }) do
  local tail = redis.call('LRANGE', key, -WINDOW, -1)
  lists[#lists + 1] = { key = key, tail = tail }
  for _, name in ipairs(tail) do listed[name] = true end
end
local left = redis.call('HMGET', counts, unpack(names))

-- The maximum number of attempts. A consumer beyond its deadline has used one.
local function attempts(i)
  local retries = math.max(0, tonumber(left[i]))
  return math.min(MAX_ATTEMPTS, deadlines[i] and math.max(1, retries) or retries + 1)
end

for i, entry in ipairs(entries) do
  local due = scores[i] and due_ms(tonumber(scores[i]), UNIT)
  local late = deadlines[i] and due_ms(tonumber(deadlines[i]), UNIT) <= limits.now
  if due and due <= limits.now then
    entry.due = due
  elseif late or listed[names[i]] then
    -- Its due time is unknown.
    entry.due = limits.now
  end
  if left[i] and string.find(left[i], '^%-?%d+$') then
    local rest = string.sub(entry.metadata, 2)
    entry.metadata = '{"max_attempts":' .. whole(attempts(i)) .. (rest == '}' and '' or ',') .. rest
  end
end

local function weigh(i)
  local key = KEYS[BEFORE_BODIES + i]
  local kind = redis.call('TYPE', key).ok
  if kind == 'none' then return 0, 'its body is missing: it has expired, or was deleted' end
  if kind ~= 'string' then return 0, 'its body is no string, but a ' .. kind end
  local size = redis.call('STRLEN', key)
  if size > MAX_CONTENT then
    return 0, 'its body takes ' .. size .. ' bytes, at most ' .. MAX_CONTENT .. ' can be kept: it stays where it is'
  end
  return size
end

-- The keys that were read, by index.
local read_from = {}
local function read(i)
  local key = KEYS[BEFORE_BODIES + i]
  read_from[i] = key
  return redis.call('GET', key)
end

local verdicts, steps, taken, wake_up = take(entries, weigh, read)
leave(steps, theirs, taken, names, scores)
leave(steps, held_by, taken, names, deadlines)
local moved, counted, old, read_keys = {}, {}, {}, {}
for _, i in ipairs(taken) do
  moved[names[i]] = true
  read_keys[#read_keys + 1] = read_from[i]
  if left[i] then
    counted[#counted + 1] = names[i]
    old[#old + 1] = left[i]
  end
end
-- A list that keeps some of its tail comes before one that is emptied: its RPUSH shows that the undo of the other one
-- is permitted. Otherwise `commit` would try that undo, which adds to the list.
local shortened, emptied = {}, {}
for _, list in ipairs(lists) do
  list.kept = {}
  for _, name in ipairs(list.tail) do
    if not moved[name] then list.kept[#list.kept + 1] = name end
  end
  if #list.kept == 0 then
    emptied[#emptied + 1] = list
  elseif #list.kept < #list.tail then
    shortened[#shortened + 1] = list
  end
end
for _, list in ipairs(shortened) do
  -- LREM cannot be undone, because it loses the position. RPUSH comes first, because it has no form that changes
  -- nothing.
  local kept, added = list.kept, { { 'LTRIM', list.key, 0, -(#list.kept + 1) } }
  add(steps, 'RPUSH', list.key, kept, added)
  local back = { { 'RPUSH', list.key, unpack(list.tail) }, { 'RPUSH', list.key, unpack(kept) } }
  steps[#steps + 1] = { { 'LTRIM', list.key, 0, -(#list.tail + #kept + 1) }, back }
  add(steps, 'RPUSH', list.key, kept, added)
end
for _, list in ipairs(emptied) do
  local size = #list.tail
  if size > 0 then
    steps[#steps + 1] = { { 'LTRIM', list.key, 0, -(size + 1) }, { { 'RPUSH', list.key, unpack(list.tail) } } }
  end
end
add(steps, 'HDEL', counts, counted, restore(counts, counted, old))
-- The last step, because the expiry of a body could not be restored.
if #read_keys > 0 then steps[#steps + 1] = { { 'DEL', unpack(read_keys) }, {} } end
local failed = commit(steps)
if failed then return failed end
if wake_up then wake(channel) end
return verdicts
