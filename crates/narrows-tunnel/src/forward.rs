//! Forwards as they are written on the command line, as for `ssh`: `[BIND:]PORT:HOST:PORT`, with
//! paths of unix sockets in place of `[BIND:]PORT` and of `HOST:PORT`.

use narrows::{Error, Result};
use narrows_host::words::shown;

use super::target::{Endpoint, HOST_MAX, PATH_MAX};

/// A listener, and where its connections go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    pub from: Endpoint,
    pub to: Endpoint,
}

impl Forward {
    /// Reads `[BIND:]PORT:HOST:PORT`, `[BIND:]PORT:/path`, `/path:HOST:PORT` or `/path:/path`.
    ///
    /// # Errors
    /// `Misuse`
    pub fn parse(text: &str) -> Result<Self> {
        Self::of(text).ok_or_else(|| {
            let text = shown(text.as_bytes());
            Error::misuse(format!(
                "'{text}' is not [BIND:]PORT:HOST:PORT, such as 5432:db:5432, nor has a path of a socket in place of an end"
            ))
        })
    }

    fn of(text: &str) -> Option<Self> {
        if text.starts_with('/') {
            let at = text.find(':')?;
            return Some(Self { from: path(&text[..at])?, to: target(&text[at + 1..])? });
        }
        let words = words(text)?;
        let (from, to) = match &words[..] {
            [from @ .., last] if last.starts_with('/') => (from, path(last)?),
            [from @ .., host, port] => (from, tcp(host, port)?),
            _ => return None,
        };
        Some(Self { from: bind_of(from)?, to })
    }
}

/// Reads `[BIND:]PORT` or a path.
///
/// # Errors
/// `Misuse`
pub fn listener(text: &str) -> Result<Endpoint> {
    let found = if text.starts_with('/') { path(text) } else { words(text).and_then(|words| bind_of(&words)) };
    found.ok_or_else(|| Error::misuse(format!("'{}' is not [BIND:]PORT, such as 1080", shown(text.as_bytes()))))
}

/// Parts between colons; an address in brackets is one part.
fn words(text: &str) -> Option<Vec<String>> {
    let (mut words, mut rest) = (Vec::new(), text);
    loop {
        let word = if let Some(inner) = rest.strip_prefix('[') {
            let (word, after) = inner.split_once(']')?;
            rest = after;
            word
        } else {
            let end = rest.find(':').unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            rest = after;
            word
        };
        words.push(word.to_owned());
        match rest.strip_prefix(':') {
            Some(after) => rest = after,
            None if rest.is_empty() => return Some(words),
            None => return None,
        }
    }
}

fn target(text: &str) -> Option<Endpoint> {
    if text.starts_with('/') {
        return path(text);
    }
    match &words(text)?[..] {
        [host, port] => tcp(host, port),
        _ => None,
    }
}

fn path(text: &str) -> Option<Endpoint> {
    (text.len() <= PATH_MAX && !text.contains('\0')).then(|| Endpoint::Unix(text.into()))
}

/// A target: neither the host nor the port may be left out.
fn tcp(host: &str, port: &str) -> Option<Endpoint> {
    let port = port.parse().ok().filter(|port| *port != 0)?;
    (1..=HOST_MAX).contains(&host.len()).then(|| Endpoint::Tcp { host: host.to_owned(), port })
}

/// A place to listen; port 0 is one that the system chooses.
fn bind_of(words: &[String]) -> Option<Endpoint> {
    let (host, port) = match words {
        [port] => ("", port),
        [host, port] => (host.as_str(), port),
        _ => return None,
    };
    let host = match host {
        "" if words.len() == 2 => "*",
        "localhost" => "",
        host => host,
    };
    (host.len() <= HOST_MAX).then_some(())?;
    Some(Endpoint::Tcp { host: host.to_owned(), port: port.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown_as(text: &str) -> Option<(String, String)> {
        Forward::parse(text).ok().map(|f| (f.from.to_string(), f.to.to_string()))
    }

    #[test]
    fn forwards_are_read_as_by_ssh() {
        for (text, from, to) in [
            ("5432:db:5432", "localhost:5432", "db:5432"),
            ("0:db:5432", "localhost:0", "db:5432"),
            ("localhost:80:web:8080", "localhost:80", "web:8080"),
            ("*:80:web:8080", "*:80", "web:8080"),
            (":80:web:8080", "*:80", "web:8080"),
            ("10.0.0.1:80:web:8080", "10.0.0.1:80", "web:8080"),
            ("[::1]:80:[fe80::2]:8080", "[::1]:80", "[fe80::2]:8080"),
            ("80:[fe80::2]:8080", "localhost:80", "[fe80::2]:8080"),
            ("80:/run/app.sock", "localhost:80", "/run/app.sock"),
            ("*:80:/run/app.sock", "*:80", "/run/app.sock"),
            ("/tmp/db.sock:db:5432", "/tmp/db.sock", "db:5432"),
            ("/tmp/db.sock:[::1]:5432", "/tmp/db.sock", "[::1]:5432"),
            ("/tmp/db.sock:/run/db.sock", "/tmp/db.sock", "/run/db.sock"),
        ] {
            assert_eq!(shown_as(text), Some((from.into(), to.into())), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        let long = format!("80:{}:80", "h".repeat(HOST_MAX + 1));
        let long_path = format!("80:/{}", "p".repeat(PATH_MAX));
        for text in [
            "",
            "80",
            "80:",
            "80:db",
            "80:db:",
            "80:db:0",
            "80::80",
            "x:db:80",
            "80:db:http",
            "99999:db:1",
            "a:b:c:d:e",
            "[::1:80:db:80",
            "80:db:80:90:100",
            "/tmp/x",
            "/tmp/x:db",
            "/tmp/x:db:0",
            &long,
            &long_path,
        ] {
            assert_eq!(shown_as(text), None, "{text}");
        }
    }

    #[test]
    fn listeners_have_a_port_or_a_path() {
        for (text, shown) in [("1080", "localhost:1080"), ("*:1080", "*:1080"), ("[::1]:1", "[::1]:1"), ("/a", "/a")] {
            assert_eq!(listener(text).unwrap().to_string(), shown);
        }
        for text in ["", "db", "1:2:3", "70000", "db:"] {
            assert!(listener(text).is_err(), "{text}");
        }
    }
}
