//! The near end: asks, and finds the figures.

use std::time::{Duration, Instant};

use narrows::transport::Link;
use serde_json::Value;

use super::flood;
use super::rate::{Rate, Series};
use super::speeds::{self, Speeds};
use super::talk::{BACKLOG, Frame, Talk};
use super::{MAGIC, VERSION};
use crate::error::{Blame, Error, Result};

/// Most pings, and the time that they may take; but as many as tell something.
const PINGS: usize = 30;
const PINGS_MIN: usize = 4;
/// Most cores that are believed.
const CORES_MAX: u64 = 4096;
/// Longest name of a version that is kept.
const PROGRAM_MAX: usize = 32;

/// The other host, as it says itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Version of its program.
    pub program: String,
    /// Version of its frames.
    pub version: u64,
    /// Cores that its process may use.
    pub cores: usize,
    /// Of these, the number that would encode.
    pub encoders: usize,
    /// It is this host.
    pub same_host: bool,
}

/// One direction of the link.
#[derive(Debug, Clone)]
pub struct Direction {
    /// When how many bytes had arrived.
    pub series: Series,
    /// The rate.
    pub rate: Rate,
    /// Segments sent and sent again; `None` where another program carries the bytes.
    pub segments: Option<(u64, u64)>,
    /// CPU nanoseconds for each byte at the sending and the receiving end, if known.
    pub cpu_ns_per_byte: [Option<f64>; 2],
}

/// The figures of a measurement.
#[derive(Debug, Clone)]
pub struct Found {
    /// The other host.
    pub peer: Peer,
    /// Round trips in seconds, in the order of the pings.
    pub round_trips: Vec<f64>,
    /// From here to there.
    pub up: Direction,
    /// From there to here.
    pub down: Direction,
    /// The speeds of this host and of the other one.
    pub speeds: [Speeds; 2],
}

/// A measurement under way.
pub struct Near<'a> {
    talk: Talk<'a>,
    peer: Peer,
    silence: Duration,
}

impl<'a> Near<'a> {
    /// Hears the far end's first words, which may take as long as somebody types a password: `patience`.
    ///
    /// # Errors
    /// It says nothing, or nothing that makes sense.
    pub fn meet(link: Link, patience: Duration, silence: Duration, stop: &'a dyn Fn() -> bool) -> Result<Self> {
        let until = Instant::now() + patience + silence;
        let mut talk = Talk::new(link.plain(BACKLOG).blame(Error::Link)?, until, patience, stop);
        talk.magic(&MAGIC)?;
        let Frame::Hello(words) = talk.expect()? else { return wrong("no greeting") };
        let peer = peer(&words)?;
        talk.silence = silence;
        Ok(Self { talk, peer, silence })
    }

    /// The other host.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Measures for about `time`.
    ///
    /// # Errors
    /// The other end or the link fails, or a signal came.
    pub fn measure(mut self, time: Duration, stop: &dyn Fn() -> bool) -> Result<Found> {
        let begun = Instant::now();
        self.talk.until = begun + time + 2 * self.silence;
        let round_trips = self.pings(time.mul_f64(0.1))?;
        let rtt = Duration::from_secs_f64(round_trips.iter().copied().fold(f64::INFINITY, f64::min).min(60.0));
        self.talk.say(&Frame::AskSpeeds)?;
        let own = speeds::measured(stop).ok_or_else(|| Error::Interrupted("interrupted".into()))?;
        let Frame::Speeds(words) = self.talk.expect()? else { return wrong("no speeds") };
        let theirs = speeds::from_json(&words)?;
        // What is left is for both directions alike.
        let each = (time.saturating_sub(begun.elapsed()) / 2).saturating_sub(rtt);
        let each = each.clamp(Duration::from_millis(200), Duration::from_secs(30));
        let sent = flood::send(&mut self.talk, each, rtt)?;
        let up = direction(
            sent.series,
            sent.segments,
            [Some(sent.cpu_ns_per_byte[0]), Some(sent.cpu_ns_per_byte[1])],
            "to the other host",
        )?;
        self.talk.say(&Frame::Flood([each, rtt].map(|time| time.as_millis() as u32)))?;
        let received = flood::receive(&mut self.talk, None, each + self.silence)?;
        let cpu = [None, Some(received.cpu_ns_per_byte)];
        let down = direction(received.series, received.segments, cpu, "from the other host")?;
        Ok(Found { peer: self.peer, round_trips, up, down, speeds: [own, theirs] })
    }

    fn pings(&mut self, time: Duration) -> Result<Vec<f64>> {
        let begun = Instant::now();
        let mut trips = Vec::with_capacity(PINGS);
        // The first one wakes both ends and does not count.
        for n in 0..=PINGS as u64 {
            let sent = Instant::now();
            self.talk.say(&Frame::Ping(n))?;
            match self.talk.expect()? {
                Frame::Pong(back) if back == n => {}
                _ => return wrong("something else than the answer to a ping"),
            }
            if n > 0 {
                trips.push(sent.elapsed().as_secs_f64());
            }
            if trips.len() >= PINGS_MIN && begun.elapsed() > time {
                break;
            }
        }
        Ok(trips)
    }
}

fn wrong<T>(what: &str) -> Result<T> {
    Err(Error::Protocol(format!("the other end sent {what} in a measurement").into()))
}

