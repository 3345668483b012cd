-- include commit layout
-- Replaces the body of a dead letter.
--
-- KEYS   dead messages route [outbox]
-- ARGV   required prefix of `route`, id, time of death (ms), the stored body that was read, the new one
-- reply  done | changed (it is not dead, died again, or has another body) | forwarding (it is in the outbox: what the
--        other route gets is decided); error `PUNCTUAL unregistered <text>`, nothing written, when the partition is
--        not open
--
-- Flow and group stay. The bodies of dead letters count in no limit.
local dead, messages, route, outbox = unpack(KEYS)
local layout, id, died, former, new = unpack(ARGV)

local refusal = closed(route, layout)
if refusal then return refusal end

local score = redis.call('ZSCORE', dead, id)
if not score or tonumber(score) ~= tonumber(died) then return 'changed' end
if redis.call('HGET', messages, id) ~= former then return 'changed' end
if outbox and redis.call('ZSCORE', outbox, id) then return 'forwarding' end
return commit({ { { 'HSET', messages, id, new }, {} } }) or 'done'
