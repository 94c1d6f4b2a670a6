//! Received frames that wait for room in the receiver, and what was found in them.
//!
//! The program reads one direction and writes the other. If it reads nothing, the frames of the peer
//! wait; what the peer says between them about the direction to it must not.

use std::collections::VecDeque;

use narrows::block::Block;

/// Most bytes that wait here: a peer has as many raw bytes ahead only over long ways, and they seldom
/// take as many on the network.
pub(crate) const LEN_MAX: usize = 16 << 20;
/// Length of a piece. Short reads are joined, so that each costs no more than its bytes.
const PIECE: usize = 64 << 10;

/// What the peer says, between its frames, of the direction to it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// Whether it tells what it delivers and wants to be told; `None` before its preface.
    pub tells: Option<bool>,
    /// Raw bytes that it has delivered.
    pub delivered: u64,
    /// Its frames have ended: it says nothing more.
    pub has_ended: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Behind {
    pieces: VecDeque<Vec<u8>>,
    len: usize,
}

impl Behind {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn has_room(&self) -> bool {
        self.len < LEN_MAX
    }

    pub(crate) fn push(&mut self, wire: &[u8]) {
        self.len += wire.len();
        match self.pieces.back_mut() {
            Some(last) if last.len() + wire.len() <= PIECE => last.extend_from_slice(wire),
            _ => self.pieces.push_back(wire.to_vec()),
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Block> {
        let piece = self.pieces.pop_front()?;
        self.len -= piece.len();
        Some(Block::from_vec(piece))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_pieces_are_joined_and_come_out_in_order() {
        let mut behind = Behind::default();
        let wire: Vec<u8> = (0..300_000u32).map(|i| (i / 7) as u8).collect();
        wire.chunks(10).take(20_000).for_each(|piece| behind.push(piece));
        assert!(behind.pieces.len() <= 200_000 / (PIECE - 10) + 1);
        behind.push(&wire[200_000..]);
        assert_eq!(behind.len(), wire.len());
        let mut out = Vec::new();
        while let Some(piece) = behind.pop() {
            out.extend_from_slice(&piece);
        }
        assert_eq!(out, wire);
        assert_eq!(behind.len(), 0);
    }

    #[test]
    fn it_is_full_in_the_end() {
        let mut behind = Behind::default();
        while behind.has_room() {
            behind.push(&[0; 100_000]);
        }
        assert!(behind.len() < LEN_MAX + 100_000);
    }
}
