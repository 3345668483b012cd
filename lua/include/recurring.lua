-- include fields members scores
-- A schedule is one live message with the id "<name>@", which no message of a user has. When an occurrence ends, it
-- returns to `pending`. An occurrence that died is a dead letter of its own, which the caller stores before.
--
-- schedules  hash: id -> "<revision> <1 if paused, otherwise 0> <owner: file | api> <revision of the file> <bytes of the flow>
--            <since> <runs> LF <flow><body after the times>". The rule holds for occurrences after `since` (ms) if it was
--            set while an earlier occurrence was busy, otherwise 0. The runs are the last ones, separated by commas:
--            d<occurrence>+<ms>, delivered that long after its time; x<occurrence>+<ms>, dead; m<time>+<number>, missed
--
-- The times in its body are the occurrence and the time at which that was planned. 0 in place of the latter: the
-- occurrence is over, and an instance plans what follows when it claims the message.

-- See src/message/codec.rs.
local BODY_VERSION = 2
-- The score of a schedule that is paused or has ended. It is not parked (scores.lua).
local NEVER = PARKED - 1
local MOST_RUNS = 20

local function is_schedule(id) return string.byte(id, -1) == 64 end

local function definition(schedules, id)
  local text = redis.call('HGET', schedules, id)
  if not text then return end
  local revision, paused, owner, file, size, since, runs, at =
    string.match(text, '^(%S+) (%d) (%S+) (%d+) (%d+) (%d+) (%S*)\n()')
  local flow_end = at + tonumber(size)
  return {
    text = text, revision = revision, is_paused = paused == '1', owner = owner, file = tonumber(file), since = tonumber(since),
    runs = runs, flow = string.sub(text, at, flow_end - 1), tail = string.sub(text, flow_end),
  }
end

-- Adds the step that writes a definition.
local function define(steps, schedules, id, one)
  local text = string.format('%s %d %s %.0f %d %.0f %s\n', one.revision, one.is_paused and 1 or 0, one.owner, one.file,
    #one.flow, one.since, one.runs) .. one.flow .. one.tail
  if text ~= one.text then put(steps, { 'HSET', schedules, id, text }, { one.text or false }) end
end

-- The occurrence in a body, and when it was planned; 0 and 0 for a body that lacks them.
local function occurrence(body)
  if not body or #body < 17 then return 0, 0 end
  return struct.unpack('>I8I8', body, 2)
end

local function planned(one, due, at) return struct.pack('>BI8I8', BODY_VERSION, due, at) .. one.tail end

-- The entry of an occurrence that ended.
local function ended(kind, now)
  return function(due) return string.format('%s%.0f+%.0f', kind, due, math.max(0, now - due)) end
end

-- Adds the steps that return a schedule to `pending` after a claim, with the run `run` if any. `plan` has what follows:
-- the revision of the rule by which it was planned, the occurrence and its score. Returns the score, the size of the
-- body, the flow, and whether it is to be planned; nothing if the schedule was deleted.
local function recur(steps, keys, id, now, run, plan)
  local one = definition(keys.schedules, id)
  if not one then return end
  local old = redis.call('HGET', keys.messages, id)
  local due, at = occurrence(old)
  -- The body was deleted by hand.
  if due == 0 then due = now end
  local score, done = now, due
  if plan and plan.revision == one.revision then
    due, at, score = plan.due, now, plan.score
  elseif not plan then
    due, at = math.max(due, one.since), 0
  elseif one.since > 0 then
    due, at = one.since, 0
  end
  one.since = 0
  if run then
    local runs = { run(done) }
    for text in string.gmatch(one.runs, '[^,]+') do
      if #runs < MOST_RUNS then runs[#runs + 1] = text end
    end
    one.runs = table.concat(runs, ',')
  end
  if one.is_paused then score = NEVER end
  local body = planned(one, due, at)
  put(steps, { 'HSET', keys.messages, id, body }, { old })
  define(steps, keys.schedules, id, one)
  drop(steps, keys.attempts, { id })
  drop(steps, keys.errors, { id })
  insert(steps, { 'ZADD', keys.pending, whole(score), id })
  return score, #body, one.flow, at == 0
end

-- Adds the steps of `recur` for each of `occurrences`, { id, run, plan }. Returns the ids and flows of the schedules,
-- whether each is to be planned, the bytes of their bodies, and the lowest score. The ids of schedules that were deleted
-- are added to `completed`.
local function recur_each(steps, keys, occurrences, now, completed)
  local ids, flows, unplanned, bytes, earliest = {}, {}, {}, 0, math.huge
  for _, one in ipairs(occurrences) do
    local id, run, plan = unpack(one, 1, 3)
    local score, size, name, is_unplanned = recur(steps, keys, id, now, run, plan)
    if score then
      local n = #ids + 1
      ids[n], flows[n], unplanned[n] = id, name, is_unplanned
      bytes, earliest = bytes + size, math.min(earliest, score)
    else
      completed[#completed + 1] = id
    end
  end
  return ids, flows, unplanned, bytes, earliest
end
