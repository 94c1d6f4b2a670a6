//! The dictionaries of a flow at its two ends. The sender's pass through states, so that no frame
//! needs a dictionary that its reader lacks: offered, confirmed, in use (format.md section 12.7).

use std::sync::Arc;

use super::control::{Control, Lacks};
use super::{Delivery, SLOTS};
use crate::codec::Dictionary;
use crate::error::{Error, Result};

/// An offer is repeated after this many messages, doubled each time.
const AGAIN_FIRST: u64 = 16;
const TRIES_MAX: u32 = 8;
/// Most offers in total, against a peer that alternately confirms the dictionary and asks for it.
const OFFERS_MAX: u32 = 16;
/// Number of offered dictionaries remembered: no peer answers so late that more were offered
/// meanwhile.
const OFFERED: usize = 16;

/// Dictionaries of a sender.
#[derive(Default)]
pub(super) struct SenderSlots {
    slots: [Option<Entry>; SLOTS],
    /// Digests offered recently: answers about them may be late, answers about others are forged.
    offered: [u64; OFFERED],
    /// Index of the dictionary in use.
    current: Option<usize>,
    /// Number of dictionaries put in so far; the slot filled longest ago is replaced next.
    filled: u64,
}

struct Entry {
    dictionary: Arc<Dictionary>,
    state: State,
    /// The reader may have it: ask by digest first.
    ask: bool,
    /// Its content is never sent: a reader that lacks it does without.
    is_seed: bool,
    order: u64,
    /// Offers so far, answered or not; limits what a peer can make this end send.
    offers: u32,
    /// It is a piece of the history: a reader that lost its history lacks it.
    pinned: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The next offer is due at message `at`, after `tries` offers.
    Offered {
        at: u64,
        tries: u32,
    },
    /// Announced this many times on a carrier without answers.
    Announced(u32),
    Confirmed,
    /// The reader does not want it, or never answered.
    GivenUp,
}

impl SenderSlots {
    /// Adds a dictionary, to be offered with message `number`. `None` if the peer accepts none.
    pub(super) fn add(&mut self, dictionary: Arc<Dictionary>, number: u64, ask: bool, slots: usize) -> Option<u8> {
        let slots = slots.min(SLOTS);
        if let Some(i) = (0..slots).find(|i| self.digest(*i) == Some(dictionary.digest())) {
            if let Some(entry) = self.slots[i].as_mut().filter(|e| e.is_seed) {
                (entry.is_seed, entry.ask) = (false, ask);
            }
            if let Some(entry) = self.slots[i].as_mut().filter(|e| e.state == State::GivenUp) {
                entry.state = State::Offered { at: number, tries: 0 };
            }
            return Some(i as u8 + 1);
        }
        let i = (0..slots).filter(|i| Some(*i) != self.current).min_by_key(|i| self.order(*i))?;
        self.put(i, dictionary, State::Offered { at: number, tries: 0 }, ask, false);
        Some(i as u8 + 1)
    }

    /// Adds the seed of the history as a dictionary, for messages that are not encoded with the
    /// history. Both ends have it; a reader that lacks it will say so.
    pub(super) fn add_seed(&mut self, dictionary: Arc<Dictionary>, slots: usize) {
        // If the application offered it too, its content is sent to a reader that lacks it.
        if (0..SLOTS).any(|i| self.digest(i) == Some(dictionary.digest())) {
            return;
        }
        if let Some(slot) = self.add(dictionary, 0, true, slots)
            && let Some(entry) = &mut self.slots[usize::from(slot) - 1]
        {
            entry.is_seed = true;
        }
    }

    /// Adds a piece of the history, which both ends have.
    pub(super) fn add_pinned(&mut self, dictionary: Arc<Dictionary>, slots: usize) -> Option<u8> {
        let i = (0..slots.min(SLOTS)).filter(|i| Some(*i) != self.current).min_by_key(|i| self.order(*i))?;
        self.put(i, dictionary, State::Confirmed, false, true);
        self.current = Some(i);
        Some(i as u8 + 1)
    }

    fn put(&mut self, i: usize, dictionary: Arc<Dictionary>, state: State, ask: bool, pinned: bool) {
        self.offered[(self.filled % OFFERED as u64) as usize] = dictionary.digest();
        self.filled += 1;
        self.slots[i] = Some(Entry { dictionary, state, ask, order: self.filled, offers: 0, pinned, is_seed: false });
    }