fn direction(
    series: Series,
    segments: Option<(u64, u64)>,
    cpu_ns_per_byte: [Option<f64>; 2],
    way: &str,
) -> Result<Direction> {
    let rate = series.rate();
    let few = || Error::Link(format!("too little crossed the link {way} to know its rate; give it more --time").into());
    Ok(Direction { rate: rate.ok_or_else(few)?, series, segments, cpu_ns_per_byte })
}

fn peer(words: &Value) -> Result<Peer> {
    let count = |key: &str| words[key].as_u64().filter(|n| (1..=CORES_MAX).contains(n)).map(|n| n as usize);
    let text = words["program"].as_str().unwrap_or("?");
    let version = words["version"].as_u64().unwrap_or(0);
    let (Some(cores), Some(encoders)) = (count("cores"), count("encoders")) else {
        return wrong("a greeting without cores");
    };
    if version == 0 {
        return wrong("a greeting without a version");
    }
    Ok(Peer {
        program: text.chars().take(PROGRAM_MAX).collect(),
        version: version.min(VERSION),
        cores,
        encoders: encoders.min(cores),
        same_host: words["same_host"].as_bool().unwrap_or(false),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use serde_json::json;

    use super::super::{MeasureTask, this_host};
    use super::*;

    const NEVER: &dyn Fn() -> bool = &|| false;

    fn pair() -> (Link, Link) {
        let (one, other) = UnixStream::pair().unwrap();
        (Link::unix(one).unwrap(), Link::unix(other).unwrap())
    }

    #[test]
    fn both_ends_find_the_figures_of_a_limited_link() {
        let (near, far) = pair();
        let task = MeasureTask { limit_ms: 30_000, host: this_host() };
        // 2 MB/s one way, 1 MB/s the other.
        let far = std::thread::spawn(move || super::super::serve(task, far.limited(1_000_000), None, NEVER));
        let second = Duration::from_secs(1);
        let near = Near::meet(near.limited(2_000_000), 20 * second, 20 * second, NEVER).unwrap();
        assert!(near.peer().cores >= 1 && near.peer().same_host == (this_host() != 0), "{:?}", near.peer());
        let found = near.measure(2 * second, NEVER).unwrap();
        far.join().unwrap().unwrap();
        assert!(found.round_trips.len() >= PINGS_MIN);
        let (up, down) = (found.up.rate.bytes_per_s, found.down.rate.bytes_per_s);
        // A busy host may take any time beyond that of the link.
        assert!(up > 0.0 && up < 6e6 && down > 0.0 && down < 3e6, "{up} {down}");
        assert!(found.speeds.iter().all(|s| s.each.len() == 4) && found.up.segments.is_none());
        assert!(found.up.series.bytes() < 6e6, "no more than the time allows");
    }

    #[test]
    fn a_peer_that_is_silent_lies_or_refuses_is_an_error() {
        let silence = Duration::from_millis(200);
        let hello = || Frame::Hello(json!({ "version": 1, "cores": 2, "encoders": 2 })).encode();
        let meet = |bytes: &[u8]| {
            let (near, far) = pair();
            let mut far = far.plain(1 << 16).unwrap();
            far.write(bytes).unwrap();
            let met = Near::meet(near, silence, silence, NEVER);
            met.and_then(|near| near.measure(silence, NEVER)).map(|_| ()).unwrap_err().to_string()
        };
        assert!(meet(b"").contains("said nothing"));
        assert!(meet(b"SSH-2.0-x\r\n").contains("does not answer"));
        assert!(meet(&MAGIC).contains("said nothing"));
        let with = |frame: Vec<u8>| [&MAGIC[..], &frame].concat();
        assert!(meet(&with(hello())).contains("said nothing"), "no pong");
        assert!(meet(&with(Frame::Refusal("\x1b[2Jbusy".into()).encode())).contains("busy"));
        assert!(!meet(&with(Frame::Refusal("\x1b[2Jbusy".into()).encode())).contains('\x1b'), "escaped");
        for lie in [json!({}), json!({ "version": 1, "cores": 0, "encoders": 1 }), json!({ "cores": 2, "encoders": 2 })]
        {
            assert!(meet(&with(Frame::Hello(lie).encode())).contains("greeting"));
        }
        let acks = [with(hello()), Frame::Pong(0).encode(), Frame::Ack([9, 9, 9]).encode()].concat();
        assert!(meet(&acks).contains("answer to a ping"));
        let stopped: &dyn Fn() -> bool = &|| true;
        let (near, _far) = pair();
        assert!(matches!(Near::meet(near, silence, silence, stopped), Err(Error::Interrupted(_))));
    }

    #[test]
    fn bytes_that_were_not_sent_cannot_be_acknowledged() {
        let (near, far) = pair();
        let far = std::thread::spawn(move || {
            let until = Instant::now() + Duration::from_secs(20);
            let mut far = Talk::new(far.plain(1 << 16).unwrap(), until, Duration::from_secs(5), NEVER);
            far.say(&Frame::Ack([1 << 40, 1, 1])).unwrap();
            while far.next(Duration::from_secs(5)).is_ok_and(|f| f.is_some()) {}
        });
        let until = Instant::now() + Duration::from_secs(20);
        let mut near = Talk::new(near.plain(1 << 16).unwrap(), until, Duration::from_secs(5), NEVER);
        let sent = flood::send(&mut near, Duration::from_secs(2), Duration::ZERO);
        assert!(matches!(sent, Err(Error::Protocol(_))));
        drop(near);
        far.join().unwrap();
    }
}
