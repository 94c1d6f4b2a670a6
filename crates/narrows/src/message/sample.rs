//! Samples of one kind of messages, and dictionaries trained from them. Use one sampler per peer,
//! service and direction: a dictionary contains pieces of the messages it was trained from, and is
//! sent to whoever reads it.
//!
//! Training takes 3 to 20 ms: [`Sampler::training`] hands out a [`Training`] for another thread,
//! and [`Sampler::trained`] takes its result.

use std::sync::Arc;

use super::Contexts;
use crate::codec::{DICTIONARY_MAX, DICTIONARY_TRAINED_MIN, Dictionary, train};

/// Bytes kept to train with, and to judge by. More bytes make training slower and no better.
const TRAIN_BYTES: usize = 256 << 10;
const TEST_BYTES: usize = 32 << 10;
/// Longer messages are truncated: one must not push all others out.
const MESSAGE_BYTES: usize = 16 << 10;
/// All of the first messages are sampled, then one in `ONE_OF`; every fifth sample is kept to judge
/// by.
const ALL_OF_FIRST: u64 = 64;
const ONE_OF: u64 = 8;
const TEST_ONE_OF: u64 = 5;
/// When the first training is due.
const FIRST_MESSAGES: u64 = 64;
const FIRST_BYTES: u64 = 32 << 10;
/// When a later training is due at the earliest.
const AGAIN_NS: u64 = 60_000_000_000;
const AGAIN_BYTES: u64 = 1 << 20;
/// A dictionary is evaluated on one message in `LOOK_EVERY`. It is stale when its compressed share
/// exceeds the one after its adoption by the factor `STALE`, over `STALE_MESSAGES` messages.
const LOOK_EVERY: u64 = 64;
const LOOKS_FIRST: u32 = 8;
const STALE: f32 = 1.1;
const STALE_MESSAGES: u64 = 1000;
/// Default length of a dictionary, and the sampled bytes must be at least `SHARE` times its length:
/// larger dictionaries turn out worse.
const LEN: usize = 16 << 10;
const SHARE: usize = 4;
/// A dictionary is adopted if its compressed length is at most this share of the length without
/// it...
const ADOPT: f64 = 0.95;
/// ...and it saves this many times its own length, should as many messages follow as came before.
const ADOPT_SAVES: f64 = 2.0;

/// A random sample of messages that favours newer ones.
#[derive(Debug, Clone, Default)]
struct Reservoir {
    messages: Vec<Vec<u8>>,
    bytes: usize,
    bytes_max: usize,
}

impl Reservoir {
    fn put(&mut self, message: &[u8], draw: &mut u64) {
        let message = &message[..message.len().min(MESSAGE_BYTES)];
        while self.bytes + message.len() > self.bytes_max && !self.messages.is_empty() {
            let out = (next(draw) % self.messages.len() as u64) as usize;
            self.bytes -= self.messages.swap_remove(out).len();
        }
        self.bytes += message.len();
        self.messages.push(message.to_vec());
    }
}

/// Xorshift: deterministic, so the same messages give the same sample.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Samples one kind of messages, and decides when a dictionary should be trained.
#[derive(Debug)]
pub struct Sampler {
    train: Reservoir,
    test: Reservoir,
    draw: u64,
    messages: u64,
    bytes: u64,
    taken: u64,
    trained_ns: Option<u64>,
    trained_bytes: u64,
    is_training: bool,
    current: Option<Arc<Dictionary>>,
    /// Compressed share with the current dictionary: moving average; its value after the adoption;
    /// since which message the average is stale.
    left: f32,
    left_at_first: f32,
    looks: u32,
    stale_since: Option<u64>,
}

impl Default for Sampler {
    fn default() -> Self {
        let reservoir = |bytes_max| Reservoir { bytes_max, ..Reservoir::default() };
        Self {
            train: reservoir(TRAIN_BYTES),
            test: reservoir(TEST_BYTES),
            draw: 0x9e37_79b9_7f4a_7c15,
            messages: 0,
            bytes: 0,
            taken: 0,
            trained_ns: None,
            trained_bytes: 0,
            is_training: false,
            current: None,
            left: 1.0,
            left_at_first: 1.0,
            looks: 0,
            stale_since: None,
        }
    }
}

