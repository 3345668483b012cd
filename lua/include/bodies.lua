-- include commit fields
-- Adds the steps that delete messages: attempts and errors, then the bodies, which have no undo. Must come last.
local function delete(steps, attempts, errors, messages, ids)
  drop(steps, attempts, ids)
  drop(steps, errors, ids)
  add(steps, 'HDEL', messages, ids, {})
end
