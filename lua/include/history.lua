-- include fields label scores
-- The history of a route: what became of its messages. `[history]` is both keys in the KEYS of a script.
--
-- history  hash: number of a block -> entries of BLOCK ends in a row, one behind the other. An end has a number, the
--          first one 0; its block is that number divided by BLOCK
-- ended    hash: id -> the numbers of its last five ends, the latest first; "" -> "<number of the next
--          end> <number of the first end that is kept> <time of the last end (ms)>"
--
-- An entry: time of the end (ms, 8 bytes), length of the rest (2 bytes), outcome (1), failed attempts, and with a
-- delivery that one too (4), due time and time of acceptance (ms, 8 each), length of the id (1), the id, and fields
-- (label.lua). Numbers are big endian.
--
-- Old ends are deleted in whole blocks: up to BLOCK - 1 more than `max` are kept. Times of ends do not descend, also if
-- the clock is stepped back.
local BLOCK = 16
local OUTCOMES = { dead = 2, cancelled = 3, replaced = 5 }

-- Adds the limits of the history to its keys. `settings`: "<maximum number of ends> <maximum age in ms>".
local function limited_history(history, settings)
  if not history then return end
  local max, age = string.match(settings, '^(%d+) (%d+)$')
  history.max, history.age = tonumber(max), tonumber(age)
  return history
end

-- The entry of a message that ends, without the time. `body`: nothing if it was lost. `error`: of a dead letter; `by`:
-- the name of the token that cancels.
local function entry_of(outcome, id, attempts, body, error, by)
  body = body or ''
  local times = #body >= 17 and string.sub(body, 2, 17) or string.rep('\0', 16)
  local rest = struct.pack('>BI4', OUTCOMES[outcome], attempts) .. times .. string.char(#id) .. id .. label(body)
  rest = rest .. field(21, error and string.sub(error, 1, 200)) .. field(22, by)
  return struct.pack('>I2', #rest) .. rest
end

-- Adds the ids and numbers of the ends in a block, the first of which has the number `number`.
local function ends_in(text, number, ids, numbers)
  local at = 1
  while at + 31 < #text do
    local size = struct.unpack('>I2', text, at + 8)
    ids[#ids + 1] = string.sub(text, at + 32, at + 31 + string.byte(text, at + 31))
    numbers[#numbers + 1] = number
    at, number = at + 10 + size, number + 1
  end
end

-- The number of the next end, that of the first one that is kept, and the time of the last one.
local function state_of(text)
  local following, first, last = string.match(text or '0 0 0', '^(%d+) (%d+) (%d+)$')
  return tonumber(following), tonumber(first), tonumber(last)
end

-- The blocks that are deleted when the next end has the number `following`: those with more than `max` ends behind
-- them, and those with only ends before `oldest` (ms). `open`: the number of a block that is read
-- too, if any. Returns the numbers of these blocks, their texts, and the text of `open`.
local function old_blocks(history, first, following, max, oldest, open)
  -- Twice as many as the largest batch fills, so that a history above its limit shrinks.
  local MOST_DELETED = 128
  local from = first / BLOCK
  local count = math.min(math.max(0, math.floor((following - max - first) / BLOCK)), MOST_DELETED)
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

-- Adds the steps that delete blocks and the numbers of their ends. `written`: ids with numbers that the script writes
-- anyway.
local function delete_blocks(steps, history, first, numbers, texts, written)
  if #numbers == 0 then return end
  local blocks, old = { 'HDEL', history.blocks }, {}
  local ids, ends, seen, named = {}, {}, {}, {}
  for i, number in ipairs(numbers) do
    if texts[i] then
      blocks[#blocks + 1], old[#old + 1] = number, texts[i]
      ends_in(texts[i], first + (i - 1) * BLOCK, ids, ends)
    end
  end
  for _, id in ipairs(ids) do
    if not seen[id] and not written[id] then
      seen[id], named[#named + 1] = true, id
    end
  end
  clear(steps, blocks, old)
  if #named == 0 then return end
  local kept, kept_old, gone, gone_old = { 'HSET', history.ended }, {}, { 'HDEL', history.ended }, {}
  for i, value in ipairs(redis.call('HMGET', history.ended, unpack(named))) do
    local left = {}
    for number in string.gmatch(value or '', '%d+') do
      if tonumber(number) >= first + #numbers * BLOCK then left[#left + 1] = number end
    end
    if #left > 0 then
      kept[#kept + 1], kept[#kept + 2], kept_old[#kept_old + 1] = named[i], table.concat(left, ' '), value
    elseif value then
      gone[#gone + 1], gone_old[#gone_old + 1] = named[i], value
    end
  end
  put(steps, kept, kept_old)
  clear(steps, gone, gone_old)
end

-- Adds the steps that keep the ends of messages. `entries`: their entries without the time.
local function keep_ends(steps, history, ids, entries, now)
  if not history or #ids == 0 then return end
  local known = redis.call('HMGET', history.ended, '', unpack(ids))
  local following, first, last = state_of(known[1])
  now = math.max(now, last)
  local skipped = math.max(0, #ids - history.max)
  local after = following + #ids - skipped
  local open = math.floor(following / BLOCK)
  local numbers, texts, text = old_blocks(history, first, after, history.max, now - history.age, open)
  local kept_from = first + #numbers * BLOCK

  local blocks, blocks_old, parts, stamp = { 'HSET', history.blocks }, { text }, { text or '' }, struct.pack('>I8', now)
  local values, order = {}, {}
  for i = skipped + 1, #ids do
    local id, number = ids[i], following + i - skipped - 1
    local n = #parts
    parts[n + 1], parts[n + 2] = stamp, entries[i]
    if number % BLOCK == BLOCK - 1 or i == #ids then
      local at = #blocks
      blocks[at + 1], blocks[at + 2] = whole(math.floor(number / BLOCK)), table.concat(parts)
      if at > 2 then blocks_old[#blocks_old + 1] = false end
      parts = {}
    end
    local former = values[id] or known[i + 1]
    local value, count = whole(number), 1
    for earlier in string.gmatch(former or '', '%d+') do
      if count < 5 and tonumber(earlier) >= kept_from then value, count = value .. ' ' .. earlier, count + 1 end
    end
    if not values[id] then order[#order + 1] = i end
    values[id] = value
  end
  put(steps, blocks, blocks_old)
  local state = string.format('%.0f %.0f %.0f', after, kept_from, now)
  local set, set_old = { 'HSET', history.ended, '', state }, { known[1] }
  for n, i in ipairs(order) do
    set[2 * n + 3], set[2 * n + 4] = ids[i], values[ids[i]]
    set_old[n + 1] = known[i + 1]
  end
  put(steps, set, set_old)
  delete_blocks(steps, history, first, numbers, texts, values)
end
