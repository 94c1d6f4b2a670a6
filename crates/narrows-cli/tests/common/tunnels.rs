//! Ends of tunnels as their users start them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::Value;

use super::{PATIENCE, narrows};

/// An end of a tunnel, and what it has printed as JSON.
pub(crate) struct End {
    pub(crate) child: Child,
    lines: Receiver<Value>,
    /// Lines of stderr, if they are listened to.
    notes: Option<Receiver<String>>,
}

impl End {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self::of(command.arg("--json").stderr(Stdio::inherit()).spawn().unwrap())
    }

    /// Starts one whose words for people are listened to.
    pub(crate) fn start_hearing(command: &mut Command) -> Self {
        Self::of(command.arg("--json").stderr(Stdio::piped()).spawn().unwrap())
    }

    fn of(mut child: Child) -> Self {
        let (told, lines) = channel();
        each_line(child.stdout.take().unwrap(), move |line| {
            let _ = told.send(serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line}: {e}")));
        });
        let notes = child.stderr.take().map(|stderr| {
            let (told, notes) = channel();
            each_line(stderr, move |line| drop(told.send(line)));
            notes
        });
        Self { child, lines, notes }
    }

    /// Waits for a line of stderr with this text.
    pub(crate) fn heard(&self, text: &str) -> String {
        loop {
            let line = self.notes.as_ref().unwrap().recv_timeout(PATIENCE).unwrap_or_else(|e| panic!("{text}: {e}"));
            if line.contains(text) {
                return line;
            }
        }
    }

    /// The next line with this member.
    pub(crate) fn said(&self, member: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|e| panic!("{member}: {e}"));
            if let Some(value) = line.get(member) {
                return value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            }
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }
}

fn each_line(from: impl Read + Send + 'static, mut take: impl FnMut(String) + Send + 'static) {
    std::thread::spawn(move || BufReader::new(from).lines().map_while(Result::ok).for_each(&mut take));
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn tunnel(home: &Path) -> Command {
    let mut command = narrows(home);
    command.env("XDG_STATE_HOME", home).env_remove("NARROWS_TOKEN").arg("tunnel");
    command
}

/// A server that sends back what it gets; its port.
pub(crate) fn echo() -> u16 {
    narrows_test::far::serve(narrows_test::far::echo)
}

pub(crate) fn connect(address: &str) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Sends bytes through an echo.
pub(crate) fn exchange(socket: &mut TcpStream, sent: &[u8]) {
    let (mut writer, copy) = (socket.try_clone().unwrap(), sent.to_vec());
    let writing = std::thread::spawn(move || writer.write_all(&copy).unwrap());
    let mut got = vec![0; sent.len()];
    socket.read_exact(&mut got).unwrap();
    writing.join().unwrap();
    assert!(got == sent);
}

pub(crate) fn wait_for(is: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "it never happens");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
