-- include attempts scores weight
-- Which messages claim.lua takes. These functions have no variables of a call: several calls in one make them once.

local SUSPECT_CRASHES = 2
-- With so many a suspect is claimed alone, before in the company of others.
local ALONE_CRASHES = 3
-- Between the companies of suspects that are put off, ms.
local SPACING = 20
-- Scores and times in ms are below it.
local MAX_MILLIS = 2 ^ 53

-- The due time inside a body, 0 in a damaged one: a claimed message has no score in pending.
local function due_inside(body)
  local due = #body >= 17 and struct.unpack('>I8', body, 2) or 0
  return whole(due < MAX_MILLIS and due or 0)
end

-- Ids and scores of `count` members of `pending` after the first `seen`, which are due.
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

-- Adds { failures, crashes } to `tried`, by id, for those of ids that failed or crashed.
local function trials(attempts, ids, tried)
  if #ids == 0 then return end
  for i, value in ipairs(redis.call('HMGET', attempts, unpack(ids))) do
    if value then tried[ids[i]] = { counts(value) } end
  end
end

-- The crashes of a suspect; nil for another message.
local function suspicion(tried, id)
  local crashes = tried[id] and tried[id][2] or 0
  return crashes >= SUSPECT_CRASHES and crashes or nil
end

-- The first suspects of due messages, up to `company`, and their scores.
local function first_suspects(ids, scores, tried, company)
  local chosen, chosen_scores = {}, {}
  for i, id in ipairs(ids) do
    local crashes = suspicion(tried, id)
    if crashes then
      local is_alone = crashes >= ALONE_CRASHES
      if is_alone and #chosen > 0 then break end
      chosen[#chosen + 1], chosen_scores[#chosen_scores + 1] = id, scores[i]
      if is_alone or #chosen == company then break end
    end
  end
  return chosen, chosen_scores
end

-- Chooses `limit` of due messages that are no suspects. Those are added to `put_off`: ids, scores, and new scores from
-- `due` on, the same for a company. Returns ids, scores, and the last new score.
local function ordinary(ids, scores, tried, limit, company, due, put_off)
  local chosen, chosen_scores = {}, {}
  for i, id in ipairs(ids) do
    if #chosen == limit then break end
    local crashes = suspicion(tried, id)
    if not crashes then
      chosen[#chosen + 1], chosen_scores[#chosen_scores + 1] = id, scores[i]
    else
      local n = #put_off.ids + 1
      if n % company == 1 % company or crashes >= ALONE_CRASHES then due = due + SPACING end
      put_off.ids[n], put_off.scores[n] = id, scores[i]
      put_off.at[2 * n - 1], put_off.at[2 * n] = whole(due), id
    end
  end
  return chosen, chosen_scores, due
end

-- Reads the bodies of `chosen`, `chunk` at once, until they have `max_bytes`; the first has any size. Returns ids, bodies
-- and scores of those that have one, and ids and scores of those that do not. Without scores these are the due times.
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

-- `ZADD set score id...`, with one score for all.
local function scored(set, score, ids)
  local command = { 'ZADD', set }
  for i = 1, #ids do command[2 * i + 1], command[2 * i + 2] = score, ids[i] end
  return command
end
