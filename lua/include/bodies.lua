-- include commit fields
-- Adds the steps that delete messages: attempts and errors, then the bodies. The deletion of bodies has no undo, so
-- these steps must be the last ones.
local function delete(steps, attempts, errors, messages, ids)
  drop(steps, attempts, ids)
  drop(steps, errors, ids)
  add(steps, 'HDEL', messages, ids, {})
end