impl Sampler {
    /// Takes a message of the kind that was sent.
    pub fn see(&mut self, message: &[u8], contexts: &mut Contexts) {
        self.messages += 1;
        self.bytes += message.len() as u64;
        if self.messages.is_multiple_of(LOOK_EVERY) {
            self.look(message, contexts);
        }
        if message.is_empty() || self.messages > ALL_OF_FIRST && !self.messages.is_multiple_of(ONE_OF) {
            return;
        }
        self.taken += 1;
        let to = if self.taken.is_multiple_of(TEST_ONE_OF) { &mut self.test } else { &mut self.train };
        to.put(message, &mut self.draw);
    }

    fn look(&mut self, message: &[u8], contexts: &mut Contexts) {
        let Some(current) = self.current.as_deref().filter(|_| !message.is_empty()) else { return };
        let left = encoded_len(Some(current), message, contexts) as f32 / message.len() as f32;
        self.looks += 1;
        let gain = if self.looks <= LOOKS_FIRST { 1.0 / self.looks as f32 } else { 1.0 / LOOKS_FIRST as f32 };
        self.left += gain * (left - self.left);
        if self.looks == LOOKS_FIRST {
            self.left_at_first = self.left;
        }
        let stale = self.looks > LOOKS_FIRST && self.left > STALE * self.left_at_first;
        self.stale_since = stale.then(|| self.stale_since.unwrap_or(self.messages));
    }

    /// A training, if one is due. The caller runs it on a separate thread and passes its result to
    /// [`Sampler::trained`].
    pub fn training(&mut self, now_ns: u64) -> Option<Training> {
        let enough = self.messages >= FIRST_MESSAGES && self.bytes >= FIRST_BYTES;
        if self.is_training || !enough || self.test.messages.is_empty() {
            return None;
        }
        if let Some(trained_ns) = self.trained_ns {
            let stale = self.stale_since.is_some_and(|since| self.messages - since >= STALE_MESSAGES);
            let pause = now_ns.saturating_sub(trained_ns) < AGAIN_NS || self.bytes - self.trained_bytes < AGAIN_BYTES;
            if pause || self.current.is_some() && !stale {
                return None;
            }
        }
        (self.trained_ns, self.trained_bytes, self.is_training) = (Some(now_ns), self.bytes, true);
        Some(Training {
            train: self.train.messages.clone(),
            test: self.test.messages.clone(),
            current: self.current.clone(),
            expected: self.messages,
            len: None,
        })
    }

    /// Takes the result of a training. Returns the dictionary to offer, if it pays.
    pub fn trained(&mut self, adoption: Option<Adoption>) -> Option<Arc<Dictionary>> {
        self.is_training = false;
        let adoption = adoption?;
        self.begin(Arc::clone(&adoption.dictionary));
        Some(adoption.dictionary)
    }

    /// Drops the current dictionary: it is not in use after all.
    pub fn forget(&mut self) {
        self.current = None;
    }

    /// The dictionary that trainings are compared with.
    pub(super) fn current(&self) -> Option<&Arc<Dictionary>> {
        self.current.as_ref()
    }

    /// Begins with a dictionary from elsewhere.
    pub fn begin(&mut self, dictionary: Arc<Dictionary>) {
        (self.current, self.looks, self.left, self.stale_since) = (Some(dictionary), 0, 1.0, None);
    }
}

/// The input of a training: samples and the dictionary in use.
#[derive(Debug, Clone)]
pub struct Training {
    train: Vec<Vec<u8>>,
    test: Vec<Vec<u8>>,
    current: Option<Arc<Dictionary>>,
    expected: u64,
    /// Longest dictionary in bytes; `None` for the default.
    len: Option<usize>,
}

