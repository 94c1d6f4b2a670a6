//! Detection of encrypted connections by their first bytes: encrypted data does not shrink, so no
//! processor time is spent on it. Some protocols begin plain and agree on TLS later (STARTTLS,
//! SSLRequest, CONNECT); they are detected by a TLS hello at the start of a write.

/// Bytes needed to tell.
const LOOKED_AT: usize = 6;
/// Range in which a hello is looked for: it may follow a greeting, a list of what the server can
/// do, and perhaps some login attempts at a proxy. A false match costs the connection its
/// compression, so not all of it is searched.
const HELLO_WITHIN: usize = 16 << 10;

/// Checks the first bytes of one direction, however they are split, and for a while the first bytes
/// of each piece.
#[derive(Default)]
pub struct FirstBytes {
    bytes: [u8; LOOKED_AT],
    /// Bytes so far, counted up to about `HELLO_WITHIN`.
    len: usize,
    encrypted: bool,
}

impl FirstBytes {
    /// Takes the next piece.
    pub fn look(&mut self, input: &[u8]) {
        if self.encrypted || self.len >= HELLO_WITHIN {
            return;
        }
        // A program that waited for the other end's consent begins a write with the hello, which so
        // comes at the start of a piece.
        self.encrypted = input.first_chunk().is_some_and(|first| is_hello(*first));
        if self.len < LOOKED_AT {
            let taken = input.len().min(LOOKED_AT - self.len);
            self.bytes[self.len..self.len + taken].copy_from_slice(&input[..taken]);
            self.encrypted |= self.len + taken == LOOKED_AT && is_encrypted(self.bytes);
        }
        self.len += input.len().min(HELLO_WITHIN);
    }

    pub fn are_encrypted(&self) -> bool {
        self.encrypted
    }
}

fn is_encrypted(first: [u8; LOOKED_AT]) -> bool {
    // The version line with which both ends of SSH begin (RFC 4253, section 4.2).
    is_hello(first) || matches!(first, [b'S', b'S', b'H', b'-', b'1'..=b'9', b'.'])
}

/// A TLS record (RFC 8446, section 5.1): type handshake, version 3.x, a length; in it a client or
/// server hello.
fn is_hello(first: [u8; LOOKED_AT]) -> bool {
    matches!(first, [0x16, 3, 0..=4, _, _, 1 | 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(pieces: &[&[u8]]) -> Vec<bool> {
        let mut first = FirstBytes::default();
        let looked = pieces.iter().map(|piece| {
            first.look(piece);
            first.are_encrypted()
        });
        looked.collect()
    }

    #[test]
    fn tls_and_ssh_are_known_in_whatever_pieces_they_come() {
        let hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
        assert_eq!(looks(&[hello, hello]), [true, true]);
        assert_eq!(looks(&[b"\x16", b"", b"\x03\x03\x00", b"\x7a\x02\x00"]), [false, false, false, true]);
        assert_eq!(looks(&[b"SSH-2.0-OpenSSH_9.2p1\r\n"]), [true]);
        assert_eq!(looks(&[b"SSH", b"-1.99-x"]), [false, true]);
    }

    #[test]
    fn nothing_else_is() {
        for other in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
            b"\x16\x03\x01\x02\x00\x0b\x00",
            b"\x16\x02\x01\x02\x00\x01\x00",
            b"SSH-keys are",
            b"SSH client",
            b"220 mail.example ESMTP",
            b"\x16\x03",
        ] {
            assert_eq!(looks(&[other, b""]), [false, false], "{other:?}");
        }
    }

    #[test]
    fn a_hello_is_known_behind_a_plain_beginning_if_a_piece_begins_with_it() {
        let hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
        assert_eq!(looks(&[b"EHLO me\r\n", b"STARTTLS\r\n", hello, b"data"]), [false, false, true, true]);
        assert_eq!(looks(&[b"\x00\x00\x00\x08\x04\xd2\x16\x2f", hello]), [false, true]);
        assert_eq!(looks(&[b"S", hello]), [false, true]);
        assert_eq!(looks(&[b"abcdefgh", &hello[..4], &hello[4..]]), [false; 3], "in pieces");
        assert_eq!(looks(&[b"abcdefgh", &[b"x", &hello[..]].concat()]), [false; 2], "within a piece");
        assert_eq!(looks(&[&[0; HELLO_WITHIN - 1], hello]), [false, true]);
        assert_eq!(looks(&[&[0; HELLO_WITHIN], hello]), [false, false], "too late");
        assert_eq!(looks(&[b"abcdefgh", b"SSH-2.0-x"]), [false, false], "only a beginning");
    }
}
