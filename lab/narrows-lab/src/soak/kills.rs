//! Programs that are killed right after their last write: all of it must arrive, then an end of
//! stream.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use narrows_sim::rng::Rng;

use super::Args;
use super::content::{Behaviour, HEAD_LEN};
use super::host::{How, LEAVES, Running, Side, World};
use super::record::{End, Field, read};
use super::report::Report;

/// Timeout for the arrival of everything written, including the pauses of the reader.
const ARRIVES: Duration = Duration::from_secs(90);
const LOOK_EVERY: Duration = Duration::from_millis(3);
/// Clients per server before it is replaced by one with other settings. Limited because the
/// server's whole record is read for each client.
const LIFE: u64 = 100;

#[derive(Default)]
struct Sum {
    runs: u64,
    bytes: u64,
}

pub(super) fn run(args: &Args, world: &World, count: u64, report: &mut Report) -> Result<()> {
    let (next, sum) = (AtomicU64::new(0), Mutex::new(Sum::default()));
    thread::scope(|scope| {
        for pair in 0..args.pairs {
            let (next, sum) = (&next, &sum);
            scope.spawn(move || {
                let mut life = 0;
                while let Some(from) = claim(next, count, world) {
                    if let Err(e) = one_server(args, world, pair, life, from..(from + LIFE).min(count), sum) {
                        world.fault(format!("server {life} of pair {pair}: {e:#}"));
                    }
                    life += 1;
                    let done = sum.lock().unwrap_or_else(PoisonError::into_inner).runs;
                    eprintln!("soak: {done} of {count} programs killed, {} faults", world.faults().len());
                }
            });
        }
    });
    let sum = sum.into_inner().unwrap_or_default();
    report.killed(sum.runs, sum.bytes);
    Ok(())
}

fn claim(next: &AtomicU64, count: u64, world: &World) -> Option<u64> {
    let from = next.fetch_add(LIFE, Ordering::Relaxed);
    (from < count && !world.stopped()).then_some(from)
}

fn one_server(
    args: &Args,
    world: &World,
    pair: u64,
    life: u64,
    runs: std::ops::Range<u64>,
    sum: &Mutex<Sum>,
) -> Result<()> {
    let mut rng = Rng(args.seed ^ (runs.start + 1).wrapping_mul(0xd134_2543_de82_ef95));
    let direct = rng.below(2) == 0;
    let how = How::draw(&mut rng, direct);
    let record = world.record(pair, Side::Server, life);
    let words = ["serve", &record.to_string_lossy(), "{port}", if how.polls { "polled" } else { "blocking" }, "up"];
    let mut server = Running::start(world, &format!("{pair}-server-{life}"), Side::Server, &how, &words)?;
    let mut leaving = Vec::new();
    for (number, run) in runs.enumerate() {
        if world.stopped() {
            break;
        }
        let seed = rng.next_u64() >> 1;
        let how = How::draw(&mut rng, direct);
        let name = format!("{pair}-client-{run}");
        let own = world.record(pair, Side::Client, run);
        let [port, pair, run_word, seed_word] = [u64::from(server.port), pair, run, seed].map(|n| n.to_string());
        let words = ["kill", &own.to_string_lossy(), &port, &pair, &run_word, &seed_word];
        let mut client = Running::start(world, &name, Side::Client, &how, &words)?;
        client.finish();
        let arrived = arrived(&record, &client, number, run, seed);
        let _ = std::fs::remove_file(&own);
        match arrived {
            Ok(bytes) => {
                let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
                (sum.runs, sum.bytes) = (sum.runs + 1, sum.bytes + bytes);
            }
            Err(e) => world.fault(format!("run {run}, {}, server {}: {e:#}", how, server.how)),
        }
        leaving.push(client);
        leaving.retain_mut(|client| !client.has_left(world));
    }
    server.finish();
    ensure!(server.program.ends_within(LEAVES), "it does not end");
    leaving.push(server);
    let begun = Instant::now();
    while !leaving.is_empty() && begun.elapsed() < 2 * LEAVES {
        leaving.retain_mut(|client| !client.has_left(world));
        thread::sleep(LOOK_EVERY);
    }
    let _ = std::fs::remove_file(&record);
    Ok(())
}

/// Waits for the server's record of a run. Returns the bytes that arrived.
fn arrived(record: &std::path::Path, client: &Running, number: usize, run: u64, seed: u64) -> Result<u64> {
    let len = HEAD_LEN as u64 + Behaviour::of(seed).up.len;
    let begun = Instant::now();
    loop {
        let entry = read(record)?.get(number).copied().unwrap_or_default();
        if let Some(end) = entry.read_end() {
            let read = entry.get(Field::Read);
            ensure!(entry.key().is_some_and(|k| k.life == run), "{read} bytes of {len}, {end}; it has no key");
            ensure!(end == End::Whole && read == len, "{read} bytes of {len}, {end}");
            ensure!(client.program.ends_within(LEAVES), "the program was not killed");
            return Ok(read);
        }
        ensure!(begun.elapsed() < ARRIVES, "{} bytes of {len}, and no end", entry.get(Field::Read));
        thread::sleep(LOOK_EVERY);
    }
}
