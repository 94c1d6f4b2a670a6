//! The far end: answers what the near end asks, for a limited time.

use std::time::{Duration, Instant};

use narrows::stream;
use narrows::transport::Link;
use serde_json::json;

use super::talk::{BACKLOG, Frame, Talk};
use super::{LIMIT, MAGIC, MeasureTask, VERSION, flood, speeds, this_host};
use crate::error::{Blame, Error, Result};

/// How long the near end may be silent.
const SILENCE: Duration = Duration::from_secs(20);
/// Longest time in which this end sends or receives data.
const FLOOD_MAX: Duration = Duration::from_secs(60);
/// Most pings that are answered; a near end sends a few dozen.
const PINGS_MAX: u64 = 10_000;

/// Takes part in a measurement. `busy`: there is no place for one, and the client is told so.
///
/// # Errors
/// The client or the link fails; the client was told where that was possible.
pub fn serve(task: MeasureTask, link: Link, busy: Option<&str>, stop: &dyn Fn() -> bool) -> Result<()> {
    let until = Instant::now() + Duration::from_millis(task.limit_ms).min(LIMIT);
    let mut talk = Talk::new(link.plain(BACKLOG).blame(Error::Link)?, until, SILENCE, stop);
    talk.write(&MAGIC)?;
    if let Some(text) = busy {
        return talk.say(&Frame::Refusal(text.to_owned()));
    }
    talk.say(&Frame::Hello(json!({
        "version": VERSION,
        "program": env!("CARGO_PKG_VERSION"),
        "cores": stream::cores(),
        "encoders": stream::encoders(),
        "same_host": task.host != 0 && task.host == this_host(),
    })))?;
    // Each costs a part of a second of a core.
    let mut told_speeds = false;
    let mut pings = 0;
    loop {
        let frame = match talk.next(SILENCE) {
            // The near end has what it wanted.
            Err(Error::Link(_)) | Ok(None) if pings > 0 => return Ok(()),
            frame => frame?,
        };
        match frame {
            Some(Frame::Ping(n)) if pings < PINGS_MAX => {
                pings += 1;
                talk.say(&Frame::Pong(n))?;
            }
            Some(Frame::Data(len)) => {
                flood::receive(&mut talk, Some(len), FLOOD_MAX)?;
            }
            Some(Frame::Flood([ms, rtt_ms])) => {
                let [time, rtt] = [ms, rtt_ms].map(|ms| Duration::from_millis(ms.into()));
                let (time, rtt) = (time.min(FLOOD_MAX), rtt.min(flood::RTT_MAX));
                flood::send(&mut talk, time, rtt)?;
            }
            Some(Frame::AskSpeeds) if !told_speeds => {
                told_speeds = true;
                let Some(speeds) = speeds::measured(stop) else {
                    return Err(Error::Interrupted("interrupted".into()));
                };
                talk.say(&Frame::Speeds(speeds::to_json(&speeds)))?;
            }
            None => return Err(Error::Link("the client said nothing".into())),
            Some(_) => {
                let text = "the client sent what does not belong there";
                let _ = talk.say(&Frame::Refusal(text.into()));
                return Err(Error::Protocol(text.into()));
            }
        }
    }
}
