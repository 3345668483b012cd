-- include bytes clock commit fields scores wake
-- Makes dead messages pending again: attempts 0, due now. The limits of the route do not apply.
--
-- KEYS   pending messages attempts errors dead bytes
-- ARGV   wake channel, died before (ms; "" means now), limit (1 to 1000), most bytes of bodies,
--        then the ids, or none for all that died before
-- reply  redriven, died before (ms; for the next call), how many of those considered remain (ids: how many of
--        the last ones were not reached; all: 1 or 0)
local pending, messages, attempts, errors, dead, held_bytes = unpack(KEYS)
local channel, before, limit, max_bytes = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local now = math.floor(clock() / 1000)
if before == '' then before = whole(now) end
local ids, scores, unreached = {}, {}, 0
if #ARGV > 4 then
  for i = 5, math.min(#ARGV, 4 + limit) do ids[#ids + 1] = ARGV[i] end
  unreached = #ARGV - 4 - #ids
  scores = redis.call('ZMSCORE', dead, unpack(ids))
else
  local found = redis.call('ZRANGEBYSCORE', dead, '-inf', before, 'WITHSCORES', 'LIMIT', 0, limit)
  for i = 1, #found, 2 do
    ids[#ids + 1] = found[i]
    scores[#scores + 1] = found[i + 1]
  end
end

local moved, back, dues, bodies, old = {}, { 'ZADD', dead }, {}, {}, {}
local bytes, added, seen = 0, 0, {}
for i, id in ipairs(ids) do
  if scores[i] and not seen[id] then
    local stored = redis.call('HGET', messages, id)
    local body = stored or '\0'
    bytes = bytes + #body
    if bytes > max_bytes and #moved > 0 then
      unreached = unreached + #ids - i + 1
      break
    end
    seen[id], added = true, added + #body
    moved[#moved + 1] = id
    old[#old + 1] = stored
    back[#back + 1], back[#back + 2] = scores[i], id
    dues[#dues + 1], dues[#dues + 2] = whole(now), id
    bodies[#bodies + 1] = id
    -- A lost body's marker has no times.
    bodies[#bodies + 1] = #body < 17 and body
      or string.sub(body, 1, 1) .. struct.pack('>I8I8', now, now) .. string.sub(body, 18)
  end
end

if #moved > 0 then
  local earliest = head(pending)
  local steps = {}
  add(steps, 'HSET', messages, bodies, restore(messages, moved, old))
  add(steps, 'ZREM', dead, moved, { back })
  for _, key in ipairs({ attempts, errors }) do
    add(steps, 'HDEL', key, moved, restore(key, moved, redis.call('HMGET', key, unpack(moved))))
  end
  grow(steps, held_bytes, added)
  add(steps, 'ZADD', pending, dues, {})
  local failed = commit(steps)
  if failed then return failed end
  if not earliest or now < earliest then wake(channel) end
end
if #ARGV <= 4 then
  local first = head(dead)
  unreached = #moved > 0 and first and first <= tonumber(before) and 1 or 0
end
return { #moved, tonumber(before), unreached }
