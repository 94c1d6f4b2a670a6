//! The header of a Lepton file: what the encoder of this program writes is let through, all else refused.
//!
//! ```text
//! | fixed, 28 bytes | "HDR" .. "P0D" .. "HH" .. "GRB" .., deflated | "CMP" | coefficients | length of all |
//! ```

use flate2::{Decompress, FlushDecompress, Status};

use crate::jpeg::Head;

/// Length of the fixed part.
const FIXED_LEN: usize = 28;
/// Bytes of the deflated part that are not of the image: names, lengths, padding and the only partition.
const SECTIONS_LEN: usize = 7 + 4 + 19 + 7;
/// Mark after the deflated part.
const COMPLETE: &[u8] = b"CMP";
/// Fields that say which build wrote the file: version, then commit.
const BUILD: std::ops::Range<usize> = 15..20;

/// The fixed part of a file for an image of `raw_len` bytes.
fn fixed(header_len: u32, raw_len: u32, deflated_len: u32) -> [u8; FIXED_LEN] {
    // The tau of the lepton, version 1, one scan, one partition; `MS`: the next five bytes are as below.
    let mut fixed = *b"\xcf\x84\x01Z\x01\0\0\0MS____\x83\0\0\0\0\0____....";
    fixed[10..14].copy_from_slice(&header_len.to_le_bytes());
    fixed[20..24].copy_from_slice(&raw_len.to_le_bytes());
    fixed[24..].copy_from_slice(&deflated_len.to_le_bytes());
    fixed
}

/// Makes a file independent of the build that wrote it.
pub(super) fn settle(file: &mut [u8]) -> Option<()> {
    file.get_mut(BUILD)?.fill(0);
    Some(())
}

/// Whether a file may be decoded to `raw_len` bytes. All lengths in it are compared with that one, so
/// decoding takes the memory that the length implies.
pub(super) fn check(file: &[u8], raw_len: usize) -> Option<()> {
    let head: &[u8; FIXED_LEN] = file.first_chunk()?;
    let (header_len, deflated_len) = (u32_at(head, 10)?, u32_at(head, 24)?);
    if *head != fixed(header_len, u32::try_from(raw_len).ok()?, deflated_len) {
        return None;
    }
    let header_len = usize::try_from(header_len).ok().filter(|len| *len <= raw_len + SECTIONS_LEN)?;
    let (deflated, rest) = file[FIXED_LEN..].split_at_checked(usize::try_from(deflated_len).ok()?)?;
    let scan = rest.strip_prefix(COMPLETE)?.strip_suffix(&u32::try_from(file.len()).ok()?.to_le_bytes())?;
    let mut header = vec![0; header_len];
    let mut inflate = Decompress::new(true);
    let status = inflate.decompress(deflated, &mut header, FlushDecompress::Finish).ok()?;
    let whole = inflate.total_in() == deflated.len() as u64 && inflate.total_out() == header_len as u64;
    (status == Status::StreamEnd && whole).then(|| sections(&header, raw_len, scan.len()))?
}

fn sections(header: &[u8], raw_len: usize, coded_len: usize) -> Option<()> {
    let (segments, rest) = sized(header.strip_prefix(b"HDR")?)?;
    let ([padding], rest) = rest.strip_prefix(b"P0D")?.split_first_chunk()?;
    // The only partition begins at the first row, on a whole byte, with nothing before it.
    let (partition, rest) = rest.strip_prefix(b"HH\x01")?.split_first_chunk::<16>()?;
    let (first_row, state) = (&partition[..2], &partition[6..]);
    let scan_len = usize::try_from(u32_at(partition, 2)?).ok()?;
    let (behind, rest) = sized(rest.strip_prefix(b"GRB")?)?;
    let head = Head::of_segments(segments).ok()?;
    let fits = segments.len() + behind.len() + 2 <= raw_len && scan_len <= raw_len;
    let fits = fits && head.fits(raw_len) && head.is_coded_in(coded_len);
    let is_ours = matches!(padding, 0 | 0xff) && first_row.iter().chain(state).all(|byte| *byte == 0);
    (fits && is_ours && head.len == segments.len() + 2 && rest.is_empty()).then_some(())
}

/// Bytes after their length.
fn sized(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u32::from_le_bytes(*len)).ok()?)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
