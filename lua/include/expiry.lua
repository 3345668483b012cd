-- The time of expiry of a stored body: eight bytes after its form (src/message/codec.rs).

-- The time of expiry in milliseconds since the epoch; nothing for a body without one.
local function expiry(body)
  local form = string.byte(body, 1) == 2 and #body >= 26 and string.byte(body, 18)
  if form and form % 4 >= 2 then return (struct.unpack('>I8', body, 19)) end
end

-- `body` with other times, and with the time of expiry `at`, or without one. `body` has at least 17 bytes, those of its
-- version and times.
local function timed(body, due, accepted, at)
  local version, form, rest = string.byte(body, 1), 4, string.sub(body, 18)
  if version == 2 and rest ~= '' then
    form, rest = string.byte(rest, 1), string.sub(rest, expiry(body) and 10 or 2)
    if form % 4 >= 2 then form = form - 2 end
  elseif version ~= 1 or not at then
    return struct.pack('>BI8I8', version, due, accepted) .. rest
  end
  local times = struct.pack('>BI8I8B', 2, due, accepted, at and form + 2 or form)
  return times .. (at and struct.pack('>I8', at) or '') .. rest
end
