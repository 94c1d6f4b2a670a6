//! Content of the connections: streams whose every byte follows from its position, and the pace at
//! which each end writes and reads.

use std::time::Duration;

use narrows_sim::rng::Rng;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Length of a block of one sort of content: short enough that most connections have several sorts.
const BLOCK: usize = 16 << 10;
/// Limit on reads or writes of one direction: long streams need long calls, or a connection would
/// take too long.
const CALLS_MAX: u64 = 300;
/// Limit on all pauses of one direction at one end: far shorter than `PATIENCE`, which detects
/// hangs.
const PAUSES_MAX: Duration = Duration::from_secs(3);
const MAGIC: u64 = 0x6b61_6f73_7377_6e01;
pub(super) const HEAD_LEN: usize = 48;

/// Bytes that follow from a seed: blocks of words, noise and repeats.
pub(super) struct Content {
    seed: u64,
    number: Option<u64>,
    block: Vec<u8>,
}

impl Content {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, number: None, block: Vec::new() }
    }

    /// The bytes from `position` to the end of its block.
    pub(super) fn at(&mut self, position: u64) -> &[u8] {
        let number = position / BLOCK as u64;
        if self.number != Some(number) {
            self.number = Some(number);
            self.fill(number);
        }
        &self.block[(position % BLOCK as u64) as usize..]
    }

    fn fill(&mut self, number: u64) {
        let mut rng = Rng(xxh3_64_with_seed(&number.to_le_bytes(), self.seed));
        let block = &mut self.block;
        block.clear();
        match rng.below(4) {
            0 => noise(block, BLOCK, &mut rng),
            1 => {
                let piece = 1 + rng.below(4000);
                noise(block, piece, &mut rng);
                while block.len() < BLOCK {
                    block.extend_from_within(..piece.min(BLOCK - block.len()));
                }
            }
            _ => {
                let words = ["GET /item/", " 200 OK\n", "value=", "some words of ", "{\"id\": ", "},\n", " and ", "\n"];
                while block.len() < BLOCK {
                    let x = rng.next_u64();
                    block.extend_from_slice(words[(x % 8) as usize].as_bytes());
                    block.extend((0..1 + (x >> 3) % 5).map(|i| b'0' + ((x >> (8 + 4 * i)) % 10) as u8));
                }
            }
        }
        block.truncate(BLOCK);
    }
}

fn noise(out: &mut Vec<u8>, len: usize, rng: &mut Rng) {
    while out.len() < len {
        out.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    out.truncate(len);
}

/// Identity of a connection. The client sends it in its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) pair: u64,
    pub(super) life: u64,
    pub(super) number: u64,
    pub(super) seed: u64,
}

impl Key {
    pub(super) fn head(self) -> Vec<u8> {
        let words = [MAGIC, self.pair, self.life, self.number, self.seed];
        let mut head: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        head.extend_from_slice(&xxh3_64(&head).to_le_bytes());
        head
    }

    pub(super) fn parse(head: &[u8; HEAD_LEN]) -> Option<Self> {
        let (words, check) = head.split_at(HEAD_LEN - 8);
        let word = |i: usize| words[8 * i..].first_chunk().map(|b| u64::from_le_bytes(*b));
        let fine = check == xxh3_64(words).to_le_bytes() && word(0) == Some(MAGIC);
        fine.then_some(())?;
        Some(Self { pair: word(1)?, life: word(2)?, number: word(3)?, seed: word(4)? })
    }
}

/// Lengths of an end's calls, and its pauses.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    rng: Rng,
    call_max: usize,
    /// Calls between pauses; 0 is never.
    pause_every: usize,
    pause_max_ms: usize,
    left: Duration,
}

impl Pace {
    fn new(rng: &mut Rng, len: u64) -> Self {
        let least = usize::try_from(len / CALLS_MAX).unwrap_or(0) + 1;
        let call_max = [100, 3000, 70_000, 300_000][rng.below(4)].max(least);
        let (pause_every, pause_max_ms) = [(0, 1), (0, 1), (8, 60), (1, 12), (100, 700)][rng.below(5)];
        Self { rng: Rng(rng.next_u64()), call_max, pause_every, pause_max_ms, left: PAUSES_MAX }
    }

