//! The last raw bytes of a flow, and the chain of hashes over all of them (format.md section 12.3).

use xxhash_rust::xxh3::xxh3_64;

use crate::codec::LinkedTable;

/// Bytes kept when a history of `window` bytes would overflow. Moving bytes is the main cost when
/// many flows take turns, so a long history makes more room at a time; a short one has little to
/// give away.
fn kept(window: usize) -> usize {
    if window <= 8 << 10 { window * 3 / 4 } else { window / 2 }
}

/// The history of one flow, identical at both ends.
#[derive(Default)]
pub(super) struct History {
    /// Allocated at the first message.
    bytes: Box<[u8]>,
    len: usize,
    /// W of the flow: the largest length of the history.
    window: usize,
}

impl History {
    pub(super) fn new(window: usize) -> Self {
        Self { window, ..Self::default() }
    }

    pub(super) fn window(&self) -> usize {
        self.window
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Drops the history and its memory.
    pub(super) fn reset(&mut self, window: usize) {
        *self = Self::new(window);
    }

    /// Begins with the end of `content` that a history of `window` bytes would keep, or with as
    /// much as fits. Returns the length of the former.
    pub(super) fn seed(&mut self, content: &[u8], window: usize) -> usize {
        let wanted = content.len().min(kept(window));
        let keep = wanted.min(self.window);
        self.reset(self.window);
        if keep == 0 {
            return wanted;
        }
        self.allocate();
        self.bytes[..keep].copy_from_slice(&content[content.len() - keep..]);
        self.len = keep;
        wanted
    }

    fn kept(&self) -> usize {
        kept(self.window)
    }

    fn allocate(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = vec![0; self.window].into();
        }
    }

    /// Whether [`History::place`] can put a message after the history.
    pub(super) fn takes(&self, message_len: usize) -> bool {
        message_len > 0 && message_len <= self.kept()
    }

    /// Places a message after the history, which first makes room as an append would. Returns the
    /// buffer up to the message's end, and where the message begins. The message counts as
    /// appended.
    pub(super) fn place(&mut self, message: &[u8], table: &mut LinkedTable) -> (&mut [u8], usize) {
        self.allocate();
        if self.len + message.len() > self.window {
            let keep = self.kept() - message.len();
            table.slide(&mut self.bytes, self.len, keep.min(self.len));
            self.len = keep.min(self.len);
        }
        let at = self.len;
        self.bytes[at..at + message.len()].copy_from_slice(message);
        self.len = at + message.len();
        (&mut self.bytes[..self.len], at)
    }

    /// Appends a message.
    pub(super) fn append(&mut self, message: &[u8]) {
        if self.window == 0 || message.is_empty() {
            return;
        }
        self.allocate();
        let (len, add) = (self.len, message.len());
        if len + add <= self.window {
            self.bytes[len..len + add].copy_from_slice(message);
            self.len += add;
            return;
        }
        let kept = self.kept();
        let tail = &message[add - add.min(kept)..];
        let before = (kept - tail.len()).min(len);
        self.bytes.copy_within(len - before..len, 0);
        self.bytes[before..before + tail.len()].copy_from_slice(tail);
        self.len = before + tail.len();
    }
}

/// Hash chain over all messages since the last reset and their position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Chain(pub(super) u64);

impl Chain {
    pub(super) fn at_reset(epoch: u64, generation: u64, number: u64, seed_digest: u64) -> Self {
        Self(hash_words(&[epoch, generation, number, seed_digest]))
    }

    #[must_use]
    pub(super) fn after(self, message: &[u8]) -> Self {
        Self(hash_words(&[self.0, xxh3_64(message)]))
    }

    /// The check of a frame on an ordered carrier.
    pub(super) fn check(self) -> u32 {
        self.0 as u32
    }
}

/// The check of a frame on a carrier that is not ordered.
pub(super) fn lone_check(dictionary_digest: u64, message: &[u8], first: u8) -> u32 {
    hash_words(&[dictionary_digest, xxh3_64(message), u64::from(first)]) as u32
}

fn hash_words<const N: usize>(words: &[u64; N]) -> u64 {
    let mut bytes = [0; 32];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    xxh3_64(&bytes[..8 * N])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference: the rule of the format, with all bytes at hand.
    fn model(history: &mut Vec<u8>, message: &[u8], window: usize) {
        let fits = history.len() + message.len() <= window;
        history.extend_from_slice(message);
        if !fits {
            history
                .drain(..history.len() - (if window <= 8192 { window * 3 / 4 } else { window / 2 }).min(history.len()));
        }
    }

    #[test]
    fn placing_and_appending_are_what_the_format_says() {
        for window in [1024, 8192, 16384] {
            placing_and_appending(window);
        }
    }

    fn placing_and_appending(window: usize) {
        let (mut a, mut b, mut expected) = (History::new(window), History::new(window), Vec::new());
        let mut table = LinkedTable::default();
        let mut state = 9u64;
        for _ in 0..3000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let len = match state >> 60 {
                0 => (state >> 40) as usize % (3 * window),
                1..4 => (state >> 40) as usize % window,
                _ => (state >> 40) as usize % 200,
            };
            let message: Vec<u8> = (0..len).map(|i| (state >> (i % 50)) as u8).collect();
            let before = expected.clone();
            model(&mut expected, &message, window);
            if a.takes(len) && state & 1 == 0 {
                let (buffer, at) = a.place(&message, &mut table);
                assert_eq!(&buffer[at..], message);
                assert!(before.ends_with(&buffer[..at]), "what is referred to is in the reader's history");
            } else {
                a.append(&message);
            }
            b.append(&message);
            assert!(a.bytes() == expected);
            assert!(b.bytes() == expected);
        }
    }

    #[test]
    fn a_flow_without_messages_holds_no_memory() {
        let mut history = History::new(16 << 10);
        assert_eq!(history.bytes.len(), 0);
        history.append(b"x");
        assert_eq!(history.bytes.len(), 16 << 10);
        history.reset(4096);
        assert_eq!((history.bytes.len(), history.window()), (0, 4096));
        history.reset(0);
        history.append(b"x");
        assert_eq!(history.bytes(), b"");
        assert!(!history.takes(1));
    }

    #[test]
    fn the_chain_covers_order_place_and_connection() {
        let start = Chain::at_reset(1, 1, 0, 0);
        assert_ne!(start.after(b"a").after(b"b"), start.after(b"b").after(b"a"));
        assert_ne!(start.after(b"").after(b"ab"), start.after(b"ab"));
        assert_ne!(start.after(b"a"), Chain::at_reset(2, 1, 0, 0).after(b"a"));
        assert_ne!(start.after(b"a"), Chain::at_reset(1, 2, 0, 0).after(b"a"));
        assert_ne!(lone_check(1, b"a", 3), lone_check(2, b"a", 3));
    }
}
