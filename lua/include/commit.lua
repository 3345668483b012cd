-- All writes of a script, or none.
--
-- Redis keeps what a failed script wrote. So a script checks and reads first, then hands its writes over as
-- steps { { command... }, undo, old }. After a failed step those before it are undone in reverse. `undo` is a list of
-- commands, or a function of the command and of `old`, the values before it, that returns one: commands with arguments
-- for each message are made only when they are needed. The last step needs no undo. Returns nothing, or the error reply
-- for the script to return.
--
-- A check before the first write could replace undo commands for wrong types, but not for the rights of the user, which
-- Redis checks at each command.
local function commit(steps)
  for i, step in ipairs(steps) do
    local reply = redis.pcall(unpack(step[1]))
    if type(reply) == 'table' and reply.err then
      for j = i - 1, 1, -1 do
        local command, undo, old = unpack(steps[j])
        if type(undo) == 'function' then undo = undo(command, old) end
        for _, one in ipairs(undo) do
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
