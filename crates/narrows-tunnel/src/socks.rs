//! SOCKS 5 (RFC 1928) as far as programs use it: no authentication, CONNECT. No I/O.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::reason::Reason;
use super::target::Endpoint;

/// Most bytes that a client may send before its request is known: a greeting with all methods, and
/// the longest request.
pub const REQUEST_MAX: usize = 2 + 255 + 4 + 1 + 255 + 2;

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const NONE_ACCEPTABLE: u8 = 0xff;
const CONNECT: u8 = 1;
const SUCCEEDED: u8 = 0;
const FAILED: u8 = 1;
const NOT_ALLOWED: u8 = 2;
const UNREACHABLE: u8 = 4;
const REFUSED: u8 = 5;
const TIMED_OUT: u8 = 6;
const COMMAND_UNKNOWN: u8 = 7;
const ADDRESS_UNKNOWN: u8 = 8;

/// A conversation with a client up to its request.
#[derive(Debug, Default)]
pub struct Conversation {
    seen: Vec<u8>,
    greeted: bool,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Wait for more bytes, after this answer, if it is not empty.
    Wait(Vec<u8>),
    /// Connect there; the rest is what the client has sent already. Then answer with [`answer`].
    Connect { answer: Vec<u8>, to: Endpoint, rest: Vec<u8> },
    /// Close, after this answer.
    Refuse(Vec<u8>),
}

impl Conversation {
    /// Takes bytes of the client.
    pub fn take(&mut self, bytes: &[u8]) -> Next {
        self.seen.extend_from_slice(bytes);
        let mut answer = Vec::new();
        if !self.greeted {
            let [version, count, methods @ ..] = &self.seen[..] else { return self.wait_or_refuse(answer) };
            if *version != VERSION {
                return Next::Refuse(answer);
            }
            let count = usize::from(*count);
            if methods.len() < count {
                return Next::Wait(answer);
            }
            if !methods[..count].contains(&NO_AUTHENTICATION) {
                return Next::Refuse(vec![VERSION, NONE_ACCEPTABLE]);
            }
            answer.extend([VERSION, NO_AUTHENTICATION]);
            self.seen.drain(..2 + count);
            self.greeted = true;
        }
        self.request(answer)
    }

    fn wait_or_refuse(&self, answer: Vec<u8>) -> Next {
        if self.seen.first().is_some_and(|version| *version != VERSION) {
            Next::Refuse(answer)
        } else {
            Next::Wait(answer)
        }
    }

    fn request(&mut self, answer: Vec<u8>) -> Next {
        let refuse = |code| Next::Refuse([&answer[..], &reply(code)].concat());
        let [version, command, _, kind, rest @ ..] = &self.seen[..] else { return self.wait_or_refuse(answer) };
        if *version != VERSION {
            return Next::Refuse(answer);
        }
        let host_len = match (kind, rest.first()) {
            (1, _) => 4,
            (3, Some(len)) => 1 + usize::from(*len),
            (4, _) => 16,
            (3, None) => return Next::Wait(answer),
            _ => return refuse(ADDRESS_UNKNOWN),
        };
        let Some((host, rest)) = rest.split_at_checked(host_len) else { return Next::Wait(answer) };
        let Some((port, rest)) = rest.split_first_chunk::<2>() else { return Next::Wait(answer) };
        if *command != CONNECT {
            return refuse(COMMAND_UNKNOWN);
        }
        let host = match kind {
            1 => <[u8; 4]>::try_from(host).ok().map(|b| Ipv4Addr::from(b).to_string()),
            4 => <[u8; 16]>::try_from(host).ok().map(|b| Ipv6Addr::from(b).to_string()),
            _ => std::str::from_utf8(&host[1..]).ok().map(str::to_owned),
        };
        let host = host.filter(|host| !host.is_empty() && !host.contains('\0'));
        let Some(host) = host else { return refuse(ADDRESS_UNKNOWN) };
        Next::Connect { answer, to: Endpoint::Tcp { host, port: u16::from_be_bytes(*port) }, rest: rest.to_vec() }
    }
}

