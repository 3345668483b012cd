-- include bodies bytes clock commit fields flow layout recurring revival scores wake
-- Sets, deletes, pauses or resumes a schedule. Its occurrence in flight, or one that is tried again, ends as it is.
--
-- KEYS   pending unack messages attempts errors dead schedules bytes route remembered [flow]
-- ARGV   wake channel, required prefix of `route`, id, owner: file | api, revision of the file, then
--        "set", revision, the revision that it must replace, or "" for none, "keep" or the next occurrence (ms), its
--        score, flow, body after the times
--        | "delete" | "pause" | "resume"
-- reply  created | changed | unchanged | deleted | absent | managed (by the file) | older (the definition is of a newer
--        file) | conflict (it replaces another revision); the revision that was there, or ""; error
--        `PUNCTUAL unregistered <text>`, nothing written, when the partition is not open
local pending, unack, messages, attempts, errors, dead, schedules, bytes, route, remembered = unpack(KEYS)
local channel, layout, id, owner, file, what = unpack(ARGV)
local flow = flow_keys(KEYS, 11)
file = tonumber(file)

local refusal = closed(route, layout)
if refusal then return refusal end

local now = math.floor(clock() / 1000)
local was = definition(schedules, id)
local before = was and was.revision or ''
local function reply(status) return { status, before } end
if was and was.owner == 'file' then
  if owner == 'api' and (what == 'set' or what == 'delete') then return reply('managed') end
  if owner == 'file' and file < was.file then return reply('older') end
end
if not was and what ~= 'set' then return reply('absent') end

local waits = redis.call('ZSCORE', pending, id)
local flies = redis.call('ZSCORE', unack, id)
-- Its occurrence was sent, or an instance has it: only the definition changes now.
local is_busy = flies or (waits and redis.call('HGET', attempts, id))
local old = redis.call('HGET', messages, id) or false
local due, at = occurrence(old)
local earliest = head(pending)
local steps, is_open = {}, false

-- Takes the message out of `pending`, if it is there.
local function leave()
  if not waits then return end
  if flow then is_open = depart(steps, flow, { id }, { waits }, redis.call('HMGET', flow.flows, id), now) end
  add(steps, 'ZREM', pending, { id }, { { 'ZADD', pending, waits, id } })
end

-- Puts the message into `pending`.
local function wait(score)
  leave()
  if flow then number_flows(steps, flow, { id }, { was.flow }, at == 0) end
  add(steps, 'ZADD', pending, { whole(score), id }, { { 'ZREM', pending, id } })
  if score < (earliest or math.huge) then is_open = true end
end

local status
if what == 'set' then
  local revision, replaces, next_due, score, name, tail = unpack(ARGV, 7)
  if was and was.revision == revision and (waits or flies) then
    status = 'unchanged'
  elseif replaces ~= before then
    return reply('conflict')
  else
    status = was and 'changed' or 'created'
  end
  if status == 'unchanged' and was.owner == owner and was.file == file then return reply(status) end
  local one = { text = was and was.text, revision = revision, owner = owner, file = file, flow = name, tail = tail }
  one.is_paused, one.runs = was and was.is_paused, was and was.runs or ''
  local is_kept = next_due == 'keep' or status == 'unchanged'
  one.since = is_kept and was and was.since or is_busy and now or 0
  -- The write that needs memory comes first: at maxmemory Redis refuses only the first write of a script.
  define(steps, schedules, id, one)
  if status ~= 'unchanged' and not is_busy then
    local keeps = next_due == 'keep' and waits
    if not keeps then
      due, at, score = tonumber(next_due) or now, tonumber(next_due) and now or 0, tonumber(score) or now
      -- An occurrence that was sent since the caller looked at the clock is not sent again.
      local last = tonumber(string.match(one.runs, '[dx](%d+)%+'))
      if last and due <= last then due, at, score = last, 0, now end
    end
    local body = planned(one, due, at)
    put(steps, { 'HSET', messages, id, body }, { old })
    grow(steps, bytes, #body - (waits and #(old or '') or 0))
    -- It was deleted before, or lost its body.
    revive(steps, remembered, { id })
    drop(steps, errors, { id })
    local died = redis.call('ZSCORE', dead, id)
    if died then add(steps, 'ZREM', dead, { id }, { { 'ZADD', dead, died, id } }) end
    was = one
    if not keeps then
      wait(one.is_paused and NEVER or score)
    elseif flow then
      wait((due_by(waits)))
    end
  end
elseif what == 'delete' then
  status = 'deleted'
  -- The first write needs no memory: at maxmemory Redis refuses only the first write of a script.
  add(steps, 'HDEL', schedules, { id }, { { 'HSET', schedules, id, was.text } })
  if not is_busy then
    leave()
    if flow then forget(steps, flow, { id }, redis.call('HMGET', flow.flows, id)) end
    if waits then grow(steps, bytes, -#(old or '')) end
    -- A schedule has no group.
    delete(steps, attempts, errors, messages, nil, { id })
  end
else
  local is_paused = what == 'pause'
  status = was.is_paused == is_paused and 'unchanged' or 'changed'
  if status == 'changed' then
    steps[1] = { { 'ZREM', pending, '' }, {} }
    was.is_paused = is_paused
    define(steps, schedules, id, was)
    if not is_busy then wait(is_paused and NEVER or at == 0 and now or due) end
  end
end
local failed = commit(steps)
if failed then return failed end
if is_open then wake(channel) end
return reply(status)
