//! The thread that carries one direction: from one device through the shaper to the other device.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::shaper::{Counters, Shaper, Timetable};
use crate::sys;

/// Packets read in one turn before due packets are written.
const BATCH: usize = 64;
/// Polling interval of the device while packets queue for the rate: at 1 Gbit/s that is five
/// packets at once instead of a wake-up for each.
const BUSY_PAUSE: Duration = Duration::from_micros(60);
/// Shorter waits spin, because a sleep takes longer than that.
const SPIN: Duration = Duration::from_micros(5);
/// Longest wait, so that counters and CPU time are published at least this often.
const IDLE_WAIT: Duration = Duration::from_millis(100);
/// Free buffers kept for later packets: as many arrive as leave, but not in each turn.
const SPARE_MAX: usize = 16 * BATCH;
/// Length of the header of a frame from a packet socket.
const ETHERNET_HEADER: usize = 14;

/// State shared by the pump and the link's owner.
pub(crate) struct Shared {
    stop: AtomicBool,
    timetable: Mutex<Option<Timetable>>,
    counters: Mutex<Counters>,
    cpu_ns: AtomicU64,
    event: OwnedFd,
}

impl Shared {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            stop: AtomicBool::new(false),
            timetable: Mutex::new(None),
            counters: Mutex::new(Counters::default()),
            cpu_ns: AtomicU64::new(0),
            event: sys::event()?,
        }))
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    pub(crate) fn set_timetable(&self, timetable: Timetable) {
        *self.timetable.lock().unwrap_or_else(PoisonError::into_inner) = Some(timetable);
        self.wake();
    }

    pub(crate) fn counters(&self) -> Counters {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn cpu(&self) -> Duration {
        Duration::from_nanos(self.cpu_ns.load(Ordering::Relaxed))
    }

    fn wake(&self) {
        // The write fails only if the event is readable already.
        let _ = sys::write(self.event.as_fd(), &1u64.to_ne_bytes());
    }
}

pub(crate) struct Pump {
    pub(crate) from: Arc<OwnedFd>,
    pub(crate) to: Arc<OwnedFd>,
    /// Whether the devices are sockets that carry Ethernet frames.
    pub(crate) frames: bool,
    pub(crate) mtu: u32,
    pub(crate) shared: Arc<Shared>,
}

struct Packet {
    buf: Box<[u8]>,
    len: usize,
}

impl Pump {
    pub(crate) fn run(self, timetable: Timetable, seed: u64) {
        sys::wake_exactly();
        sys::go_first();
        let header = if self.frames { ETHERNET_HEADER } else { 0 };
        let start = Instant::now();
        let now = || start.elapsed().as_nanos() as u64;
        let packet_max = header + self.mtu as usize;
        // One byte more shows that a packet is too long (a command may have changed the MTU).
        let buffer_bytes = packet_max + 1;
        let mut shaper = Shaper::new(timetable, seed, buffer_bytes);
        let mut spare: Vec<Box<[u8]>> = Vec::new();
        let mut told = Instant::now();
        let mut not_taken = 0;
        while !self.shared.stop.load(Ordering::Acquire) {
            if let Some(timetable) = self.shared.timetable.lock().unwrap_or_else(PoisonError::into_inner).take() {
                shaper.set_timetable(now(), timetable);
            }
            let mut read = 0;
            while read < BATCH {
                let mut buf = spare.pop().unwrap_or_else(|| vec![0; buffer_bytes].into());
                match sys::read(self.from.as_fd(), &mut buf) {
                    Ok(len) => {
                        read += 1;
                        // This link carries IPv4 only (no neighbour discovery, say).
                        let ours = buf.get(header).is_some_and(|first| first >> 4 == 4) && len > header;
                        let fits = len <= packet_max;
                        not_taken += u64::from(ours && !fits);
                        let packet = Packet { buf, len };
                        match if ours && fits { shaper.push(now(), len - header, packet) } else { Err(packet) } {
                            Ok(()) => {}
                            Err(packet) => spare.push(packet.buf),
                        }
                    }
                    Err(e) if sys::would_block(&e) => {
                        spare.push(buf);
                        break;
                    }
                    // The device is gone, and so is the namespace.
                    Err(_) => return,
                }
            }
            while let Some((packet, len)) = shaper.pop(now()) {
                if sys::write(self.to.as_fd(), &packet.buf[..packet.len]).is_err() {
                    shaper.count_device_drop(len);
                }
                spare.push(packet.buf);
            }
            spare.extend(shaper.lost_items().map(|p| p.buf));
            spare.truncate(SPARE_MAX);
            let idle = read == 0;
            if told.elapsed() > IDLE_WAIT / 4 || idle {
                told = Instant::now();
                if self.frames {
                    not_taken += sys::packet_drops(self.from.as_fd());
                }
                let mut counters = shaper.counters();
                counters.device_dropped += not_taken;
                *self.shared.counters.lock().unwrap_or_else(PoisonError::into_inner) = counters;
                self.shared.cpu_ns.store(sys::thread_cpu_ns(), Ordering::Relaxed);
            }
            if read < BATCH {
                self.wait(&shaper, now());
            }
        }
    }

