//! Tests of every codec in the registry: round trip, truncation, hostile input, linking, a table of
//! sizes.

mod world;

use std::fmt::Write;

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use narrows::codec::{CODECS, Codec, CodecId, Contexts, Level};
use narrows::jpeg;
use world::{Rng, random, text};

/// Shapes of data, small enough that the slowest level of the slowest codec takes well under a second on all of them.
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

fn encode(contexts: &mut Contexts, codec: &dyn Codec, level: Level, history: &[u8], raw: &[u8]) -> Option<Vec<u8>> {
    let mut wire = vec![0; raw.len()];
    let len = contexts.encoder(codec).encode(level, history, raw, &mut wire)?;
    wire.truncate(len);
    Some(wire)
}

/// Decodes into a buffer of `len` bytes, followed by guard bytes.
fn decode(contexts: &mut Contexts, codec: &dyn Codec, history: &[u8], wire: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut out = vec![0xa5; len + 32];
    let decoded = contexts.decoder(codec).decode(history, wire, &mut out[..len]);
    assert!(out[len..].iter().all(|b| *b == 0xa5), "{} wrote beyond its room", codec.name());
    let n = decoded.ok()?;
    assert!(n <= len);
    out.truncate(n);
    Some(out)
}

#[test]
fn round_trip_at_every_level_and_shape() {
    let mut contexts = Contexts::default();
    for codec in CODECS {
        for &level in codec.levels() {
            for (name, raw) in shapes() {
                if let Some(wire) = encode(&mut contexts, *codec, level, &[], &raw) {
                    let back = decode(&mut contexts, *codec, &[], &wire, raw.len());
                    assert!(back.as_ref() == Some(&raw), "{} {level} {name}", codec.name());
                    assert_ne!(decode(&mut contexts, *codec, &[], &wire, raw.len() - 1), Some(raw), "{}", codec.name());
                }
            }
        }
    }
}

#[test]
fn round_trip_of_long_blocks_at_the_default_level() {
    let mut contexts = Contexts::default();
    let raw = [text(200_000, 7), random(100_000, 8)].concat();
    for codec in CODECS {
        if let Some(wire) = encode(&mut contexts, *codec, codec.default_level(), &[], &raw) {
            assert!(decode(&mut contexts, *codec, &[], &wire, raw.len()).as_ref() == Some(&raw), "{}", codec.name());
        }
    }
}

#[test]
fn linked_blocks_need_their_history_and_shrink_by_it() {
    let mut contexts = Contexts::default();
    let raw = text(5_000, 11);
    for codec in CODECS.iter().filter(|c| c.can_link()) {
        for &level in codec.levels() {
            let alone = encode(&mut contexts, *codec, level, &[], &raw).expect("text shrinks").len();
            for history_len in [1, 100, 5_000, 65_536] {
                let mut history = text(history_len, 12);
                let n = history_len.min(5_000);
                history[history_len - n..].copy_from_slice(&raw[..n]);
                let wire = encode(&mut contexts, *codec, level, &history, &raw).expect("text shrinks");
                let back = decode(&mut contexts, *codec, &history, &wire, raw.len());
                assert!(back.as_ref() == Some(&raw), "{} {level} {history_len}", codec.name());
                if history_len >= 5_000 {
                    assert!(wire.len() * 4 < alone, "{} {level}: {} against {alone}", codec.name(), wire.len());
                    assert_ne!(decode(&mut contexts, *codec, &[], &wire, raw.len()), Some(raw.clone()));
                }
            }
        }
    }
}

#[test]
fn no_truncation_decodes_to_the_block() {
    let mut contexts = Contexts::default();
    let raw = text(3_000, 21);
    for codec in CODECS.iter().filter(|c| c.id() != CodecId::STORE) {
        let Some(wire) = encode(&mut contexts, *codec, codec.default_level(), &[], &raw) else { continue };
        for end in 0..wire.len() {
            let back = decode(&mut contexts, *codec, &[], &wire[..end], raw.len());
            // The last bytes of bzip2 and deflate may hold only padding or a checksum.
            assert!(back.as_ref() != Some(&raw) || end + 10 > wire.len(), "{} cut at {end}", codec.name());
        }
    }
}

#[test]
fn damaged_and_hostile_bytes_never_panic_or_overrun() {
    let mut contexts = Contexts::default();
    let raw = text(700, 31);
    for codec in CODECS {
        if let Some(wire) = encode(&mut contexts, *codec, codec.default_level(), &[], &raw) {
            for bit in 0..wire.len() * 8 {
                let mut damaged = wire.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                decode(&mut contexts, *codec, &[], &damaged, raw.len());
            }
        }
        let mut rng = Rng(5);
        for i in 0..2_000 {
            let wire = random(rng.next() as usize % 200, i);
            let history = if codec.can_link() { &raw[..rng.next() as usize % 700] } else { &[] };
            decode(&mut contexts, *codec, history, &wire, rng.next() as usize % 5_000);
        }
        assert_eq!(decode(&mut contexts, *codec, &[], &[], 100).map_or(0, |b| b.len()), 0, "{}", codec.name());
    }
}