    /// Bytes of the next call.
    pub(super) fn len(&mut self) -> usize {
        1 + self.rng.below(self.call_max)
    }

    pub(super) fn pause(&mut self) -> Option<Duration> {
        if self.pause_every == 0 || self.rng.below(self.pause_every) > 0 {
            return None;
        }
        let pause = Duration::from_millis(self.rng.below(self.pause_max_ms) as u64).min(self.left);
        self.left -= pause;
        (!pause.is_zero()).then_some(pause)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Way {
    pub(super) seed: u64,
    pub(super) len: u64,
    pub(super) writes: Pace,
    pub(super) reads: Pace,
}

impl Way {
    fn new(rng: &mut Rng, len: u64) -> Self {
        Self { seed: rng.next_u64(), len, writes: Pace::new(rng, len), reads: Pace::new(rng, len) }
    }
}

/// Behaviour of a connection, which both ends derive from its seed.
#[derive(Debug, Clone)]
pub(super) struct Behaviour {
    /// From the client, after its head.
    pub(super) up: Way,
    /// From the server.
    pub(super) down: Way,
    /// The server begins to send when it has received everything, not at once.
    pub(super) replies: bool,
    /// The client closes after its last write, without waiting for the end of the server's stream.
    pub(super) careless: bool,
}

impl Behaviour {
    pub(super) fn of(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let lens = [length(&mut rng), length(&mut rng)];
        let (up, down) = (Way::new(&mut rng, lens[0]), Way::new(&mut rng, lens[1]));
        let careless = lens[1] == 0 && rng.below(2) == 0;
        Self { up, down, replies: rng.below(3) == 0, careless }
    }

    /// The same with a server that sends nothing and reads without pauses, to test mostly how the
    /// connection ends.
    pub(super) fn one_way(mut self) -> Self {
        self.down.len = 0;
        self
    }
}

/// Random length of a stream: empty, a message, a page, or long.
fn length(rng: &mut Rng) -> u64 {
    let most = match rng.below(20) {
        0..6 => return 0,
        6..10 => 200,
        10..14 => 64 << 10,
        14..18 => 1 << 20,
        _ => 6 << 20,
    };
    1 + rng.below(most) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_known_by_their_place() {
        let (mut whole, mut other) = (Vec::new(), Content::new(7));
        while whole.len() < 10 * BLOCK {
            let at = whole.len() as u64;
            whole.extend_from_slice(other.at(at));
        }
        for at in [0, 1, BLOCK - 1, BLOCK, 5 * BLOCK + 77] {
            let part = Content::new(7).at(at as u64).to_vec();
            assert!(!part.is_empty() && whole[at..].starts_with(&part));
        }
        assert_ne!(Content::new(8).at(0), &whole[..BLOCK]);
    }

    #[test]
    fn heads_come_back_and_others_do_not() {
        let key = Key { pair: 1, life: 2, number: 3, seed: 4 };
        let mut head: [u8; HEAD_LEN] = key.head().try_into().unwrap();
        assert_eq!(Key::parse(&head), Some(key));
        head[20] ^= 1;
        assert_eq!(Key::parse(&head), None);
    }

    #[test]
    fn plans_are_of_all_sorts_and_do_not_take_all_day() {
        let behaviours: Vec<Behaviour> = (0..500).map(Behaviour::of).collect();
        assert!(behaviours.iter().any(|b| b.up.len == 0) && behaviours.iter().any(|b| b.down.len > 1 << 20));
        assert!(behaviours.iter().any(|b| b.replies) && behaviours.iter().any(|b| b.careless));
        for behaviour in behaviours {
            assert!(!behaviour.careless || behaviour.down.len == 0);
            let mut pace = behaviour.up.writes;
            let all: Duration = (0..10_000).filter_map(|_| pace.pause()).sum();
            assert!(all <= PAUSES_MAX);
        }
    }
}
