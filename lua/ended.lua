-- include clock history scores
-- Returns ends of the history, the latest first.
--
-- KEYS   history ended
-- ARGV   place: "" (all), "<number>" (ends before that number) or "@<ms>" (ends up to that time), maximum number of
--        blocks (1 to 100)
-- reply  now (ms), number of the first end that is kept, number of the next end, then for each block: the number of its
--        first end, the block
local history = { blocks = KEYS[1], ended = KEYS[2] }
local place, most = ARGV[1], tonumber(ARGV[2])

-- The number of the first block that begins after the time `at`, by bisection.
local function block_after(at, low, high)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local text = redis.call('HGET', history.blocks, whole(middle))
    if text and struct.unpack('>I8', text, 1) > at then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

local following, first = state_of(redis.call('HGET', history.blocks, ''))
local from, to = first / BLOCK, math.ceil(following / BLOCK)
local at = string.match(place, '^@(%d+)$')
if at then
  to = block_after(tonumber(at), from, to)
elseif place ~= '' then
  to = math.min(to, math.ceil(tonumber(place) / BLOCK))
end
local reply = { math.floor(clock() / 1000), first, following }
for block = to - 1, math.max(from, to - most), -1 do
  local text = redis.call('HGET', history.blocks, whole(block))
  if text then reply[#reply + 1], reply[#reply + 2] = block * BLOCK, text end
end
return reply
