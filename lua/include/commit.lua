-- Executes all writes of a script, or none.
--
-- Redis keeps the writes of a failed script. So a script reads and checks first, then passes its writes as steps
-- { { command... }, undo, old }. When a step fails, the steps before it are undone in reverse order. `undo` is a list
-- of commands, or a function that makes the list from the command and from `old`, the values before it: an undo with
-- arguments for each message is built only when it is needed. The last step needs no undo. Returns nothing, or the
-- error reply that the script must return.
--
-- Redis checks the rights of the user at each command. A denied command can be one that the undo of an earlier step
-- needs too, for example ZADD after ZREM: that undo would fail as well. So commit probes such a command before the
-- earlier step, in a form that changes nothing. Nothing is removed before it is certain that it can be restored. A
-- command that was executed needs no probe.
local INVERSE =
  { ZADD = 'ZREM', ZREM = 'ZADD', ZREMRANGEBYRANK = 'ZADD', ZREMRANGEBYSCORE = 'ZADD', HSET = 'HDEL', HDEL = 'HSET' }
-- Forms that change nothing, in place of an undo with arguments for each message. The probe of any other command is the
-- undo itself, which changes nothing before its step. No key has the member or field NUL; some have the empty one.
local UNCHANGING = { ZADD = { 'XX', '0', '\0' }, ZREM = { '\0' }, HDEL = { '\0' }, LTRIM = { '0', '-1' } }

local function is_error(reply) return type(reply) == 'table' and reply.err end

local function is_oom(reply) return is_error(reply) and string.sub(reply.err, 1, 4) == 'OOM ' end

local function undo_of(step)
  local command, undo, old = unpack(step)
  return type(undo) == 'function' and undo(command, old) or undo
end

-- The names of the commands to probe before each step, by the index of the step.
local function probes_of(steps)
  local probes, needed, proven = {}, {}, {}
  for i, step in ipairs(steps) do
    local name, undo = step[1][1], step[2]
    local place = needed[name]
    if place and not proven[name] then
      probes[place] = probes[place] or {}
      table.insert(probes[place], name)
    end
    proven[name] = true
    if type(undo) == 'function' then
      local inverse = INVERSE[name]
      needed[inverse] = needed[inverse] or i
    else
      for _, one in ipairs(undo) do needed[one[1]] = needed[one[1]] or i end
    end
  end
  return probes
end

-- Returns the error reply to a probe. OOM does not count: at maxmemory Redis refuses a command that needs memory when
-- it is the first write of the script, but only after it has checked the right.
local function probe(names, step)
  for _, name in ipairs(names) do
    local form = UNCHANGING[name]
    for _, command in ipairs(form and { { name, step[1][2], unpack(form) } } or undo_of(step)) do
      local reply = command[1] == name and redis.pcall(unpack(command))
      if is_error(reply) and not is_oom(reply) then return reply end
    end
  end
end

local function commit(steps)
  local probes = probes_of(steps)
  -- At maxmemory Redis refuses only the first write of a script. A step that needs memory must be refused, so a form of
  -- it without effect comes before its probes.
  if probes[1] and steps[1][1][1] == 'HSET' then
    local reply = redis.pcall('HSET', steps[1][1][2], '', '', '')
    if is_oom(reply) then return reply end
  end
  for i, step in ipairs(steps) do
    local reply = probes[i] and probe(probes[i], step)
    if not reply then reply = redis.pcall(unpack(step[1])) end
    if is_error(reply) then
      for j = i - 1, 1, -1 do
        for _, one in ipairs(undo_of(steps[j])) do
          redis.pcall(unpack(one))
        end
      end
      return reply
    end
  end
end

-- Adds the step `command`, { name, key, values... }, unless there are no values.
local function write(steps, command, undo, old)
  if #command > 2 then steps[#steps + 1] = { command, undo, old } end
end

-- Adds the step `command key values...`, unless there are no values.
local function add(steps, command, key, values, undo, old)
  if #values > 0 then write(steps, { command, key, unpack(values) }, undo, old) end
end
