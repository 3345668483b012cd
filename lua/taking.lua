-- Put behind commit.lua in front of the scripts take_*.lua: decides what becomes of messages that wait in other
-- programs' keys.
--
-- queue    pending, unack, messages, dead, errors, paused, remembered: keys of the partition
-- limits   now (ms), room (due messages that may wait in pending), payload (bytes), bytes (of all bodies)
-- entries  { id, metadata as JSON, due (ms; nil: it is no longer there, or not due) }
-- read     function(i): the payload of the i-th, and what is wrong with it, if anything is. Called for the taken only
-- returns  a verdict for each, the steps that write the taken into the queue, their places, whether to wake
--          verdict: taken | invalid (a dead letter) | gone | conflict (its id is live) | left (no room)
local function take(queue, limits, entries, read)
  local earliest = head(queue.pending)
  local ids, live = {}, {}
  for i, entry in ipairs(entries) do ids[i] = entry.id end
  for _, set in ipairs({ queue.pending, queue.unack, queue.dead }) do
    for i, score in ipairs(redis.call('ZMSCORE', set, unpack(ids))) do
      if score then live[ids[i]] = true end
    end
  end
  -- A foreign value at one of these is found before anything is written.
  for _, hash in ipairs({ queue.messages, queue.errors }) do redis.call('HLEN', hash) end
  local room = limits.room - redis.call('ZCOUNT', queue.pending, '-inf', whole(limits.now))
  if redis.call('EXISTS', queue.paused) == 1 then room = 0 end

  local verdicts, taken, good, bad = {}, {}, {}, {}
  local bodies, scores, graves, texts = {}, {}, {}, {}
  local bytes, wake_up = 0, false
  for i, entry in ipairs(entries) do
    if not entry.due then
      verdicts[i] = 'gone'
    elseif live[entry.id] then
      verdicts[i] = 'conflict'
    elseif #taken >= room or bytes >= limits.bytes then
      verdicts[i] = 'left'
    else
      local payload, problem = read(i)
      if not problem and #payload > limits.payload then
        problem = 'the payload takes ' .. #payload .. ' bytes, at most ' .. limits.payload
      end
      local body = struct.pack('>BI8I8I4', 1, entry.due, entry.due, #entry.metadata) .. entry.metadata .. payload
      live[entry.id] = true
      taken[#taken + 1] = i
      bytes = bytes + #body
      bodies[#bodies + 1], bodies[#bodies + 2] = entry.id, body
      if problem then
        verdicts[i] = 'invalid'
        bad[#bad + 1] = entry.id
        graves[#graves + 1], graves[#graves + 2] = whole(limits.now), entry.id
        texts[#texts + 1], texts[#texts + 2] = entry.id, 'invalid: ' .. problem
      else
        verdicts[i] = 'taken'
        good[#good + 1] = entry.id
        scores[#scores + 1], scores[#scores + 2] = whole(entry.due), entry.id
        if not earliest or entry.due < earliest then wake_up = true end
      end
    end
  end

  -- The growing write first: at maxmemory it is the one that is refused, before anything changed.
  local steps, all = {}, {}
  for n, i in ipairs(taken) do all[n] = ids[i] end
  add(steps, 'HSET', queue.messages, bodies, { { 'HDEL', queue.messages, unpack(all) } })
  revive(steps, queue.remembered, all)
  add(steps, 'HSET', queue.errors, texts, { { 'HDEL', queue.errors, unpack(bad) } })
  add(steps, 'ZADD', queue.dead, graves, { { 'ZREM', queue.dead, unpack(bad) } })
  add(steps, 'ZADD', queue.pending, scores, { { 'ZREM', queue.pending, unpack(good) } })
  return verdicts, steps, taken, wake_up
end

-- Adds the step that removes from a sorted set those of names[i] that have scores[i], for the taken i.
local function leave(steps, set, taken, names, scores)
  local gone, back = {}, { 'ZADD', set }
  for _, i in ipairs(taken) do
    if scores[i] then
      gone[#gone + 1] = names[i]
      back[#back + 1], back[#back + 2] = scores[i], names[i]
    end
  end
  add(steps, 'ZREM', set, gone, { back })
end
