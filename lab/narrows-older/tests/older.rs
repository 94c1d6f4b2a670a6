//! What the tests of the engine ask of every codec, its table of lengths, and stored streams.

#[path = "../../../crates/narrows/tests/world/mod.rs"]
mod world;

use std::fmt::Write;
use std::path::PathBuf;

use narrows::ErrorKind;
use narrows::block::{Block, BufferPool};
use narrows::codec::{Codec, Codecs, Contexts, Level};
use narrows::receiver::{Receiver, ReceiverConfig};
use narrows_older::{CODECS, codecs};
use world::{Rng, random, text};

fn shapes() -> Vec<(&'static str, Vec<u8>)> {
    let mut ramp = Vec::new();
    (0..6000u32).for_each(|i| ramp.extend_from_slice(&(i * 3).to_le_bytes()));
    vec![
        ("one byte", vec![9]),
        ("three bytes", vec![1, 2, 1]),
        ("zeros", vec![0; 20_000]),
        ("text", text(30_000, 1)),
        ("random", random(9_000, 2)),
        ("numbers", ramp),
        ("mixed", [text(4_000, 3), random(4_000, 4), vec![7; 4_000]].concat()),
        ("image", narrows_test::jpeg(160, 120, true, 5)),
        ("mail", narrows_test::mail("a few words", &[text(4_000, 6), random(4_000, 7)].concat())),
    ]
}

fn encode(contexts: &mut Contexts, codec: &dyn Codec, level: Level, raw: &[u8]) -> Option<Vec<u8>> {
    let mut wire = vec![0; raw.len()];
    let len = contexts.encoder(codec).encode(level, &[], raw, &mut wire)?;
    wire.truncate(len);
    Some(wire)
}

/// Decodes into a buffer of `len` bytes, followed by guard bytes.
fn decode(contexts: &mut Contexts, codec: &dyn Codec, wire: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut out = vec![0xa5; len + 32];
    let decoded = contexts.decoder(codec).decode(&[], wire, &mut out[..len]);
    assert!(out[len..].iter().all(|b| *b == 0xa5), "{} wrote beyond its room", codec.name());
    out.truncate(decoded.ok()?);
    assert!(out.len() <= len);
    Some(out)
}

#[test]
fn every_level_and_shape_comes_back_and_has_the_length_of_the_table() {
    let mut contexts = Contexts::default();
    let mut table = String::from("codec level shape raw wire\n");
    for codec in CODECS {
        for &level in codec.levels() {
            for (name, raw) in shapes() {
                let wire = encode(&mut contexts, *codec, level, &raw);
                if let Some(wire) = &wire {
                    let back = decode(&mut contexts, *codec, wire, raw.len());
                    assert!(back.as_ref() == Some(&raw), "{} {level} {name}", codec.name());
                    assert_ne!(
                        decode(&mut contexts, *codec, wire, raw.len() - 1),
                        Some(raw.clone()),
                        "{}",
                        codec.name()
                    );
                }
                let len = wire.map_or("-".to_owned(), |wire| wire.len().to_string());
                writeln!(table, "{} {level} {} {} {len}", codec.name(), name.replace(' ', "-"), raw.len()).unwrap();
            }
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/codec-sizes.txt");
    if std::env::var_os("UPDATE_SIZES").is_some() {
        std::fs::write(path, &table).unwrap();
    }
    let reviewed = std::fs::read_to_string(path).unwrap();
    assert!(reviewed == table, "lengths changed; review and run with UPDATE_SIZES=1:\n{table}");
}

#[test]
fn damaged_and_hostile_bytes_never_panic_or_overrun() {
    let mut contexts = Contexts::default();
    let raw = text(700, 31);
    for codec in CODECS {
        let wire = encode(&mut contexts, *codec, codec.default_level(), &raw).unwrap();
        for bit in 0..wire.len() * 8 {
            let mut damaged = wire.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            decode(&mut contexts, *codec, &damaged, raw.len());
        }
        for end in 0..wire.len() {
            assert_ne!(decode(&mut contexts, *codec, &wire[..end], raw.len()), Some(raw.clone()), "{}", codec.name());
        }
        let mut rng = Rng(5);
        for i in 0..2_000 {
            let wire = random(rng.next() as usize % 200, i);
            decode(&mut contexts, *codec, &wire, rng.next() as usize % 5_000);
        }
        assert_eq!(decode(&mut contexts, *codec, &[], 100).map_or(0, |b| b.len()), 0, "{}", codec.name());
    }
}

/// Encoders are reused for many blocks. State left by blocks that were given up must not
/// accumulate.
#[test]
fn an_encoder_that_gave_many_blocks_up_goes_on() {
    let mut contexts = Contexts::default();
    let (noise, raw) = (random(8_192, 1), text(2_000, 2));
    for codec in CODECS {
        let level = codec.default_level();
        for _ in 0..40 {
            let mut room = vec![0; noise.len() - 1];
            assert_eq!(contexts.encoder(*codec).encode(level, &[], &noise, &mut room), None, "{}", codec.name());
        }
        let wire = encode(&mut contexts, *codec, level, &raw).unwrap();
        assert!(decode(&mut contexts, *codec, &wire, raw.len()).as_ref() == Some(&raw), "{}", codec.name());
    }
}

fn read(stream: &[u8], cut: usize, registry: &Codecs) -> narrows::Result<Vec<u8>> {
    let config = ReceiverConfig { registry: registry.clone(), ..ReceiverConfig::default() };
    let mut receiver = Receiver::new(config, BufferPool::default());
    let (mut contexts, pool, mut out) = (Contexts::default(), BufferPool::default(), Vec::new());
    for piece in stream.chunks(cut) {
        receiver.receive(Block::from_vec(piece.to_vec()))?;
        while let Some(job) = receiver.poll_job() {
            receiver.finish(job.run(&mut contexts, &pool))?;
        }
        while let Some(raw) = receiver.read() {
            out.extend_from_slice(&raw);
        }
    }
    receiver.close()?;
    Ok(out)
}

#[test]
fn stored_streams_decode_here_and_elsewhere_are_refused_with_the_name_of_the_laboratory() {
    let raw = [text(9_000, 1), vec![0; 3_000], random(2_000, 2), text(3_000, 3)].concat();
    for codec in CODECS {
        let name = format!("v1-{}.nrw", codec.name());
        let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/streams")).join(&name);
        let stream = std::fs::read(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
        for cut in [1, 7, 1000, stream.len()] {
            assert!(read(&stream, cut, codecs()).ok().as_ref() == Some(&raw), "{name} in pieces of {cut}");
        }
        let error = read(&stream, stream.len(), Codecs::shipped()).unwrap_err();
        let number = format!("codec {}", codec.id().0);
        assert!(error.kind == ErrorKind::Unsupported && error.message.contains(&number), "{error}");
        assert!(error.message.contains("laboratory"), "{error}");
    }
}
