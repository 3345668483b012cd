-- include commit
-- Changes the number of partitions of a route that holds no message. Deletes its remembered ids and records.
--
-- KEYS   P:routes (pending unack dead paused route remembered records claims bytes)...; a group for each partition, old
--        and new
-- ARGV   route, its JSON as it was read, its new JSON
-- reply  1 done: scheduling is refused until the partitions are opened again | 0 it holds messages, is paused, or its
--        JSON has changed
local routes = KEYS[1]
local route, old, new = unpack(ARGV)

if redis.call('HGET', routes, route) ~= old then return 0 end
local open, back, others = {}, {}, {}
for n = 2, #KEYS, 9 do
  local held = redis.call('GET', KEYS[n + 3]) and 1 or 0
  for set = n, n + 2 do held = held + redis.call('ZCARD', KEYS[set]) end
  if held > 0 then return 0 end
  if redis.call('ZCARD', KEYS[n + 5]) > 0 then others[#others + 1] = KEYS[n + 5] end
  for hash = n + 6, n + 7 do
    if redis.call('HLEN', KEYS[hash]) > 0 then others[#others + 1] = KEYS[hash] end
  end
  if redis.call('GET', KEYS[n + 8]) then others[#others + 1] = KEYS[n + 8] end
  local settings = redis.call('GET', KEYS[n + 4])
  if settings then
    open[#open + 1] = KEYS[n + 4]
    back[#back + 1] = { 'SET', KEYS[n + 4], settings }
  end
end

local steps = { { { 'HSET', routes, route, new }, { { 'HSET', routes, route, old } } } }
if #open > 0 then steps[#steps + 1] = { { 'DEL', unpack(open) }, back } end
if #others > 0 then steps[#steps + 1] = { { 'UNLINK', unpack(others) }, {} } end
return commit(steps) or 1
