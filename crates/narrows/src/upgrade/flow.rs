//! One end of a connection, from its first plain byte to the marker in either direction (format.md
//! section 11.4). The driver counts what it sends and passes in what it receives. After the
//! markers, sender and receiver take over and the flow is idle.

use std::collections::VecDeque;

use super::incoming::{Incoming, Released, Step};
use super::marker::{DIRECT_MAGIC, Key, Marker, NONCE_LEN, Nonce, Side};
use super::{Event, WhyPlain, Word};
use crate::error::{Error, Result};

/// Time limits of a flow.
#[derive(Debug, Clone, Copy)]
pub struct FlowLimits {
    /// Longest time to hold bytes that may begin a marker: normally a round trip of the side
    /// channel. After it the connection is reset. Long, since it is reached only when the side
    /// channel is gone.
    pub hold_max_ns: u64,
    /// The same at a server before its client's marker has arrived. It cannot distinguish a client
    /// that is gone from an impostor, so it gives the bytes out and the connection goes on. Long
    /// enough that the rest of a marker, no part of which a program may see, cannot still be under
    /// way: TCP has given up a connection that delivered nothing for so long.
    pub doubt_max_ns: u64,
    /// Longest time to hold the beginning of a direct connection's opening. After it the bytes are
    /// a plain client's. Short, since a person may be waiting for the answer to them.
    pub opening_max_ns: u64,
}

impl Default for FlowLimits {
    fn default() -> Self {
        Self { hold_max_ns: 3_000_000_000, doubt_max_ns: 120_000_000_000, opening_max_ns: 50_000_000 }
    }
}

/// The offset of a marker that is never sent.
pub const NEVER: u64 = u64::MAX;

/// State of the sending direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outgoing {
    Plain,
    /// The marker must be sent next.
    Due(Marker),
    Frames {
        marked_at: u64,
    },
    /// It ended without a marker.
    Ended,
}

/// State machine of one end of a connection; see the module's description.
#[derive(Debug)]
pub struct Flow {
    side: Side,
    key: Option<Key>,
    incoming: Incoming,
    outgoing: Outgoing,
    /// Number of plain bytes sent.
    sent: u64,
    incoming_ended: bool,
    words: VecDeque<Word>,
    settled: bool,
    why_plain: Option<WhyPlain>,
    /// This end wants no frames.
    declines: bool,
    /// The peer was told that its words are contradictory.
    doubted: bool,
}

impl Flow {
    /// The client's end of a connection, which is claimed at a [`super::Claimant`].
    pub fn client(limits: FlowLimits) -> Self {
        Self::new(Side::Client, limits.hold_max_ns)
    }

    /// The server's end of a connection. `direct`: the operator allows clients to begin with
    /// frames.
    pub fn server(limits: FlowLimits, direct: bool) -> Self {
        let mut flow = Self::new(Side::Server, limits.doubt_max_ns);
        if direct {
            flow.incoming.expect_opening(limits.opening_max_ns);
        }
        flow
    }

    /// The client's end of a direct connection: the operator says that the peer has Narrows, so
    /// frames follow from the first byte. There is no side channel, and the flow's words are
    /// dropped. The nonce must be random. A plain server gets garbage from this.
    pub fn direct(limits: FlowLimits, nonce: &Nonce) -> Self {
        let mut flow = Self::new(Side::Client, limits.hold_max_ns);
        let key = Key::direct(nonce);
        flow.incoming.arm(key.marker(Side::Server));
        let mut opening = [0; DIRECT_MAGIC.len() + NONCE_LEN];
        opening[..DIRECT_MAGIC.len()].copy_from_slice(&DIRECT_MAGIC);
        opening[DIRECT_MAGIC.len()..].copy_from_slice(nonce);
        flow.outgoing = Outgoing::Due(opening);
        flow.key = Some(key);
        flow
    }

    fn new(side: Side, hold_max_ns: u64) -> Self {
        Self {
            side,
            key: None,
            // Until the client's marker arrives, the claim may come from any user of the client's
            // host.
            incoming: Incoming::new(hold_max_ns, side == Side::Server),
            outgoing: Outgoing::Plain,
            sent: 0,
            incoming_ended: false,
            words: VecDeque::new(),
            settled: false,
            why_plain: None,
            declines: false,
            doubted: false,
        }
    }

