//! The status socket: whoever of the same user connects, or root, is told the status and sends nothing.

use std::io::{ErrorKind, Result, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::{Describe, name};

/// Time that a client has to take its answer. A reader takes some megabytes within milliseconds.
const PATIENCE: Duration = Duration::from_secs(2);

/// Starts a thread that answers, one client after the other.
///
/// # Errors
/// If the name is taken, or the system gives no thread. A process works without it.
pub fn start(describe: Describe) -> Result<()> {
    let listener = name::listen(name::STATUS)?;
    let work = move || {
        for socket in listener.incoming() {
            match socket {
                Ok(socket) => drop(tell(socket, &describe)),
                // For example without descriptors, where it would fail again at once.
                Err(_) => std::thread::sleep(PATIENCE),
            }
        }
    };
    std::thread::Builder::new().name("narrows-status".into()).spawn(work)?;
    Ok(())
}

fn tell(socket: UnixStream, describe: &Describe) -> Result<()> {
    if !name::may_ask(&socket) {
        return Ok(());
    }
    let answer = serde_json::to_vec(&describe())?;
    write_within(&socket, &answer, PATIENCE)
}

/// Writes all bytes, or fails after `limit`, however slowly its peer reads.
fn write_within(mut socket: &UnixStream, mut bytes: &[u8], limit: Duration) -> Result<()> {
    let begun = Instant::now();
    while !bytes.is_empty() {
        let left = limit.checked_sub(begun.elapsed()).filter(|left| !left.is_zero());
        socket.set_write_timeout(Some(left.ok_or(ErrorKind::TimedOut)?))?;
        match socket.write(bytes)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            n => bytes = &bytes[n..],
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_does_not_read_is_left() {
        let (near, _far) = UnixStream::pair().unwrap();
        let failed = write_within(&near, &vec![0; 8 << 20], Duration::from_millis(50)).unwrap_err();
        assert!(matches!(failed.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock), "{failed}");
    }
}
