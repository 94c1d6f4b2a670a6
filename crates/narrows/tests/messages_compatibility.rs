//! Message flows of every released format must decode for ever.
//! `crates/narrows/tests/streams/messages-*.nrm` hold units written by version 0.1, each prefixed with its
//! length (4 bytes); files are only added, never changed (`UPDATE_STREAMS=1` writes missing ones).

mod message_world;

use std::path::PathBuf;
use std::sync::Arc;

use message_world::{DATAGRAMS, End, Random, STREAM, TOPIC, Turns, UNITS, config, dictionary, ends, fixed};
use narrows::message::{Carrier, Dictionary, MessageConfig};

const FLOWS: [(&str, Carrier); 4] = [("stream", STREAM), ("units", UNITS), ("datagrams", DATAGRAMS), ("topic", TOPIC)];

fn file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/streams")).join(format!("messages-v1-{name}.nrm"))
}

/// A dictionary that both ends have.
fn shared() -> Arc<Dictionary> {
    dictionary(Random(4).message().repeat(5))
}

fn config_of(carrier: Carrier) -> MessageConfig {
    MessageConfig { known: vec![shared()], seed: Some(shared()), history: 4096, ..config(carrier) }
}

fn messages() -> Vec<Vec<u8>> {
    let mut random = Random(2026);
    (0..60)
        .map(|i| match i {
            7 => Vec::new(),
            8 => random.bytes(700),
            9 => vec![b'z'; 5000],
            _ => random.message(),
        })
        .collect()
}

/// Writes a flow with history, seed, resets, pins and offers of each kind.
fn write(carrier: Carrier) -> Vec<u8> {
    let (mut a, mut b) = ends(&config_of(carrier), || Box::new(Turns::default()));
    let mut file = Vec::new();
    for (i, message) in messages().iter().enumerate() {
        let mut unit = Vec::new();
        match i {
            5 => assert!(a.sender.offer(shared(), true)),
            15 => assert!(a.sender.offer(dictionary(Random(5).message().repeat(2)), false)),
            25 => _ = a.sender.pin(800),
            35 => a.sender.on_time(a.now_ns + 60_000_000_000),
            _ => {}
        }
        if carrier == TOPIC && i % 10 == 0 {
            a.sender.announce(&mut unit).unwrap();
        }
        if i == 12 {
            a.sender.encode_private(message, a.now_ns, &mut a.contexts, &mut unit).unwrap();
        } else {
            unit.extend(a.unit(message));
        }
        b.receive(&unit).unwrap();
        let back = b.unit(b"");
        a.receive(&back).unwrap();
        file.extend_from_slice(&(unit.len() as u32).to_le_bytes());
        file.extend_from_slice(&unit);
    }
    file
}

#[test]
fn flows_of_version_1_decode() {
    for (name, carrier) in FLOWS {
        let path = file(name);
        if !path.exists() && std::env::var_os("UPDATE_STREAMS").is_some() {
            std::fs::write(&path, write(carrier)).unwrap();
        }
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut b = End::new(MessageConfig { epoch: 2, ..config_of(carrier) }, fixed("store"));
        let mut rest = &bytes[..];
        while let Some((len, behind)) = rest.split_first_chunk() {
            let (unit, behind) = behind.split_at(u32::from_le_bytes(*len) as usize);
            b.receive_all(unit).unwrap();
            rest = behind;
        }
        assert!(b.got == messages(), "{name}: {} came", b.got.len());
        assert_eq!(b.undecodable, 0, "{name}");
    }
}
