//! Two ends of a tunnel, and servers at the far side of it.
#![allow(dead_code, unused_imports, reason = "no test file uses all of it")]

pub(crate) mod authority;
pub(crate) mod raw;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub(crate) use narrows_test::far::echo;
pub(crate) use narrows_test::{noise, text};
use narrows_trust::keys::Keys;
use narrows_trust::proof;
use narrows_tunnel::Tunnel;
use narrows_tunnel::forward::Forward;
use narrows_tunnel::rules::Rules;
use narrows_tunnel::session::Timing;
use narrows_tunnel::settings::{PROTOCOL, Report, Settings, Uplink};

/// Limit for everything that is waited for.
pub(crate) use narrows_test::PATIENCE;

/// `localhost:PORT` of a server at the far side.
pub(crate) fn target(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// Keys of an acceptor, made for this process.
pub(crate) fn keys() -> Keys {
    let dir = tempfile::tempdir().unwrap();
    Keys::load(&dir.path().join("key")).unwrap()
}

/// A server at the far side of the tunnel.
pub(crate) struct Far {
    pub(crate) port: u16,
}

impl Far {
    /// Serves each connection by a thread.
    pub(crate) fn new(serve: impl Fn(TcpStream) + Send + Sync + Clone + 'static) -> Self {
        Self { port: narrows_test::far::serve(serve) }
    }

    pub(crate) fn echo() -> Self {
        Self::new(echo)
    }
}

/// A dialer and an acceptor.
pub(crate) struct Ends {
    pub(crate) dialer: Tunnel,
    pub(crate) acceptor: Option<Tunnel>,
    /// Addresses of the forwards, in order.
    pub(crate) listening: Vec<String>,
    pub(crate) address: String,
}

pub(crate) fn acceptor(keys: &Keys, address: &str, settings: Settings) -> (Tunnel, String) {
    let config = proof::server_config(keys, PROTOCOL).unwrap();
    let listen = vec![(address.parse().unwrap(), config)];
    let flows_max = if settings.flows_max == 0 { 10_000 } else { settings.flows_max };
    let tunnel = Tunnel::start(Settings { listen, flows_max, ..settings }).unwrap();
    let address = wait_for(&tunnel, |report| match report {
        Report::Serving { address } => Some(address),
        _ => None,
    });
    (tunnel, address)
}

pub(crate) fn dialer(keys: &Keys, address: &str, settings: Settings) -> Tunnel {
    let config = proof::client_config(&keys.token().unwrap(), PROTOCOL).unwrap();
    let (host, port) = address.rsplit_once(':').unwrap();
    let name = proof::NAME.try_into().unwrap();
    let uplink = Uplink::Tls { host: host.into(), port: port.parse().unwrap(), config, name };
    Tunnel::start(Settings { uplink: Some(uplink), carriers: 2, flows_max: 10_000, ..settings }).unwrap()
}

/// Waits for a report.
pub(crate) fn wait_for<T>(tunnel: &Tunnel, found: impl Fn(Report) -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        match tunnel.reports.recv_timeout(Duration::from_millis(100)) {
            Ok(report) => {
                let text = format!("{report:?}");
                if let Some(value) = found(report) {
                    return value;
                }
                assert!(!text.starts_with("Over"), "{text}");
            }
            Err(RecvTimeoutError::Timeout) => assert!(begun.elapsed() < PATIENCE, "nothing is reported"),
            Err(e) => panic!("{e}"),
        }
    }
}

pub(crate) fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn forward(from: &str, to: &str) -> Forward {
    Forward::parse(&format!("{from}:{to}")).unwrap()
}

impl Ends {
    /// Local forwards, as pairs of what is in front of and after the first colon.
    pub(crate) fn new(local: &[(&str, &str)]) -> Self {
        let local = local.iter().map(|(from, to)| forward(from, to)).collect();
        Self::with(Settings { local, ..Settings::default() }, Settings::default())
    }

    /// Without pings: nothing but events may keep bytes moving.
    pub(crate) fn with(dialer: Settings, acceptor: Settings) -> Self {
        const HOUR: u64 = 3_600_000_000_000;
        let timing = Timing { ping_after_ns: HOUR, dead_after_ns: 2 * HOUR, ..Timing::default() };
        let (dialer, acceptor) = (Settings { timing, ..dialer }, Settings { timing, ..acceptor });
        let keys = keys();
        let (acceptor, address) = self::acceptor(&keys, "127.0.0.1:0", acceptor);
        let wanted = dialer.local.len() + dialer.dynamic.len() + dialer.remote.len();
        let dialer = self::dialer(&keys, &address, dialer);
        let (mut listening, mut up) = (Vec::new(), false);
        while listening.len() < wanted || !up {
            match wait_for(&dialer, Some) {
                Report::Listening { from, .. } | Report::RemoteListening { from, .. } => listening.push(from),
                Report::Up => up = true,
                Report::Over { error } => panic!("{error:?}"),
                Report::RemoteRefused { from, why } => listening.push(format!("{from}: {why}")),
                _ => {}
            }
        }
        Self { dialer, acceptor: Some(acceptor), listening, address }
    }

    /// Connects to the `i`th listener.
    pub(crate) fn connect(&self, i: usize) -> TcpStream {
        let socket = TcpStream::connect(&self.listening[i]).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    pub(crate) fn any() -> Rules {
        Rules::any()
    }
}

/// Passes connections on to an address, until they are cut.
pub(crate) struct Relay {
    pub(crate) address: String,
    sockets: Arc<Mutex<Vec<[TcpStream; 2]>>>,
    frozen: Arc<AtomicBool>,
}

impl Relay {
    pub(crate) fn new(to: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sockets, frozen) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (to, kept, stops) = (to.to_owned(), Arc::clone(&sockets), Arc::clone(&frozen));
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(&to) else { continue };
                kept.lock().unwrap().push([near.try_clone().unwrap(), far.try_clone().unwrap()]);
                let (near2, far2) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                for (from, to) in [(near, far), (far2, near2)] {
                    let stops = Arc::clone(&stops);
                    std::thread::spawn(move || pass(from, to, &stops));
                }
            }
        });
        Self { address, sockets, frozen }
    }

    /// Nothing passes any more, and nobody is told.
    pub(crate) fn freeze(&self) {
        self.frozen.store(true, Ordering::Relaxed);
    }

    /// Everything passes again.
    pub(crate) fn thaw(&self) {
        self.frozen.store(false, Ordering::Relaxed);
    }

    /// Both sides see the end of all connections.
    pub(crate) fn cut(&self) {
        for [near, far] in self.sockets.lock().unwrap().drain(..) {
            let _ = near.shutdown(std::net::Shutdown::Both);
            let _ = far.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Only the side that connected sees it.
    pub(crate) fn forget(&self) {
        for [near, far] in self.sockets.lock().unwrap().drain(..) {
            let _ = near.shutdown(std::net::Shutdown::Both);
            std::mem::forget(far);
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, stops: &AtomicBool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        while stops.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
        }
        if to.write_all(&buffer[..n]).is_err() {
            return;
        }
    }
}
