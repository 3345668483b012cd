-- include attempts clock ending
-- One live message, or how it was completed, if that is remembered.
--
-- KEYS   pending unack messages attempts errors dead remembered
-- ARGV   id, how long a completed one is remembered (ms)
-- reply  nothing, or: pending | unack | dead, score, failures, error or "", body or "";
--        or: delivered | cancelled, when (ms)
local pending, unack, messages, attempts, errors, dead, remembered = unpack(KEYS)
local id, keep = ARGV[1], tonumber(ARGV[2])

for _, set in ipairs({ { 'pending', pending }, { 'unack', unack }, { 'dead', dead } }) do
  local score = redis.call('ZSCORE', set[2], id)
  if score then
    return {
      set[1],
      tonumber(score),
      (counts(redis.call('HGET', attempts, id))),
      redis.call('HGET', errors, id) or '',
      redis.call('HGET', messages, id) or '',
    }
  end
end
local how, at
if keep > 0 then how, at = ending(redis.call('ZSCORE', remembered, id), keep, math.floor(clock() / 1000)) end
return how and { how, at } or false
