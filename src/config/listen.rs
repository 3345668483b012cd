//! The address of the API.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr};

/// Prefix of the path of a Unix socket.
const UNIX: &str = "unix:";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl Listen {
    /// Whether only this machine can connect.
    pub fn is_local(&self) -> bool {
        match self {
            Listen::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Listen::Unix(_) => true,
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix(UNIX) {
            let path = PathBuf::from(path.strip_prefix("//").unwrap_or(path));
            return if path.is_absolute() && path.file_name().is_some() {
                Ok(Listen::Unix(path))
            } else {
                Err(format!("`{text}` names no socket by its whole path: unix:/run/punctual.sock"))
            };
        }
        let wrong =
            || format!("`{text}` is not an address and port such as 127.0.0.1:8080, or unix:/run/punctual.sock");
        text.parse().map(Listen::Tcp).map_err(|_| wrong())
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => address.fmt(f),
            Listen::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}
