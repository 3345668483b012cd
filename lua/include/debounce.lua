-- include scores
-- A message with `debounce` is due at the time asked for, but at most `max` ms after the first acceptance of those that
-- it replaced, one after another.

-- The due time of a message, and the time of the first acceptance. `due`: the time asked for; `old` and `score`: the body
-- and the score of the pending message that it replaces, nothing without one.
local function debounced(due, max, old, score, now)
  local old_due, first = now, now
  if old and #old >= 17 then old_due, first = struct.unpack('>I8I8', old, 2) end
  local last = first + max
  -- After a failed or deferred attempt the score is the time of the next one, which is not brought forward.
  local next_at = score and due_by(score) or 0
  if old and next_at ~= old_due then last = math.max(last, next_at) end
  return math.min(due, last), first
end
