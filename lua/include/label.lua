-- The label of a stored body: its key, flow and group, and the token with which it was scheduled, as far as they are
-- set. Each is a field: a tag, the length of the text (LEB128) and the text (src/message/fields.rs).

-- Maximum bytes of a label that is read, and of metadata as JSON. A message with more has no label.
local LABELS = { most = 1024, most_json = 65536 }

-- `text` has less than 16384 bytes. Without a text there is no field.
local function field(tag, text)
  if type(text) ~= 'string' or text == '' then return '' end
  local size = #text < 128 and string.char(#text) or string.char(#text % 128 + 128, math.floor(#text / 128))
  return string.char(tag) .. size .. text
end

-- The label in metadata as JSON.
local function label_of_json(json)
  if #json > LABELS.most_json or json == '' then return '' end
  local is_valid, metadata = pcall(cjson.decode, json)
  if not is_valid or type(metadata) ~= 'table' then return '' end
  local fields = ''
  for _, one in ipairs({ { 2, 'key' }, { 9, 'flow' }, { 11, 'group' }, { 12, 'scheduled_by' } }) do
    local text = metadata[one[2]]
    if type(text) == 'string' and #text > LABELS.most then return '' end
    fields = fields .. field(one[1], text)
  end
  return #fields <= LABELS.most and fields or ''
end

-- The label of a body; empty for one that cannot be read. See src/message/codec.rs.
local function label(body)
  local version, form, at = string.byte(body, 1), string.byte(body, 18), 18
  if version == 2 and form then
    at = form % 4 >= 2 and 27 or 19
    if form % 16 >= 8 then
      local size = #body > at and struct.unpack('>I2', body, at) or 0
      return size <= LABELS.most and string.sub(body, at + 2, at + 1 + size) or ''
    end
    if form % 8 < 4 then return '' end
  elseif version ~= 1 then
    return ''
  end
  local size = #body >= at + 3 and struct.unpack('>I4', body, at) or 0
  return label_of_json(string.sub(body, at + 4, at + 3 + math.min(size, LABELS.most_json + 1)))
end
