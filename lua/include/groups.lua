-- include fields members
-- Groups: messages of a route that are listed, cancelled and moved together.
--
-- groups   hash: id of a live message, also of a dead one -> its group
-- grouped  sorted set, all scores 0: "<group> NUL <id>" of each of them
--
-- While no live message has a group, both are absent, and no command is executed for them: an EXISTS that a script
-- executes anyway counts `groups` too.

-- The group keys among `keys` from place `first` on.
local function group_keys(keys, first) return { groups = keys[first], grouped = keys[first + 1] } end

-- How many of `others` exist, and whether there are groups. EXISTS counts a key as often as it is named.
local function existing(groups, others)
  local named, times = { 'EXISTS', unpack(others) }, #others + 1
  for _ = 1, times do named[#named + 1] = groups.groups end
  local count = redis.call(unpack(named))
  return count % times, count >= times
end

local function member_of(group, id) return group .. '\0' .. id end

-- Adds the steps that set the groups of accepted messages: `names` has the group of each id, false for none.
-- `has_groups`: whether there are groups.
local function join_groups(steps, groups, names, has_groups)
  local ids = {}
  for id, name in pairs(names) do
    if name or has_groups then ids[#ids + 1] = id end
  end
  if #ids == 0 then return end
  table.sort(ids)
  local known = has_groups and redis.call('HMGET', groups.groups, unpack(ids)) or {}
  local set, set_old, cleared, cleared_old = { 'HSET', groups.groups }, {}, { 'HDEL', groups.groups }, {}
  local joined, left = { 'ZADD', groups.grouped }, { 'ZREM', groups.grouped }
  for i, id in ipairs(ids) do
    local name, old = names[id], known[i]
    if name ~= (old or false) then
      if old then left[#left + 1] = member_of(old, id) end
      if name then
        set[#set + 1], set[#set + 2] = id, name
        set_old[#set_old + 1] = old or false
        joined[#joined + 1], joined[#joined + 2] = '0', member_of(name, id)
      else
        cleared[#cleared + 1], cleared_old[#cleared_old + 1] = id, old
      end
    end
  end
  put(steps, set, set_old)
  insert(steps, joined)
  remove(steps, left, '0')
  clear(steps, cleared, cleared_old)
end

-- Adds the steps that take messages that end out of their groups.
local function leave_groups(steps, groups, ids)
  local left, cleared, old = { 'ZREM', groups.grouped }, { 'HDEL', groups.groups }, {}
  for i, name in ipairs(redis.call('HMGET', groups.groups, unpack(ids))) do
    if name then
      left[#left + 1] = member_of(name, ids[i])
      cleared[#cleared + 1], old[#old + 1] = ids[i], name
    end
  end
  remove(steps, left, '0')
  clear(steps, cleared, old)
end

-- Up to `count` ids of a group after the id `after`, in order of their bytes.
local function ids_of_group(groups, name, after, count)
  local from, to = '(' .. member_of(name, after), '(' .. name .. '\1'
  local ids = redis.call('ZRANGEBYLEX', groups.grouped, from, to, 'LIMIT', '0', count)
  for i, member in ipairs(ids) do ids[i] = string.sub(member, #name + 2) end
  return ids
end
