-- include commit members scores
-- The rules of flows.

local UNIT = { s = 1000000, m = 60000000, h = 3600000000, d = 86400000000 }

-- The rules of a flow: `interval` between two messages and `tolerance` of GCRA (us), `parallel`, `paused`. `own` is its
-- value in `rules`, which replaces settings of the route.
local function rules_of(settings, own)
  local rate, burst, parallel = settings.rate, settings.burst, settings.parallel
  local is_paused = false
  if own then
    local own_rate, own_burst, own_parallel, pause = string.match(own, '^(%S+) (%S+) (%S+) (.*)$')
    if own_rate ~= '-' then rate, burst = own_rate, nil end
    if own_burst ~= '-' then burst = own_burst end
    if own_parallel ~= '-' then parallel = own_parallel end
    is_paused = pause ~= '-'
  end
  local messages, unit = string.match(rate, '^(%d+)/(%a)$')
  local rules = { interval = 0, tolerance = 0, parallel = tonumber(parallel) or math.huge, is_paused = is_paused }
  if messages then
    rules.interval = UNIT[unit] / messages
    -- By default the messages of one second.
    burst = tonumber(burst) or math.max(1, math.floor(messages * 1000000 / UNIT[unit]))
    rules.tolerance = (burst - 1) * rules.interval
  end
  if settings.ordered then rules.parallel = math.min(1, rules.parallel) end
  return rules
end

-- Whether the messages in flight of a flow are counted.
local function is_counted(rules) return rules.parallel < math.huge end

-- The values of `rules` for flows.
local function own_rules(flow, names)
  if #names == 0 or redis.call('EXISTS', flow.rules) == 0 then return {} end
  return redis.call('HMGET', flow.rules, unpack(names))
end

-- Member of `slots`: the time (us) until which the last of all pauses of flows lasts.
local LAST_HOLD = '\1\1'

-- The slots of flows, and the times before which none of their messages leaves. `now`: none of these times is read if all
-- are over.
local function slots_of(flow, names, now)
  if now then
    local known = { unpack(names) }
    known[#known + 1] = LAST_HOLD
    local scores = redis.call('ZMSCORE', flow.slots, unpack(known))
    local last = scores[#known]
    if not (last and tonumber(last) > now) then return scores, {} end
  end
  local members = {}
  for i, name in ipairs(names) do
    members[i] = name
    members[#names + i] = name .. '\1'
  end
  local scores = redis.call('ZMSCORE', flow.slots, unpack(members))
  return scores, { unpack(scores, #names + 1, 2 * #names) }
end

-- The settings of a route with flows: "<rate> <burst> <parallel> <1 if ordered>", "-" for each that is not set.
local function flow_settings(text)
  local rate, burst, parallel, ordered = string.match(text, '^(%S+) (%S+) (%S+) (%d)$')
  return { rate = rate, burst = burst, parallel = parallel, ordered = ordered == '1' }
end

-- Adds the step that moves the slots of flows: by flow, `back` has the number of slots that are given back, because
-- their messages were not sent, and `hold` the time (us) before which no message of the flow leaves.
local function shift_slots(steps, flow, settings, back, hold, now)
  local names = {}
  for name in pairs(back) do names[#names + 1] = name end
  for name in pairs(hold) do
    if not back[name] then names[#names + 1] = name end
  end
  if #names == 0 then return end
  local own = own_rules(flow, names)
  local moved, old, fresh = { 'ZADD', flow.slots }, { 'ZADD', flow.slots }, { 'ZADD', flow.slots }
  local slots, holds = slots_of(flow, names)
  local last = 0
  for i, name in ipairs(names) do
    local at = slots[i] and tonumber(slots[i]) - (back[name] or 0) * rules_of(settings, own[i]).interval
    if at and back[name] then
      moved[#moved + 1], moved[#moved + 2] = string.format('%.3f', at), name
      old[#old + 1], old[#old + 2] = slots[i], name
    end
    if hold[name] and holds[i] and tonumber(holds[i]) < hold[name] then
      last = math.max(last, hold[name])
      moved[#moved + 1], moved[#moved + 2] = whole(hold[name]), name .. '\1'
      old[#old + 1], old[#old + 2] = holds[i], name .. '\1'
    elseif hold[name] and not holds[i] and hold[name] > now then
      last = math.max(last, hold[name])
      local n = #fresh
      fresh[n + 1], fresh[n + 2] = whole(hold[name]), name .. '\1'
    end
  end
  local known = last > 0 and redis.call('ZSCORE', flow.slots, LAST_HOLD)
  if known and tonumber(known) < last then
    local n, m = #moved, #old
    moved[n + 1], moved[n + 2] = whole(last), LAST_HOLD
    old[m + 1], old[m + 2] = known, LAST_HOLD
  elseif last > 0 and not known then
    local n = #fresh
    fresh[n + 1], fresh[n + 2] = whole(last), LAST_HOLD
  end
  write(steps, moved, { old })
  insert(steps, fresh)
end
