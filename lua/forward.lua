-- include clock commit scores
-- Takes dead letters from the outbox (outbox.lua) for one forwarder.
--
-- KEYS   outbox dead messages errors
-- ARGV   limit (1 to 1000), maximum bytes of bodies (the first is taken at any size), ms for which no other forwarder takes
--        them
-- reply  number in the outbox, ms until a later one can be taken or -1, then for each: id, its new score in the outbox,
--        time of death (ms), body, value of `errors`
--
-- An id that is not dead any more is removed from the outbox.
local outbox, dead, messages, errors = unpack(KEYS)
local limit, max_bytes, hold = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local now = math.floor(clock() / 1000)
local later = redis.call('ZRANGE', outbox, '(' .. whole(now), '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2]
local waiting = redis.call('ZCARD', outbox)
local found = redis.call('ZRANGE', outbox, '-inf', whole(now), 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
local gone, gone_back, taken, back, reply = {}, { 'ZADD', outbox }, {}, { 'ZADD', outbox }, {}
local bytes = 0
for i = 1, #found, 2 do
  local id = found[i]
  local died = redis.call('ZSCORE', dead, id)
  if not died then
    gone[#gone + 1] = id
    gone_back[#gone_back + 1], gone_back[#gone_back + 2] = found[i + 1], id
  else
    local body = redis.call('HGET', messages, id) or ''
    if bytes > 0 and bytes + #body > max_bytes then break end
    bytes = bytes + #body
    taken[#taken + 1], taken[#taken + 2] = whole(now + hold), id
    back[#back + 1], back[#back + 2] = found[i + 1], id
    local error = redis.call('HGET', errors, id) or ''
    for _, value in ipairs({ id, whole(now + hold), died, body, error }) do reply[#reply + 1] = value end
  end
end
local steps = {}
add(steps, 'ZREM', outbox, gone, { gone_back })
add(steps, 'ZADD', outbox, taken, { back })
local failed = commit(steps)
if failed then return failed end
return { waiting - #gone, later and later - now or -1, unpack(reply) }