    /// Takes an event of the side channel. Returns held bytes that it releases.
    ///
    /// # Errors
    /// The peer contradicts itself: reset the connection.
    pub fn hear(&mut self, event: Event) -> Result<Released> {
        let heard = self.take(event);
        self.tell_doubt();
        heard
    }

    /// Tells the claimant, once, that the upgrade is off.
    fn tell_doubt(&mut self) {
        if self.incoming.is_doubtful() && !std::mem::replace(&mut self.doubted, true) {
            self.words.push_back(Word::Decline);
        }
    }

    fn take(&mut self, event: Event) -> Result<Released> {
        match event {
            Event::Claimed(key) => {
                // A direct opening in progress is a claim of its own. A second key, after a restart
                // of the agent, is none.
                let known = self.key.as_ref().is_some_and(|k| *k == key) && !self.incoming.is_doubtful();
                let can = !self.declines && !self.incoming_ended && self.incoming.can_arm();
                if known || self.key.is_none() && can {
                    let tag = key.tag();
                    if !known {
                        self.incoming.arm(key.marker(self.side.other()));
                        self.key = Some(key);
                    }
                    self.words.push_back(Word::Armed { tag });
                    self.announce();
                } else {
                    self.words.push_back(Word::Decline);
                }
            }
            Event::Ready(key) => {
                if self.key.is_some() {
                    return Err(Error::corrupt("a connection became ready twice"));
                }
                if self.declines || self.outgoing != Outgoing::Plain {
                    self.words.push_back(Word::Withdraw);
                    return Ok(Released::default());
                }
                if !self.incoming_ended {
                    self.incoming.arm(key.marker(self.side.other()));
                }
                self.outgoing = Outgoing::Due(key.marker(self.side));
                self.key = Some(key);
                // The reason belonged to a claim that was given up and is answered after all.
                self.why_plain = None;
            }
            Event::Plain(why) => self.why_plain = Some(why),
            Event::Withdrawn => {
                let released = self.incoming.disarm()?;
                // Nothing is agreed any more: if the client claims again, the flow must arm again.
                if self.outgoing == Outgoing::Plain {
                    self.key = None;
                }
                return Ok(released);
            }
            Event::Query { offset } => {
                let marked = match self.is_marker_at(offset) {
                    Ok(marked) => marked,
                    Err(e) if self.side == Side::Server && !self.incoming.has_frames() => {
                        return self.incoming.doubt(e);
                    }
                    Err(e) => return Err(e),
                };
                self.words.push_back(Word::Answer { offset, marked });
            }
            Event::Answer { offset, marked } => return self.incoming.answered(offset, marked),
            Event::Restored => {
                self.announce();
                self.incoming.ask_again();
                self.ask();
            }
        }
        Ok(Released::default())
    }

    /// Whether this side's marker begins at `offset` of the bytes that it sent.
    fn is_marker_at(&self, offset: u64) -> Result<bool> {
        let marked_at = match self.outgoing {
            Outgoing::Frames { marked_at } => Some(marked_at),
            _ => None,
        };
        if offset >= self.sent && marked_at != Some(offset) {
            return Err(Error::corrupt("the other end asks about bytes that were not sent"));
        }
        Ok(marked_at == Some(offset))
    }

    /// From here on agrees to no upgrade, because the program's data would not shrink. An upgrade
    /// that is already agreed stays.
    pub fn decline(&mut self) {
        self.declines = true;
    }

    /// The next word for the peer; call it until `None`.
    pub fn poll_word(&mut self) -> Option<Word> {
        self.words.pop_front()
    }

    /// Takes bytes received on the connection.
    ///
    /// # Errors
    /// The bytes violate the protocol: reset the connection and the program's end.
    pub fn receive(&mut self, input: &[u8], now_ns: u64) -> Result<Step> {
        let was_opening = self.incoming.is_opening();
        let had_frames = self.incoming.has_frames();
        let step = self.incoming.feed(input, now_ns)?;
        self.ask();
        self.tell_doubt();
        if !had_frames && self.incoming.has_frames() {
            self.on_marker(was_opening);
        }
        Ok(step)
    }

