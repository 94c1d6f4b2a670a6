//! What is encrypted does not shrink, and is known by its first bytes: no processor time is spent on it.

/// So many bytes tell.
const LOOKED_AT: usize = 6;

/// Looks at the first bytes of one direction, in whatever pieces they come.
#[derive(Default)]
pub(crate) struct FirstBytes {
    bytes: [u8; LOOKED_AT],
    len: usize,
    encrypted: bool,
}

impl FirstBytes {
    /// Takes what comes next.
    pub(crate) fn look(&mut self, input: &[u8]) {
        if self.len == LOOKED_AT {
            return;
        }
        let taken = input.len().min(LOOKED_AT - self.len);
        self.bytes[self.len..self.len + taken].copy_from_slice(&input[..taken]);
        self.len += taken;
        self.encrypted = self.len == LOOKED_AT && is_encrypted(self.bytes);
    }

    pub(crate) fn are_encrypted(&self) -> bool {
        self.encrypted
    }
}

fn is_encrypted(first: [u8; LOOKED_AT]) -> bool {
    match first {
        // A TLS record (RFC 8446, section 5.1): handshake, any version 3.x, a length; in it a client's or a server's hello.
        [0x16, 3, 0..=4, _, _, 1 | 2] => true,
        // The version that either end of SSH begins with (RFC 4253, section 4.2).
        [b'S', b'S', b'H', b'-', b'1'..=b'9', b'.'] => true,
        _ => false,
    }
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
        assert_eq!(looks(&[b"abcdef", b"\x16\x03\x01\x02\x00\x01"]), [false, false], "later bytes say nothing");
    }
}
