//! The shared knowledge of the comms to one host: whether encoding pays on the way to it.
//!
//! Dask spreads the messages of a shuffle over several connections to the same worker. If each of
//! them tried for itself, a quarter of their bytes would be trials.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Messages of up to this length go plain: an encoder saves less time than its thread takes to wake,
/// on all links but the slowest.
const SMALL: u64 = 4 << 10;
/// The same where the link was just seen to be faster than any method.
const SMALL_ON_FAST: u64 = 64 << 10;
/// Raw bytes of a segment by which the flow is asked whether encoding pays (again).
const TRIAL: u64 = 256 << 10;
/// Raw bytes of a segment by which an encoded flow that lost its race may win the next one.
const RACE: u64 = 1 << 20;
/// The same where plain bytes cross more slowly than `RACE_FAST`, in bytes/s: there the workers are a
/// larger part of its time, and a long one costs less.
const RACE_LONG: u64 = 4 << 20;
const RACE_FAST: f64 = 300e6;
/// Longest segment of a flow: at its end the workers have nothing to do for a moment, which the socket
/// covers on any link that is worth encoding for.
const SEGMENT: u64 = 4 << 20;
/// Most bytes that go plain between two trials, and encoded between two plain ones: a trial at half
/// the speed takes 1.6 % of the time then.
const UNTRIED_MAX: u64 = 64 << 20;
/// The same as time of the link: a link that became slow is noticed after that.
const PLAIN_S: f64 = 0.5;
const PLAIN_MIN: u64 = 64 << 10;
/// A plain segment in a flow that pays has the bytes of this time, within bounds: enough to measure.
const PLAIN_TRIAL_S: f64 = 0.02;
const PLAIN_TRIAL: (u64, u64) = (256 << 10, 1 << 20);
/// Fewer bytes that crossed the link are no sample of a speed.
const SAMPLE_MIN: f64 = 131_072.0;
/// An encoded segment has to be so much faster than a plain one: it takes CPU time of the tasks.
const RACE_MARGIN: f64 = 1.03;
/// Weight of a new sample of a speed.
const GAIN: f64 = 0.5;
/// Hosts of which something is kept at a time. Those without a comm are forgotten when there are more.
const HOSTS_MAX: usize = 1024;

/// Shared by the comms of this process to one host.
#[derive(Clone, Default)]
pub(super) struct Learned(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Raw bytes that may go plain before the next trial.
    credit: u64,
    /// Bytes of credit that the last trial gave; 0: encoding paid.
    given: u64,
    /// Raw bytes/s of plain segments and of encoded ones, of one comm; 0: not known.
    plain_speed: f64,
    flow_speed: f64,
    /// Raw bytes encoded since the last plain segment.
    untried: u64,
    /// The last segment of a flow was worth encoding.
    paid: bool,
    /// One comm tries for all; the others go plain meanwhile.
    trying: bool,
}

static HOSTS: LazyLock<Mutex<HashMap<IpAddr, Weak<Mutex<State>>>>> = LazyLock::new(Mutex::default);

impl Learned {
    /// What is known about a host, empty for the first comm to it.
    pub(super) fn of(host: IpAddr) -> Self {
        let mut hosts = HOSTS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = hosts.get(&host).and_then(Weak::upgrade) {
            return Self(known);
        }
        if hosts.len() >= HOSTS_MAX {
            hosts.retain(|_, state| state.strong_count() > 0);
        }
        let learned = Self::default();
        if hosts.len() < HOSTS_MAX {
            hosts.insert(host, Arc::downgrade(&learned.0));
        }
        learned
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a message of this length begins plain.
    pub(super) fn is_plain(&self, raw_len: u64) -> bool {
        raw_len <= SMALL || self.lock().plain_len(raw_len) > 0
    }

    /// How many of the next bytes go plain: 0 where a flow is to take them.
    pub(super) fn take_plain(&self, raw_len: u64) -> u64 {
        let mut state = self.lock();
        let len = state.plain_len(raw_len);
        state.credit = state.credit.saturating_sub(len);
        len
    }

    /// How many of the next bytes a flow takes, and whether this comm tries for all of them.
    pub(super) fn begin_flow(&self, raw_len: u64) -> (u64, bool) {
        let mut state = self.lock();
        let len = match state.paid {
            true => SEGMENT,
            false if state.lost_race() && state.plain_speed < RACE_FAST => RACE_LONG,
            false if state.lost_race() => RACE,
            false => TRIAL,
        };
        let tries = !state.trying && !state.paid;
        state.trying |= tries;
        (raw_len.min(len), tries)
    }

    /// What follows a segment of a flow on a link of `rate_bytes_per_s`.
    pub(super) fn end_flow(&self, raw_len: u64, tried: bool, coded: bool, rate_bytes_per_s: f64) {
        let mut state = self.lock();
        state.trying &= !tried;
        state.untried += if coded { raw_len } else { 0 };
        let rate = rate_bytes_per_s.max(state.plain_speed);
        state.paid = coded && !state.lost_race();
        if !state.paid {
            state.given = (2 * state.given).clamp(RACE, UNTRIED_MAX);
            state.credit = state.given.min(((rate * PLAIN_S) as u64).max(PLAIN_MIN));
            return;
        }
        (state.given, state.credit) = (0, 0);
        if state.flow_speed > 0.0 && (state.plain_speed == 0.0 || state.untried >= UNTRIED_MAX) {
            state.credit = ((rate * PLAIN_TRIAL_S) as u64).clamp(PLAIN_TRIAL.0, PLAIN_TRIAL.1);
        }
    }

    /// A trial that ended with the connection.
    pub(super) fn give_up(&self) {
        self.lock().trying = false;
    }

    /// `crossed` bytes of a plain segment crossed the link in `time`.
    pub(super) fn plain_crossed(&self, crossed: f64, time: Duration) {
        let mut state = self.lock();
        blend(&mut state.plain_speed, crossed, crossed, time);
        if crossed > 0.0 {
            state.untried = 0;
        }
    }

    /// `crossed` bytes of a flow, made of `raw` ones.
    pub(super) fn flow_crossed(&self, crossed: f64, raw: f64, time: Duration) {
        blend(&mut self.lock().flow_speed, crossed, raw, time);
    }
}

impl State {
    fn plain_len(&self, raw_len: u64) -> u64 {
        let small = if self.given > 0 { SMALL_ON_FAST } else { SMALL };
        if raw_len <= small {
            raw_len
        } else if self.credit > 0 {
            raw_len.min(self.credit)
        } else if self.trying {
            raw_len.min(TRIAL)
        } else {
            0
        }
    }

    fn lost_race(&self) -> bool {
        self.plain_speed > 0.0 && self.flow_speed > 0.0 && self.flow_speed < RACE_MARGIN * self.plain_speed
    }
}

/// Brings a speed up to date: `raw` bytes, as `crossed` ones, in `time`.
fn blend(speed: &mut f64, crossed: f64, raw: f64, time: Duration) {
    if crossed >= SAMPLE_MIN {
        let now = raw / time.as_secs_f64().max(1e-6);
        *speed = if *speed > 0.0 { *speed + GAIN * (now - *speed) } else { now };
    }
}