    fn on_marker(&mut self, direct: bool) {
        if direct {
            self.key = Some(Key::direct(&self.incoming.nonce()));
        }
        match (self.side, &self.key) {
            // The client's marker proves that the claimant has the connection: only now may this
            // end send its own.
            (Side::Server, Some(key)) if self.outgoing == Outgoing::Plain => {
                self.outgoing = Outgoing::Due(key.marker(self.side));
            }
            (Side::Client, _) => self.settle(),
            _ => {}
        }
    }

    fn settle(&mut self) {
        if !self.settled {
            self.settled = true;
            self.words.push_back(Word::Settled);
        }
    }

    /// Announces the place of the marker as soon as it is fixed: this end may be gone when its peer
    /// could ask.
    fn announce(&mut self) {
        let offset = match self.outgoing {
            Outgoing::Frames { marked_at } => marked_at,
            Outgoing::Ended => NEVER,
            Outgoing::Plain | Outgoing::Due(_) => return,
        };
        if self.key.is_some() {
            self.words.push_back(Word::Answer { offset, marked: true });
        }
    }

    fn ask(&mut self) {
        if let Some(offset) = self.incoming.take_question() {
            self.words.push_back(Word::Query { offset });
        }
    }

    /// The peer sends nothing more. Frames have their own end; before them this is the end of the
    /// program's bytes.
    ///
    /// # Errors
    /// The end arrived in the middle of a marker: reset the program's end.
    pub fn receive_end(&mut self) -> Result<Released> {
        self.incoming_ended = true;
        self.incoming.end()
    }

    /// Counts plain bytes, before they are sent.
    ///
    /// # Panics
    /// If the marker was taken already.
    pub fn sending_plain(&mut self, len: usize) {
        assert!(!self.sends_frames(), "plain bytes behind the marker");
        self.sent += len as u64;
    }

    /// The program sends nothing more, and the end is passed on after plain bytes. Frames have
    /// their own end, so call [`Flow::take_marker`] first.
    pub fn sending_end(&mut self) {
        if self.outgoing == Outgoing::Plain {
            self.outgoing = Outgoing::Ended;
            self.announce();
        }
    }

    /// The marker, when it is due: send it at once, after all bytes counted, and frames after it.
    /// Call this after every [`Flow::hear`] and [`Flow::receive`]; returns `Some` once.
    pub fn take_marker(&mut self) -> Option<Marker> {
        let Outgoing::Due(marker) = self.outgoing else { return None };
        self.outgoing = Outgoing::Frames { marked_at: self.sent };
        self.announce();
        Some(marker)
    }

    /// Whether bytes may arrive that no program wrote: frames, a marker, or the opening of a direct
    /// connection.
    pub fn expects_more(&self) -> bool {
        !self.incoming.is_plain()
    }

    /// Whether the marker has left, so that this end sends frames.
    pub fn sends_frames(&self) -> bool {
        matches!(self.outgoing, Outgoing::Frames { .. })
    }

    /// Whether the peer's marker has arrived, so that the peer sends frames.
    pub fn receives_frames(&self) -> bool {
        self.incoming.has_frames()
    }

    /// Number of received bytes that are held back.
    pub fn held(&self) -> usize {
        self.incoming.held()
    }

    /// Why the connection is plain, if a reason is known.
    pub fn why_plain(&self) -> Option<WhyPlain> {
        self.why_plain
    }

    /// When [`Flow::on_time`] must be called.
    pub fn next_wakeup_ns(&self) -> Option<u64> {
        self.incoming.deadline_ns()
    }