    fn digest(&self, i: usize) -> Option<u64> {
        self.slots[i].as_ref().map(|e| e.dictionary.digest())
    }

    fn order(&self, i: usize) -> u64 {
        self.slots[i].as_ref().map_or(0, |e| e.order)
    }

    /// The dictionary in use, and its slot.
    pub(super) fn current(&self) -> Option<(u8, &Arc<Dictionary>)> {
        let i = self.current?;
        self.slots[i].as_ref().map(|e| (i as u8 + 1, &e.dictionary))
    }

    /// Appends the offers that are due with message `number`.
    pub(super) fn put_due(&mut self, number: u64, out: &mut Vec<u8>) {
        for (i, entry) in self.slots.iter_mut().enumerate() {
            let Some(entry) = entry else { continue };
            let State::Offered { at, tries } = entry.state else { continue };
            if number < at {
                continue;
            }
            entry.offers += 1;
            if tries >= TRIES_MAX || entry.offers > OFFERS_MAX {
                entry.state = State::GivenUp;
                continue;
            }
            entry.state = State::Offered { at: number + (AGAIN_FIRST << tries), tries: tries + 1 };
            offer(i, entry, false).put(out);
        }
    }

    /// Announces, among the dictionaries that pay, the one in use and the newest, for readers that
    /// answer nothing. A dictionary announced twice in a row is used; the others count as not
    /// announced.
    pub(super) fn put_announcement(&mut self, pays: &dyn Fn(&Dictionary) -> bool, out: &mut Vec<u8>) {
        let mut newest = None;
        let last = self.slots.iter().flatten().filter(|e| pays(&e.dictionary)).map(|e| e.order).max();
        for (i, entry) in self.slots.iter_mut().enumerate() {
            let Some(entry) = entry else { continue };
            if !pays(&entry.dictionary) || Some(i) != self.current && Some(entry.order) != last {
                if let State::Announced(said) = &mut entry.state {
                    *said = 0;
                }
                continue;
            }
            (entry.ask, entry.is_seed) = (false, false);
            let said = match entry.state {
                State::Announced(n) => n.saturating_add(1),
                _ => 1,
            };
            entry.state = State::Announced(said);
            offer(i, entry, true).put(out);
            if said > 1 {
                newest = newest.max(Some((entry.order, i)));
            }
        }
        self.current = newest.map(|n| n.1);
    }

    /// The slot's index, and whether the slot still holds this dictionary. An error if it was never
    /// offered: the answer is forged.
    fn known(&self, slot: u8, digest: u64) -> Result<(usize, bool)> {
        let i = usize::from(slot) - 1;
        if self.digest(i) == Some(digest) {
            return Ok((i, true));
        }
        if self.offered.contains(&digest) && digest != 0 {
            return Ok((i, false));
        }
        Err(Error::corrupt("the peer answers about a dictionary that was not offered"))
    }

    /// The reader has the dictionary. Returns whether the dictionary in use changed.
    pub(super) fn has(&mut self, slot: u8, digest: u64, number: u64, delivery: Delivery) -> Result<bool> {
        let (i, now) = self.known(slot, digest)?;
        let Some(entry) = &mut self.slots[i] else { return Ok(false) };
        if !now {
            // Where frames are reordered, an old offer may have arrived last and replaced the new
            // dictionary.
            if delivery == Delivery::Unordered && entry.state == State::Confirmed {
                self.again(i, number);
            }
            return Ok(false);
        }
        if entry.state == State::Confirmed {
            return Ok(false);
        }
        entry.state = State::Confirmed;
        let newest = self.current.is_none_or(|c| self.order(c) < self.order(i));
        if newest {
            self.current = Some(i);
        }
        Ok(newest)
    }

    /// The reader lacks the dictionary; `digest` is 0 if it does not know which one it should be.
    pub(super) fn lacks(&mut self, slot: u8, digest: u64, reason: Lacks, number: u64) -> Result<()> {
        let i = usize::from(slot) - 1;
        let now = if digest == 0 { self.slots[i].is_some() } else { self.known(slot, digest)?.1 };
        if !now {
            return Ok(());
        }
        let is_seed = self.slots[i].as_ref().is_some_and(|e| e.is_seed);
        match reason {
            Lacks::Content if !(is_seed && digest != 0) => self.again(i, number),
            _ => {
                if let Some(entry) = &mut self.slots[i] {
                    entry.state = State::GivenUp;
                }
                self.leave(i);
            }
        }
        Ok(())
    }

