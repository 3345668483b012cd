-- include attempts scores weight
-- Chooses the messages that claim.lua takes. These functions use no variable of a call, so that a bundle of calls
-- creates them once.

local SUSPECT_CRASHES = 2
-- Crashes after which a suspect is claimed alone. With fewer it is claimed in a group of suspects.
local ALONE_CRASHES = 3
local FATAL_CRASHES = 5
-- Time in ms between the new due times of groups of deferred suspects.
local SPACING = 20
-- Scores and times in ms are less than this.
local MAX_MILLIS = 2 ^ 53

-- The due time in a body, 0 for a damaged body. A claimed message has no score in pending.
local function due_inside(body)
  local due = #body >= 17 and struct.unpack('>I8', body, 2) or 0
  return whole(due < MAX_MILLIS and due or 0)
end

-- Ids and scores of up to `count` due members of `pending`, after its first `seen` members.
local function due_ones(pending, millis, seen, count)
  local found =
    redis.call('ZRANGEBYSCORE', pending, '-inf', whole(millis), 'WITHSCORES', 'LIMIT', seen, count)
  local ids, scores, n = {}, {}, 0
  for i = 1, #found, 2 do
    n = n + 1
    ids[n], scores[n] = found[i], found[i + 1]
  end
  return ids, scores
end

-- Adds { failures, crashes } to `tried`, by id, for each of `ids` that failed or crashed.
local function trials(attempts, ids, tried)
  if #ids == 0 then return end
  for i, value in ipairs(redis.call('HMGET', attempts, unpack(ids))) do
    if value then tried[ids[i]] = { counts(value) } end
  end
end

-- The number of crashes of a suspect, nil for any other message.
local function suspicion(tried, id)
  local crashes = tried[id] and tried[id][2] or 0
  return crashes >= SUSPECT_CRASHES and crashes or nil
end

-- The class of a message by its crashes, in the reply of a claim. recover.lua makes others than schedules dead before they are of the
-- last class.
local function crash_class(tried, id)
  local crashes = suspicion(tried, id) or 0
  return crashes >= FATAL_CRASHES and 2 or crashes > 0 and 1 or 0
end

-- The first suspects among due messages and their scores: up to `max_suspects`, or one that must be claimed alone.
local function first_suspects(ids, scores, tried, max_suspects)
  local chosen, chosen_scores = {}, {}
  for i, id in ipairs(ids) do
    local crashes = suspicion(tried, id)
    if crashes then
      local is_alone = crashes >= ALONE_CRASHES
      if is_alone and #chosen > 0 then break end
      chosen[#chosen + 1], chosen_scores[#chosen_scores + 1] = id, scores[i]
      if is_alone or #chosen == max_suspects then break end
    end
  end
  return chosen, chosen_scores
end

-- Chooses up to `limit` due messages that are not suspects. Suspects are added to `deferred`: ids, scores, and new
-- scores after `due`, one for each group of `max_suspects` suspects. Returns ids, scores, and the last new score.
local function ordinary(ids, scores, tried, limit, max_suspects, due, deferred)
  local chosen, chosen_scores = {}, {}
  for i, id in ipairs(ids) do
    if #chosen == limit then break end
    local crashes = suspicion(tried, id)
    if not crashes then
      chosen[#chosen + 1], chosen_scores[#chosen_scores + 1] = id, scores[i]
    else
      local n = #deferred.ids + 1
      if n % max_suspects == 1 % max_suspects or crashes >= ALONE_CRASHES then due = due + SPACING end
      deferred.ids[n], deferred.scores[n] = id, scores[i]
      deferred.at[2 * n - 1], deferred.at[2 * n] = whole(due), id
    end
  end
  return chosen, chosen_scores, due
end

-- Reads the bodies of `chosen`, `chunk` at once, up to `max_bytes` in all; the first body is read at any size. Returns
-- ids, bodies and scores of messages with a body, and ids and scores of those without. If `scores` is nil, the scores
-- of messages with a body are the due times in the bodies.
local function read_bodies(messages, chosen, scores, chunk, max_bytes)
  local bodies, bytes, taken = {}, 0, 0
  local ids, ids_scores, orphans, orphan_scores = {}, {}, {}, {}
  for from = 1, #chosen, chunk do
    local found = redis.call('HMGET', messages, unpack(chosen, from, math.min(from + chunk - 1, #chosen)))
    for i = 1, #found do
      local body, at = found[i], from + i - 1
      if body then
        bytes = bytes + weight(body)
        if bytes > max_bytes and taken > 0 then return ids, bodies, ids_scores, orphans, orphan_scores end
        taken = taken + 1
        ids[taken], bodies[taken], ids_scores[taken] = chosen[at], body, scores and scores[at] or due_inside(body)
      else
        orphans[#orphans + 1], orphan_scores[#orphan_scores + 1] = chosen[at], scores and scores[at]
      end
    end
  end
  return ids, bodies, ids_scores, orphans, orphan_scores
end

-- The command `ZADD set score id...`, with one score for all ids.
local function scored(set, score, ids)
  local command = { 'ZADD', set }
  for i = 1, #ids do command[2 * i + 1], command[2 * i + 2] = score, ids[i] end
  return command
end
