//! The command `load`: threads that keep cores busy, like other programs on the same machine.

use std::fs::File;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Usage;
use crate::stop::exit_code;
use anyhow::{Context, Result, anyhow};
use narrows::codec::{CodecId, Contexts, Method};

/// Keep CPU cores busy
///
/// Runs until it is killed, or for --seconds, or as long as the CMD after --. In the last case its
/// exit status is that of CMD, or 128 plus the signal's number if CMD was killed. Without --io
/// threads only compute; with it each one reads random numbers from the kernel, compresses them by
/// bzip2 and writes them to /dev/null, so that the kernel is busy, too.
#[derive(clap::Args, Clone)]
pub(crate) struct Args {
    /// Busy threads; one for each core by default
    #[arg(long, short = 'n')]
    threads: Option<usize>,
    /// Read, compress and write instead of computing only
    #[arg(long)]
    io: bool,
    /// Nice level from -20 to 19; below 0 needs root
    #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
    nice: i32,
    /// Percent of the time in which each thread is busy
    #[arg(long, value_name = "PERCENT", default_value_t = 100)]
    duty: u32,
    /// Period of busy and idle time
    #[arg(long, value_name = "MS", default_value_t = 100)]
    period: u64,
    /// End after this time; not with a CMD, which ends the load itself
    #[arg(long, conflicts_with = "command")]
    seconds: Option<f64>,
    /// Command during which the load lasts
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Limit on threads: the cores of the largest machines.
const THREADS_MAX: usize = 1024;
/// Steps between checks whether the busy time is over: some 100 us of computing.
const STEPS: u32 = 100_000;
/// Bytes compressed at a time. A block of bzip2 has at most 900 kB; this takes at most a tenth of a
/// second, and of a period.
const IO_BYTES: usize = 64 << 10;

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut load = Load::start(args)?;
    if let Some((program, rest)) = args.command.split_first() {
        let status = std::process::Command::new(program).args(rest).status();
        let status = status.with_context(|| format!("cannot run {program}"))?;
        load.stop();
        std::process::exit(exit_code(status));
    }
    let begun = Instant::now();
    while args.seconds.is_none_or(|s| begun.elapsed().as_secs_f64() < s) {
        let left = args.seconds.map_or(1.0, |s| (s - begun.elapsed().as_secs_f64()).clamp(0.0, 1.0));
        std::thread::sleep(Duration::from_secs_f64(left));
    }
    load.stop();
    Ok(())
}

/// Busy threads, which end when this value is dropped.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    work: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    pub(crate) fn start(args: &Args) -> Result<Self> {
        let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        let within = |ok, what: &str| if ok { Ok(()) } else { Err(Usage(what.to_owned() + " is impossible")) };
        within((1..=THREADS_MAX).contains(&threads), &format!("--threads {threads} (1 to {THREADS_MAX})"))?;
        within((1..=100).contains(&args.duty), &format!("--duty {} (1 to 100 percent)", args.duty))?;
        within((-20..=19).contains(&args.nice), &format!("--nice {} (-20 to 19)", args.nice))?;
        within((1..=60_000).contains(&args.period), &format!("--period {} (1 to 60000 ms)", args.period))?;
        let seconds = args.seconds.unwrap_or(1.0);
        within(seconds > 0.0 && seconds <= 1e6, &format!("--seconds {seconds} (more than 0, to 1000000)"))?;
        let mut load = Self { stop: Arc::default(), work: Arc::default(), threads: Vec::new() };
        let (told, answers) = std::sync::mpsc::channel();
        for i in 0..threads {
            let (stop, work, told, args) = (load.stop.clone(), load.work.clone(), told.clone(), args.clone());
            let busy = move || {
                let (ready, churn) = match ready(&args) {
                    Ok(churn) => (Ok(()), Some(churn)),
                    Err(e) => (Err(e), None),
                };
                let _ = told.send(ready);
                if let Some(churn) = churn {
                    turns(&args, churn, &stop, &work);
                }
            };
            load.threads.push(std::thread::Builder::new().name(format!("load-{i}")).spawn(busy)?);
        }
        // Dropped, so that `recv` fails instead of waiting for a thread that panicked.
        drop(told);
        for _ in 0..threads {
            answers.recv()??;
        }
        Ok(load)
    }

    pub(crate) fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Prepares a thread; must be called in that thread.
