-- include commit
-- Steps that change members of sorted sets. The undo of each command is made from the command itself.

local function restored(set, ids, scores)
  local back = { 'ZADD', set }
  for i, id in ipairs(ids) do
    back[2 * i + 1], back[2 * i + 2] = type(scores) == 'table' and scores[i] or scores, id
  end
  return { back }
end

-- Adds the step `command`, a ZREM of members. `scores` is one score for all of them, or a table with one for each.
local function remove(steps, command, scores)
  write(steps, command, function() return restored(command[2], { unpack(command, 3) }, scores) end)
end

-- Adds the step `command`, which removes a range: the members `ids`, with `scores` as in `remove`. A range costs the
-- server and its append-only file less than a ZREM of each member.
local function remove_range(steps, command, ids, scores)
  write(steps, command, function() return restored(command[2], ids, scores) end)
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
