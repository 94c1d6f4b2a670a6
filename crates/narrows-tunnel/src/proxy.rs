//! The PROXY protocol, versions 1 and 2: the address of the real client, in front of what a
//! connection carries. No I/O.

use std::net::{IpAddr, SocketAddr};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
const TEXT_MARK: &[u8] = b"PROXY ";
/// Longest header of version 1.
const TEXT_MAX: usize = 107;
/// Longest header of version 2 that is taken: addresses, and some extensions after them.
const BINARY_MAX: usize = 1024;
const HEAD_LEN: usize = SIGNATURE.len() + 4;
const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;

/// A header of version 2. Without a client's address it says that there is none.
pub fn header(client: Option<SocketAddr>, server: Option<SocketAddr>) -> Vec<u8> {
    let mut out = SIGNATURE.to_vec();
    let Some(client) = client else {
        out.extend([LOCAL, 0, 0, 0]);
        return out;
    };
    let client = SocketAddr::new(client.ip().to_canonical(), client.port());
    let server = server.map(|s| SocketAddr::new(s.ip().to_canonical(), s.port()));
    match (client.ip(), server.map(|s| s.ip())) {
        (IpAddr::V4(ip), to @ (None | Some(IpAddr::V4(_)))) => {
            let to = if let Some(IpAddr::V4(to)) = to { to.octets() } else { [0; 4] };
            out.extend([PROXY, TCP4, 0, 12]);
            out.extend(ip.octets());
            out.extend(to);
        }
        (ip, to) => {
            let six = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            out.extend([PROXY, TCP6, 0, 36]);
            out.extend(six(ip));
            out.extend(to.map_or([0; 16], six));
        }
    }
    out.extend(client.port().to_be_bytes());
    out.extend(server.map_or(0, |s| s.port()).to_be_bytes());
    out
}

/// What the first bytes of a connection are.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Part of a header.
    Wait,
    /// A header of this length; the client's address, if it has one.
    Found { len: usize, client: Option<SocketAddr> },
    /// No header.
    Wrong,
}

/// Reads a header from the first bytes of a connection.
pub fn parse(bytes: &[u8]) -> Next {
    let begins = |mark: &[u8]| bytes.starts_with(&mark[..mark.len().min(bytes.len())]);
    if begins(&SIGNATURE) {
        binary(bytes)
    } else if begins(TEXT_MARK) {
        text(bytes)
    } else {
        Next::Wrong
    }
}

fn binary(bytes: &[u8]) -> Next {
    let Some([command, family, l0, l1]) = bytes.get(SIGNATURE.len()..HEAD_LEN) else { return Next::Wait };
    let len = HEAD_LEN + usize::from(u16::from_be_bytes([*l0, *l1]));
    if len > BINARY_MAX || !matches!(*command, LOCAL | PROXY) {
        return Next::Wrong;
    }
    let Some(body) = bytes.get(HEAD_LEN..len) else { return Next::Wait };
    let port = |at: usize| body.get(at..at + 2).map(|p| u16::from_be_bytes([p[0], p[1]]));
    let client = match (*command, *family) {
        (PROXY, TCP4) => body.first_chunk::<4>().map(|ip| IpAddr::from(*ip)).zip(port(8)).filter(|_| body.len() >= 12),
        (PROXY, TCP6) => {
            body.first_chunk::<16>().map(|ip| IpAddr::from(*ip)).zip(port(32)).filter(|_| body.len() >= 36)
        }
        _ => return Next::Found { len, client: None },
    };
    client.map_or(Next::Wrong, |(ip, port)| Next::Found { len, client: Some(SocketAddr::new(ip, port)) })
}

