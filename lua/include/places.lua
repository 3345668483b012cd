-- A place in a sorted set is the score and id of the last member before it.

-- Redis orders members with equal scores by their bytes. Lua's `<` depends on the locale.
local function before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- The first rank after (score, id), by bisection, because many members can have one score. `inclusive`: the rank of
-- (score, id) itself, where it is a member.
local function rank_after(set, score, id, inclusive)
  local low, high = 0, redis.call('ZCARD', set)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local one = redis.call('ZRANGE', set, middle, middle, 'WITHSCORES')
    local at = tonumber(one[2])
    if at > score or (at == score and (before(id, one[1]) or (inclusive and id == one[1]))) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end
