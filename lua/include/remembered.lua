-- include clock commit fields scores
-- The sorted set `remembered` has the ids of completed messages. The score is the time of completion in ms, plus 0.5
-- for a cancelled message.

-- Maximum number of ids evicted by one call: twice the largest batch, so that a set above its limit shrinks.
local MAX_EVICTED = 2000

-- Adds the steps that remember completed ids for `keep` ms, at most `max` of them, and that evict the oldest ids beyond
-- either limit. The record of an id that is not remembered is deleted.
local function remember(steps, remembered, records, ids, cancelled, keep, max)
  if #ids == 0 then return end
  local known = redis.call('ZCARD', remembered)
  local fresh = keep > 0 and math.min(#ids, max) or 0
  local unknown = { unpack(ids, 1, #ids - fresh) }
  local now = known + fresh > 0 and math.floor(clock() / 1000)
  local old = keep > 0 and known > 0 and redis.call('ZCOUNT', remembered, '-inf', '(' .. whole(now - keep)) or known
  old = math.min(math.max(old, known + fresh - max), known, MAX_EVICTED)
  if old > 0 then
    local found = redis.call('ZRANGE', remembered, 0, old - 1, 'WITHSCORES')
    local evicted, back = {}, { 'ZADD', remembered }
    for i = 1, #found, 2 do
      evicted[#evicted + 1], unknown[#unknown + 1] = found[i], found[i]
      back[#back + 1], back[#back + 2] = found[i + 1], found[i]
    end
    add(steps, 'ZREM', remembered, evicted, { back })
  end
  drop(steps, records, unknown)
  if fresh > 0 then
    local latest, scores = { unpack(ids, #ids - fresh + 1) }, {}
    local at = string.format('%.1f', now + (cancelled and 0.5 or 0))
    for _, id in ipairs(latest) do scores[#scores + 1], scores[#scores + 2] = at, id end
    add(steps, 'ZADD', remembered, scores, { { 'ZREM', remembered, unpack(latest) } })
  end
end
