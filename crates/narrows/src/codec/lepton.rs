//! Lepton: JPEG images of one scan, recompressed without loss. Coefficients are coded again with a model of
//! their neighbours; headers, padding and what follows the image are kept.
//!
//! The library is written for files of its own making. Lengths in its header make it allocate, so
//! [`header`] compares every one of them with the length of the block before the library sees it. What
//! is left to panic in there is caught.

use std::io::Cursor;

use lepton_jpeg::{EnabledFeatures, SingleThreadPool, catch_unwind_result, decode_lepton, encode_lepton};

use super::{Codec, CodecId, DecodeError, Decoder, Encoder, Level};
use crate::jpeg::{self, Head};

mod header;

/// (encode, decode) in ns per byte, photos of 80 to 800 KB. Encoding decodes too, for comparison.
const SPEEDS: (f32, f32) = (240.0, 127.0);

/// Models, row buffers and lengths that do not depend on the image: the library's model has some 1.3 MB.
const FIXED_MEMORY: usize = 3 << 20;

#[derive(Debug)]
pub(super) struct Lepton;

impl Codec for Lepton {
    fn id(&self) -> CodecId {
        CodecId::LEPTON
    }

    fn name(&self) -> &'static str {
        "lepton"
    }

    fn levels(&self) -> &'static [Level] {
        &[0]
    }

    fn default_level(&self) -> Level {
        0
    }

    /// The coefficients, the encoded image and the decoded one.
    fn encoder_memory(&self, _level: Level, raw_len: usize, _history_len: usize) -> usize {
        FIXED_MEMORY + jpeg::memory_max(raw_len) + 2 * raw_len
    }

    fn nominal_ns_per_byte(&self, _level: Level) -> (f32, f32) {
        SPEEDS
    }

    fn encoder(&self) -> Box<dyn Encoder> {
        Box::new(Context)
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(Context)
    }
}

/// Holds no state: the library cannot reuse it.
struct Context;

impl Encoder for Context {
    fn encode(&mut self, _level: Level, _history: &[u8], raw: &[u8], out: &mut [u8]) -> Option<usize> {
        Head::of_image(raw).ok().filter(|head| head.fits(raw.len()))?;
        let mut to = Cursor::new(&mut *out);
        catch_unwind_result(|| encode_lepton(&mut Cursor::new(raw), &mut to, &features(raw.len()), &ALONE)).ok()?;
        let len = usize::try_from(to.position()).ok()?;
        header::settle(out.get_mut(..len)?)?;
        // An image that the library does not give back bit by bit is left as it is.
        let mut back = vec![0; raw.len()];
        let decoded = self.decode(&[], &out[..len], &mut back);
        (decoded == Ok(raw.len()) && back == raw).then_some(len)
    }
}

impl Decoder for Context {
    fn decode(&mut self, _history: &[u8], wire: &[u8], out: &mut [u8]) -> Result<usize, DecodeError> {
        header::check(wire, out.len()).ok_or(DecodeError)?;
        let features = features(out.len());
        let mut to = Cursor::new(out);
        let decoded = catch_unwind_result(|| decode_lepton(&mut Cursor::new(wire), &mut to, &features, &ALONE));
        decoded.map_err(|_| DecodeError)?;
        usize::try_from(to.position()).map_err(|_| DecodeError)
    }
}

/// All work on the calling thread: blocks are what is done in parallel.
const ALONE: SingleThreadPool = SingleThreadPool {};

fn features(raw_len: usize) -> EnabledFeatures {
    EnabledFeatures {
        // Several passes over all coefficients, whose number a header chooses.
        progressive: false,
        max_jpeg_width: u16::MAX.into(),
        max_jpeg_height: u16::MAX.into(),
        max_partitions: 1,
        max_processor_threads: 1,
        max_jpeg_file_size: u32::try_from(raw_len).unwrap_or(u32::MAX),
        ..EnabledFeatures::compat_lepton_vector_write()
    }
}

pub(super) const ENTRY: &dyn Codec = &Lepton;
