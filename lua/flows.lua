-- include clock flow_value
-- Lists flows: those with parked messages, messages in flight or rules of their own, by name.
--
-- KEYS   waiting flights gates rules unack flows
-- ARGV   1 if the messages in flight of every flow are in `flights`, otherwise 0: up to 10,000 leases are counted instead;
--        then "one", a flow; or "page", limit (1 to 100), "" or "=" and the flow after which the page begins
-- reply  now (ms), 1 if more follow, otherwise 0, then for each flow: name, number parked, number in flight, when a
--        claim looks at its parked messages (ms; -1: when a message ends or the rules change, or none is parked), id of
--        the first message in flight or that holds it or "", value in `rules` or ""
local waiting, flights, gates, rules, unack, flows = unpack(KEYS)
-- Rules that are listed.
local MOST_RULES = 1000
-- Leases that are counted, 5 ms of Redis' time, and those that one command reads.
local MOST_LEASES = 10000
local READ_AT_ONCE = 1000

local function bounds(name) return '[' .. name .. '\0', '(' .. name .. '\1' end

-- By flow, its number of messages in flight and the one with the earliest lease; then the flows in order.
local function in_flight()
  local counts, first, names = {}, {}, {}
  for from = 0, MOST_LEASES - 1, READ_AT_ONCE do
    local ids = redis.call('ZRANGE', unack, from, from + READ_AT_ONCE - 1)
    if #ids == 0 then break end
    for i, value in ipairs(redis.call('HMGET', flows, unpack(ids))) do
      local name = flow_of(value)
      if not counts[name] then counts[name], first[name], names[#names + 1] = 0, ids[i], name end
      counts[name] = counts[name] + 1
    end
  end
  table.sort(names)
  return counts, first, names
end

-- The name of the first flow in a set after `name`, or the first of all without it.
local function following(set, name)
  local member = redis.call('ZRANGEBYLEX', set, name and '[' .. name .. '\1' or '-', '+', 'LIMIT', '0', '1')[1]
  return member and string.sub(member, 1, string.find(member, '%z') - 1)
end

local counts, first_of, in_order
if ARGV[1] ~= '1' then counts, first_of, in_order = in_flight() end
local names, more = {}, 0
if ARGV[2] == 'one' then
  names[1] = ARGV[3]
else
  local limit, after = tonumber(ARGV[3]), string.match(ARGV[4], '^=(.*)$')
  local own, all = {}, redis.call('HLEN', rules) <= MOST_RULES and redis.call('HGETALL', rules) or {}
  for i = 1, #all, 2 do own[#own + 1] = all[i] end
  table.sort(own)
  local at, next_counted = 1, 1
  while #names <= limit do
    while own[at] and after and own[at] <= after do at = at + 1 end
    while counts and in_order[next_counted] and after and in_order[next_counted] <= after do
      next_counted = next_counted + 1
    end
    local flying
    if counts then flying = in_order[next_counted] else flying = following(flights, after) end
    local first
    for _, name in ipairs({ following(waiting, after) or false, flying or false, own[at] or false }) do
      if name and (not first or name < first) then first = name end
    end
    if not first then break end
    names[#names + 1], after = first, first
  end
  if #names > limit then names[#names], more = nil, 1 end
end

local reply = { math.floor(clock() / 1000), more }
for _, name in ipairs(names) do
  local n, from, to = #reply, bounds(name)
  local gate = redis.call('ZSCORE', gates, name)
  local count, holder
  if counts then
    count, holder = counts[name] or 0, first_of[name]
  else
    local held = redis.call('ZRANGEBYLEX', flights, from, to, 'LIMIT', '0', '1')[1]
    count, holder = redis.call('ZLEXCOUNT', flights, from, to), held and string.sub(held, #name + 2)
  end
  reply[n + 1], reply[n + 2], reply[n + 3] = name, redis.call('ZLEXCOUNT', waiting, from, to), count
  reply[n + 4] = gate and gate ~= 'inf' and math.floor(tonumber(gate)) or -1
  reply[n + 5] = holder or ''
  reply[n + 6] = redis.call('HGET', rules, name) or ''
end
return reply
