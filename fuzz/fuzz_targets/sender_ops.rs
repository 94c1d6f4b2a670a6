//! Arbitrary sequences of calls on a sender, whose frames go into a receiver: the same bytes come
//! out.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narrows::block::{Block, BufferPool};
use narrows::codec::{Contexts, DEFAULT_METHODS, Method};
use narrows::flow::{Budget, Decoding, Encoding, Here};
use narrows::monitor::View;
use narrows::policy::{Choice, Outcome, Policy, Rescue};
use narrows::receiver::{Receiver, ReceiverConfig};
use narrows::sender::{Job, LinkSample, Sender, SenderConfig};

/// A policy whose choices come from the input.
struct Dice(Vec<u8>, usize);

impl Dice {
    fn roll(&mut self) -> usize {
        self.1 += 1;
        self.0.get(self.1 % self.0.len().max(1)).copied().unwrap_or(1).into()
    }
}

impl Policy for Dice {
    fn choose(&mut self, view: &View<'_>) -> Choice {
        assert!(!view.upcoming.is_empty() && view.upcoming.len() <= view.limits.block_max);
        // Slow methods would make the fuzzer slow.
        let method = DEFAULT_METHODS[self.roll() % 7];
        Choice { linked: self.roll() % 2 == 0, ..Choice::new(method, 1 + self.roll() * 37) }
    }

    fn rescue(&mut self, view: &View<'_>) -> Rescue {
        if self.roll() % 2 == 0 {
            Rescue::TakeOver(DEFAULT_METHODS[self.roll() % 4])
        } else {
            Rescue::WaitUntil(view.now_ns + 500)
        }
    }

    fn probe(&mut self, _: &View<'_>) -> Option<Choice> {
        (self.roll() % 4 == 0).then(|| Choice::new(Method::zstd(1), 100))
    }

    fn learn(&mut self, _: &Outcome) {}

    fn window(&self, _: usize) -> usize {
        1 + self.1 % 5
    }
}

fuzz_target!(|data: &[u8]| {
    let [cores, ops @ ..] = data else { return };
    let cores = 1 + usize::from(cores % 4);
    let config = SenderConfig {
        cores,
        duplex: cores % 2 == 0,
        history: 4096,
        reach: if cores < 4 { 1 << 16 } else { 0 },
        index: cores == 3,
        memory_max: 1 << 18,
        ..SenderConfig::default()
    };
    let pool = BufferPool::default();
    let mut sender = Encoding::new(Sender::new(config, Box::new(Dice(ops.to_vec(), 0)), pool.clone()));
    // Half of the duplex receivers keep less than the sender would refer to.
    let reach_max = if ops.len() % 2 == 0 && cores == 2 { 1 << 12 } else { 1 << 16 };
    let config = ReceiverConfig { duplex: cores % 2 == 0, reach_max, ..ReceiverConfig::default() };
    let mut receiver = Decoding::new(Receiver::new(config, pool.clone()));
    let mut contexts = Contexts::default();
    let (mut jobs, mut sent, mut got): (Vec<Job>, Vec<u8>, Vec<u8>) = Default::default();
    let (mut now, mut unsent) = (0u64, 0u64);
    let mut over = false;
    for (i, op) in ops.iter().chain([7; 40].iter()).enumerate().take(2000) {
        let arg = u64::from(op >> 3);
        match op & 7 {
            // What lies so far back, again, as a copy if the sender may.
            1 if arg % 4 == 3 && !over && sent.len() > 100 && sender.room() > 0 => {
                let distance = 1 + (i * 7919 + usize::from(*op) * 131) % sent.len();
                let raw = sent[sent.len() - distance..][..distance.min(20 + i * 37 % 3000)].to_vec();
                sent.extend(&raw);
                sender.push_copy(distance as u64, Block::from_vec(raw), now);
            }
            0 | 1 if !over => {
                let raw: Vec<u8> = (0..arg * 61).map(|j| (j as u8 & op) ^ (i as u8 >> 2)).collect();
                let taken = sender.write(&raw, now);
                sent.extend(&raw[..taken]);
            }
            2 => jobs.extend(sender.next_job(now)),
            3 if !jobs.is_empty() => {
                let job = jobs.swap_remove(arg as usize % jobs.len());
                let done = job.run(&mut contexts, &pool);
                sender.finish(done, now);
            }
            4 => now += arg * arg * 1000,
            5 => {
                unsent = unsent.saturating_sub(arg * 100);
                sender.on_link(LinkSample {
                    begin_ns: now,
                    end_ns: now,
                    unsent_before: unsent,
                    unsent_after: unsent,
                    accepted: 0,
                    busy_ns: None,
                    unacked: None,
                    delivery_bytes_per_s: None,
                    rtt_ns: None,
                });
                jobs.extend(sender.late(now));
            }
            6 if arg == 31 => {
                sender.close(now);
                over = true;
            }
            _ => drain(&mut sender, &mut receiver, &mut contexts, &pool, &mut got, now, &mut unsent),
        }
    }
    sender.close(now);
    for _ in 0..100_000 {
        if receiver.is_finished() {
            break;
        }
        now += 10_000;
        jobs.extend(sender.next_job(now));
        for job in jobs.drain(..) {
            let done = job.run(&mut contexts, &pool);
            sender.finish(done, now);
        }
        drain(&mut sender, &mut receiver, &mut contexts, &pool, &mut got, now, &mut unsent);
        unsent = 0;
        sender.on_link(LinkSample { begin_ns: now, end_ns: now, ..LinkSample::default() });
    }
    assert!(receiver.is_finished(), "no end");
    assert_eq!(sender.jobs(), jobs.len());
    assert!(got == sent);
    if cores % 2 == 0 {
        let close = receiver.close_message(None);
        sender.receive(&close, now).expect("our own receiver");
        assert!(sender.is_confirmed());
    }
});

fn drain(
    sender: &mut Encoding,
    receiver: &mut Decoding,
    contexts: &mut Contexts,
    pool: &BufferPool,
    got: &mut Vec<u8>,
    now: u64,
    unsent: &mut u64,
) {
    while let Some(frame) = sender.poll_transmit() {
        let wire = [&*frame.header, &*frame.body].concat();
        let before = *unsent;
        *unsent += wire.len() as u64;
        sender.on_link(LinkSample {
            begin_ns: now,
            end_ns: now,
            unsent_before: before,
            unsent_after: *unsent,
            accepted: wire.len() as u64,
            busy_ns: None,
            unacked: None,
            delivery_bytes_per_s: None,
            rtt_ns: None,
        });
        receiver.receive(Block::from_vec(wire)).expect("our own frame");
        receiver.work(Budget::ALL, &mut Here { contexts, buffers: pool }).expect("our own block");
        while let Some(raw) = receiver.read() {
            got.extend_from_slice(&raw);
        }
        if let Some(report) = receiver.poll_feedback(now, 0) {
            sender.receive(&report, now).expect("our own report");
        }
    }
}
