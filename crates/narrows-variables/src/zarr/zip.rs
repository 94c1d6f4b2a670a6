//! Stores in .zip files, stored or deflated, above 4 GiB too.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::{Mutex, PoisonError};

use narrows::{Error, Result};

use crate::bytes::Bytes;
use crate::fields::Fields;

/// Bytes of the record at the end, and the longest comment after it.
const END_LEN: u64 = 22;
const COMMENT_MAX: u64 = 65_535;
/// Longest deflated entry of which parts are read: the last one stays in memory.
const INFLATED_MAX: u64 = 64 << 20;
/// Length of the header of an entry, without its name.
const HEADER_LEN: u64 = 30;
/// What an entry takes in memory without its name.
const ENTRY: usize = size_of::<(String, Entry)>() + 16;
/// A deflated entry becomes at most so many times as long.
const DEFLATE_GAIN_MAX: u64 = 1032;

pub(super) struct Zip {
    bytes: Bytes,
    entries: BTreeMap<String, Entry>,
    /// Names of entries that cannot be read, each with the reason.
    pub(super) unread: Vec<(String, &'static str)>,
    /// The deflated entry that was read last.
    inflated: Mutex<Option<(String, Vec<u8>)>>,
}

struct Entry {
    is_deflated: bool,
    wire_len: u64,
    raw_len: u64,
    at: u64,
}

impl Zip {
    pub(super) fn open(bytes: Bytes) -> Result<Self> {
        let bad = || Error::corrupt("the .zip file has no directory at its end");
        let from = bytes.len.saturating_sub(END_LEN + COMMENT_MAX);
        let tail = bytes.structure_up_to(from, END_LEN + COMMENT_MAX)?;
        let end = tail.windows(4).rposition(|w| w == b"PK\x05\x06").ok_or_else(bad)?;
        let mut fields = Fields(&tail[end + 4..]);
        fields.skip(6)?;
        let (mut count, mut len, mut at) = (u64::from(fields.u16()?), fields.uint(4)?, fields.uint(4)?);
        if count == 0xffff || at == 0xffff_ffff || len == 0xffff_ffff {
            // Its longer form is before it, and a pointer to that in between.
            let locator = end.checked_sub(20).and_then(|i| tail.get(i..)).ok_or_else(bad)?;
            let mut fields = Fields(locator);
            fields.expect(b"PK\x06\x07")?;
            fields.skip(4)?;
            let record = bytes.structure(fields.uint(8)?, 56)?;
            let mut fields = Fields(&record);
            fields.expect(b"PK\x06\x06")?;
            fields.skip(28)?;
            (count, len, at) = (fields.uint(8)?, fields.uint(8)?, fields.uint(8)?);
        }
        let directory = bytes.structure(at, len)?;
        let mut fields = Fields(&directory);
        let (mut entries, mut unread) = (BTreeMap::new(), Vec::new());
        for _ in 0..count {
            match entry(&mut fields)? {
                Some((name, Ok(entry))) => {
                    // Here, and in the list of keys.
                    bytes.budget().keep(2 * (ENTRY + name.len()) as u64)?;
                    entries.insert(name, entry);
                }
                Some((name, Err(why))) => {
                    bytes.budget().keep(2 * (ENTRY + name.len()) as u64)?;
                    unread.push((name, why));
                }
                None => {}
            }
        }
        // Overlapping entries would make a short file endless.
        let mut places: Vec<_> = entries.values().map(|e| (e.at, HEADER_LEN.saturating_add(e.wire_len))).collect();
        places.sort_unstable();
        if places.windows(2).any(|pair| pair[0].0.saturating_add(pair[0].1) > pair[1].0) {
            return Err(Error::corrupt("entries of the .zip file overlap"));
        }
        Ok(Self { bytes, entries, unread, inflated: Mutex::new(None) })
    }

    pub(super) fn lengths(&self) -> BTreeMap<String, u64> {
        self.entries.iter().map(|(name, entry)| (name.clone(), entry.raw_len)).collect()
    }

    pub(super) fn read(&self, key: &str, at: u64, len: u64) -> Result<Vec<u8>> {
        let entry = self.entries.get(key).ok_or_else(|| Error::corrupt("there is no such entry"))?;
        let head = self.bytes.structure(entry.at, HEADER_LEN)?;
        Fields(&head).expect(b"PK\x03\x04")?;
        let mut fields = Fields(&head[26..]);
        let beside = HEADER_LEN + u64::from(fields.u16()?) + u64::from(fields.u16()?);
        let begin = entry.at + beside;
        let short = || Error::truncated("an entry of the .zip file is too short");
        if at.checked_add(len).is_none_or(|end| end > entry.raw_len) {
            return Err(short());
        }
        if !entry.is_deflated {
            if entry.wire_len != entry.raw_len {
                return Err(short());
            }
            return self.bytes.read(begin + at, len);
        }
        if entry.raw_len / DEFLATE_GAIN_MAX > entry.wire_len {
            return Err(Error::corrupt("an entry of the .zip file says a length that it cannot have"));
        }
        let inflate = || {
            let wire = self.bytes.read(begin, entry.wire_len)?;
            let mut out = Vec::new();
            flate2::read::DeflateDecoder::new(wire.as_slice()).take(entry.raw_len).read_to_end(&mut out)?;
            if out.len() as u64 == entry.raw_len { Ok(out) } else { Err(short()) }
        };
        if at == 0 && len == entry.raw_len {
            return inflate();
        }
        if entry.raw_len > INFLATED_MAX {
            let text = format!("parts of a compressed entry of a .zip file are read up to {INFLATED_MAX} bytes only");
            return Err(Error::unsupported(text));
        }
        let mut last = self.inflated.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_none_or(|(name, _)| name != key) {
            *last = Some((key.to_owned(), inflate()?));
        }
        let part = last.as_ref().and_then(|(_, raw)| raw.get(at as usize..(at + len) as usize));
        part.map(<[u8]>::to_vec).ok_or_else(short)
    }
}

/// An entry of the directory, or why it cannot be read; `None` for a folder.
fn entry(fields: &mut Fields<'_>) -> Result<Option<(String, std::result::Result<Entry, &'static str>)>> {
    fields.expect(b"PK\x01\x02")?;
    fields.skip(4)?;
    let (flags, method) = (fields.u16()?, fields.u16()?);
    fields.skip(8)?;
    let (mut wire_len, mut raw_len) = (fields.uint(4)?, fields.uint(4)?);
    let (name_len, extra_len, comment_len) = (fields.u16()?, fields.u16()?, fields.u16()?);
    fields.skip(8)?;
    let mut at = fields.uint(4)?;
    let name = fields.take(name_len.into())?;
    let mut extra = Fields(fields.take(extra_len.into())?);
    fields.skip(comment_len.into())?;
    while let (Ok(id), Ok(len)) = (extra.u16(), extra.u16()) {
        let Ok(data) = extra.take(len.into()) else { break };
        if id == 1 {
            // Long forms of those that are all ones, in this order.
            let mut data = Fields(data);
            for v in [&mut raw_len, &mut wire_len, &mut at] {
                if *v == 0xffff_ffff {
                    *v = data.uint(8)?;
                }
            }
        }
    }
    let Ok(name) = std::str::from_utf8(name) else { return Ok(None) };
    let entry = match method {
        _ if name.ends_with('/') => return Ok(None),
        _ if flags & 1 != 0 => Err("it is encrypted"),
        0 | 8 => Ok(Entry { is_deflated: method == 8, wire_len, raw_len, at }),
        _ => Err("it is compressed by a method that is not known here"),
    };
    Ok(Some((name.to_owned(), entry)))
}