fn text(bytes: &[u8]) -> Next {
    let line = &bytes[..bytes.len().min(TEXT_MAX)];
    let Some(end) = line.windows(2).position(|w| w == b"\r\n") else {
        return if bytes.len() >= TEXT_MAX { Next::Wrong } else { Next::Wait };
    };
    let words = std::str::from_utf8(&line[..end]).map(|l| l.split(' ').collect::<Vec<_>>());
    let len = end + 2;
    match words.as_deref() {
        Ok(["PROXY", "UNKNOWN", ..]) => Next::Found { len, client: None },
        Ok(["PROXY", family @ ("TCP4" | "TCP6"), from, to, from_port, to_port]) => {
            let address = |ip: &str, port: &str| {
                let ip = ip.parse::<IpAddr>().ok().filter(|ip| ip.is_ipv4() == (*family == "TCP4"))?;
                // Numbers of the library may have a sign.
                let port = port.parse().ok().filter(|_| port.bytes().all(|b| b.is_ascii_digit()))?;
                Some(SocketAddr::new(ip, port))
            };
            // What is no destination shows that it is no header either.
            match address(from, from_port).zip(address(to, to_port)) {
                Some((client, _)) => Next::Found { len, client: Some(client) },
                None => Next::Wrong,
            }
        }
        _ => Next::Wrong,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn own_headers_come_back_and_parts_of_them_wait() {
        let cases = [
            (Some("10.0.0.1:5000"), Some("10.0.0.2:80")),
            (Some("10.0.0.1:5000"), None),
            (Some("[2001:db8::1]:5000"), Some("10.0.0.2:80")),
            (Some("[2001:db8::1]:5000"), None),
            (None, None),
        ];
        for (client, server) in cases {
            let (client, server) = (client.map(address), server.map(address));
            let mut bytes = header(client, server);
            let len = bytes.len();
            bytes.extend(b"data");
            assert_eq!(parse(&bytes), Next::Found { len, client });
            for part in 0..len {
                assert_eq!(parse(&bytes[..part]), Next::Wait, "{part}");
            }
        }
        // A mapped address is the one that it stands for.
        let mapped = header(Some(address("[::ffff:10.0.0.1]:1")), Some(address("10.0.0.2:80")));
        assert_eq!(parse(&mapped), Next::Found { len: 28, client: Some(address("10.0.0.1:1")) });
    }

    #[test]
    fn headers_of_others_are_read() {
        let line = b"PROXY TCP4 192.0.2.1 192.0.2.2 5000 80\r\nGET /";
        assert_eq!(parse(line), Next::Found { len: 40, client: Some(address("192.0.2.1:5000")) });
        for part in 0..40 {
            assert_eq!(parse(&line[..part]), Next::Wait, "{part}");
        }
        let six = b"PROXY TCP6 2001:db8::1 ::1 5000 80\r\n";
        assert_eq!(parse(six), Next::Found { len: six.len(), client: Some(address("[2001:db8::1]:5000")) });
        assert_eq!(parse(b"PROXY UNKNOWN\r\n"), Next::Found { len: 15, client: None });
        // Addresses of a unix socket, and extensions after those of TCP.
        let unix = [&SIGNATURE[..], &[PROXY, 0x31, 0, 216], &[0; 216]].concat();
        assert_eq!(parse(&unix), Next::Found { len: 232, client: None });
        let mut extended = header(Some(address("10.0.0.1:5000")), None);
        extended[15] = 12 + 5;
        extended.extend([4, 0, 2, 1, 1]);
        assert_eq!(parse(&extended), Next::Found { len: 33, client: Some(address("10.0.0.1:5000")) });
    }

    #[test]
    fn a_header_may_be_as_long_as_the_limit_and_no_longer() {
        let of = |len: usize| {
            let [l0, l1] = ((len - HEAD_LEN) as u16).to_be_bytes();
            [&SIGNATURE[..], &[PROXY, 0x31, l0, l1], &vec![0; len - HEAD_LEN]].concat()
        };
        assert_eq!(parse(&of(BINARY_MAX)), Next::Found { len: BINARY_MAX, client: None });
        // Refused by the length alone, before any of it is waited for.
        for len in [BINARY_MAX + 1, HEAD_LEN + usize::from(u16::MAX)] {
            assert_eq!(parse(&of(len)[..HEAD_LEN]), Next::Wrong, "{len}");
        }
        // Addresses have a fixed length; a byte less is no address.
        for (family, len) in [(TCP4, 12), (TCP6, 36)] {
            let of = |len: u8| [&SIGNATURE[..], &[PROXY, family, 0, len], &vec![0; usize::from(len)]].concat();
            assert!(matches!(parse(&of(len)), Next::Found { client: Some(_), .. }), "{family}");
            assert_eq!(parse(&of(len - 1)), Next::Wrong, "{family}");
        }
        let line = |len: usize| [&b"PROXY UNKNOWN "[..], &vec![b'x'; len - 16], b"\r\n"].concat();
        assert_eq!(parse(&line(TEXT_MAX)), Next::Found { len: TEXT_MAX, client: None });
        assert_eq!(parse(&line(TEXT_MAX + 1)), Next::Wrong);
    }

    #[test]
    fn everything_else_is_refused() {
        let long = [&b"PROXY TCP4 "[..], &[b'1'; 200]].concat();
        let huge = [&SIGNATURE[..], &[PROXY, TCP4, 0xff, 0xff]].concat();
        let short = [&SIGNATURE[..], &[PROXY, TCP4, 0, 11], &[0; 11]].concat();
        let version = [&SIGNATURE[..], &[0x11, TCP4, 0, 12], &[0; 12]].concat();
        let bad: [&[u8]; 13] = [
            b"GET / HTTP/1.1\r\n",
            b"PROXY\r\n",
            b"PROXY TCP4 ::1 ::1 1 2\r\n",
            b"PROXY TCP4 10.0.0.1 10.0.0.2 99999 2\r\n",
            b"PROXY TCP5 a b c d\r\n",
            b"PROXY TCP4 10.0.0.1 10.0.0.2 +80 2\r\n",
            b"PROXY TCP4 10.0.0.1 10.0.0.2 80 +2\r\n",
            b"PROXY TCP4 10.0.0.1 evil 80 2\r\n",
            b"PROXY TCP4 10.0.0.1 ::1 80 2\r\n",
            &long,
            &huge,
            &short,
            &version,
        ];
        for bytes in bad {
            assert_eq!(parse(bytes), Next::Wrong, "{}", bytes.escape_ascii());
        }
    }
}
