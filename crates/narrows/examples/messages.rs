//! Messages over a carrier that keeps their borders, each compressed with what came before it.
//!
//! `cargo run --release -p narrows --example messages`

use std::os::unix::net::UnixDatagram;
use std::time::Instant;

use narrows::messages::{Came, Carrier, Contexts, Delivery, MessageConfig, MessageEnd};

/// Longest unit that this carrier takes; the library's own limit on a message is 65,535 bytes.
const UNIT_MAX: usize = 66_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (here, there) = UnixDatagram::pair()?;
    let carrier = Carrier { delivery: Delivery::Ordered, borders: true };
    // Another number for every flow that begins, random where a peer may go on after a restart.
    let end = |epoch| MessageEnd::adaptive(MessageConfig { carrier, epoch, ..MessageConfig::default() });
    let (mut near, mut far) = (end(1)?, end(2)?);
    // One for each thread, shared by all of its flows.
    let mut contexts = Contexts::default();

    // Time is an argument: the library reads no clock.
    let begun = Instant::now();
    let (mut raw_bytes, mut wire_bytes, mut unit, mut input) = (0, 0, Vec::new(), vec![0; UNIT_MAX]);
    for i in 0..1000 {
        let message =
            format!("{{\"sensor\": \"north-east corner\", \"celsius\": {:.1}}}", 20.0 + f64::from(i % 50) / 10.0);
        unit.clear();
        let now_ns = begun.elapsed().as_nanos() as u64;
        near.send(message.as_bytes(), now_ns, &mut contexts, &mut unit)?;
        here.send(&unit)?;
        (raw_bytes, wire_bytes) = (raw_bytes + message.len(), wire_bytes + unit.len());

        let len = there.recv(&mut input)?;
        let (mut rest, mut came) = (&input[..len], None);
        while !rest.is_empty() {
            let received = far.receive(rest, &mut contexts)?;
            if let Came::Message(message) = received.came {
                came = Some(message.to_vec());
            }
            rest = &rest[received.consumed..];
        }
        assert_eq!(came.as_deref(), Some(message.as_bytes()));
    }
    println!("{raw_bytes} bytes in 1000 messages, {wire_bytes} on the wire");
    Ok(())
}
