//! Skips input before a magic number, such as the output of a login shell.

use std::io;

/// Most bytes that a login shell may print before the program that it starts speaks.
pub const NOISE_MAX: usize = 64 << 10;

/// What arrives before the data ([`Link::skip_noise`](super::Link::skip_noise)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard<'a> {
    /// Bytes before the magic number.
    Noise(&'a [u8]),
    /// The magic number.
    Magic,
    /// The end of the input, without the magic number.
    End,
}

pub(super) type OnNoise = Box<dyn FnMut(Heard<'_>) + Send>;

pub(super) struct Noise {
    magic: &'static [u8],
    seen: Vec<u8>,
    on_noise: OnNoise,
}

impl Noise {
    pub(super) fn new(magic: &'static [u8], on_noise: OnNoise) -> Self {
        Self { magic, seen: Vec::new(), on_noise }
    }

    /// The input ended without the magic.
    pub(super) fn end(mut self) {
        if !self.seen.is_empty() {
            (self.on_noise)(Heard::Noise(&self.seen));
        }
        (self.on_noise)(Heard::End);
    }

    /// Takes input. Returns the bytes from the magic on, once it has arrived.
    pub(super) fn pass(&mut self, bytes: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.seen.extend_from_slice(bytes);
        if let Some(at) = self.seen.windows(self.magic.len()).position(|w| w == self.magic) {
            if at > 0 {
                (self.on_noise)(Heard::Noise(&self.seen[..at]));
            }
            (self.on_noise)(Heard::Magic);
            return Ok(Some(self.seen.split_off(at)));
        }
        if self.seen.len() > NOISE_MAX {
            (self.on_noise)(Heard::Noise(&self.seen));
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the input does not come from a Narrows program"));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::time::Duration;

    use super::*;
    use crate::transport::Link;

    /// The bytes that pass after the noise, and the noise.
    fn pass(pieces: &[&[u8]]) -> (Vec<u8>, Vec<u8>) {
        let noise = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let heard = std::sync::Arc::clone(&noise);
        struct Pieces(Vec<Vec<u8>>);
        impl Read for Pieces {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                if self.0.is_empty() {
                    return Ok(0);
                }
                let piece = self.0.remove(0);
                buf[..piece.len()].copy_from_slice(&piece);
                Ok(piece.len())
            }
        }
        let reader = Pieces(pieces.iter().map(|p| p.to_vec()).collect());
        let link = Link::reader(reader).skip_noise(b"MAGIC", move |what| {
            if let Heard::Noise(n) = what {
                heard.lock().unwrap().extend_from_slice(n);
            }
        });
        let (mut half, mut all, mut buf) = (link.read.unwrap(), Vec::new(), [0; 64]);
        loop {
            match half.read(&mut buf, Duration::ZERO).unwrap() {
                Some(0) => break,
                Some(n) => all.extend_from_slice(&buf[..n]),
                None => {}
            }
        }
        let noise = noise.lock().unwrap().clone();
        (all, noise)
    }

    #[test]
    fn noise_before_the_magic_is_passed_over_however_it_comes() {
        let hello: (Vec<u8>, Vec<u8>) = (b"MAGIC data MAGIC".to_vec(), b"Welcome!\n".to_vec());
        assert_eq!(pass(&[b"Welcome!\nMAGIC data MAGIC"]), hello);
        assert_eq!(pass(&[b"Welcome", b"!\nMA", b"GIC", b" data MAGIC"]), hello);
        assert_eq!(pass(&[b"MAGIC"]), (b"MAGIC".to_vec(), vec![]));
        assert_eq!(pass(&[b"no such command"]), (vec![], b"no such command".to_vec()));
    }
}
