//! One connection at one of its ends, from its first plain byte to the marker in either direction (format.md section
//! 11.4). The driver counts out what it sends and asks about what it gets; from the markers on, sender and receiver
//! have the bytes and this has nothing more to say.

use std::collections::VecDeque;

use super::incoming::{Incoming, Released, Step};
use super::marker::{DIRECT_MAGIC, Key, Marker, NONCE_LEN, Nonce, Side};
use super::{Event, WhyPlain, Word};
use crate::error::{Error, Result};

/// Times of a flow.
#[derive(Debug, Clone, Copy)]
pub struct FlowLimits {
    /// How long bytes may be held that nobody can tell from the beginning of a marker: a round trip of the side channel
    /// when that is well. Then the connection is given up. Long, since it is met only when the side channel is gone.
    pub hold_max_ns: u64,
    /// The same at a server that has not got its client's marker, and so cannot tell a client that is gone from somebody
    /// who claims what is not his: the bytes are given out then, and the connection goes on. So long that the rest of a
    /// marker, of which no program may see a part, cannot still be coming: a connection that brings nothing is given up then.
    pub doubt_max_ns: u64,
    /// The same for the opening of a direct connection, after which it is a plain client's. Short, since a person may wait
    /// for the answer to it.
    pub opening_max_ns: u64,
}

impl Default for FlowLimits {
    fn default() -> Self {
        Self { hold_max_ns: 3_000_000_000, doubt_max_ns: 120_000_000_000, opening_max_ns: 50_000_000 }
    }
}

/// The offset of a marker that is never sent.
pub const NEVER: u64 = u64::MAX;

/// What leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outgoing {
    Plain,
    /// The marker must be the next that is sent.
    Due(Marker),
    Frames {
        marked_at: u64,
    },
    /// It ended without a marker.
    Ended,
}

#[derive(Debug)]
pub struct Flow {
    side: Side,
    key: Option<Key>,
    incoming: Incoming,
    outgoing: Outgoing,
    /// Plain bytes that were sent.
    sent: u64,
    incoming_ended: bool,
    words: VecDeque<Word>,
    settled: bool,
    why_plain: Option<WhyPlain>,
    /// This end wants no frames.
    declines: bool,
    /// It was said that what this end was told cannot be right.
    doubted: bool,
}

impl Flow {
    /// The client's end of a connection, which is claimed at a [`super::Claimant`].
    pub fn client(limits: FlowLimits) -> Self {
        Self::new(Side::Client, limits.hold_max_ns)
    }

    /// The server's end of a connection. `direct`: the operator allows clients to begin with frames.
    pub fn server(limits: FlowLimits, direct: bool) -> Self {
        let mut flow = Self::new(Side::Server, limits.doubt_max_ns);
        if direct {
            flow.incoming.expect_opening(limits.opening_max_ns);
        }
        flow
    }

    /// The client's end of a connection to a peer of which the operator says that it has Narrows: frames from the first
    /// byte, no side channel: its words go nowhere. The nonce is random. A plain server is disturbed by this.
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
            // Before the client's marker came, anybody of its host may be who claims.
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

    /// Takes what the side channel says. Gives out bytes that were held for it.
    ///
    /// # Errors
    /// The peer contradicts itself: reset the connection.
    pub fn hear(&mut self, event: Event) -> Result<Released> {
        let heard = self.take(event);
        self.tell_doubt();
        heard
    }

    /// Whoever claimed is told once that nothing comes of it.
    fn tell_doubt(&mut self) {
        if self.incoming.is_doubtful() && !std::mem::replace(&mut self.doubted, true) {
            self.words.push_back(Word::Decline);
        }
    }

    fn take(&mut self, event: Event) -> Result<Released> {
        match event {
            Event::Claimed(key) => {
                // A direct opening that is coming is a claim of its own; a second key after a restart of the agent is none.
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
                    return Err(Error::corrupt("a connection is ready twice"));
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
                // Said of a claim that was given up, and answered after all.
                self.why_plain = None;
            }
            Event::Plain(why) => self.why_plain = Some(why),
            Event::Withdrawn => {
                let released = self.incoming.disarm()?;
                // Nothing is agreed any more: should the client claim anew, its marker has to be looked for anew.
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

    /// Whether the marker of this side begins at that offset of what it sent.
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

    /// Asks for no frames from now on: what the program sends would not shrink. What is agreed already stays so.
    pub fn decline(&mut self) {
        self.declines = true;
    }

    /// What is to be said to the peer's side, until `None`.
    pub fn poll_word(&mut self) -> Option<Word> {
        self.words.pop_front()
    }

    /// Takes what came on the connection.
    ///
    /// # Errors
    /// What came makes no sense: reset the connection, the program's end with it.
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
            // That the client's marker came shows that whoever claimed has the connection: only now may this end mark.
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

    /// Says where the marker is as soon as that is settled: this end may be gone when its peer could ask.
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

    /// The peer sends nothing more. Frames know their own end; before them this is the end of the program's bytes.
    ///
    /// # Errors
    /// It came in the middle of a marker: reset the program's end.
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

    /// The program sends nothing more, and that is passed on behind plain bytes. Frames have an end of their own: ask
    /// [`Flow::take_marker`] before.
    pub fn sending_end(&mut self) {
        if self.outgoing == Outgoing::Plain {
            self.outgoing = Outgoing::Ended;
            self.announce();
        }
    }

    /// The marker, when it is time: it goes behind all that was counted, at once, and frames behind it. Ask after every
    /// call of [`Flow::hear`] and [`Flow::receive`]; `Some` once.
    pub fn take_marker(&mut self) -> Option<Marker> {
        let Outgoing::Due(marker) = self.outgoing else { return None };
        self.outgoing = Outgoing::Frames { marked_at: self.sent };
        self.announce();
        Some(marker)
    }

    /// Whether something may come that no program wrote: frames, a marker, or the opening of a direct connection.
    pub fn expects_more(&self) -> bool {
        !self.incoming.is_plain()
    }

    pub fn sends_frames(&self) -> bool {
        matches!(self.outgoing, Outgoing::Frames { .. })
    }

    pub fn receives_frames(&self) -> bool {
        self.incoming.has_frames()
    }

    /// Bytes that came and are not given out.
    pub fn held(&self) -> usize {
        self.incoming.held()
    }

    /// What was said against an upgrade.
    pub fn why_plain(&self) -> Option<WhyPlain> {
        self.why_plain
    }

    /// When [`Flow::on_time`] must be called.
    pub fn next_wakeup_ns(&self) -> Option<u64> {
        self.incoming.deadline_ns()
    }

    /// # Errors
    /// What is held can be resolved no more: reset both ends.
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

    /// Another user of the client's host has read its clock, claims its connection, and says what cannot be.
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
            // Who has the connection, as its marker shows, is answered by a reset.
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