/// A trained dictionary and its effect on the messages it was judged by.
#[derive(Debug, Clone)]
pub struct Adoption {
    /// The dictionary.
    pub dictionary: Arc<Dictionary>,
    /// Number of messages it was judged by.
    pub messages: usize,
    /// Their length in bytes.
    pub raw_len: usize,
    /// Their compressed length without any dictionary.
    pub alone_len: usize,
    /// Their compressed length with the dictionary used before, if that is shorter.
    pub before_len: usize,
    /// Their compressed length with this dictionary.
    pub after_len: usize,
}

impl Training {
    /// A training from given messages, oldest first; `expected` more are to come. The last fifth is
    /// kept to judge by: messages from between the training messages have more in common with them
    /// than later ones.
    pub fn of(messages: &[Vec<u8>], expected: u64) -> Self {
        let cut = |m: &Vec<u8>| m[..m.len().min(MESSAGE_BYTES)].to_vec();
        let (train, test) = messages.split_at(messages.len() - messages.len() / TEST_ONE_OF as usize);
        let (train, test) = [train, test].map(|part| part.iter().map(cut).collect()).into();
        Self { train, test, current: None, expected, len: None }
    }

    /// Sets the maximum length of the dictionary, in bytes.
    #[must_use]
    pub fn with_len(self, len: usize) -> Self {
        Self { len: Some(len), ..self }
    }

    /// Lowers the maximum length of the dictionary to `len` bytes.
    #[must_use]
    pub fn at_most(self, len: usize) -> Self {
        Self { len: Some(self.len.unwrap_or(LEN).min(len)), ..self }
    }

    /// Trains, judges the dictionary by messages that it was not trained with, and returns it if it
    /// pays.
    pub fn run(&self) -> Option<Adoption> {
        self.train().filter(|a| self.pays(a))
    }

    /// Whether the dictionary is worth using and, if necessary, sending.
    pub fn pays(&self, adoption: &Adoption) -> bool {
        let Adoption { before_len, after_len, messages, dictionary, .. } = adoption;
        let saved_each = before_len.saturating_sub(*after_len) as f64 / (*messages).max(1) as f64;
        *after_len as f64 <= ADOPT * *before_len as f64
            && saved_each * self.expected as f64 > ADOPT_SAVES * dictionary.content().len() as f64
    }

    /// Like [`Training::run`], whether or not the dictionary pays. `None` if there is too little to
    /// train with, or the messages have nothing in common.
    pub fn train(&self) -> Option<Adoption> {
        let bytes = self.train.concat();
        let lens: Vec<_> = self.train.iter().map(Vec::len).collect();
        let len = self.len.unwrap_or(LEN).min(bytes.len() / SHARE);
        let content = train(&bytes, &lens, len.clamp(DICTIONARY_TRAINED_MIN, DICTIONARY_MAX))?;
        let dictionary = Arc::new(Dictionary::new(content)?);
        let mut contexts = Contexts::default();
        let mut total =
            |d: Option<&Dictionary>| -> usize { self.test.iter().map(|m| encoded_len(d, m, &mut contexts)).sum() };
        let alone_len = total(None);
        let before_len = self.current.as_deref().map_or(alone_len, |current| total(Some(current)).min(alone_len));
        let after_len = total(Some(&dictionary));
        let raw_len = self.test.iter().map(Vec::len).sum();
        Some(Adoption { dictionary, messages: self.test.len(), raw_len, alone_len, before_len, after_len })
    }
}

/// Length with zstd level 1, or the message's own if that is shorter.
fn encoded_len(dictionary: Option<&Dictionary>, message: &[u8], contexts: &mut Contexts) -> usize {
    let body = contexts.codecs.encode_zstd(dictionary, 1, message);
    body.map_or(message.len(), |b| b.len().min(message.len()))
}

#[cfg(test)]
mod tests {
    use narrows_test::noise_of;

    use super::*;

    fn json(i: u64) -> Vec<u8> {
        let mut state = i.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
        let mut draw = |n: u64| next(&mut state) % n;
        format!(
            "{{\"time\": {}, \"level\": \"{}\", \"service\": \"checkout\", \"span\": \"{:016x}\", \"message\": \"request took {} ms\", \
             \"status\": {}, \"peer\": \"10.0.{}.{}\"}}",
            1_700_000_000 + i,
            ["info", "warn", "debug"][draw(3) as usize],
            draw(u64::MAX),
            draw(900),
            [200, 201, 404][draw(3) as usize],
            draw(256),
            draw(256)
        )
        .into_bytes()
    }

