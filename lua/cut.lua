-- include clock commit scores
-- Ends leases that end later than those of a claim made now: the clock of the server has stepped back, or a server with
-- a clock that is behind became the master.
--
-- KEYS   unack
-- ARGV   longest lease (us, from now), "" or a deadline (us) that leases must exceed too, limit (1 to 1000)
-- reply  number of ended leases, which expire now; the deadline that the remaining such leases exceed, or -1 without
--        any
--
-- Without a deadline no lease is ended. Until a lease is ended, it keeps its token and its holder can settle it.
local unack = KEYS[1]
local bound, from, limit = clock() + tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local ids = {}
if from then
  ids = redis.call('ZRANGEBYSCORE', unack, '(' .. whole(math.max(bound, from)), '+inf', 'LIMIT', 0, limit)
end
if #ids > 0 then
  -- The token is unique: other leases that expire now must keep theirs.
  local token = clock() - 1
  while redis.call('ZCOUNT', unack, whole(token), whole(token)) > 0 do token = token - 1 end
  local ended = { 'ZADD', unack, 'XX' }
  for _, id in ipairs(ids) do ended[#ended + 1], ended[#ended + 2] = whole(token), id end
  -- The first write needs no memory: at maxmemory Redis refuses only the first write of a script.
  local failed = commit({ { { 'ZREM', unack, '' }, {} }, { ended, {} } })
  if failed then return failed end
end
return { #ids, redis.call('ZCOUNT', unack, '(' .. whole(bound), '+inf') > 0 and bound or -1 }
