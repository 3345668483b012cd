-- include clock ending layout optional scores
-- Returns a live message, or how it was completed if that is remembered, and its last ends if the route has a history.
--
-- KEYS   pending unack messages errors dead remembered paused route [history]
-- ARGV   required prefix of `route` ("": any value), id, time for which a completed id is remembered (ms)
-- reply  number of ends, now (ms), for each end, the latest first: its place in its block (from 0), the block; then
--        nothing, or: pending | unack | dead, score, value of `errors` or "", body or "", paused 0/1;
--        or: delivered | cancelled, when (ms); error `PUNCTUAL unregistered <text>` when the partition is not open
local pending, unack, messages, errors, dead, remembered, paused, route = unpack(KEYS)
local id, keep = ARGV[2], tonumber(ARGV[3])
local _, history = optional_keys(KEYS, 9)
-- Ends of a block: see history.lua.
local BLOCK = 16
local refusal = closed(route, ARGV[1])
if refusal then return refusal end
local now = math.floor(clock() / 1000)

local reply = { 0, now }
for number in string.gmatch(history and redis.call('HGET', history.ended, id) or '', '%d+') do
  local block = redis.call('HGET', history.blocks, whole(math.floor(number / BLOCK)))
  if block then
    reply[1], reply[#reply + 1], reply[#reply + 2] = reply[1] + 1, number % BLOCK, block
  end
end
for _, set in ipairs({ { 'pending', pending }, { 'unack', unack }, { 'dead', dead } }) do
  local score = redis.call('ZSCORE', set[2], id)
  if score then
    local found = {
      set[1],
      tonumber(score),
      redis.call('HGET', errors, id) or '',
      redis.call('HGET', messages, id) or '',
      redis.call('GET', paused) and 1 or 0,
    }
    for _, value in ipairs(found) do reply[#reply + 1] = value end
    return reply
  end
end
local how, at
if keep > 0 then how, at = ending(redis.call('ZSCORE', remembered, id), keep, now) end
reply[#reply + 1], reply[#reply + 2] = how, at
return reply
