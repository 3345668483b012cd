-- A number as text with all its digits: `..` keeps only 14 of them.
local function whole(number)
  return string.format('%.0f', number)
end

-- A due message that waits for its flow (flow.lua) is parked: its score in `pending` is PARKED + due time.
local PARKED = 2 ^ 52

-- The due time of a message by its score in `pending`, and whether it is parked.
local function due_by(score)
  score = tonumber(score)
  if score < PARKED then return score, false end
  return score - PARKED, true
end

-- The lowest score of a sorted set, or nil.
local function head(key)
  return tonumber(redis.call('ZRANGE', key, '0', '0', 'WITHSCORES')[2])
end
