-- Moves due messages from pending to unack under a lease.
--
-- KEYS   pending unack messages attempts errors dead paused remembered records
-- ARGV   mode, limit (1 to 1000), most bytes of bodies, lease in us, skip (probe), bodies read at once
--        mode: ordinary (in due order, passing over suspects), probe (one, in place `skip` of the due order of those
--        that are no suspects, the first where there are fewer), suspect (the first that crashed twice or more)
-- reply  now us, token us, paused 0/1, next due ms or -1, next lease us or -1, suspects passed over, orphans,
--        then for each message: id, body, failures, score in pending
--
-- The first message comes whatever its size. An id without a body becomes dead, reason orphan: its marker body
-- is a single zero byte.
local pending, unack, messages, attempts, errors, dead, paused, remembered, records = unpack(KEYS)
local mode, limit, max_bytes, lease, skip, chunk =
  ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local SUSPECT_CRASHES = 2
-- Among so many due messages a probe or suspect is looked for.
local SCAN = 1000

local now = clock()
local token = now + lease
-- A foreign value at any key is found here: what could not be settled must not be delivered.
for _, set in ipairs({ unack, dead, remembered }) do redis.call('ZCARD', set) end
for _, hash in ipairs({ messages, attempts, errors, records }) do redis.call('HLEN', hash) end
local is_paused = redis.call('GET', paused) and true or false
local suspects, orphans = 0, {}
local taken = {}

-- { id, score, failures } of those that this mode may take.
local function candidates()
  local due, most = whole(math.floor(now / 1000)), mode == 'ordinary' and limit or SCAN
  local found = redis.call('ZRANGEBYSCORE', pending, '-inf', due, 'WITHSCORES', 'LIMIT', 0, most)
  local ids, chosen = {}, {}
  for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
  if #ids == 0 then return chosen end
  local values = redis.call('HMGET', attempts, unpack(ids))
  for i, id in ipairs(ids) do
    local failures, crashes = counts(values[i])
    local suspect = crashes >= SUSPECT_CRASHES
    if suspect == (mode == 'suspect') then
      chosen[#chosen + 1] = { id, found[2 * i], failures }
      if mode == 'suspect' then break end
    elseif suspect then
      suspects = suspects + 1
    end
  end
  if mode == 'probe' then return { chosen[skip + 1] or chosen[1] } end
  return chosen
end

if not is_paused then
  local chosen = candidates()
  local bytes, full = 0, false
  for from = 1, #chosen, chunk do
    local ids = {}
    for i = from, math.min(from + chunk - 1, #chosen) do ids[#ids + 1] = chosen[i][1] end
    local bodies = redis.call('HMGET', messages, unpack(ids))
    for i = 1, #ids do
      local candidate, body = chosen[from + i - 1], bodies[i]
      if not body then
        orphans[#orphans + 1] = candidate
      else
        bytes = bytes + #body
        if bytes > max_bytes and #taken > 0 then
          full = true
          break
        end
        taken[#taken + 1] = { candidate[1], candidate[2], candidate[3], body }
      end
    end
    if full then break end
  end
end

if #taken + #orphans > 0 then
  local gone, back, leases, graves, marks, reasons, ids = {}, { 'ZADD', pending }, {}, {}, {}, {}, {}
  for _, list in ipairs({ taken, orphans }) do
    for _, one in ipairs(list) do
      gone[#gone + 1] = one[1]
      back[#back + 1] = one[2]
      back[#back + 1] = one[1]
    end
  end
  for _, one in ipairs(taken) do
    leases[#leases + 1] = whole(token)
    leases[#leases + 1] = one[1]
  end
  for _, one in ipairs(orphans) do
    ids[#ids + 1] = one[1]
    graves[#graves + 1] = whole(math.floor(now / 1000))
    graves[#graves + 1] = one[1]
    marks[#marks + 1] = one[1]
    marks[#marks + 1] = '\0'
    reasons[#reasons + 1] = one[1]
    reasons[#reasons + 1] = 'orphan: the body was missing'
  end
  local steps = {}
  -- The shrinking write first: claiming must work at maxmemory, where only a script's first write is checked.
  add(steps, 'ZREM', pending, gone, { back })
  if #ids > 0 then
    add(steps, 'ZADD', dead, graves, { { 'ZREM', dead, unpack(ids) } })
    add(steps, 'HSET', messages, marks, { { 'HDEL', messages, unpack(ids) } })
    add(steps, 'HSET', errors, reasons, restore(errors, ids, redis.call('HMGET', errors, unpack(ids))))
  end
  add(steps, 'ZADD', unack, leases, {})
  local failed = commit(steps)
  if failed then return failed end
end

local reply = {
  now, token, is_paused and 1 or 0, head(pending) or -1, head(unack) or -1, suspects, #orphans,
}
for _, one in ipairs(taken) do
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = one[1], one[4], one[3], tonumber(one[2])
end
return reply
