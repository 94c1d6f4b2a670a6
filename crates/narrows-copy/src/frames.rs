//! Content as frames (format.md section 18): the sending end encodes each file as a stream of its own,
//! and the other end stores that stream as it came, or decodes it.

use std::io;
use std::os::fd::OwnedFd;

use narrows::frame::{
    self, BASELINE_BLOCK_MAX, ControlKind, END_FRAME_LEN, EndTotals, Header, PREFACE_LEN, ReadLimits,
};

mod decoder;
mod encoder;
mod known;
mod room;

pub(crate) use decoder::{Decoder, into_io};
pub(crate) use encoder::{Encoder, Item, Known, OverError, STORED_MAX};
pub use encoder::{Encoding, FramesOptions};
pub(crate) use known::KnownFrames;
pub(crate) use narrows_file::alone::{Reader, limits, stands_alone};

/// What the name of a stored file has after the name of the original.
pub(crate) const SUFFIX: &[u8] = b".nrw";

/// Raw bytes of a block. A record of data holds a frame, and a reader of one byte decodes a block.
pub(crate) const BLOCK_LEN: usize = 512 << 10;
const _: () = assert!(BLOCK_LEN + 32 <= narrows::entry::DATA_LEN_MAX && BLOCK_LEN <= BASELINE_BLOCK_MAX);

/// How the content of files goes and is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// As the bytes of the file.
    #[default]
    Raw,
    /// As frames, which are stored as they came.
    AsTheyCame,
    /// As frames, which are decoded.
    Decoded,
}

/// The name of the original of a stored file; `None` if the name is not that of a stored file.
pub(crate) fn original(name: &[u8]) -> Option<&[u8]> {
    name.strip_suffix(SUFFIX).filter(|name| !name.is_empty() && !name.ends_with(b"/"))
}

/// The totals of a file that is one stream from its first byte to its last.
pub(crate) fn totals(file: &OwnedFd) -> io::Result<EndTotals> {
    let none = || io::Error::other("it does not end as a stored file does");
    let len = rustix::fs::fstat(file)?.st_size as u64;
    let at = len.checked_sub(END_FRAME_LEN as u64).filter(|at| *at >= PREFACE_LEN as u64).ok_or_else(none)?;
    let mut bytes = [0; END_FRAME_LEN];
    if crate::delta::read_at(file, &mut bytes, at)? < bytes.len() {
        return Err(none());
    }
    let limits = ReadLimits { block_max: 0, history: 0, reach: 0, codecs: 0, check: true, messages: false };
    match frame::parse_header(&bytes, &limits) {
        Ok(Some(Header::Control(h))) if h.kind == ControlKind::End && h.header_len + h.body_len == bytes.len() => {
            let body = &bytes[h.header_len..];
            let totals = EndTotals::parse(body).map_err(|_| none())?;
            h.verify(body, totals.raw_total).map_err(|_| none())?;
            if totals.wire_total == at && totals.raw_total <= i64::MAX as u64 { Ok(totals) } else { Err(none()) }
        }
        _ => Err(none()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_loses_exactly_one_suffix() {
        for (stored, name) in [("a.nrw", Some("a")), ("a.nrw.nrw", Some("a.nrw")), ("d/.x.nrw", Some("d/.x"))] {
            assert_eq!(original(stored.as_bytes()), name.map(str::as_bytes));
        }
        for other in ["a", ".nrw", "d/.nrw", "a.NRW", "nrw"] {
            assert_eq!(original(other.as_bytes()), None, "{other}");
        }
    }
}
