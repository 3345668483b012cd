//! Replies, and the protocol of a link.

/// A reply of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Nil,
    Int(i64),
    Bulk(Vec<u8>),
    Status(String),
    /// The text of an error, which begins with its code.
    Error(String),
    Array(Vec<Reply>),
    /// Sent without a command, on a link that speaks RESP3.
    Push(Vec<Reply>),
}

impl Reply {
    pub fn ok() -> Self {
        Self::Status("OK".into())
    }

    pub fn count(number: usize) -> Self {
        Self::Int(i64::try_from(number).expect("a small number"))
    }

    pub fn flag(yes: bool) -> Self {
        Self::Int(i64::from(yes))
    }

    pub fn bulk(bytes: impl Into<Vec<u8>>) -> Self {
        Self::Bulk(bytes.into())
    }

    pub fn optional(bytes: Option<&Vec<u8>>) -> Self {
        bytes.map_or(Self::Nil, |bytes| Self::Bulk(bytes.clone()))
    }

    pub fn error(text: impl Into<String>) -> Self {
        Self::Error(text.into())
    }

    /// An array as a push.
    #[must_use]
    pub fn pushed(self) -> Self {
        if let Self::Array(all) = self { Self::Push(all) } else { self }
    }

    /// Appends the reply as RESP2, and pushes as RESP3.
    pub fn encode(&self, to: &mut Vec<u8>) {
        let mut line = |kind: char, text: &str| to.extend_from_slice(format!("{kind}{text}\r\n").as_bytes());
        match self {
            Self::Nil => line('$', "-1"),
            Self::Int(number) => line(':', &number.to_string()),
            Self::Status(text) => line('+', text),
            Self::Error(text) => line('-', &text.replace(['\r', '\n'], " ")),
            Self::Bulk(bytes) => {
                line('$', &bytes.len().to_string());
                to.extend_from_slice(bytes);
                to.extend_from_slice(b"\r\n");
            }
            Self::Array(all) | Self::Push(all) => {
                let kind = if matches!(self, Self::Push(_)) { '>' } else { '*' };
                line(kind, &all.len().to_string());
                for one in all {
                    one.encode(to);
                }
            }
        }
    }
}

/// Takes the first whole command, an array of strings, from received bytes; `None` if more bytes must come.
///
/// # Panics
/// If the bytes are anything else.
pub fn take_command(received: &mut Vec<u8>) -> Option<Vec<Vec<u8>>> {
    let mut at = 0;
    let count = number_after(b'*', received, &mut at)?;
    let mut command = Vec::with_capacity(count);
    for _ in 0..count {
        let length = number_after(b'$', received, &mut at)?;
        command.push(received.get(at..at + length)?.to_vec());
        at += length + 2;
    }
    if at > received.len() {
        return None;
    }
    received.drain(..at);
    Some(command)
}

fn number_after(kind: u8, received: &[u8], at: &mut usize) -> Option<usize> {
    let rest = received.get(*at..)?;
    assert!(rest.first().is_none_or(|first| *first == kind), "a command in another form");
    let end = rest.windows(2).position(|two| two == b"\r\n")?;
    let number = std::str::from_utf8(&rest[1..end]).ok().and_then(|text| text.parse().ok()).expect("a number");
    *at += end + 2;
    Some(number)
}
