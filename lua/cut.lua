-- include clock commit scores
-- Ends leases that no claim of now could have given: the clock of the server stepped back since, or a server whose clock is
-- behind became the master.
--
-- KEYS   unack
-- ARGV   longest lease (us, from now), "" or the deadline (us) that leases must exceed too, limit (1 to 1000)
-- reply  leases that ended, which expire now; the deadline that leases exceed which were not ended, or -1 without any
--
-- Without a deadline none is ended. A lease keeps its token, and its holder can settle it, until it is ended.
local unack = KEYS[1]
local bound, from, limit = clock() + tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local ids = {}
if from then
  ids = redis.call('ZRANGEBYSCORE', unack, '(' .. whole(math.max(bound, from)), '+inf', 'LIMIT', 0, limit)
end
if #ids > 0 then
  -- A token of its own: those of other leases that end now must stay theirs.
  local token = clock() - 1
  while redis.call('ZCOUNT', unack, whole(token), whole(token)) > 0 do token = token - 1 end
  local ended = { 'ZADD', unack, 'XX' }
  for _, id in ipairs(ids) do ended[#ended + 1], ended[#ended + 2] = whole(token), id end
  -- A first write that needs no memory: at maxmemory only a script's first write is refused.
  local failed = commit({ { { 'ZREM', unack, '' }, {} }, { ended, {} } })
  if failed then return failed end
end
return { #ids, redis.call('ZCOUNT', unack, '(' .. whole(bound), '+inf') > 0 and bound or -1 }
