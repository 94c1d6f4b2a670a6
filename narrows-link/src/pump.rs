//! The thread that carries one direction: packets from one device through the shaper to the other device.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::profile::MTU_MAX;
use crate::shaper::{Counters, Plan, Shaper};
use crate::sys;

/// Packets that are read before those that are due are written.
const BATCH: usize = 64;
/// While packets wait for the rate, the pump looks after the device so often only: at 1 Gbit/s that is five packets at
/// once instead of a wake-up for each.
const BUSY_PAUSE: Duration = Duration::from_micros(60);
/// Waits that are shorter than a sleep takes are spun.
const SPIN: Duration = Duration::from_micros(5);
/// Counters and CPU time are told so often at least.
const IDLE_WAIT: Duration = Duration::from_millis(100);
/// Buffers that are kept for later packets: 10,000 packets in flight and as many on the way back.
const SPARE_MAX: usize = 20_000;
/// Of a frame from a packet socket.
const ETHERNET_HEADER: usize = 14;

/// What the pump and the link's owner share.
pub(crate) struct Shared {
    stop: AtomicBool,
    plan: Mutex<Option<Plan>>,
    counters: Mutex<Counters>,
    cpu_ns: AtomicU64,
    event: OwnedFd,
}

impl Shared {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            stop: AtomicBool::new(false),
            plan: Mutex::new(None),
            counters: Mutex::new(Counters::default()),
            cpu_ns: AtomicU64::new(0),
            event: sys::event()?,
        }))
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    pub(crate) fn set_plan(&self, plan: Plan) {
        *self.plan.lock().unwrap_or_else(PoisonError::into_inner) = Some(plan);
        self.wake();
    }

    pub(crate) fn counters(&self) -> Counters {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn cpu(&self) -> Duration {
        Duration::from_nanos(self.cpu_ns.load(Ordering::Relaxed))
    }

    fn wake(&self) {
        // It is readable already if this fails.
        let _ = sys::write(self.event.as_fd(), &1u64.to_ne_bytes());
    }
}

pub(crate) struct Pump {
    pub(crate) from: Arc<OwnedFd>,
    pub(crate) to: Arc<OwnedFd>,
    /// Whether the devices are sockets that carry Ethernet frames.
    pub(crate) frames: bool,
    pub(crate) shared: Arc<Shared>,
}

struct Packet {
    buf: Box<[u8]>,
    len: usize,
}

impl Pump {
    pub(crate) fn run(self, plan: Plan, seed: u64) {
        sys::wake_exactly();
        sys::go_first();
        let header = if self.frames { ETHERNET_HEADER } else { 0 };
        let start = Instant::now();
        let now = || start.elapsed().as_nanos() as u64;
        let mut shaper = Shaper::new(plan, seed);
        let mut spare: Vec<Box<[u8]>> = Vec::new();
        let mut told = Instant::now();
        let mut taken_drops = 0;
        while !self.shared.stop.load(Ordering::Acquire) {
            if let Some(plan) = self.shared.plan.lock().unwrap_or_else(PoisonError::into_inner).take() {
                shaper.set_plan(now(), plan);
            }
            let mut read = 0;
            while read < BATCH {
                let mut buf = spare.pop().unwrap_or_else(|| vec![0; MTU_MAX as usize + ETHERNET_HEADER].into());
                match sys::read(self.from.as_fd(), &mut buf) {
                    Ok(len) => {
                        read += 1;
                        // What is no IPv4 (neighbour discovery, say) has no place on this link.
                        let ours = buf.get(header).is_some_and(|first| first >> 4 == 4) && len > header;
                        let packet = Packet { buf, len };
                        match if ours { shaper.push(now(), len - header, packet) } else { Err(packet) } {
                            Ok(()) => {}
                            Err(packet) => spare.push(packet.buf),
                        }
                    }
                    Err(e) if sys::would_block(&e) => {
                        spare.push(buf);
                        break;
                    }
                    // The device is gone, and the namespace with it.
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
                    taken_drops += sys::packet_drops(self.from.as_fd());
                }
                let mut counters = shaper.counters();
                counters.device_dropped += taken_drops;
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
        let time = until_next.unwrap_or(IDLE_WAIT).min(IDLE_WAIT);
        let event = self.shared.event.as_fd();
        let mut left = time;
        if shaper.is_busy() {
            sys::wait_readable(&[event], BUSY_PAUSE);
            left = left.saturating_sub(BUSY_PAUSE);
        }
        // Packets are stamped when they are read, so whatever comes ends the wait.
        if left > SPIN {
            sys::wait_readable(&[self.from.as_fd() as BorrowedFd<'_>, event], left - SPIN);
        }
        if until_next.is_none_or(|t| t > SPIN) {
            // Emptied, so that the next wait waits.
            let _ = sys::read(event, &mut [0; 8]);
        }
    }
}
