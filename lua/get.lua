-- include clock ending layout
-- Returns a live message, or how it was completed if that is remembered.
--
-- KEYS   pending unack messages errors dead remembered paused route
-- ARGV   required prefix of `route` ("": any value), id, time for which a completed id is remembered (ms)
-- reply  nothing, or: pending | unack | dead, score, value of `errors` or "", body or "", now (ms), paused 0/1;
--        or: delivered | cancelled, when (ms); error `PUNCTUAL unregistered <text>` when the partition is not open
local pending, unack, messages, errors, dead, remembered, paused, route = unpack(KEYS)
local id, keep = ARGV[2], tonumber(ARGV[3])
local refusal = closed(route, ARGV[1])
if refusal then return refusal end
local now = math.floor(clock() / 1000)

for _, set in ipairs({ { 'pending', pending }, { 'unack', unack }, { 'dead', dead } }) do
  local score = redis.call('ZSCORE', set[2], id)
  if score then
    return {
      set[1],
      tonumber(score),
      redis.call('HGET', errors, id) or '',
      redis.call('HGET', messages, id) or '',
      now,
      redis.call('GET', paused) and 1 or 0,
    }
  end
end
local how, at
if keep > 0 then how, at = ending(redis.call('ZSCORE', remembered, id), keep, now) end
return how and { how, at } or false
