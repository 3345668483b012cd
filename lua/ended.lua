-- include clock history scores
-- Returns ends of the history.
--
-- KEYS   history
-- ARGV   order ("asc" | "desc"), place: "" (the first end in this order), "<number>" (behind the end with this number) or
--        "@<ms>" (at this time), maximum number of blocks (2 to 100)
-- reply  now (ms), 1 if blocks follow, otherwise 0, then for each block in this order: the number of its first end, the
--        block. The first block can have ends before the place
local blocks = KEYS[1]
local is_reversed, place, most = ARGV[1] == 'desc', ARGV[2], tonumber(ARGV[3])

-- The number of the first block that begins after the time `at`, by bisection.
local function block_after(at, low, high)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local text = redis.call('HGET', blocks, whole(middle))
    if text and struct.unpack('>I8', text, 1) > at then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

local following, first = state_of(redis.call('HGET', blocks, ''))
-- Blocks from `from` on and before `to`.
local from, to = first / BLOCK, math.ceil(following / BLOCK)
local at = tonumber(string.match(place, '^@(%d+)$'))
if is_reversed then
  if at then
    to = block_after(at, from, to)
  elseif place ~= '' then
    to = math.min(to, math.ceil(tonumber(place) / BLOCK))
  end
elseif at then
  -- The block before can have ends from this time on.
  from = math.max(from, block_after(at - 1, from, to) - 1)
elseif place ~= '' then
  from = math.max(from, math.floor((tonumber(place) + 1) / BLOCK))
end
local reply = { math.floor(clock() / 1000), to - from > most and 1 or 0 }
for n = 0, math.min(most, to - from) - 1 do
  local block = is_reversed and to - 1 - n or from + n
  local text = redis.call('HGET', blocks, whole(block))
  if text then reply[#reply + 1], reply[#reply + 2] = block * BLOCK, text end
end
return reply
