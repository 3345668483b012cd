-- include bodies bytes cancelled clock commit fields flow groups layout optional records remembered revival sizes wake
-- Cancels a pending message, or purges a dead one; one in flight stays.
--
-- KEYS   pending unack messages attempts errors dead remembered records bytes route groups grouped [history] [flow]
-- ARGV   wake channel, required prefix of `route`, id, time to remember the id (ms; a purged id only with a record),
--        maximum number of remembered ids, its record ("": none; see records.lua), 1 if the source also read the
--        cancelled message and did not schedule it, otherwise 0 (with a record such an id is remembered too), 1 to keep
--        a dead message, otherwise 0, limits of the history ("": none; see history.lua), name of the token ("": none)
-- reply  cancelled | purged | dead (it stays) | in_flight | not_found | known (the record was applied before: nothing
--        changed); error `PUNCTUAL unregistered <text>`, nothing written, when the partition is not open
local pending, unack, messages, attempts, errors, dead, remembered, records, bytes, route = unpack(KEYS)
local channel, layout, id, keep, max = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local groups = group_keys(KEYS, 11)
local _, history, flow = optional_keys(KEYS, 13, ARGV[9])

local refusal = closed(route, layout)
if refusal then return refusal end

local stored, record
if ARGV[6] ~= '' then
  stored = redis.call('HGET', records, id)
  record = newer(ARGV[6], stored)
  if not record then return 'known' end
end
if redis.call('ZSCORE', unack, id) then return 'in_flight' end
local set, status = pending, 'cancelled'
local score = redis.call('ZSCORE', pending, id)
if not score then
  set, status = dead, 'purged'
  score = redis.call('ZSCORE', dead, id)
  if score and ARGV[8] == '1' then return 'dead' end
end
local steps = {}
if score then
  add(steps, 'ZREM', set, { id }, { { 'ZADD', set, score, id } })
elseif record and ARGV[7] == '1' and keep > 0 then
  status = 'not_found'
  -- An earlier message of this id can be remembered.
  revive(steps, remembered, { id })
else
  return 'not_found'
end
if status == 'cancelled' then grow(steps, bytes, -sizes(messages, { id })) end
if status == 'cancelled' or record then
  remember(steps, remembered, records, { id }, true, keep, max)
else
  drop(steps, records, { id })
end
if record and keep > 0 then add(steps, 'HSET', records, { id, record }, restore(records, { id }, { stored })) end
local is_open = false
if score and flow then
  if set == pending then
    is_open = conclude(steps, flow, { id }, { score }, math.floor(clock() / 1000))
  else
    drop(steps, flow.flows, { id })
  end
end
if status == 'cancelled' and history then
  keep_cancelled(steps, history, attempts, messages, { id }, { score }, ARGV[10], math.floor(clock() / 1000))
end
if score then delete(steps, attempts, errors, messages, groups, { id }) end
local failed = commit(steps)
if failed then return failed end
if is_open then wake(channel) end
return status
