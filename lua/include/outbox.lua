-- include commit
-- The outbox of a route that forwards its dead letters. A sorted set: id of a dead letter that was not forwarded yet ->
-- time from which a forwarder takes it (ms). An id that is no longer dead is dropped when it is taken.

-- Adds the step that puts messages which die now, as score and id in turn, into the outbox, if there is one.
local function post(steps, outbox, deaths)
  if not outbox or #deaths == 0 then return end
  local ids = {}
  for i = 2, #deaths, 2 do ids[#ids + 1] = deaths[i] end
  add(steps, 'ZADD', outbox, deaths, { { 'ZREM', outbox, unpack(ids) } })
end
