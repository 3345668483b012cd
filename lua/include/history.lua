-- include commit fields label scores
-- The history of a route: what became of its messages. `[history]` is both keys in the KEYS of a script.
--
-- history  hash: number of a block -> runs of ends; "" -> "<number of the next end> <number of the first end that is
--          kept> <time of the last end (ms)>". Ends are numbered from 0; the block of an end is its number divided by
--          BLOCK
-- ended    sorted set: id -> the block of its last end
--
-- A run: time of its ends (ms, 8 bytes), their number (1), their entries. An entry: length of the rest (2 bytes), outcome
-- (1), failed attempts, and with a delivery that one too (4), due time and time of acceptance (ms, 8 each), length of the
-- id (1), the id, and fields (label.lua); the last one is the block of the end before of the same id, if any. Numbers are
-- big endian.
--
-- Old ends are deleted in whole blocks: up to BLOCK - 1 more than `max` are kept. Times of ends do not descend, also if
-- the clock is stepped back.
local BLOCK = 16
local OUTCOMES = { dead = 2, cancelled = 3, replaced = 5 }

-- Adds the limits of the history to its keys. `settings`: "<maximum number of ends> <maximum age in ms>".
local function limited_history(history, settings)
  local max, age = string.match(settings, '^(%d+) (%d+)$')
  history.max, history.age = tonumber(max), tonumber(age)
  return history
end

-- The entry of a message that ends. `body`: nothing if it was lost. `error`: of a dead letter; `by`: the name of the token
-- that cancels.
local function entry_of(outcome, id, attempts, body, error, by)
  body = body or ''
  local times = #body >= 17 and string.sub(body, 2, 17) or string.rep('\0', 16)
  local rest = struct.pack('>BI4', OUTCOMES[outcome], attempts) .. times .. string.char(#id) .. id .. label(body)
  rest = rest .. field(21, error and string.sub(error, 1, 200)) .. field(22, by)
  return struct.pack('>I2', #rest) .. rest
end

-- The number of the next end, that of the first one that is kept, and the time of the last one.
local function state_of(text)
  local following, first, last = string.match(text or '0 0 0', '^(%d+) (%d+) (%d+)$')
  return tonumber(following), tonumber(first), tonumber(last)
end

-- The blocks that are deleted when the next end has the number `following`: those with more than `max` ends behind
-- them, and those with only ends before `oldest` (ms). `open`: the number of a block that is read too. Returns the
-- numbers of these blocks, their texts, and the text of `open`.
local function old_blocks(history, first, following, oldest, open)
  -- Twice as many as the largest batch fills, so that a history above its limit shrinks.
  local MOST_DELETED = 128
  local from = first / BLOCK
  local count = math.min(math.max(0, math.floor((following - history.max - first) / BLOCK)), MOST_DELETED)
  local numbers = {}
  -- A block is too old if the next one begins too early. Two more than `count` end in a call at most.
  for i = 0, count + 2 do numbers[#numbers + 1] = whole(from + i) end
  numbers[#numbers + 1] = whole(open)
  local texts = redis.call('HMGET', history.blocks, unpack(numbers))
  while count < #numbers - 2 and count < MOST_DELETED do
    local behind = texts[count + 2]
    if not behind or struct.unpack('>I8', behind, 1) >= oldest then break end
    count = count + 1
  end
  return { unpack(numbers, 1, count) }, { unpack(texts, 1, count) }, texts[#numbers]
end

-- Adds the ids in a block to `command`, each after `number`.
local function ids_in(text, number, command)
  local at = 1
  while at < #text do
    local count = string.byte(text, at + 8)
    at = at + 9
    for _ = 1, count do
      local n = #command
      command[n + 1], command[n + 2] = number, string.sub(text, at + 24, at + 23 + string.byte(text, at + 23))
      at = at + 2 + struct.unpack('>I2', text, at)
    end
  end
end

-- Adds the steps that delete blocks, and the ids with their last end there. `kept_from`: number of the first block that
-- is kept.
local function delete_blocks(steps, history, numbers, texts, kept_from)
  if #numbers == 0 then return end
  local blocks, old = { 'HDEL', history.blocks }, {}
  for i, number in ipairs(numbers) do
    if texts[i] then blocks[#blocks + 1], old[#old + 1] = number, texts[i] end
  end
  clear(steps, blocks, old)
  -- The undo leaves ids with a later end as they are: they are in `ended`.
  write(steps, { 'ZREMRANGEBYSCORE', history.ended, '-inf', '(' .. whole(kept_from) }, function()
    local undo = {}
    for i = #numbers, 1, -1 do
      local command = { 'ZADD', history.ended, 'NX' }
      if texts[i] then ids_in(texts[i], numbers[i], command) end
      if #command > 3 then undo[#undo + 1] = command end
    end
    return undo
  end)
end

-- Adds the steps that keep the ends of messages, with their entries.
local function keep_ends(steps, history, ids, entries, now)
  if not history or #ids == 0 then return end
  local text = redis.call('HGET', history.blocks, '')
  local following, first, last = state_of(text)
  now = math.max(now, last)
  local skipped = math.max(0, #ids - history.max)
  local after = following + #ids - skipped
  local block = math.floor(following / BLOCK)
  local numbers, texts, open = old_blocks(history, first, after, now - history.age, block)
  local kept_from = first / BLOCK + #numbers

  local known, before = redis.call('ZMSCORE', history.ended, unpack(ids)), {}
  local set, set_old, places = { 'HSET', history.blocks, '' }, { text }, { 'ZADD', history.ended }
  set[4] = string.format('%.0f %.0f %.0f', after, kept_from * BLOCK, now)
  local stamp, i, place = struct.pack('>I8', now), skipped + 1, following % BLOCK
  while i <= #ids do
    local number, to = whole(block), math.min(#ids, i + BLOCK - 1 - place)
    for n = i, to do
      local id, at = ids[n], 2 * (n - skipped)
      places[at + 1], places[at + 2] = number, id
      local former = before[id] or known[n]
      if former then
        local link = field(23, struct.pack('>I8', tonumber(former)))
        local entry = entries[n]
        entries[n] = struct.pack('>I2', struct.unpack('>I2', entry) + #link) .. string.sub(entry, 3) .. link
      end
      before[id] = number
    end
    local run = stamp .. string.char(to - i + 1) .. table.concat(entries, '', i, to)
    set[#set + 1], set[#set + 2] = number, (i == skipped + 1 and open or '') .. run
    set_old[#set_old + 1] = i == skipped + 1 and open or false
    i, block, place = to + 1, block + 1, 0
  end
  put(steps, set, set_old)
  write(steps, places, function()
    local back, added = { 'ZADD', history.ended }, { 'ZREM', history.ended }
    for n = skipped + 1, #ids do
      if known[n] then
        back[#back + 1], back[#back + 2] = known[n], ids[n]
      else
        added[#added + 1] = ids[n]
      end
    end
    local undo = {}
    if #back > 2 then undo[1] = back end
    if #added > 2 then undo[#undo + 1] = added end
    return undo
  end)
  delete_blocks(steps, history, numbers, texts, kept_from)
end
