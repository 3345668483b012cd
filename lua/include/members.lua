-- include commit
-- Members of sorted sets that change. The undo of each command is made from the command itself.

local function restored(command, scores)
  local back = { 'ZADD', command[2] }
  for i = 3, #command do
    back[2 * i - 3], back[2 * i - 2] = type(scores) == 'table' and scores[i - 2] or scores, command[i]
  end
  return { back }
end

-- Adds the step `command`, a ZREM of members that have `scores`: one for all of them, or one for each.
local function remove(steps, command, scores)
  write(steps, command, restored, scores)
end

local function removed(command)
  local back = { 'ZREM', command[2] }
  for i = 4, #command, 2 do back[#back + 1] = command[i] end
  return { back }
end

-- Adds the step `command`, a ZADD of members that are absent.
local function insert(steps, command)
  write(steps, command, removed)
end