#[test]
fn data_that_does_not_shrink_is_refused_by_the_encoder() {
    let mut contexts = Contexts::default();
    let raw = random(20_000, 41);
    for codec in CODECS {
        let mut room = vec![0; raw.len() - 1];
        for &level in [codec.levels()[0], codec.default_level()].iter() {
            assert_eq!(contexts.encoder(*codec).encode(level, &[], &raw, &mut room), None, "{}", codec.name());
        }
    }
}

/// Encoders are reused for many blocks. State left by blocks that were given up must not
/// accumulate.
#[test]
fn an_encoder_that_gave_many_blocks_up_goes_on() {
    let mut contexts = Contexts::default();
    let (noise, raw) = (random(8_192, 1), text(2_000, 2));
    for codec in CODECS {
        for &level in &[codec.levels()[0], codec.default_level()] {
            for _ in 0..40 {
                let mut room = vec![0; noise.len() - 1];
                let wire_len = contexts.encoder(*codec).encode(level, &[], &noise, &mut room);
                assert_eq!(wire_len, None, "{}", codec.name());
            }
            if let Some(wire) = encode(&mut contexts, *codec, level, &[], &raw) {
                let back = decode(&mut contexts, *codec, &[], &wire, raw.len());
                assert!(back.as_ref() == Some(&raw), "{} {level}", codec.name());
            }
        }
    }
}

