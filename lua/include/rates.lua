-- include commit members
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

-- The values of `rules` for flows.
local function own_rules(flow, names)
  if #names == 0 or redis.call('EXISTS', flow.rules) == 0 then return {} end
  return redis.call('HMGET', flow.rules, unpack(names))
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
  for i, slot in ipairs(redis.call('ZMSCORE', flow.slots, unpack(names))) do
    local name, rules = names[i], rules_of(settings, own[i])
    local at = tonumber(slot or 0)
    if slot then at = at - (back[name] or 0) * rules.interval end
    if hold[name] then at = math.max(at, hold[name] + rules.tolerance) end
    local text = string.format('%.3f', at)
    if slot then
      moved[#moved + 1], moved[#moved + 2] = text, name
      old[#old + 1], old[#old + 2] = slot, name
    elseif at > now then
      fresh[#fresh + 1], fresh[#fresh + 2] = text, name
    end
  end
  write(steps, moved, { old })
  insert(steps, fresh)
end
