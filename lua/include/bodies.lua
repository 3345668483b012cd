-- include commit fields groups
-- Adds the steps that delete messages: groups, attempts and errors, then the bodies. The deletion of bodies has no undo,
-- so these steps must be the last ones. `groups`: nothing if none of the messages can have one.
local function delete(steps, attempts, errors, messages, groups, ids)
  if #ids == 0 then return end
  if groups then
    local found, has_groups = existing(groups, { attempts })
    if has_groups then leave_groups(steps, groups, ids) end
    if found > 0 then drop_found(steps, attempts, ids) end
  else
    drop(steps, attempts, ids)
  end
  drop(steps, errors, ids)
  add(steps, 'HDEL', messages, ids, {})
end