    /// Offers the dictionary again with its content, and stops using it until it is confirmed.
    fn again(&mut self, i: usize, number: u64) {
        if let Some(entry) = &mut self.slots[i] {
            // A reader that keeps asking gets no more offers than one that never answers.
            entry.state = match entry.state {
                State::Offered { tries, .. } => State::Offered { at: number, tries },
                State::GivenUp => State::GivenUp,
                State::Announced(_) | State::Confirmed => State::Offered { at: number, tries: 0 },
            };
            entry.ask = entry.is_seed;
        }
        self.leave(i);
    }

    /// Replaces dictionary `i`, if it is in use, by another confirmed one.
    fn leave(&mut self, i: usize) {
        if self.current != Some(i) {
            return;
        }
        let confirmed = |i: &usize| matches!(&self.slots[*i], Some(e) if e.state == State::Confirmed);
        self.current = (0..SLOTS).filter(confirmed).max_by_key(|i| self.order(*i));
    }

    /// A new reader: nothing is confirmed or refused yet.
    pub(super) fn begin_again(&mut self) {
        for entry in self.slots.iter_mut().flatten() {
            (entry.offers, entry.pinned) = (0, false);
            (entry.state, entry.ask) = (State::Offered { at: 0, tries: 0 }, entry.ask || entry.is_seed);
        }
        self.current = None;
    }

    /// The reader may have lost all dictionaries (`all`), or with its history those that were
    /// pieces of it: offers them again.
    pub(super) fn offer_again(&mut self, all: bool, number: u64) {
        for i in 0..SLOTS {
            if let Some(entry) = &mut self.slots[i]
                && (all || entry.pinned)
                && entry.state != State::GivenUp
            {
                (entry.state, entry.pinned) = (State::Offered { at: number, tries: 0 }, false);
                self.leave(i);
            }
        }
    }
}

fn offer(i: usize, entry: &Entry, announced: bool) -> Control {
    let dictionary = &entry.dictionary;
    Control::Offer {
        slot: i as u8 + 1,
        announced,
        len: dictionary.content().len(),
        digest: dictionary.digest(),
        content: (!entry.ask).then(|| dictionary.content().to_vec()),
    }
}

/// Dictionaries of a receiver.
#[derive(Default)]
pub(super) struct ReceiverSlots {
    slots: [Option<Arc<Dictionary>>; SLOTS],
    /// Per slot, messages since the last offer that could not be decoded because its dictionary was
    /// missing.
    misses: [u32; SLOTS],
}

impl ReceiverSlots {
    pub(super) fn get(&self, slot: u8) -> Option<&Arc<Dictionary>> {
        self.slots[usize::from(slot) - 1].as_ref()
    }

    pub(super) fn set(&mut self, slot: u8, dictionary: Option<Arc<Dictionary>>) {
        let i = usize::from(slot) - 1;
        (self.slots[i], self.misses[i]) = (dictionary, 0);
    }

