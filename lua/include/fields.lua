-- include commit
-- Fields of hashes that change.

-- Commands that restore fields of the hash `key`: fields[i] was old[i], false where it was absent.
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

-- Adds the step that deletes fields of a hash, which often does not exist.
local function drop(steps, key, fields)
  if #fields == 0 or redis.call('EXISTS', key) == 0 then return end
  add(steps, 'HDEL', key, fields, restore(key, fields, redis.call('HMGET', key, unpack(fields))))
end
