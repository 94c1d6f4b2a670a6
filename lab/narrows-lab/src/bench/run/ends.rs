//! The programs of the part `run`. They use the functions of the C library, as most programs do.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use narrows_sim::rng::Rng;
use rustix::process::{Resource, Signal, getpid, getrlimit, kill_process, setrlimit};

use super::{PINGS, WARM_UP, age};

/// Stack size of threads: small, as there are thousands and they do little.
const STACK: usize = 128 << 10;
/// Accept queue: the kernel's usual limit, and more than all connections of a part.
const BACKLOG: i32 = 4096;
const WRITE: usize = 64 << 10;
const CONNECT_PATIENCE: Duration = Duration::from_secs(20);
/// Bytes that each connection exchanges before it is idle.
const USED_BYTES: usize = 100_000;

pub(in crate::bench) fn run(words: &[String]) -> Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    raise_descriptor_limit();
    match words[..] {
        ["serve"] => serve(),
        ["age-serve"] => age::serve(),
        ["age", kind] => age::client(kind),
        ["ping", port, size] => ping(address(port)?, size.parse()?),
        ["bulk", port, bytes] => bulk(address(port)?, bytes.parse()?),
        ["connect", port, how, count] => connect(address(port)?, how == "blocking", count.parse()?),
        ["many", port, count, seed] => many(address(port)?, count.parse()?, seed.parse()?),
        ["idle", port, count, used] => idle(address(port)?, count.parse()?, used == "yes"),
        ["kill", port, len, seed] => kill(address(port)?, len.parse()?, seed.parse()?),
        _ => bail!("unknown role"),
    }
}

fn address(port: &str) -> Result<SocketAddr> {
    Ok(SocketAddr::from(([127, 0, 0, 1], port.parse()?)))
}

/// Timeout of reads: nothing on loopback takes so long, so something was lost.
const PATIENCE: Duration = Duration::from_secs(60);

fn open(at: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(at)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}

fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

// --- server ---

/// Prints its port, and answers connections. The first byte of a connection selects the service.
fn serve() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    // When this queue is full, Linux 6.18 has been seen to lose the first byte of connections, whoever accepts them.
    rustix::net::listen(&listener, BACKLOG)?;
    println!("{}", listener.local_addr()?.port());
    for socket in listener.incoming() {
        let socket = socket?;
        // Errors of a connection, such as a client that closes, do not concern the server.
        thread::Builder::new().stack_size(STACK).spawn(move || drop(answer(socket)))?;
    }
    Ok(())
}

fn answer(mut socket: TcpStream) -> io::Result<()> {
    let mut head = [0; 5];
    if socket.read(&mut head[..1])? == 0 {
        return Ok(());
    }
    socket.set_nodelay(true)?;
    match head[0] {
        // Echo messages of the given length.
        b'e' => {
            socket.read_exact(&mut head[1..])?;
            let [_, len @ ..] = head;
            let mut message = vec![0; u32::from_le_bytes(len) as usize];
            loop {
                socket.read_exact(&mut message)?;
                socket.write_all(&message)?;
            }
        }
        // Read until the end, then send the length.
        b's' => {
            let (mut part, mut len) = (vec![0; 256 << 10], 0u64);
            loop {
                match socket.read(&mut part)? {
                    0 => return socket.write_all(&len.to_le_bytes()),
                    n => len += n as u64,
                }
            }
        }
        // Echo bytes as they come.
        _ => {
            let mut part = vec![0; 32 << 10];
            loop {
                match socket.read(&mut part)? {
                    0 => return Ok(()),
                    n => socket.write_all(&part[..n])?,
                }
            }
        }
    }
}

// --- clients: they print numbers ---

/// Prints each round trip in ns.
fn ping(at: SocketAddr, size: usize) -> Result<()> {
    let mut socket = open(at)?;
    socket.set_nodelay(true)?;
    let mut head = vec![b'e'];
    head.extend_from_slice(&(size as u32).to_le_bytes());
    socket.write_all(&head)?;
    let (message, mut back) = (noise(size, 1), vec![0; size]);
    let mut times = Vec::with_capacity(PINGS);
    for i in 0..WARM_UP + PINGS {
        let begun = Instant::now();
        socket.write_all(&message)?;
        socket.read_exact(&mut back)?;
        let took = begun.elapsed();
        ensure!(back == message, "the bytes changed");
        if i >= WARM_UP {
            times.push(took.as_nanos().to_string());
        }
    }
    println!("{}", times.join(" "));
    Ok(())
}