    fn wait(&self, shaper: &Shaper<Packet>, now_ns: u64) {
        let until_next = shaper.next_ns().map(|next| Duration::from_nanos(next.saturating_sub(now_ns)));
        let event = self.shared.event.as_fd();
        let [closed, open] = waits(until_next, shaper.is_busy());
        if !closed.is_zero() {
            sys::wait_readable(&[event], closed);
        }
        if !open.is_zero() {
            sys::wait_readable(&[self.from.as_fd() as BorrowedFd<'_>, event], open);
        }
        if until_next.is_none_or(|t| t > SPIN) {
            // Reset the event, so that the next wait blocks.
            let _ = sys::read(event, &mut [0; 8]);
        }
    }
}

/// Two waits: first with the device unread, so that packets collect there, then until the device is
/// readable. The first is short however far away the shaper's next packet is, because an arriving
/// packet gets its time stamp when it is read.
fn waits(until_next: Option<Duration>, busy: bool) -> [Duration; 2] {
    let time = until_next.unwrap_or(IDLE_WAIT).min(IDLE_WAIT);
    let closed = if busy { BUSY_PAUSE } else { Duration::ZERO };
    [closed, time.saturating_sub(closed + SPIN)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;
    use crate::rng::Rng;

    const LEN: usize = 1500;

    /// Departure times of packets that arrive at `coming`, if the pump is as fast as its waits
    /// permit.
    fn carried(profile: &Profile, coming: &[u64]) -> Vec<u64> {
        let mut shaper = Shaper::new(profile.timetable_up(), 1, LEN);
        let (mut now, mut read, mut leaving) = (0, 0, Vec::new());
        while leaving.len() < coming.len() {
            while coming.get(read).is_some_and(|at| *at <= now) {
                shaper.push(now, LEN, ()).unwrap();
                read += 1;
            }
            while shaper.pop(now).is_some() {
                leaving.push(now);
            }
            let until_next = shaper.next_ns().map(|next| Duration::from_nanos(next.saturating_sub(now)));
            let [closed, open] = waits(until_next, shaper.is_busy()).map(|wait| wait.as_nanos() as u64);
            let next_read = coming.get(read).map_or(u64::MAX, |at| (*at).max(now + closed));
            // A turn without any wait takes time, too.
            now = (now + closed + open).min(next_read).max(now + 100);
        }
        leaving
    }

    /// The same for a shaper that is polled at the right times.
    fn due(profile: &Profile, coming: &[u64]) -> Vec<u64> {
        let mut shaper = Shaper::new(profile.timetable_up(), 1, LEN);
        let mut leaving = Vec::new();
        for at in coming.iter().chain([&u64::MAX]) {
            while let Some(next) = shaper.next_ns().filter(|next| next < at) {
                leaving.extend(std::iter::from_fn(|| shaper.pop(next)).map(|_| next));
            }
            if *at < u64::MAX {
                shaper.push(*at, LEN, ()).unwrap();
            }
        }
        leaving
    }

    #[test]
    fn no_wait_makes_a_packet_late() {
        let mut rng = Rng(3);
        // Bursts, each followed by a pause that may be shorter or longer than the burst takes.
        let mut at = 0;
        let bursts = (0..200).flat_map(|_| {
            at += (rng.unit() * 2e7) as u64;
            std::iter::repeat_n(at, 1 + (rng.unit() * 6.0) as usize)
        });
        let coming: Vec<u64> = bursts.collect();
        // One pause before a packet is read and one before it is written.
        let late_max = (2 * (BUSY_PAUSE + SPIN)).as_nanos() as u64;
        for text in
            ["delay=50ms", "rate=10mbit", "rate=10mbit,delay=50ms", "rate=100mbit,delay=300ms", "rate=10mbit,delay=1ms"]
        {
            let profile = format!("{text},queue=1mb").parse().unwrap();
            let (carried, due) = (carried(&profile, &coming), due(&profile, &coming));
            assert_eq!(carried.len(), due.len());
            let late = carried.iter().zip(&due).map(|(carried, due)| carried.abs_diff(*due)).max();
            assert!(late <= Some(late_max), "{text}: {late:?} ns");
        }
    }
}