    #[test]
    fn a_dictionary_that_pays_is_adopted_and_one_that_does_not_is_not() {
        let mut contexts = Contexts::default();
        let mut sampler = Sampler::default();
        for i in 0..400 {
            assert!(sampler.training(0).is_none() || i >= FIRST_MESSAGES);
            sampler.is_training = false;
            sampler.trained_ns = None;
            sampler.see(&json(i), &mut contexts);
        }
        let adoption = sampler.training(0).unwrap().run().unwrap();
        assert!(adoption.after_len * 10 < adoption.before_len * 8, "{adoption:?}");
        assert!(sampler.training(0).is_none(), "one at a time");
        let dictionary = sampler.trained(Some(adoption)).unwrap();
        assert!(dictionary.content().len() <= LEN);
        let few = Training { expected: 10, ..Training::of(&(0..400).map(json).collect::<Vec<_>>(), 0) };
        assert!(few.run().is_none(), "ten messages do not pay for it");
        assert!(Training::of(&(0..400).map(|i| noise_of(i, 400)).collect::<Vec<_>>(), 1 << 40).run().is_none());
        assert!(Training::of(&[], 1 << 40).run().is_none());
    }

    /// Each message has much in common with its neighbours, and nothing with the message a hundred
    /// later.
    #[test]
    fn a_dictionary_is_judged_by_messages_that_are_later_than_those_it_was_made_of() {
        let drifting = |i: u64| {
            let mut state = (i / 50).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let era: String = (0..20).map(|_| format!("{:016x}", next(&mut state))).collect();
            [era.as_bytes(), &json(i)[..60]].concat()
        };
        let messages: Vec<_> = (0..1000).map(drifting).collect();
        let (known, later) = messages.split_at(800);
        let adoption = Training::of(&messages, 1 << 40).train().unwrap();
        assert_eq!((adoption.messages, adoption.raw_len), (200, later.iter().map(Vec::len).sum::<usize>()));
        let mut contexts = Contexts::default();
        let mut left = |of: &[Vec<u8>]| {
            of.iter().map(|m| encoded_len(Some(&adoption.dictionary), m, &mut contexts)).sum::<usize>()
        };
        assert_eq!(adoption.after_len, left(later));
        assert!(left(&known[600..]) * 2 < adoption.after_len, "the neighbours of what it was made of say too much");
    }

    #[test]
    fn a_dictionary_that_became_stale_is_replaced_but_not_at_once() {
        let mut contexts = Contexts::default();
        let mut sampler = Sampler::default();
        (0..600).for_each(|i| sampler.see(&json(i), &mut contexts));
        let first = sampler.training(0).unwrap().run();
        sampler.trained(first).unwrap();
        let late = 1_000_000_000_000;
        (0..6000).for_each(|i| sampler.see(&json(i), &mut contexts));
        assert!(sampler.training(late).is_none(), "it is as good as it was");
        let other = |i| [&b"<m:put key='"[..], &json(i).to_ascii_uppercase()[..], b"'/>"].concat();
        (0..2500).for_each(|i| sampler.see(&other(i), &mut contexts));
        assert!(sampler.training(AGAIN_NS - 1).is_none(), "too soon");
        let second = sampler.training(late).unwrap().run().unwrap();
        assert!(second.after_len < second.before_len);
    }

    #[test]
    fn samples_are_bounded_whatever_comes() {
        let mut contexts = Contexts::default();
        let mut sampler = Sampler::default();
        for i in 0..3000u64 {
            sampler.see(&vec![i as u8; (i * 37 % 65_535) as usize], &mut contexts);
        }
        assert!(sampler.train.bytes <= TRAIN_BYTES && sampler.test.bytes <= TEST_BYTES);
        assert_eq!(sampler.train.bytes, sampler.train.messages.iter().map(Vec::len).sum::<usize>());
    }
}
