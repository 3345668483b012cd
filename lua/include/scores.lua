-- A number as text with all its digits: `..` keeps only 14 of them.
local function whole(number)
  return string.format('%.0f', number)
end

-- The lowest score of a sorted set, or nil.
local function head(key)
  return tonumber(redis.call('ZRANGE', key, '0', '0', 'WITHSCORES')[2])
end
