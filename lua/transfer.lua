-- include bytes clock commit completion flow groups history leases optional recurring scores sizes wake
-- features flow history optional recurring
-- Delivers messages to lists on this Redis, exactly once: pushed and completed in one script.
--
-- KEYS   pending unack messages attempts errors remembered records bytes schedules groups grouped list... [history] [flow]
-- ARGV   wake channel, time to remember an id (ms), maximum number of remembered ids, number of lists, 1 if one of the
--        messages is a schedule, otherwise 0, limits of the history ("": none; see history.lua), then groups of leases with the same token and list: token, number
--        of the list (from 1), number of leases, bytes of their bodies, the ids, the values, and the entries if there is
--        a history
-- reply  a string with a character for each lease: 1 done | 0 stale | 2 still claimed, because the key is not a list;
--        then the type of the key for each 2
local BEFORE_LISTS = 11
local pending, unack, messages, attempts, errors, remembered, records, bytes, schedules = unpack(KEYS)
local groups = group_keys(KEYS, 10)
local channel, keep, max, lists = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local _, history, flow
local first_optional = BEFORE_LISTS + lists + 1
if #KEYS >= first_optional then _, history, flow = optional_keys(KEYS, first_optional, ARGV[6]) end
-- Usually all messages end with their delivery.
local all_end = ARGV[5] == '0'
local ended_ids, entries = {}, {}

local kinds, pushes = {}, {}
for n = BEFORE_LISTS + 1, BEFORE_LISTS + lists do
  kinds[n], pushes[n] = redis.call('TYPE', KEYS[n]).ok, { 'RPUSH', KEYS[n] }
end
local reply, refused, seen, left = {}, {}, {}, 0
local moved, occurrences, ranges, tokens, moves = {}, {}, {}, {}, { 'ZREM', unack }
local completed = all_end and moved or {}
local at, done = 7, 0
while at < #ARGV do
  local token, n, count = ARGV[at], BEFORE_LISTS + tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local size, before, first = tonumber(ARGV[at + 3]), #reply, done
  local ids = { unpack(ARGV, at + 4, at + 3 + count) }
  local all = held(unack, token, ids, seen, reply)
  local kind, push, pushed = kinds[n], pushes[n], #pushes[n]
  local takes = kind == 'none' or kind == 'list'
  if all and takes then ranges[#ranges + 1] = { token, ids } end
  for i = 1, count do
    if reply[before + i] == '1' then
      if takes then
        done, pushed = done + 1, pushed + 1
        moved[done], push[pushed] = ids[i], ARGV[at + 3 + count + i]
        local is_occurrence = not all_end and is_schedule(ids[i])
        if not all_end then
          local kept = is_occurrence and occurrences or completed
          kept[#kept + 1] = ids[i]
        end
        if history and not is_occurrence then
          ended_ids[#ended_ids + 1], entries[#entries + 1] = ids[i], ARGV[at + 3 + 2 * count + i]
        end
        if not all then moves[#moves + 1], tokens[#tokens + 1] = ids[i], token end
      else
        reply[before + i], refused[#refused + 1] = '2', kind
      end
    end
  end
  if done - first == count then
    left = left + size
  else
    left = left + sizes(messages, { unpack(moved, first + 1) })
  end
  at = at + 4 + (history and 3 or 2) * count
end

local steps = {}
end_leases(steps, unack, ranges, moves, tokens)
for n = BEFORE_LISTS + 1, BEFORE_LISTS + lists do
  write(steps, pushes[n], { { 'LTRIM', KEYS[n], 0, -(#pushes[n] - 1) } })
end
local is_open = false
local again, again_flows, unplanned = {}, {}, {}
if #occurrences > 0 then
  local now = math.floor(clock() / 1000)
  local keys = { pending = pending, messages = messages, attempts = attempts, errors = errors, schedules = schedules }
  for i, id in ipairs(occurrences) do occurrences[i] = { id, ended('d', now) } end
  local again_bytes, earliest
  again, again_flows, unplanned, again_bytes, earliest = recur_each(steps, keys, occurrences, now, completed)
  left, is_open = left - again_bytes, earliest < (head(pending) or math.huge)
end
grow(steps, bytes, -left)
if flow and done > 0 then
  local now = math.floor(clock() / 1000)
  local values = redis.call('HMGET', flow.flows, unpack(moved))
  local ended_values = values
  is_open = depart(steps, flow, moved, {}, values, now) or is_open
  number_flows(steps, flow, again, again_flows, unplanned)
  if #occurrences > 0 then
    local value_of = {}
    ended_values = {}
    for i, id in ipairs(moved) do value_of[id] = values[i] end
    for i, id in ipairs(completed) do ended_values[i] = value_of[id] end
  end
  forget(steps, flow, completed, ended_values)
end
if history then keep_ends(steps, history, ended_ids, entries, math.floor(clock() / 1000)) end
complete(steps, remembered, records, attempts, errors, messages, groups, completed, keep, max)
local failed = commit(steps)
if failed then return failed end
if is_open then wake(channel) end
return { table.concat(reply), unpack(refused) }