/// The answer to a request: it was done, or why not.
pub fn answer(result: Result<(), Reason>) -> Vec<u8> {
    let code = match result {
        Ok(()) => SUCCEEDED,
        Err(Reason::Refused) => REFUSED,
        Err(Reason::Unreachable) => UNREACHABLE,
        Err(Reason::Timeout) => TIMED_OUT,
        Err(Reason::Forbidden) => NOT_ALLOWED,
        Err(_) => FAILED,
    };
    reply(code).to_vec()
}

/// A reply; the address of this end of the connection is not known here, so it is 0.0.0.0:0.
fn reply(code: u8) -> [u8; 10] {
    [VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREETING: &[u8] = &[5, 2, 2, 0];

    fn request(kind: u8, host: &[u8]) -> Vec<u8> {
        [&[5, 1, 0, kind][..], host, &[0x1f, 0x90]].concat()
    }

    #[test]
    fn all_kinds_of_addresses_are_understood_in_whatever_pieces() {
        let cases = [
            (request(1, &[10, 0, 0, 1]), "10.0.0.1:8080"),
            (request(3, b"\x0bdb.internal"), "db.internal:8080"),
            (request(4, &Ipv6Addr::LOCALHOST.octets()), "[::1]:8080"),
        ];
        for (request, to) in cases {
            for piece in 1..request.len() + GREETING.len() {
                let (mut conversation, mut answers, mut found) = (Conversation::default(), Vec::new(), None);
                for part in [GREETING, &request].concat().chunks(piece) {
                    match conversation.take(part) {
                        Next::Wait(answer) => answers.extend(answer),
                        Next::Connect { answer, to, rest } => {
                            answers.extend(answer);
                            assert!(rest.is_empty());
                            found = Some(to.to_string());
                        }
                        Next::Refuse(_) => panic!("refused"),
                    }
                }
                assert_eq!((found.as_deref(), &answers[..]), (Some(to), &[5, 0][..]), "{piece}");
            }
        }
    }

    #[test]
    fn what_follows_the_request_is_kept() {
        let bytes = [GREETING, &request(1, &[127, 0, 0, 1]), b"hello"].concat();
        let Next::Connect { rest, .. } = Conversation::default().take(&bytes) else { panic!("no request") };
        assert_eq!(rest, b"hello");
    }

    #[test]
    fn others_are_refused_with_a_reason() {
        let refused = |bytes: &[u8]| match Conversation::default().take(bytes) {
            Next::Refuse(answer) => answer,
            next => panic!("{next:?}"),
        };
        assert_eq!(refused(b"GET / HTTP/1.1"), b"");
        assert_eq!(refused(&[4, 1, 0, 80]), b"", "SOCKS 4");
        assert_eq!(refused(&[4]), b"");
        assert_eq!(refused(&[5, 1, 2]), [5, 0xff], "wants a password");
        let after = |request: &[u8]| refused(&[GREETING, request].concat())[2..][1];
        assert_eq!(after(&[5, 2, 0, 1, 127, 0, 0, 1, 0, 80]), COMMAND_UNKNOWN, "BIND");
        assert_eq!(after(&[5, 1, 0, 9, 0]), ADDRESS_UNKNOWN);
        assert_eq!(after(&request(3, b"\x00")), ADDRESS_UNKNOWN, "no name");
        assert_eq!(after(&request(3, b"\x01\xff")), ADDRESS_UNKNOWN);
    }

    #[test]
    fn an_endless_request_is_not_possible() {
        let longest = [&[5, 255][..], &[0; 255], &request(3, &[&[255][..], &[b'a'; 255]].concat())].concat();
        assert_eq!(longest.len(), REQUEST_MAX);
        let mut conversation = Conversation::default();
        for (i, byte) in longest.iter().enumerate() {
            let next = conversation.take(&[*byte]);
            assert_eq!(matches!(next, Next::Connect { .. }), i + 1 == longest.len());
        }
    }
}
