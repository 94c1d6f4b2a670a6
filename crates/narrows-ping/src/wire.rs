//! An emulated link: before every write the sender waits for as long as the bytes would take to
//! cross.
//!
//! With one message in flight at a time this is exact. A token bucket would not be, because a full
//! bucket passes a single message at once.

use std::time::{Duration, Instant};

/// Payload of a full packet in bytes.
const PACKET_LEN: usize = 1448;
/// Bytes that Ethernet, IP and TCP add to each packet, including preamble and gap.
const PACKET_OVERHEAD: usize = 90;
/// Longer waits sleep until [`AWAKE`] before their end, since waking up is late by only a fraction
/// of this.
const SLEEP_FROM: Duration = Duration::from_millis(20);
/// Time before the end of a wait from which it spins.
const AWAKE: Duration = Duration::from_millis(5);

/// The emulated link. Each store-and-forward hop takes the transmission time of the bytes once
/// more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wire {
    pub bits_per_s: u64,
    pub hops: u8,
}

impl Wire {
    /// Lowest rate: with slower links the longest message would take too long.
    pub const BITS_MIN: u64 = 1_000_000;
    /// Highest rate in bits per second.
    pub const BITS_MAX: u64 = 1_000_000_000_000;
    /// Maximum number of hops.
    pub const HOPS_MAX: u8 = 16;

    /// Whether rate and hops are within their limits.
    pub fn is_sound(self) -> bool {
        (Self::BITS_MIN..=Self::BITS_MAX).contains(&self.bits_per_s) && self.hops <= Self::HOPS_MAX
    }

    /// Time that `len` bytes take to cross.
    pub fn time(self, len: usize) -> Duration {
        let bytes = len + PACKET_OVERHEAD * len.div_ceil(PACKET_LEN);
        let bits = bytes as f64 * 8.0 * (1.0 + f64::from(self.hops));
        Duration::from_secs_f64(bits / self.bits_per_s as f64)
    }

    /// Blocks the calling thread until `len` bytes that were ready at `since` would have crossed.
    pub fn hold(self, len: usize, since: Instant) {
        let until = since + self.time(len);
        let left = until.saturating_duration_since(Instant::now());
        if left > SLEEP_FROM {
            std::thread::sleep(left.saturating_sub(AWAKE));
        }
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }

    /// The link as text, such as `emulated: 100 Mbit/s, 1 hop`.
    pub fn words(self) -> String {
        let mbit = self.bits_per_s as f64 * 1e-6;
        let hops = match self.hops {
            0 => String::new(),
            1 => ", 1 hop".to_owned(),
            n => format!(", {n} hops"),
        };
        format!("emulated: {mbit} Mbit/s{hops}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_their_time_with_what_packets_add() {
        let wire = Wire { bits_per_s: 100_000_000, hops: 0 };
        assert_eq!(wire.time(910), Duration::from_micros(80));
        assert_eq!(wire.time(1449) - wire.time(1448), Duration::from_nanos(91 * 80));
        assert_eq!(Wire { hops: 2, ..wire }.time(910), Duration::from_micros(240));
        let begun = Instant::now();
        wire.hold(100_000, begun);
        assert!(begun.elapsed() >= wire.time(100_000));
    }

    #[test]
    fn the_longest_message_over_the_slowest_wire_takes_less_than_anybody_waits() {
        let slowest = Wire { bits_per_s: Wire::BITS_MIN, hops: Wire::HOPS_MAX };
        assert!(slowest.is_sound() && slowest.time(70_000) < Duration::from_secs(11));
    }
}