/// Compares sizes with a reviewed table, so that a change of a library or a setting shows as a
/// change of that file. `UPDATE_SIZES=1 cargo test -p narrows --test codecs` rewrites it.
#[test]
fn sizes_are_as_reviewed() {
    let mut contexts = Contexts::default();
    let mut table = String::from("codec level shape raw wire\n");
    for codec in CODECS {
        let levels = codec.levels();
        let mut shown = vec![levels[0], codec.default_level(), levels[levels.len() - 1]];
        shown.dedup();
        for level in shown {
            for (name, raw) in shapes() {
                let wire =
                    encode(&mut contexts, *codec, level, &[], &raw).map_or("-".to_string(), |w| w.len().to_string());
                writeln!(table, "{} {level} {} {} {wire}", codec.name(), name.replace(' ', "-"), raw.len()).unwrap();
            }
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/codec-sizes.txt");
    let reviewed = std::fs::read_to_string(path).unwrap();
    if std::env::var_os("UPDATE_SIZES").is_some() {
        return std::fs::write(path, table).unwrap();
    }
    assert!(reviewed == table, "sizes changed; review and run with UPDATE_SIZES=1:\n{table}");
}

// --- images ---

fn lepton() -> &'static dyn Codec {
    CodecId::LEPTON.codec().unwrap()
}

/// An image and its body.
fn image(width: u16, height: u16, in_colour: bool) -> (Vec<u8>, Vec<u8>) {
    let raw = narrows_test::jpeg(width, height, in_colour, 77);
    let wire = encode(&mut Contexts::default(), lepton(), 0, &[], &raw).expect("an image shrinks");
    (raw, wire)
}

#[test]
fn images_of_all_shapes_come_back_bit_by_bit() {
    let mut contexts = Contexts::default();
    for (width, height) in [(1, 1), (8, 700), (700, 8), (33, 17), (200, 150)] {
        for in_colour in [false, true] {
            let raw = narrows_test::jpeg(width, height, in_colour, width.into());
            let Some(wire) = encode(&mut contexts, lepton(), 0, &[], &raw) else { continue };
            assert!(decode(&mut contexts, lepton(), &[], &wire, raw.len()).as_ref() == Some(&raw), "{width} {height}");
        }
    }
    let (raw, wire) = image(200, 150, true);
    assert!(wire.len() * 10 < raw.len() * 9, "{} of {}", wire.len(), raw.len());
    // What follows the image is kept; what is cut off, or in front of it, is none.
    let behind = [&raw[..], b"and more"].concat();
    let wire = encode(&mut contexts, lepton(), 0, &[], &behind).unwrap();
    assert!(decode(&mut contexts, lepton(), &[], &wire, behind.len()).as_ref() == Some(&behind));
    for other in [&raw[..raw.len() / 2], &raw[1..], &[b"x", &raw[..]].concat()] {
        assert_eq!(encode(&mut contexts, lepton(), 0, &[], other), None);
    }
}

/// Every truncation, every flipped bit of the headers and some of the rest: an error or other bytes.
#[test]
fn damaged_images_do_not_come_back() {
    let mut contexts = Contexts::default();
    let (raw, wire) = image(48, 40, true);
    let mut back = |wire: &[u8]| decode(&mut contexts, lepton(), &[], wire, raw.len());
    for end in 0..wire.len() {
        assert_eq!(back(&wire[..end]), None, "cut at {end}");
    }
    for bit in (0..wire.len() * 8).filter(|bit| *bit < 28 * 8 || bit % 31 == 0) {
        let mut damaged = wire.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let same = back(&damaged).as_ref() == Some(&raw);
        // The coder may not read its last bytes, which the check of a frame covers.
        assert!(!same || bit / 8 + 12 > wire.len(), "bit {bit}");
    }
    assert_eq!(back(&[&wire[..], &[0]].concat()), None);
}

/// A body with another header, as a hostile writer would make it: all lengths are right again.
fn with_header(wire: &[u8], header: &[u8]) -> Vec<u8> {
    let deflated_len = u32::from_le_bytes(*wire[24..].first_chunk().unwrap()) as usize;
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    std::io::Write::write_all(&mut encoder, header).unwrap();
    let deflated = encoder.finish().unwrap();
    let mut made = wire[..28].to_vec();
    made[10..14].copy_from_slice(&(header.len() as u32).to_le_bytes());
    made[24..28].copy_from_slice(&(deflated.len() as u32).to_le_bytes());
    made.extend(&deflated);
    made.extend(&wire[28 + deflated_len..wire.len() - 4]);
    made.extend((made.len() as u32 + 4).to_le_bytes());
    made
}

fn header_of(wire: &[u8]) -> Vec<u8> {
    let mut header = Vec::new();
    std::io::Read::read_to_end(&mut ZlibDecoder::new(&wire[28..]), &mut header).unwrap();
    header
}

/// Lengths that the library would allocate for, or loop over.
#[test]
fn headers_of_images_that_ask_for_more_than_the_block_are_refused() {
    let mut contexts = Contexts::default();
    let (raw, wire) = image(64, 64, true);
    let header = header_of(&wire);
    let mut back = |header: &[u8]| decode(&mut contexts, lepton(), &[], &with_header(&wire, header), raw.len());
    assert!(back(&header).as_ref() == Some(&raw));
    let at = |mark: &[u8]| header.windows(mark.len()).position(|window| window == mark).unwrap();
    let with = |at: usize, bytes: &[u8]| {
        let mut other = header.clone();
        other[at..at + bytes.len()].copy_from_slice(bytes);
        other
    };
    for len in [0, 1, u32::MAX, 1 << 31, raw.len() as u32] {
        assert_eq!(back(&with(3, &len.to_le_bytes())), None, "HDR of {len}");
        assert_eq!(back(&with(at(b"GRB") + 3, &len.to_le_bytes())), None, "GRB of {len}");
    }
    let partition = at(b"HH\x01");
    assert_eq!(back(&with(partition + 2, &[0])), None, "no partition");
    assert_eq!(back(&with(partition + 2, &[16])), None, "more partitions");
    assert_eq!(back(&with(partition + 3, &[1])), None, "a later row");
    assert_eq!(back(&with(partition + 5, &u32::MAX.to_le_bytes())), None, "a longer scan");
    for state in 9..19 {
        assert_eq!(back(&with(partition + state, &[1])), None, "state {state}");
    }
    let frame = at(&[0xff, 0xc0]);
    for side in [frame + 5, frame + 7] {
        assert_eq!(back(&with(side, &[0xff, 0xff])), None, "a side of 65,535");
    }
    assert_eq!(back(&with(frame + 1, &[0xc2])), None, "progressive");
    for sections in [&b"CRS\xff\xff\xff\xff"[..], b"FRS\xff\xff\xff\xff", b"EEE", b"PGR\0\0\0\0", b"x"] {
        assert_eq!(back(&[&header[..], sections].concat()), None, "{sections:?}");
        assert_eq!(back(&[&header[..at(b"GRB")], sections, &header[at(b"GRB")..]].concat()), None, "{sections:?}");
    }
    // A deflated part that is far longer than it says.
    assert_eq!(back(&vec![0; raw.len() + 1000]), None);
}

/// Headers with some other bytes reach the library; whatever it does with them stays within the block.
#[test]
fn images_with_mutated_headers_never_panic_or_overrun() {
    let mut contexts = Contexts::default();
    for (width, height, in_colour) in [(48, 40, true), (64, 64, false)] {
        let (raw, wire) = image(width, height, in_colour);
        let header = header_of(&wire);
        let mut rng = Rng(9);
        for _ in 0..300 {
            let mut other = header.clone();
            for _ in 0..=rng.next() % 3 {
                let at = rng.next() as usize % other.len();
                other[at] = [rng.next() as u8, 0, 0xff, other[at] ^ 1 << (rng.next() % 8)][rng.next() as usize % 4];
            }
            decode(&mut contexts, lepton(), &[], &with_header(&wire, &other), raw.len());
        }
    }
}

#[test]
fn a_found_image_is_one_that_the_codec_takes() {
    let raw = narrows_test::jpeg(400, 300, true, 3);
    let bytes = [&text(5000, 1)[..], &raw, &text(3000, 2)].concat();
    let found = jpeg::find(&bytes);
    assert_eq!(found, Some(jpeg::Found::Whole { at: 5000, len: raw.len() }));
    assert!(encode(&mut Contexts::default(), lepton(), 0, &[], &bytes[5000..5000 + raw.len()]).is_some());
}
