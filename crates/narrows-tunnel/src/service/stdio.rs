//! stdin and stdout as one socket.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use anyhow::Result;
use narrows_host::files;

/// A socket whose bytes two threads carry to stdout and from stdin, whatever these are.
pub(super) fn relay_stdio() -> Result<UnixStream> {
    let (mut input, mut output) = (files::stdin()?, files::stdout()?);
    let (near, far) = UnixStream::pair()?;
    let mut from_input = far.try_clone()?;
    let mut to_output = far;
    std::thread::Builder::new().name("narrows-stdin".into()).spawn(move || {
        let _ = pass(&mut input, &mut from_input);
        let _ = from_input.shutdown(Shutdown::Write);
    })?;
    std::thread::Builder::new().name("narrows-stdout".into()).spawn(move || {
        // Without a reader there is no other end.
        if pass(&mut to_output, &mut output).is_err() {
            let _ = to_output.shutdown(Shutdown::Both);
        }
    })?;
    Ok(near)
}

/// Passes bytes on as they come.
fn pass(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => to.write_all(&buffer[..n])?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}