/// Prints the ns until the server has received everything.
fn bulk(at: SocketAddr, bytes: u64) -> Result<()> {
    let mut socket = open(at)?;
    let data = noise(WRITE, 1);
    let begun = Instant::now();
    socket.write_all(b"s")?;
    let mut left = bytes;
    while left > 0 {
        let n = left.min(WRITE as u64) as usize;
        socket.write_all(&data[..n])?;
        left -= n as u64;
    }
    socket.shutdown(std::net::Shutdown::Write)?;
    let mut len = [0; 8];
    socket.read_exact(&mut len)?;
    let took = begun.elapsed();
    ensure!(u64::from_le_bytes(len) == bytes, "bytes are missing");
    println!("{}", took.as_nanos());
    Ok(())
}

/// Prints the ns of each socket and connect. If not blocking: connect, wait until the socket is
/// writable, get the error.
fn connect(at: SocketAddr, blocking: bool, count: usize) -> Result<()> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begun = Instant::now();
        let socket = if blocking { TcpStream::connect(at) } else { TcpStream::connect_timeout(&at, CONNECT_PATIENCE) };
        let took = begun.elapsed();
        drop(socket?);
        times.push(took.as_nanos().to_string());
    }
    println!("{}", times.join(" "));
    Ok(())
}

/// Opens all connections before any of them sends. Prints how many were correct, their bytes, and
/// ns.
fn many(at: SocketAddr, count: usize, seed: u64) -> Result<()> {
    let (barrier, begun) = (Arc::new(Barrier::new(count)), Instant::now());
    let talk = |number: usize, barrier: &Barrier| -> io::Result<(bool, usize)> {
        // A full backlog answers late, and then not at all on some systems.
        let socket = (0..5).find_map(|_| TcpStream::connect_timeout(&at, CONNECT_PATIENCE).ok());
        barrier.wait();
        let mut socket = socket.ok_or(io::ErrorKind::NotConnected)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.write_all(b"b")?;
        let mut rng = Rng(1 + seed * 1_000_003 + number as u64);
        let len = [1, 10, 5000, 70_000, 300_000][rng.below(5)] + rng.below(100);
        let data = noise(len, rng.next_u64());
        let mut back = vec![0; len];
        let mut done = 0;
        while done < len {
            // Pieces that fit into both ends' sockets: the server echoes each one before the next
            // is sent.
            let n = (1 + rng.below(60_000)).min(len - done);
            socket.write_all(&data[done..done + n])?;
            socket.read_exact(&mut back[done..done + n])?;
            done += n;
        }
        socket.shutdown(std::net::Shutdown::Write)?;
        let ended = socket.read(&mut [0])? == 0;
        Ok((ended && back == data, len))
    };
    let results: Vec<_> = thread::scope(|scope| -> Result<_> {
        let mut threads = Vec::with_capacity(count);
        for number in 0..count {
            let (barrier, talk) = (Arc::clone(&barrier), &talk);
            threads.push(thread::Builder::new().stack_size(STACK).spawn_scoped(scope, move || talk(number, &barrier))?);
        }
        Ok(threads.into_iter().map(|t| t.join()).collect())
    })?;
    let (mut right, mut bytes) = (0, 0);
    for result in results {
        match result.map_err(|_| anyhow::anyhow!("a thread failed"))? {
            Ok((fine, len)) => (right, bytes) = (right + u64::from(fine), bytes + len),
            Err(error) => eprintln!("bench: {error}"),
        }
    }
    println!("{right} {bytes} {}", begun.elapsed().as_nanos());
    Ok(())
}

/// Opens connections and keeps them until stdin ends.
fn idle(at: SocketAddr, count: usize, used: bool) -> Result<()> {
    let mut sockets = Vec::with_capacity(count);
    for number in 0..count {
        let mut socket = open(at)?;
        socket.write_all(b"b")?;
        if used {
            let (data, mut back) = (noise(USED_BYTES, number as u64), vec![0; USED_BYTES]);
            socket.write_all(&data)?;
            socket.read_exact(&mut back)?;
            ensure!(data == back, "the bytes changed");
        }
        sockets.push(socket);
    }
    println!("ready");
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Writes, then kills itself.
fn kill(at: SocketAddr, len: usize, seed: u64) -> Result<()> {
    let mut socket = open(at)?;
    socket.write_all(&noise(len, seed))?;
    kill_process(getpid(), Signal::KILL)?;
    bail!("SIGKILL did not end this process")
}

/// Random bytes from a seed.
pub(super) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    out.truncate(len);
    out
}