fn ready(args: &Args) -> Result<Option<Churn>> {
    if args.nice != 0 {
        let set = rustix::process::setpriority_process(Some(rustix::thread::gettid()), args.nice);
        set.map_err(|_| {
            anyhow!("a nice level of {} is not permitted: below 0 it needs root (CAP_SYS_NICE)", args.nice)
        })?;
    }
    args.io.then(|| Churn::new(RANDOM)).transpose()
}

fn turns(args: &Args, mut churn: Option<Churn>, stop: &AtomicBool, work: &AtomicU64) {
    let period = Duration::from_millis(args.period);
    let busy = period * args.duty / 100;
    let mut seed = 1u64;
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        while begun.elapsed() < busy && !stop.load(Ordering::Relaxed) {
            match &mut churn {
                Some(churn) => churn.step(),
                None => {
                    for _ in 0..STEPS {
                        seed = seed.wrapping_mul(6_364_136_223_846_793_005).rotate_left(17) ^ 0x9e37;
                    }
                }
            }
            // Use the sum, as otherwise the compiler would remove the computation.
            work.fetch_add(seed | 1, Ordering::Relaxed);
        }
        // The pause follows from the actual busy time, so a late end does not change the share of
        // busy time.
        let idle = begun.elapsed().mul_f64(f64::from(100 - args.duty) / f64::from(args.duty));
        std::thread::sleep(idle.min(period));
    }
}

/// Source of input that never ends and does not compress.
const RANDOM: &str = "/dev/urandom";

/// Reads random numbers, compresses them by bzip2, and discards the result.
struct Churn {
    random: File,
    nothing: File,
    contexts: Contexts,
    raw: Vec<u8>,
    packed: Vec<u8>,
}

impl Churn {
    fn new(random: &str) -> Result<Self> {
        let needed = |path: &str| format!("--io needs {path}, which is not available: leave --io out");
        let random = File::open(random).with_context(|| needed(random))?;
        let nothing = File::options().write(true).open("/dev/null").with_context(|| needed("/dev/null"))?;
        Ok(Self {
            random,
            nothing,
            contexts: Contexts::default(),
            raw: vec![0; IO_BYTES],
            packed: vec![0; IO_BYTES - 1],
        })
    }

    fn step(&mut self) {
        let method = Method::new(CodecId::BZIP2, 9);
        if self.random.read_exact(&mut self.raw).is_err() {
            return;
        }
        let encoder = self.contexts.encoder(method.info());
        // Random numbers never shrink, but the CPU time is spent.
        let len = encoder.encode(method.level, &[], &self.raw, &mut self.packed);
        let _ = self.nothing.write_all(len.map_or(&self.raw[..], |len| &self.packed[..len]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(threads: usize) -> Args {
        Args { threads: Some(threads), io: false, nice: 0, duty: 100, period: 100, seconds: None, command: Vec::new() }
    }

    #[test]
    fn the_load_works_with_and_without_io_and_ends() {
        for io in [false, true] {
            let mut load = Load::start(&Args { io, nice: 1, ..args(2) }).unwrap();
            let begun = Instant::now();
            while load.work.load(Ordering::Relaxed) == 0 {
                assert!(begun.elapsed() < Duration::from_secs(30), "it does nothing");
                std::thread::sleep(Duration::from_millis(1));
            }
            load.stop();
            assert!(load.threads.is_empty());
        }
    }

    #[test]
    fn a_load_that_cannot_read_says_so_instead_of_computing() {
        let error = Churn::new("/no/such").map(drop).unwrap_err();
        assert!(format!("{error:#}").contains("--io needs /no/such"), "{error:#}");
    }

    #[test]
    fn impossible_loads_say_what_is_possible() {
        for (bad, why) in [
            (args(0), "--threads 0 (1 to 1024) is impossible"),
            (args(THREADS_MAX + 1), "is impossible"),
            (Args { duty: 0, ..args(1) }, "--duty 0 ("),
            (Args { duty: 101, ..args(1) }, "--duty 101 ("),
            (Args { nice: 20, ..args(1) }, "--nice 20 ("),
            (Args { period: 0, ..args(1) }, "--period 0 ("),
            (Args { seconds: Some(0.0), ..args(1) }, "--seconds 0 ("),
            (Args { seconds: Some(f64::NAN), ..args(1) }, "--seconds NaN ("),
        ] {
            let error = Load::start(&bad).map(drop).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