    /// A message needed a dictionary that the slot does not hold. Returns whether to tell the
    /// sender: ever more rarely, since the report or its answer may be lost or under way.
    pub(super) fn missed(&mut self, slot: u8) -> bool {
        let misses = &mut self.misses[usize::from(slot) - 1];
        *misses = misses.saturating_add(1);
        misses.is_power_of_two()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dictionary(byte: u8) -> Arc<Dictionary> {
        Arc::new(Dictionary::new(vec![byte; 100]).unwrap())
    }

    fn due(slots: &mut SenderSlots, number: u64) -> Vec<(u8, u64, bool)> {
        let mut out = Vec::new();
        slots.put_due(number, &mut out);
        let (mut at, mut found) = (0, Vec::new());
        while at < out.len() {
            let (control, len) = Control::parse(&out[at..]).unwrap().unwrap();
            let Some(Control::Offer { slot, digest, content, .. }) = control else { panic!("an offer") };
            found.push((slot, digest, content.is_some()));
            at += len;
        }
        found
    }

    #[test]
    fn a_dictionary_is_used_only_when_the_reader_confirmed_it() {
        let (mut slots, d) = (SenderSlots::default(), dictionary(1));
        assert_eq!(slots.add(Arc::clone(&d), 0, true, SLOTS), Some(1));
        assert_eq!(due(&mut slots, 0), [(1, d.digest(), false)], "asked for by digest");
        assert!(slots.current().is_none());
        slots.lacks(1, d.digest(), Lacks::Content, 1).unwrap();
        assert_eq!(due(&mut slots, 1), [(1, d.digest(), true)]);
        assert!(slots.has(1, d.digest(), 2, Delivery::Ordered).unwrap());
        assert_eq!(slots.current().unwrap().0, 1);
        let e = dictionary(2);
        assert_eq!(slots.add(Arc::clone(&e), 3, false, SLOTS), Some(2));
        assert_eq!(slots.current().unwrap().0, 1, "the old one until the new one is confirmed");
        assert!(slots.has(2, e.digest(), 4, Delivery::Ordered).unwrap());
        assert_eq!(slots.current().unwrap().0, 2);
        slots.lacks(2, e.digest(), Lacks::Refused, 5).unwrap();
        assert_eq!(slots.current().unwrap().0, 1);
        slots.offer_again(true, 6);
        assert!(slots.current().is_none());
    }

    #[test]
    fn a_peer_that_never_answers_gets_few_offers() {
        let mut slots = SenderSlots::default();
        slots.add(dictionary(1), 0, false, SLOTS);
        let offers: usize = (0..100_000).map(|n| due(&mut slots, n).len()).sum();
        assert_eq!(offers, TRIES_MAX as usize);
        assert!(slots.current().is_none());
        // A peer that always asks for the content gets no more offers.
        let (mut slots, d) = (SenderSlots::default(), dictionary(1));
        slots.add(Arc::clone(&d), 0, false, SLOTS);
        let mut offers = 0;
        for n in 0..1000 {
            offers += due(&mut slots, n).len();
            slots.lacks(1, d.digest(), Lacks::Content, n).unwrap();
        }
        assert_eq!(offers, TRIES_MAX as usize);
    }

    #[test]
    fn answers_about_what_was_not_offered_are_forged_and_late_ones_are_not() {
        let (mut slots, d) = (SenderSlots::default(), dictionary(1));
        slots.add(Arc::clone(&d), 0, false, SLOTS);
        assert!(slots.has(1, 77, 0, Delivery::Ordered).is_err());
        assert!(!slots.has(2, d.digest(), 0, Delivery::Ordered).unwrap(), "not in that slot");
        assert!(slots.lacks(3, 5, Lacks::Content, 0).is_err());
        assert!(slots.lacks(3, 0, Lacks::Content, 0).is_ok(), "it does not know which");
        for byte in 2..6 {
            slots.add(dictionary(byte), 0, false, SLOTS);
        }
        assert!(!slots.has(1, d.digest(), 0, Delivery::Ordered).unwrap(), "late, not forged");
        assert!(slots.current().is_none());
    }

    #[test]
    fn announced_ones_are_used_from_the_second_time_on() {
        let mut slots = SenderSlots::default();
        slots.add(dictionary(1), 0, true, SLOTS);
        // The slot in use after each announcement of the dictionaries that pay, and how many were
        // announced.
        let said = |slots: &mut SenderSlots, pays: &[u8]| {
            let mut out = Vec::new();
            slots.put_announcement(&|d| pays.contains(&d.content()[0]), &mut out);
            (slots.current().map_or(0, |c| c.0), out.len() / 100)
        };
        assert_eq!(said(&mut slots, &[1]), (0, 1));
        assert_eq!(said(&mut slots, &[1]), (1, 1));
        slots.add(dictionary(2), 0, false, SLOTS);
        assert_eq!(said(&mut slots, &[1]), (1, 1), "the new one does not pay");
        assert_eq!(said(&mut slots, &[1, 2]), (1, 2));
        assert_eq!(said(&mut slots, &[1, 2]), (2, 2));
        assert_eq!(said(&mut slots, &[1, 2]), (2, 1));
        assert_eq!(said(&mut slots, &[1]), (0, 1), "readers that came since do not have the old one");
        assert_eq!(said(&mut slots, &[1]), (1, 1));
        assert_eq!(said(&mut slots, &[]), (0, 0));
        assert_eq!(said(&mut slots, &[1, 2]), (0, 1));
    }
}
