-- include bytes clock commit failures flow history layout limits outbox revival scores
-- Shared by the scripts take_*.lua, which move messages from keys of other programs into the queue.

-- The number of leading KEYS and ARGV that all these scripts have.
local OWN_KEYS = 9
local OWN_ARGUMENTS = 7
local queue = {
  pending = KEYS[1], unack = KEYS[2], messages = KEYS[3], dead = KEYS[4], errors = KEYS[5], paused = KEYS[6],
  remembered = KEYS[8], bytes = KEYS[9],
}
local channel = ARGV[1]
-- The keys that follow: "outbox" (outbox.lua), "history" (two keys, history.lua), "flow" (the flow keys, flow.lua), or
-- none.
local outbox, history, flow
if string.find(ARGV[6], 'outbox', 1, true) then
  OWN_KEYS = OWN_KEYS + 1
  outbox = KEYS[OWN_KEYS]
end
if string.find(ARGV[6], 'history', 1, true) then
  history = limited_history({ blocks = KEYS[OWN_KEYS + 1], ended = KEYS[OWN_KEYS + 2] }, ARGV[7])
  OWN_KEYS = OWN_KEYS + 2
end
if string.find(ARGV[6], 'flow', 1, true) then
  flow = flow_keys(KEYS, OWN_KEYS + 1)
  OWN_KEYS = OWN_KEYS + 6
end
-- now (ms), room (due messages that pending may have), payload (maximum bytes), bytes (maximum of all bodies)
local limits = {
  now = math.floor(clock() / 1000), room = tonumber(ARGV[3]), payload = tonumber(ARGV[4]), bytes = tonumber(ARGV[5]),
}
-- Maximum bytes of content that is read and kept.
local MAX_CONTENT = 16 * 1024 * 1024

local refusal, settings = closed(KEYS[7], ARGV[2])
if refusal then return refusal end
local left = quota(settings, queue.pending, queue.unack, queue.bytes)

-- entries  { id, metadata as JSON, due (ms; nil: absent or not due) }
-- weigh    function(i): bytes to read for entry i; or 0, the reason why it is not read, and the payload in its place
-- read     function(i): the payload of entry i, and the reason if it is invalid. Called after weigh, if the bytes fit
-- returns  a verdict for each entry, the steps that write the taken ones into the queue, their indexes, whether to wake
--          verdict: taken | invalid: <reason> (now a dead letter) | gone (absent or not due) | conflict (its id is live) |
--          left (no room, a limit of the route, or the bytes of a call; the first entry may exceed these bytes)
local function take(entries, weigh, read)
  local earliest = head(queue.pending)
  local ids, live = {}, {}
  for i, entry in ipairs(entries) do ids[i] = entry.id end
  for _, set in ipairs({ queue.pending, queue.unack, queue.dead }) do
    for i, score in ipairs(redis.call('ZMSCORE', set, unpack(ids))) do
      if score then live[ids[i]] = true end
    end
  end
  -- A key of a wrong type causes an error here, before the first write.
  for _, hash in ipairs({ queue.messages, queue.errors }) do redis.call('HLEN', hash) end
  local room = limits.room - redis.call('ZCOUNT', queue.pending, '-inf', whole(limits.now))
  if redis.call('EXISTS', queue.paused) == 1 then room = 0 end

  local verdicts, taken, good, bad = {}, {}, {}, {}
  local bodies, scores, dead_scores, texts, ends = {}, {}, {}, {}, {}
  local bytes, added, full, wake_up = 0, 0, false, false

  -- The payload of entry i and the reason if it is invalid, or nothing when there is no room for it.
  local function content(i)
    if full or #taken >= room or left.messages < 1 then return end
    local size, problem, instead = weigh(i)
    if problem then return instead or '', problem end
    if bytes > 0 and bytes + size > limits.bytes then
      full = true
      return
    end
    local payload
    payload, problem = read(i)
    if not problem and #payload > limits.payload then
      problem = 'the payload takes ' .. #payload .. ' bytes, at most ' .. limits.payload
    end
    if not problem then
      -- The size of the body below.
      local stored = 21 + #entries[i].metadata + #payload
      if stored > left.bytes then
        full = true
        return
      end
      left.messages, left.bytes, added = left.messages - 1, left.bytes - stored, added + stored
    end
    bytes = bytes + size
    return payload, problem
  end

  for i, entry in ipairs(entries) do
    local payload, problem
    if not entry.due then
      verdicts[i] = 'gone'
    elseif live[entry.id] then
      verdicts[i] = 'conflict'
    else
      payload, problem = content(i)
      if not payload then verdicts[i] = 'left' end
    end
    if payload then
      local body = struct.pack('>BI8I8I4', 1, entry.due, limits.now, #entry.metadata) .. entry.metadata .. payload
      live[entry.id] = true
      taken[#taken + 1] = i
      bodies[#bodies + 1], bodies[#bodies + 2] = entry.id, body
      if problem then
        verdicts[i] = 'invalid: ' .. problem
        bad[#bad + 1] = entry.id
        dead_scores[#dead_scores + 1], dead_scores[#dead_scores + 2] = whole(limits.now), entry.id
        texts[#texts + 1], texts[#texts + 2] = entry.id, failure(limits.now, 0, 'invalid: ' .. problem)
        if history then ends[#bad] = entry_of('dead', entry.id, 0, body, 'invalid: ' .. problem) end
      else
        verdicts[i] = 'taken'
        good[#good + 1] = entry.id
        scores[#scores + 1], scores[#scores + 2] = whole(entry.due), entry.id
        if not earliest or entry.due < earliest then wake_up = true end
      end
    end
  end

  -- The write that needs memory comes first: at maxmemory Redis refuses only the first write of a script.
  local steps, all, names = {}, {}, {}
  for n, i in ipairs(taken) do
    all[n] = ids[i]
    if flow then names[n] = cjson.decode(entries[i].metadata).flow or '' end
  end
  add(steps, 'HSET', queue.messages, bodies, { { 'HDEL', queue.messages, unpack(all) } })
  revive(steps, queue.remembered, all)
  grow(steps, queue.bytes, added)
  if flow then number_flows(steps, flow, all, names) end
  add(steps, 'HSET', queue.errors, texts, { { 'HDEL', queue.errors, unpack(bad) } })
  add(steps, 'ZADD', queue.dead, dead_scores, { { 'ZREM', queue.dead, unpack(bad) } })
  post(steps, outbox, dead_scores)
  keep_ends(steps, history, bad, ends, limits.now)
  add(steps, 'ZADD', queue.pending, scores, { { 'ZREM', queue.pending, unpack(good) } })
  return verdicts, steps, taken, wake_up
end

-- Adds the step that removes names[i], with the score scores[i], from a sorted set, for each index i in `taken`.
local function leave(steps, set, taken, names, scores)
  local removed, back = {}, { 'ZADD', set }
  for _, i in ipairs(taken) do
    if scores[i] then
      removed[#removed + 1] = names[i]
      back[#back + 1], back[#back + 2] = scores[i], names[i]
    end
  end
  add(steps, 'ZREM', set, removed, { back })
end
