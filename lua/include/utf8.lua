-- Patterns of the well-formed sequences beyond ASCII (RFC 3629).
local SEQUENCES = {
  '[\194-\223][\128-\191]',
  '[\225-\236\238\239][\128-\191][\128-\191]', '\224[\160-\191][\128-\191]', '\237[\128-\159][\128-\191]',
  '\240[\144-\191][\128-\191][\128-\191]', '[\241-\243][\128-\191][\128-\191][\128-\191]',
  '\244[\128-\143][\128-\191][\128-\191]',
}

-- A text is UTF-8 if it is ASCII without its well-formed sequences.
local function is_utf8(text)
  local function is_ascii() return string.match(text, '^[%z\1-\127]*()') > #text end
  for _, sequence in ipairs(SEQUENCES) do
    if is_ascii() then return true end
    text = string.gsub(text, sequence, ' ')
  end
  return is_ascii()
end
