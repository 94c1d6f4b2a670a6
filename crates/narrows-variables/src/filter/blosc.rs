//! Chunks of Blosc 1, which Zarr 2 writes by default.

use std::io::Read;

use narrows::codec::Contexts;
use narrows::{Error, Result};

use super::{lz4, shuffle};
use crate::fields::Fields;

const BYTE_SHUFFLE: u8 = 1;
const PLAIN: u8 = 2;
const BIT_SHUFFLE: u8 = 4;
const WHOLE: u8 = 0x10;
const HEAD: usize = 16;

pub(super) fn decode(chunk: &[u8], max: usize, contexts: &mut Contexts) -> Result<Vec<u8>> {
    let bad = || Error::corrupt("a blosc chunk is damaged");
    let mut fields = Fields(chunk);
    let version = fields.u8()?;
    fields.skip(1)?;
    let (flags, width) = (fields.u8()?, usize::from(fields.u8()?));
    let (len, block_len) = (fields.u32()? as usize, fields.u32()? as usize);
    fields.skip(4)?;
    if version > 2 {
        return Err(Error::unsupported("this program cannot undo blosc2"));
    }
    if len > max {
        return Err(Error::corrupt("blosc: the chunk is longer than its shape"));
    }
    if flags & PLAIN != 0 {
        return Ok(fields.take(len)?.to_vec());
    }
    if len == 0 {
        return Ok(Vec::new());
    }
    if block_len == 0 || width == 0 {
        return Err(bad());
    }
    let starts = fields.take(len.div_ceil(block_len).checked_mul(4).ok_or_else(bad)?)?;
    let mut out = Vec::new();
    for start in starts.chunks_exact(4) {
        let start = Fields(start).u32()? as usize;
        let mut stream = Fields(chunk.get(start.max(HEAD)..).ok_or_else(bad)?);
        let block = block_len.min(len - out.len());
        // A block is one stream, or one for each byte of an element.
        let parts = if flags & WHOLE != 0 || block < block_len || block % width != 0 { 1 } else { width };
        let mut bytes = Vec::new();
        for _ in 0..parts {
            let wire = fields_i32(&mut stream)?;
            let body = stream.take(wire)?;
            let part = block / parts;
            if wire == part {
                bytes.extend(body);
            } else {
                bytes.extend(inner(flags >> 5, body, part, max, contexts)?);
            }
        }
        out.extend(match flags & (BYTE_SHUFFLE | BIT_SHUFFLE) {
            BYTE_SHUFFLE => shuffle::undo(&bytes, width),
            BIT_SHUFFLE => shuffle::undo_bits(&bytes, width),
            _ => bytes,
        });
    }
    if out.len() != len {
        return Err(bad());
    }
    Ok(out)
}

fn fields_i32(fields: &mut Fields<'_>) -> Result<usize> {
    usize::try_from(fields.u32()? as i32).map_err(|_| Error::unsupported("this blosc chunk has runs of blosc2"))
}

fn inner(codec: u8, body: &[u8], len: usize, max: usize, contexts: &mut Contexts) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let limit = len as u64 + 1;
    match codec {
        1 => return lz4(body, len, max, contexts),
        3 => flate2::read::ZlibDecoder::new(body).take(limit).read_to_end(&mut out),
        4 => zstd::stream::read::Decoder::with_buffer(body)?.take(limit).read_to_end(&mut out),
        0 => return Err(Error::unsupported("this program cannot undo blosclz, a codec of blosc")),
        _ => return Err(Error::unsupported("this program cannot undo a codec of blosc")),
    }
    .map_err(|e| Error::corrupt(format!("blosc: {e}")))?;
    if out.len() != len {
        return Err(Error::corrupt("blosc: a block has not the length that it says"));
    }
    Ok(out)
}
