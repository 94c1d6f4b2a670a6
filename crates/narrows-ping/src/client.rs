//! The client of `narrows ping`: sends messages, compares the replies, and measures the times.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use narrows::message::Dictionary;
use narrows::policy::{PolicySpec, print_method};

use crate::end::End;
use crate::figures::Trips;
use crate::hello::Hello;
use crate::messages::Set;
use crate::method::Method;
use crate::socket::{BufferedSocket, Place, TIMEOUT};
use crate::wire::Wire;

/// Number of messages in a turn of one method: enough that the caches are warm for the method, few
/// enough that all methods see the same state of the host.
const TURN: usize = 32;

/// Settings of a measurement.
pub struct Client {
    pub place: Place,
    pub methods: Vec<Method>,
    pub policy: PolicySpec,
    pub history: usize,
    pub dictionary: Option<Arc<Dictionary>>,
    pub wire: Option<Wire>,
    pub polls: bool,
    pub rounds: usize,
    /// The file for the choices of `messages`.
    pub trace: Option<File>,
}

struct Connection {
    socket: BufferedSocket,
    end: End,
    wire: Option<Wire>,
    out: Vec<u8>,
    came: Vec<u8>,
}

impl Client {
    /// Opens a connection without messages that stays open as long as the client runs.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses.
    pub fn announce(&self) -> Result<BufferedSocket> {
        let mut socket = BufferedSocket::connect(&self.place)?;
        self.hello(None, 0).say(&mut socket)?;
        Ok(socket)
    }

    fn hello(&self, method: Option<Method>, epoch: u64) -> Hello {
        let needs = |m: Method| m.needs_dictionary() || m == Method::Chosen;
        Hello {
            method,
            policy: self.policy.clone(),
            history: self.history,
            wire: self.wire,
            polls: self.polls,
            epoch,
            dictionary: self.dictionary.clone().filter(|_| method.is_some_and(needs)),
        }
    }

    /// Sends the messages of a set with all methods, in all rounds. Each round uses new
    /// connections, so that no history contains the messages. `progress` gets the numbers of
    /// messages that came back.
    ///
    /// # Errors
    /// A connection failed, or a reply differs from its message.
    pub fn measure(&self, set: &Set, progress: &dyn Fn(u64)) -> Result<Vec<Trips>> {
        let mut trips: Vec<Trips> = self.methods.iter().map(|_| Trips::default()).collect();
        for round in 0..self.rounds {
            let open = |m: &Method| Connection::open(self, *m).with_context(|| format!("with {m}"));
            let mut connections = self.methods.iter().map(open).collect::<Result<Vec<_>>>()?;
            trips.iter_mut().for_each(|t| t.ns.push(Vec::with_capacity(set.messages.len())));
            for (turn, messages) in set.messages.chunks(TURN).enumerate() {
                for i in 0..self.methods.len() {
                    // The order of the methods changes from turn to turn.
                    let m = (i + turn + round) % self.methods.len();
                    connections[m].greet().with_context(|| format!("with {}", self.methods[m]))?;
                    for message in messages {
                        let sent = connections[m].exchange(message, &mut trips[m]);
                        sent.with_context(|| format!("with {}", self.methods[m]))?;
                    }
                    progress(messages.len() as u64);
                }
            }
            for (method, connection) in self.methods.iter().zip(&mut connections) {
                if let Some(mut file) = self.trace.as_ref().filter(|_| *method == Method::Chosen) {
                    let text = connection.end.take_trace();
                    file.write_all(text.as_bytes()).context("cannot write the trace")?;
                }
            }
        }
        Ok(trips)
    }
}

impl Connection {
    fn open(client: &Client, method: Method) -> Result<Self> {
        let mut epoch = [0; 8];
        rustix::rand::getrandom(&mut epoch, rustix::rand::GetRandomFlags::empty())?;
        let hello = client.hello(Some(method), u64::from_le_bytes(epoch));
        let mut socket = BufferedSocket::connect(&client.place)?;
        hello.say(&mut socket)?;
        socket.poll(client.polls);
        let mut end = End::new(&hello, method, false)?;
        if client.trace.is_some() && method == Method::Chosen {
            end.record();
        }
        let mut new = Self { socket, end, wire: client.wire, out: Vec::new(), came: Vec::new() };
        new.greet()?;
        Ok(new)
    }

    /// Exchanges an empty message, which does not count and leaves no history. The first time both
    /// ends announce with it what they support, later it wakes the other end.
    fn greet(&mut self) -> Result<()> {
        self.exchange(&[], &mut Trips::default())
    }

    fn exchange(&mut self, message: &[u8], trips: &mut Trips) -> Result<()> {
        let Self { socket, end, wire, out, came } = self;
        out.clear();
        let begun = Instant::now();
        let (ready, encoded) = end.encode(message, begun, out)?;
        if let Some(wire) = wire {
            wire.hold(out.len(), ready);
        }
        socket.write(out)?;
        let mut wire_len = out.len();
        loop {
            ensure!(socket.more(TIMEOUT)?, "the server has disconnected");
            let (taken, is_whole) = end.decode(socket.came(), came)?;
            socket.take(taken);
            wire_len += taken;
            if is_whole {
                break;
            }
        }
        let ns = begun.elapsed().as_nanos() as u64;
        ensure!(came == message, "the reply differs from the message");
        ensure!(socket.came().is_empty(), "more came back than was sent");
        if let Some(round) = trips.ns.last_mut() {
            round.push(ns);
        }
        trips.raw_bytes += 2 * message.len() as u64;
        trips.wire_bytes += wire_len as u64;
        trips.back_bytes += (wire_len - out.len()) as u64;
        let key = print_method(encoded.method, encoded.linked);
        *trips.mix.entry(key).or_default() += 1;
        Ok(())
    }
}
