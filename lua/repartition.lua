-- include commit
-- Begins or ends the move of a route to another number of partitions.
--
-- KEYS   P:routes (pending unack dead remembered route paused messages attempts errors records claims bytes groups grouped history ended [flow])... (route paused)...;
--        the first groups are of the former partitions of the route, the others of its new partitions
-- ARGV   route, its JSON as it was read, its JSON while messages move ("" ends the move), its JSON afterwards, the
--        number of former partitions, then the new value of `route` for each of them, which closes it, and at the
--        beginning for each new partition while messages move
-- reply  moving | moved (nothing remains to be moved) | left (messages remain, so that the move cannot end) | changed
--        (its JSON is not the one that was read); the last two write nothing
--
-- A closed partition refuses to schedule. Programs that call produce.lua look up the number of partitions after that:
-- the new partitions are open as soon as it is known.
local routes = KEYS[1]
local route, known, during, after = unpack(ARGV, 1, 4)
local EACH, EACH_NEW, BEFORE = 22, 2, 5
local ROUTE, PAUSED = 5, 6
local HAD = tonumber(ARGV[BEFORE])
local FIRST_NEW = 2 + HAD * EACH

if redis.call('HGET', routes, route) ~= known then return 'changed' end
local remains, paused, closing, left_over = false, false, {}, {}
for n = 1, HAD do
  local keys = { unpack(KEYS, 2 + (n - 1) * EACH, 1 + n * EACH) }
  for set = 1, 4 do remains = redis.call('ZCARD', keys[set]) > 0 or remains end
  local was = redis.call('GET', keys[ROUTE])
  local back = was and { 'SET', keys[ROUTE], was } or { 'DEL', keys[ROUTE] }
  closing[n] = { { 'SET', keys[ROUTE], ARGV[BEFORE + n] }, { back } }
  paused = redis.call('GET', keys[PAUSED]) or paused
  for place = PAUSED, EACH do left_over[#left_over + 1] = keys[place] end
end
if remains and during == '' then return 'left' end
-- A key of a wrong type causes an error here, before the first write.
local open = {}
for n = FIRST_NEW, #KEYS, EACH_NEW do
  open[n] = redis.call('GET', KEYS[n])
  redis.call('GET', KEYS[n + 1])
end

local text = remains and during or after
-- The first write needs no memory, so it is not refused at maxmemory: messages must be delivered on a full Redis too.
local steps = { { { 'HDEL', routes, '' }, {} }, { { 'HSET', routes, route, text }, { { 'HSET', routes, route, known } } } }
if during ~= '' then
  for _, step in ipairs(closing) do steps[#steps + 1] = step end
end
local opening = BEFORE + HAD
for n = FIRST_NEW, #KEYS, EACH_NEW do
  local key, was = KEYS[n], open[n]
  opening = opening + 1
  local now = ARGV[opening] or was
  -- Opens the partition to programs that do not know of the move: "<version>m " becomes "<version> ".
  if now and not remains then now = string.gsub(now, '^(%d+)m ', '%1 ') end
  if now and now ~= was then
    steps[#steps + 1] = { { 'SET', key, now }, { was and { 'SET', key, was } or { 'DEL', key } } }
  end
  if paused and during ~= '' then
    local pause = KEYS[n + 1]
    steps[#steps + 1] = { { 'SET', pause, paused }, { { 'DEL', pause } } }
  end
end
if not remains then steps[#steps + 1] = { { 'UNLINK', unpack(left_over) }, {} } end
return commit(steps) or (remains and 'moving' or 'moved')
