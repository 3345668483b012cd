-- include attempts
-- A page of one set, in order of score, then id, after a given place.
--
-- KEYS   set messages attempts errors; the set is pending, unack or dead
-- ARGV   limit (1 to 1000), most bytes of ids, errors and bodies, then score and id of the last one of the page before,
--        or none
-- reply  1 when more follow else 0, then for each: id, score, failures, error or "", body or ""
--
-- The first message is returned at any size.
local set, messages, attempts, errors = unpack(KEYS)
local limit, max_bytes = tonumber(ARGV[1]), tonumber(ARGV[2])

-- Redis orders equal scores by bytes; Lua's < depends on the locale.
local function before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- The first rank after (score, id), by bisection: many members may share one score.
local function rank_after(score, id)
  local low, high = 0, redis.call('ZCARD', set)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local one = redis.call('ZRANGE', set, middle, middle, 'WITHSCORES')
    local at = tonumber(one[2])
    if at > score or (at == score and before(id, one[1])) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

local from = ARGV[3] and rank_after(tonumber(ARGV[3]), ARGV[4]) or 0
local found = redis.call('ZRANGE', set, from, from + limit - 1, 'WITHSCORES')
local reply, bytes, count = { 0 }, 0, 0
for i = 1, #found, 2 do
  local id = found[i]
  local body, text = redis.call('HGET', messages, id) or '', redis.call('HGET', errors, id) or ''
  bytes = bytes + #id + #text + #body
  if bytes > max_bytes and count > 0 then break end
  count = count + 1
  local n = #reply
  reply[n + 1], reply[n + 2] = id, tonumber(found[i + 1])
  reply[n + 3] = (counts(redis.call('HGET', attempts, id)))
  reply[n + 4] = text
  reply[n + 5] = body
end
reply[1] = from + count < redis.call('ZCARD', set) and 1 or 0
return reply
