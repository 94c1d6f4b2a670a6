//! The programs of the test. They use the functions of the C library, as most programs do.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use narrows_sim::rng::Rng;
use rustix::process::{Signal, getpid, kill_process};

use super::content::Key;
use super::record::{End, Field, Slot, now_ns};
use super::talk::{PATIENCE, Source, Talk, polled};

/// Pause while there is no server, and between connections.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX_MS: usize = 120;
/// Time that a server waits for its last connections after it was told to end.
const LAST: Duration = Duration::from_secs(90);

pub(super) fn run(words: &[String]) -> Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", record, port, how, way] => serve(Path::new(record), port.parse()?, how == "polled", way == "up"),
        ["connect", record, port_file, pair, life, seed, how, count] => {
            let client = Client {
                file: create(record)?,
                port_file: port_file.into(),
                pair: pair.parse()?,
                life: life.parse()?,
                seed: seed.parse()?,
                number: AtomicU64::new(0),
            };
            connect(&Arc::new(client), how == "polled", count.parse()?)
        }
        ["kill", record, port, pair, life, seed] => kill(
            record,
            port.parse()?,
            Key { pair: pair.parse()?, life: life.parse()?, number: 0, seed: seed.parse()? },
        ),
        _ => bail!("unknown role"),
    }
}

fn create(record: &str) -> Result<Arc<File>> {
    Ok(Arc::new(File::create(record).with_context(|| format!("cannot make {record}"))?))
}

/// Sets the flag when stdin ends, by which the parent tells this program to end.
fn watch_stdin() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        told.store(true, Ordering::Relaxed);
    });
    stop
}

fn say_ready() -> Result<()> {
    println!("ready {}", std::process::id());
    Ok(io::stdout().flush()?)
}

// --- server ---

fn serve(record: &Path, port: u16, polls: bool, one_way: bool) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).context("cannot listen")?;
    let file = create(&record.to_string_lossy())?;
    let stop = watch_stdin();
    say_ready()?;
    if polls {
        listener.set_nonblocking(true)?;
        polled(&mut Accepting { listener, file, number: 0, one_way }, &stop);
        return Ok(());
    }
    let open = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&open);
    thread::spawn(move || {
        for number in 0.. {
            let Ok((socket, _)) = listener.accept() else { continue };
            let slot = Slot::new(&file, number);
            slot.set(Field::Begun, now_ns());
            counted.fetch_add(1, Ordering::Relaxed);
            let open = Arc::clone(&counted);
            thread::spawn(move || {
                Talk::server(socket, slot, one_way).block();
                open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(PAUSE);
    }
    let told = Instant::now();
    // Connections may still be in the queue.
    thread::sleep(5 * PAUSE);
    while open.load(Ordering::Relaxed) > 0 && told.elapsed() < LAST {
        thread::sleep(PAUSE);
    }
    Ok(())
}

struct Accepting {
    listener: TcpListener,
    file: Arc<File>,
    number: u64,
    one_way: bool,
}

impl Source for Accepting {
    fn listener(&self) -> Option<&TcpListener> {
        Some(&self.listener)
    }

    fn next(&mut self, _open: usize) -> Option<Talk> {
        let (socket, _) = self.listener.accept().ok()?;
        let slot = Slot::new(&self.file, self.number);
        slot.set(Field::Begun, now_ns());
        self.number += 1;
        Some(Talk::server(socket, slot, self.one_way))
    }

    fn is_over(&self) -> bool {
        true
    }
}

// --- client ---

struct Client {
    file: Arc<File>,
    /// File with the server's current port.
    port_file: PathBuf,
    pair: u64,
    life: u64,
    seed: u64,
    number: AtomicU64,
}

impl Client {
    fn open(&self, blocking: bool) -> Option<Talk> {
        let port: u16 = fs::read_to_string(&self.port_file).ok()?.trim().parse().ok()?;
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let mut rng = Rng(self.seed ^ number.wrapping_mul(0x5851_f42d_4c95_7f2d));
        let key = Key { pair: self.pair, life: self.life, number, seed: rng.next_u64() };
        let slot = Slot::new(&self.file, number);
        slot.set_key(key);
        slot.set(Field::Begun, now_ns());
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        match if blocking { TcpStream::connect(at) } else { TcpStream::connect_timeout(&at, PATIENCE) } {
            Ok(socket) => {
                slot.set(Field::Open, now_ns());
                Some(Talk::client(socket, slot, key, false))
            }
            Err(e) => {
                slot.end_writing(End::from(&e));
                slot.end_reading(End::from(&e));
                slot.set(Field::Closed, now_ns());
                None
            }
        }
    }
}

fn connect(client: &Arc<Client>, polls: bool, count: usize) -> Result<()> {
    let stop = watch_stdin();
    say_ready()?;
    if polls {
        let source =
            &mut Connecting { client: Arc::clone(client), count, due: Instant::now(), stop: Arc::clone(&stop) };
        polled(source, &stop);
        return Ok(());
    }
    thread::scope(|scope| {
        for thread in 0..count {
            let (client, stop) = (Arc::clone(client), Arc::clone(&stop));
            scope.spawn(move || {
                let mut rng = Rng(client.seed ^ (thread as u64 + 1) << 40);
                while !stop.load(Ordering::Relaxed) {
                    let blocking = rng.below(4) > 0;
                    match client.open(blocking) {
                        Some(talk) => talk.block(),
                        None => thread::sleep(PAUSE),
                    }
                    thread::sleep(Duration::from_millis(rng.below(PAUSE_MAX_MS) as u64));
                }
            });
        }
    });
    Ok(())
}

struct Connecting {
    client: Arc<Client>,
    count: usize,
    due: Instant,
    stop: Arc<AtomicBool>,
}

impl Source for Connecting {
    fn listener(&self) -> Option<&TcpListener> {
        None
    }

    fn next(&mut self, open: usize) -> Option<Talk> {
        if open >= self.count || self.is_over() || Instant::now() < self.due {
            return None;
        }
        self.due = Instant::now() + PAUSE;
        self.client.open(false)
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Writes when stdin ends, then kills itself.
fn kill(record: &str, port: u16, key: Key) -> Result<()> {
    let slot = Slot::new(&create(record)?, 0);
    say_ready()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    slot.set_key(key);
    slot.set(Field::Begun, now_ns());
    let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    slot.set(Field::Open, now_ns());
    Talk::client(socket, slot, key, true).write_all()?;
    kill_process(getpid(), Signal::KILL)?;
    bail!("SIGKILL did not end this process")
}
