//! A codec and a policy of one's own, outside the library: runs of equal bytes.
//!
//! `cargo run --release -p narrows --example own_codec`

use std::io::{Read, Write};

use narrows::extend::{BlockDecoder, BlockEncoder, Choice, Codec, CodecId, Codecs, DecodeError, Level, Method};
use narrows::extend::{Policy, View};
use narrows::{Decoder, Encoder, ReceiveOptions, SendOptions};

/// 63 is left to experiments (docs/format.md, section 5).
const RUNS: CodecId = CodecId(63);

#[derive(Debug)]
struct Runs;

impl Codec for Runs {
    fn id(&self) -> CodecId {
        RUNS
    }
    fn name(&self) -> &'static str {
        "runs"
    }
    fn encoder(&self) -> Box<dyn BlockEncoder> {
        Box::new(Self)
    }
    fn decoder(&self) -> Box<dyn BlockDecoder> {
        Box::new(Self)
    }
}

impl BlockEncoder for Runs {
    fn encode(&mut self, _: Level, _history: &[u8], raw: &[u8], out: &mut [u8]) -> Option<usize> {
        let mut len = 0;
        for run in raw.chunk_by(|a, b| a == b).flat_map(|run| run.chunks(255)) {
            // What does not fit has not become shorter.
            out.get_mut(len..len + 2)?.copy_from_slice(&[run[0], run.len() as u8]);
            len += 2;
        }
        Some(len)
    }
}

impl BlockDecoder for Runs {
    fn decode(&mut self, _history: &[u8], wire: &[u8], out: &mut [u8]) -> Result<usize, DecodeError> {
        let (runs, []) = wire.as_chunks() else { return Err(DecodeError) };
        let mut len = 0;
        for [byte, count] in runs {
            let end = len + usize::from(*count);
            out.get_mut(len..end).ok_or(DecodeError)?.fill(*byte);
            len = end;
        }
        Ok(len)
    }
}

/// Always tries runs; a block that does not shrink is stored.
struct Always;

impl Policy for Always {
    fn choose(&mut self, view: &View<'_>) -> Choice {
        Choice::new(Method::new(RUNS, 0), view.limits.block_max)
    }
}

fn main() -> narrows::Result<()> {
    let codecs = Codecs::default().with(&Runs)?;
    let mut encoder = Encoder::new(Vec::new(), SendOptions::with_policy(Box::new(Always)).registry(&codecs));
    encoder.write_all(&[7; 1_000_000])?;
    let (stream, summary) = encoder.finish()?;
    println!("{} bytes, ratio {:.1}", stream.len(), summary.ratio());

    let mut raw = Vec::new();
    Decoder::new(&stream[..], ReceiveOptions::default().registry(&codecs)).read_to_end(&mut raw)?;
    assert_eq!(raw, [7; 1_000_000]);
    // Who has not the codec is told so.
    let e = Decoder::new(&stream[..], ReceiveOptions::default()).read_to_end(&mut raw).unwrap_err();
    println!("without it: {e}");
    Ok(())
}
