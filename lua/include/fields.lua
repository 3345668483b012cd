-- include commit
-- Steps that change fields of hashes.

-- Commands that restore fields of the hash `key`: fields[i] had the value old[i], which is false for an absent field.
local function restore(key, fields, old)
  local set, del = { 'HSET', key }, { 'HDEL', key }
  for i, field in ipairs(fields) do
    if old[i] then
      set[#set + 1] = field
      set[#set + 1] = old[i]
    else
      del[#del + 1] = field
    end
  end
  local undo = {}
  if #set > 2 then undo[#undo + 1] = set end
  if #del > 2 then undo[#undo + 1] = del end
  return undo
end

local function undeleted(command, old)
  return restore(command[2], { unpack(command, 3) }, old)
end

-- Adds the step `command`, an HDEL of fields that have the values `old`.
local function clear(steps, command, old)
  write(steps, command, undeleted, old)
end

local function unset(command, old)
  local fields = {}
  for i = 3, #command, 2 do fields[#fields + 1] = command[i] end
  return restore(command[2], fields, old)
end

-- Adds the step `command`, an HSET of fields that have the values `old`, false for an absent field.
local function put(steps, command, old)
  write(steps, command, unset, old)
end

-- Adds the step that deletes fields of a hash that exists.
local function drop_found(steps, key, fields)
  local found, values = { 'HDEL', key }, {}
  for i, value in ipairs(redis.call('HMGET', key, unpack(fields))) do
    if value then
      values[#values + 1] = value
      found[#found + 1] = fields[i]
    end
  end
  clear(steps, found, values)
end

-- Adds the step that deletes fields of a hash, unless the hash has none of them.
local function drop(steps, key, fields)
  if #fields > 0 and redis.call('EXISTS', key) == 1 then drop_found(steps, key, fields) end
end
