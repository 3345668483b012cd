//! JSON as values of Lua, read as generously as cjson does: strings of any bytes, leading zeros, `inf` and `nan`.

use mlua::{Error, Lua, Result, Value};

use super::{MAX_DEPTH, null};
use crate::number;

enum Token {
    /// One of `{}[]:,`.
    Sign(u8),
    Text(Vec<u8>),
    Number(f64),
    Boolean(bool),
    Null,
    /// Also at a zero byte.
    End,
    Invalid,
}

pub fn decode(lua: &Lua, text: &[u8]) -> Result<Value> {
    if text.len() >= 2 && (text[0] == 0 || text[1] == 0) {
        return Err(Error::runtime("JSON parser does not support UTF-16 or UTF-32"));
    }
    let mut reader = Reader { lua, text, at: 0 };
    let first = reader.next();
    let value = reader.value(first, 0)?;
    match reader.next() {
        Token::End => Ok(value),
        _ => Err(expected("the end")),
    }
}

fn expected(name: &str) -> Error {
    Error::runtime(format!("Expected {name} but found another token"))
}

struct Reader<'a> {
    lua: &'a Lua,
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// A zero byte at the end.
    fn byte(&self, behind: usize) -> u8 {
        self.text.get(self.at + behind).copied().unwrap_or_default()
    }

    fn next(&mut self) -> Token {
        while matches!(self.byte(0), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
        let first = self.byte(0);
        match first {
            0 => Token::End,
            b'{' | b'}' | b'[' | b']' | b':' | b',' => {
                self.at += 1;
                Token::Sign(first)
            }
            b'"' => self.string().map_or(Token::Invalid, Token::Text),
            _ => self.word(),
        }
    }

    fn word(&mut self) -> Token {
        let rest = &self.text[self.at..];
        let words = [("true", Token::Boolean(true)), ("false", Token::Boolean(false)), ("null", Token::Null)];
        for (name, token) in words {
            if rest.starts_with(name.as_bytes()) {
                self.at += name.len();
                return token;
            }
        }
        // A number does not begin with a point.
        let found = if rest[0] == b'.' { None } else { number::prefix(rest) };
        let Some(found) = found else { return Token::Invalid };
        self.at += found.len;
        Token::Number(found.number)
    }

    /// A string, at its opening quotes; `None`: it is not valid.
    fn string(&mut self) -> Option<Vec<u8>> {
        let mut found = Vec::new();
        self.at += 1;
        loop {
            match self.byte(0) {
                0 => return None,
                b'"' => {
                    self.at += 1;
                    return Some(found);
                }
                b'\\' => {
                    let escaped = match self.byte(1) {
                        same @ (b'"' | b'\\' | b'/') => same,
                        b'b' => 8,
                        b't' => b'\t',
                        b'n' => b'\n',
                        b'f' => 12,
                        b'r' => b'\r',
                        b'u' => {
                            found.extend_from_slice(self.unicode()?.encode_utf8(&mut [0; 4]).as_bytes());
                            continue;
                        }
                        _ => return None,
                    };
                    found.push(escaped);
                    self.at += 2;
                }
                other => {
                    found.push(other);
                    self.at += 1;
                }
            }
        }
    }

    /// An escaped character, in one or two units of UTF-16.
    fn unicode(&mut self) -> Option<char> {
        let first = self.unit()?;
        if let Some(char) = char::from_u32(first.into()) {
            return Some(char);
        }
        let second = if self.byte(0) == b'\\' && self.byte(1) == b'u' { self.unit()? } else { return None };
        char::decode_utf16([first, second]).next()?.ok()
    }

    fn unit(&mut self) -> Option<u16> {
        let digits = self.text.get(self.at + 2..self.at + 6)?;
        let digits = std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|one| one.is_ascii_hexdigit()))?;
        self.at += 6;
        u16::from_str_radix(digits, 16).ok()
    }

    fn value(&mut self, token: Token, depth: usize) -> Result<Value> {
        Ok(match token {
            Token::Text(text) => Value::String(self.lua.create_string(text)?),
            Token::Number(number) => Value::Number(number),
            Token::Boolean(one) => Value::Boolean(one),
            Token::Null => null(),
            Token::Sign(sign @ (b'{' | b'[')) => {
                if depth >= MAX_DEPTH {
                    return Err(Error::runtime(format!("Found too many nested data structures ({})", depth + 1)));
                }
                if sign == b'{' { self.object(depth + 1)? } else { self.array(depth + 1)? }
            }
            Token::Sign(_) | Token::End | Token::Invalid => return Err(expected("value")),
        })
    }

    fn object(&mut self, depth: usize) -> Result<Value> {
        let table = self.lua.create_table()?;
        let mut token = self.next();
        if matches!(token, Token::Sign(b'}')) {
            return Ok(Value::Table(table));
        }
        loop {
            let Token::Text(name) = token else { return Err(expected("object key string")) };
            let Token::Sign(b':') = self.next() else { return Err(expected("colon")) };
            let first = self.next();
            let value = self.value(first, depth)?;
            table.raw_set(self.lua.create_string(name)?, value)?;
            match self.next() {
                Token::Sign(b'}') => return Ok(Value::Table(table)),
                Token::Sign(b',') => token = self.next(),
                _ => return Err(expected("comma or object end")),
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value> {
        let table = self.lua.create_table()?;
        let mut token = self.next();
        if matches!(token, Token::Sign(b']')) {
            return Ok(Value::Table(table));
        }
        for n in 1.. {
            let value = self.value(token, depth)?;
            table.raw_set(n, value)?;
            match self.next() {
                Token::Sign(b']') => break,
                Token::Sign(b',') => token = self.next(),
                _ => return Err(expected("comma or array end")),
            }
        }
        Ok(Value::Table(table))
    }
}
