-- Cancels a pending message, or purges a dead one; one in flight stays.
--
-- KEYS   pending unack messages attempts errors dead
-- ARGV   id
-- reply  cancelled | purged | in_flight | not_found
local pending, unack, messages, attempts, errors, dead = unpack(KEYS)
local id = ARGV[1]

if redis.call('ZSCORE', unack, id) then return 'in_flight' end
local set, status = pending, 'cancelled'
local score = redis.call('ZSCORE', pending, id)
if not score then
  set, status = dead, 'purged'
  score = redis.call('ZSCORE', dead, id)
end
if not score then return 'not_found' end

local steps = {}
add(steps, 'ZREM', set, { id }, { { 'ZADD', set, score, id } })
forget(steps, attempts, errors, messages, { id })
return commit(steps) or status