    /// Handles the deadline if `now_ns` is past it. Returns held bytes that it releases.
    ///
    /// # Errors
    /// The held bytes can no longer be resolved: reset both ends.
    pub fn on_time(&mut self, now_ns: u64) -> Result<Released> {
        let released = self.incoming.on_time(now_ns);
        self.tell_doubt();
        released
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(flow: &mut Flow) -> Vec<Word> {
        std::iter::from_fn(|| flow.poll_word()).collect()
    }

    fn armed(key: &Key) -> Word {
        Word::Armed { tag: key.tag() }
    }

    #[test]
    fn an_arm_whose_client_was_never_told_is_taken_back() {
        let keys = [2, 3].map(|n| Key::new(&[1; NONCE_LEN], &[n; NONCE_LEN]));
        let mut server = Flow::server(FlowLimits::default(), false);
        // Another agent, another key.
        keys.iter().for_each(|key| assert!(server.hear(Event::Claimed(key.clone())).unwrap().is_empty()));
        assert_eq!(words(&mut server), [armed(&keys[0]), Word::Decline]);
        assert_eq!(server.receive(b"\xf9", 0).unwrap().plain, 0);
        assert_eq!(&*server.hear(Event::Withdrawn).unwrap(), b"\xf9");
        assert_eq!((server.next_wakeup_ns(), server.receive(b"\xf9", 0).unwrap().plain), (None, 1));
    }

    #[test]
    fn who_declines_stays_plain_and_who_declines_too_late_does_not() {
        let key = Key::new(&[1; NONCE_LEN], &[2; NONCE_LEN]);
        let mut client = Flow::client(FlowLimits::default());
        client.decline();
        client.hear(Event::Ready(key.clone())).unwrap();
        assert_eq!((words(&mut client), client.take_marker()), (vec![Word::Withdraw], None));

        let mut server = Flow::server(FlowLimits::default(), false);
        server.decline();
        server.hear(Event::Claimed(key.clone())).unwrap();
        assert_eq!(words(&mut server), [Word::Decline]);

        let mut server = Flow::server(FlowLimits::default(), false);
        server.hear(Event::Claimed(key.clone())).unwrap();
        server.decline();
        server.hear(Event::Claimed(key.clone())).unwrap();
        assert_eq!(words(&mut server), [armed(&key), armed(&key)], "its client has the same right to frames as before");
        assert_eq!(server.receive(&key.marker(Side::Client), 0).unwrap().frames, Some(24));
        assert!(server.take_marker().is_some());
    }

    /// Another user of the client's host has read its clock, claims its connection, and sends
    /// contradictory words.
    #[test]
    fn a_forged_word_before_the_clients_marker_makes_a_connection_plain_and_resets_nothing() {
        let key = Key::new(&[1; NONCE_LEN], &[2; NONCE_LEN]);
        for lie in [Event::Query { offset: 1 << 40 }, Event::Answer { offset: 0, marked: true }] {
            let mut server = Flow::server(FlowLimits::default(), false);
            server.hear(Event::Claimed(key.clone())).unwrap();
            server.receive(b"plain", 0).unwrap();
            assert!(server.hear(lie.clone()).unwrap().is_empty());
            assert!(!server.expects_more());
            server.hear(Event::Claimed(key.clone())).unwrap();
            assert_eq!(words(&mut server), [armed(&key), Word::Decline, Word::Decline]);
            assert_eq!(server.receive(b"\xf9", 0).unwrap().plain, 1);
            server.hear(Event::Withdrawn).unwrap();
            // A peer that has the connection, as its marker proves, gets a reset.
            let mut server = Flow::server(FlowLimits::default(), false);
            server.hear(Event::Claimed(key.clone())).unwrap();
            server.receive(&key.marker(Side::Client), 0).unwrap();
            assert_eq!(server.hear(lie.clone()).is_err(), matches!(lie, Event::Query { .. }));
        }
    }

    #[test]
    fn after_a_withdrawal_nothing_is_awaited_and_a_claim_counts_as_the_first() {
        let key = Key::new(&[1; NONCE_LEN], &[2; NONCE_LEN]);
        let mut server = Flow::server(FlowLimits::default(), false);
        server.hear(Event::Claimed(key.clone())).unwrap();
        assert!(server.expects_more());
        server.hear(Event::Withdrawn).unwrap();
        assert!(!server.expects_more());
        server.hear(Event::Claimed(key.clone())).unwrap();
        assert!(server.expects_more(), "whoever hears that this end is armed may send a marker");
        assert_eq!(words(&mut server), [armed(&key), armed(&key)]);
        assert_eq!(server.receive(&key.marker(Side::Client), 0).unwrap().frames, Some(24));
    }
}
