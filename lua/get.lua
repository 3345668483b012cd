-- include clock ending layout optional scores
-- Returns a live message, or how it was completed if that is remembered, and its last ends if the route has a history.
--
-- KEYS   pending unack messages errors dead remembered paused route [history]
-- ARGV   required prefix of `route` ("": any value), id, time for which a completed id is remembered (ms)
-- reply  number of ends, now (ms), for each end, the latest first: its time (8 bytes) and entry (history.lua) as one
--        string; then nothing, or: pending | unack | dead, score, value of `errors` or "", body or "", paused 0/1;
--        or: delivered | cancelled, when (ms); error `PUNCTUAL unregistered <text>` when the partition is not open
local pending, unack, messages, errors, dead, remembered, paused, route = unpack(KEYS)
local id, keep = ARGV[2], tonumber(ARGV[3])
local _, history = optional_keys(KEYS, 9)
-- Ends of an id that are returned.
local MOST_ENDS = 5
local refusal = closed(route, ARGV[1])
if refusal then return refusal end
local now = math.floor(clock() / 1000)

-- Adds the ends of the id in a block to `found`, the latest first. Returns the block of the end before them, if any.
local function ends_in(text, found)
  local at, ends, before = 1, {}, nil
  while at < #text do
    local stamp, count = string.sub(text, at, at + 7), string.byte(text, at + 8)
    at = at + 9
    for _ = 1, count do
      local entry = string.sub(text, at, at + 1 + struct.unpack('>I2', text, at))
      if string.sub(entry, 25, 24 + string.byte(entry, 24)) == id then
        table.insert(ends, 1, stamp .. entry)
        -- The field with the former block is the last one.
        local is_link = not before and string.byte(entry, -10) == 23 and string.byte(entry, -9) == 8
        before = before or (is_link and struct.unpack('>I8', entry, #entry - 7) or nil)
      end
      at = at + #entry
    end
  end
  for _, one in ipairs(ends) do
    if #found < MOST_ENDS then found[#found + 1] = one end
  end
  return before
end

local reply, found = { 0, now }, {}
local block = history and tonumber(redis.call('ZSCORE', history.ended, id) or nil)
while block and #found < MOST_ENDS do
  local text = redis.call('HGET', history.blocks, whole(block))
  local before = text and ends_in(text, found)
  block = before and before < block and before or nil
end
reply[1] = #found
for _, one in ipairs(found) do reply[#reply + 1] = one end
for _, set in ipairs({ { 'pending', pending }, { 'unack', unack }, { 'dead', dead } }) do
  local score = redis.call('ZSCORE', set[2], id)
  if score then
    local live = {
      set[1],
      tonumber(score),
      redis.call('HGET', errors, id) or '',
      redis.call('HGET', messages, id) or '',
      redis.call('GET', paused) and 1 or 0,
    }
    for _, value in ipairs(live) do reply[#reply + 1] = value end
    return reply
  end
end
local how, at
if keep > 0 then how, at = ending(redis.call('ZSCORE', remembered, id), keep, now) end
reply[#reply + 1], reply[#reply + 2] = how, at
return reply
