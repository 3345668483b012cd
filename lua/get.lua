-- One live message.
--
-- KEYS   pending unack messages attempts errors dead
-- ARGV   id
-- reply  nothing, or: pending | unack | dead, score, failures, error or "", body or ""
local pending, unack, messages, attempts, errors, dead = unpack(KEYS)
local id = ARGV[1]

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
return false
