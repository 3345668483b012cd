-- include bytes clock commit expiry failures fields flow flow_value scores selection wake
-- Makes dead messages pending again, with 0 attempts and due now, or one after another. Their attempts before
-- (failures.lua) stay. The limits of the route do not apply.
--
-- KEYS   pending messages errors dead bytes groups [flow]
-- ARGV   wake channel, maximum bytes of bodies, limit (0 to 1000), 1 to count only, otherwise 0, change of the times of
--        expiry ("keep" | "drop" | "+<ms from the due time>", which also sets one where there was none), the first due
--        time (ms; "": now; a past one counts as now), the time from one due time to the next (us), then the selection
--        (selection.lua)
-- reply  number redriven, or that would be; number considered; 1 if more follow, otherwise 0; `before` of the
--        selection; score and id of the last one considered or ""; the due time after the last one redriven (ms)
local pending, messages, errors, dead, held_bytes, groups = unpack(KEYS)
local flow = flow_keys(KEYS, 7)
local channel, max_bytes, limit, is_dry = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local kept, after = ARGV[5] == 'keep', tonumber(string.match(ARGV[5], '^%+(%d+)$'))

local now = math.floor(clock() / 1000)
local first, step = math.max(now, tonumber(ARGV[6]) or now), tonumber(ARGV[7])
local function due_at(n) return first + math.floor(n * step / 1000) end
local function result(ids, scores, selected, done, rest, before)
  local reply = progress(ids, scores, selected, done, rest, before)
  reply[#reply + 1] = due_at(done)
  return reply
end
local ids, scores, selected, rest, before = selection(dead, errors, flow and flow.flows, groups, 8, now)
if is_dry then return result(ids, scores, selected, math.min(#selected, limit), rest, before) end

local moved, back, dues, bodies, old = {}, { 'ZADD', dead }, {}, {}, {}
local bytes = 0
for n = 1, math.min(#selected, limit) do
  local id, score = ids[selected[n]], scores[selected[n]]
  local stored = redis.call('HGET', messages, id)
  local body = stored or '\0'
  local due = due_at(#moved)
  -- The marker of a lost body has no times.
  if #body >= 17 then body = timed(body, due, now, after and due + after or (kept and expiry(body) or nil)) end
  if bytes + #body > max_bytes and #moved > 0 then break end
  bytes = bytes + #body
  moved[#moved + 1] = id
  old[#old + 1] = stored
  back[#back + 1], back[#back + 2] = score, id
  dues[#dues + 1], dues[#dues + 2] = whole(due), id
  bodies[#bodies + 1], bodies[#bodies + 2] = id, body
end

if #moved > 0 then
  local earliest = head(pending)
  local steps = {}
  add(steps, 'HSET', messages, bodies, restore(messages, moved, old))
  add(steps, 'ZREM', dead, moved, { back })
  local tried, tried_old, cleared, cleared_old = { 'HSET', errors }, {}, { 'HDEL', errors }, {}
  for i, former in ipairs(redis.call('HMGET', errors, unpack(moved))) do
    local value = tried_before(former)
    if value then
      tried[#tried + 1], tried[#tried + 2], tried_old[#tried_old + 1] = moved[i], value, former
    elseif former then
      cleared[#cleared + 1], cleared_old[#cleared_old + 1] = moved[i], former
    end
  end
  put(steps, tried, tried_old)
  clear(steps, cleared, cleared_old)
  grow(steps, held_bytes, bytes)
  if flow then
    local names = {}
    for i, value in ipairs(redis.call('HMGET', flow.flows, unpack(moved))) do names[i] = flow_of(value) end
    number_flows(steps, flow, moved, names)
  end
  add(steps, 'ZADD', pending, dues, {})
  local failed = commit(steps)
  if failed then return failed end
  if not earliest or first < earliest then wake(channel) end
end
return result(ids, scores, selected, #moved, rest, before)
