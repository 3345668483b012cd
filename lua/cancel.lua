-- Cancels a pending message, or purges a dead one; one in flight stays.
--
-- KEYS   pending unack messages attempts errors dead remembered
-- ARGV   id, how long to remember it (ms; not a purged one), how many at most
-- reply  cancelled | purged | in_flight | not_found
local pending, unack, messages, attempts, errors, dead, remembered = unpack(KEYS)
local id, keep, max = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

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
if status == 'cancelled' then remember(steps, remembered, { id }, true, keep, max) end
forget(steps, attempts, errors, messages, { id })
return commit(steps) or status
