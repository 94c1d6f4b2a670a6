//! Values: what an application keeps in a store under a key, each encoded on its own
//! (`docs/format.md`, section 22).
//!
//! What does not shrink stays as it is, and what a store had before is read as it is.

use std::collections::HashSet;
use std::sync::Arc;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::codec::{CodecId, Contexts, DICTIONARY_MAX, Dictionary, DictionaryContexts, LinkedTable, Method};
use crate::error::{Error, Result};
use crate::frame::{put_varint, varint};

/// The first bytes of every encoded value, and of no other value.
pub const VALUE_MAGIC: [u8; 4] = *b"NRV\x1a";
/// Longest raw value of the format in bytes: the longest that Redis takes by default.
pub const VALUE_MAX: usize = 512 << 20;

/// Bits of the form: the codec's number, ...
const CODEC: u8 = 0x3f;
/// ... the body is a single block of zstd without a frame, ...
const BLOCK: u8 = 0x40;
/// ... and a dictionary is named.
const NAMED: u8 = 0x80;
/// 29 bits, seven a byte.
const RAW_LEN_BYTES: usize = 5;
/// Buffers that contexts keep between two values, in bytes: most values of a store are short.
const KEPT_MAX: usize = 1 << 20;

/// How values are encoded, and which ones are decoded.
#[derive(Debug, Clone)]
pub struct ValueConfig {
    /// Encodes all values. [`Method::STORE`] leaves them as they are.
    pub method: Method,
    /// Helps to encode values of up to 64 KiB, by zstd or LZ4.
    pub dictionary: Option<Arc<Dictionary>>,
    /// Those of values that were written before.
    pub known: Vec<Arc<Dictionary>>,
    /// Shorter values stay as they are.
    pub len_min: usize,
    /// Longer values stay as they are, and are not decoded.
    pub len_max: usize,
}

/// Encodes and decodes values; the same for all threads.
#[derive(Debug)]
pub struct Values {
    config: ValueConfig,
}

/// What one thread needs to encode and decode.
#[derive(Default)]
pub struct ValueContexts {
    codecs: Contexts,
    blocks: DictionaryContexts,
    body: Vec<u8>,
    out: Vec<u8>,
}

impl ValueContexts {
    /// Frees what a long value left.
    pub fn trim(&mut self) {
        for buffer in [&mut self.body, &mut self.out] {
            if buffer.capacity() > KEPT_MAX {
                *buffer = Vec::new();
            }
        }
    }
}

/// An encoded value whose header was read.
#[derive(Debug)]
pub struct EncodedValue<'a> {
    codec: CodecId,
    is_block: bool,
    raw_len: usize,
    dictionary: Option<&'a Dictionary>,
    head: &'a [u8],
    check: [u8; 4],
    body: &'a [u8],
}

impl Values {
    /// Checks the configuration.
    ///
    /// # Errors
    /// A length beyond the format's, a method for images, a dictionary for a method that has none, or
    /// two dictionaries of one name.
    pub fn new(mut config: ValueConfig) -> Result<Self> {
        if config.len_max > VALUE_MAX {
            return Err(Error::misuse(format!("no value has more than {VALUE_MAX} bytes")));
        }
        if config.method.codec == CodecId::LEPTON {
            return Err(Error::misuse("values are not encoded as images"));
        }
        let takes_one = [CodecId::STORE, CodecId::LZ4, CodecId::ZSTD].contains(&config.method.codec);
        if config.dictionary.is_some() && !takes_one {
            return Err(Error::misuse(format!("{} takes no dictionary; zstd and lz4 do", config.method)));
        }
        config.known.extend(config.dictionary.clone());
        let mut seen = HashSet::new();
        config.known.retain(|d| seen.insert(d.digest()));
        let names: HashSet<_> = config.known.iter().map(|d| name(d)).collect();
        if names.len() < config.known.len() {
            return Err(Error::misuse("two of the dictionaries have the same name; train one of them anew"));
        }
        Ok(Self { config })
    }

    /// What to store, or `None` for the value as it is.
    ///
    /// # Errors
    /// The value is longer than `len_max` and looks like an encoded one.
    pub fn encode<'c>(&self, raw: &[u8], contexts: &'c mut ValueContexts) -> Result<Option<&'c [u8]>> {
        let ValueConfig { method, len_min, len_max, .. } = self.config;
        let fits = (len_min.max(1)..=len_max).contains(&raw.len());
        if fits && method.codec != CodecId::STORE && self.shrink(raw, contexts) {
            return Ok(Some(&contexts.out));
        }
        if !raw.starts_with(&VALUE_MAGIC) {
            return Ok(None);
        }
        if raw.len() > len_max {
            return Err(Error::limit(format!("a value of {} bytes begins like an encoded one", raw.len())));
        }
        put(CodecId::STORE.0, None, raw, raw, &mut contexts.out);
        Ok(Some(&contexts.out))
    }

    /// Encodes to `out`. Returns `false` if the value does not shrink.
    fn shrink(&self, raw: &[u8], contexts: &mut ValueContexts) -> bool {
        let method = self.config.method;
        let ValueContexts { codecs, blocks, body, out } = contexts;
        let is_short = raw.len() <= DICTIONARY_MAX;
        let dictionary = self.config.dictionary.as_deref().filter(|_| is_short);
        if method.codec == CodecId::ZSTD
            && is_short
            && let Some(block) = blocks.encode_zstd(dictionary, method.level, raw)
        {
            put(form(method.codec, BLOCK, dictionary), dictionary, raw, block, out);
            return out.len() < raw.len();
        }
        let dictionary = dictionary.filter(|_| method.codec == CodecId::LZ4);
        let room = if dictionary.is_some() { LinkedTable::bound(raw.len()) } else { raw.len() - 1 };
        if body.len() < room {
            body.resize(room, 0);
        }
        let len = match dictionary {
            Some(_) => blocks.encode_lz4(dictionary, raw, &mut body[..room]),
            None => codecs.encoder(method.info()).encode(method.level, &[], raw, &mut body[..room]),
        };
        let Some(len) = len else { return false };
        put(form(method.codec, 0, dictionary), dictionary, raw, &body[..len], out);
        out.len() < raw.len()
    }

    /// The raw bytes of an encoded value, or `None` for a value that is none: the application's own
    /// bytes.
    ///
    /// # Errors
    /// As of [`Values::open`] and [`EncodedValue::decode`].
    pub fn decode(&self, value: &[u8], contexts: &mut ValueContexts) -> Result<Option<Vec<u8>>> {
        let Some(value) = self.open(value)? else { return Ok(None) };
        // Untouched memory of the system costs nothing if the length was a lie.
        let mut raw = vec![0; value.raw_len()];
        value.decode(contexts, &mut raw)?;
        Ok(Some(raw))
    }

    /// Reads the header of an encoded value; `None` for a value that is none.
    ///
    /// # Errors
    /// The header is damaged or cut, tells of more than `len_max` bytes, or of a dictionary that is
    /// missing.
    pub fn open<'a>(&'a self, value: &'a [u8]) -> Result<Option<EncodedValue<'a>>> {
        let Some(rest) = value.strip_prefix(&VALUE_MAGIC) else { return Ok(None) };
        let cut = || Error::truncated("the value ends inside its header");
        let form = *rest.first().ok_or_else(cut)?;
        let (raw_len, n) = varint(&rest[1..], RAW_LEN_BYTES)?.ok_or_else(cut)?;
        if raw_len > self.config.len_max as u64 {
            let max = self.config.len_max;
            return Err(Error::limit(format!(
                "the value says that it has {raw_len} bytes; more than {max} are refused"
            )));
        }
        let raw_len = raw_len as usize;
        let mut rest = &rest[1 + n..];
        let codec = CodecId(form & CODEC);
        let (is_block, is_named) = (form & BLOCK != 0, form & NAMED != 0);
        let exists = match (is_block, is_named) {
            (false, false) => true,
            (true, _) => codec == CodecId::ZSTD,
            (false, true) => codec == CodecId::LZ4,
        };
        if !exists {
            return Err(damaged("its form does not exist"));
        }
        if codec == CodecId::LEPTON {
            // The library behind it is for files of its own making, and a store is written by others.
            return Err(Error::unsupported("the value is a recompressed image, which is not decoded here"));
        }
        let mut dictionary = None;
        if is_named {
            let (named, behind) = rest.split_first_chunk().ok_or_else(cut)?;
            dictionary = Some(self.dictionary(u32::from_le_bytes(*named))?);
            rest = behind;
        }
        let head = &value[..value.len() - rest.len()];
        let (&check, body) = rest.split_first_chunk().ok_or_else(cut)?;
        if is_block && raw_len > DICTIONARY_MAX {
            return Err(damaged("a block is too long"));
        }
        if raw_len == 0
            || body.is_empty()
            || body.len() > raw_len
            || (body.len() == raw_len) != (codec == CodecId::STORE)
        {
            return Err(damaged("its length does not agree"));
        }
        Ok(Some(EncodedValue { codec, is_block, raw_len, dictionary, head, check, body }))
    }

    fn dictionary(&self, named: u32) -> Result<&Dictionary> {
        let found = self.config.known.iter().find(|d| name(d) == named);
        let lacks = || Error::unsupported(format!("the value needs a dictionary that is missing, {named:08x}"));
        found.map(|d| &**d).ok_or_else(lacks)
    }
}

impl EncodedValue<'_> {
    /// Length of the raw bytes, by the header.
    pub fn raw_len(&self) -> usize {
        self.raw_len
    }

    /// Writes the raw bytes to `raw`, which has [`EncodedValue::raw_len`] bytes.
    ///
    /// # Errors
    /// The value is damaged, or needs a codec that is missing.
    pub fn decode(&self, contexts: &mut ValueContexts, raw: &mut [u8]) -> Result<()> {
        let Self { codec, is_block, raw_len, dictionary, head, check, body } = *self;
        let ValueContexts { codecs, blocks, .. } = contexts;
        let len = match dictionary {
            _ if is_block => blocks.decode_zstd(dictionary, body, raw),
            Some(dictionary) => DictionaryContexts::decode_lz4(dictionary.content(), body, raw),
            None => {
                let lacks = || Error::unsupported(format!("the value needs the codec {}, which is unknown", codec.0));
                codecs.decoder(codec.codec().ok_or_else(lacks)?).decode(&[], body, raw)
            }
        };
        if len != Ok(raw_len) {
            return Err(damaged("it does not decode"));
        }
        if check != check_of(head, dictionary, raw, body).to_le_bytes() {
            return Err(damaged("its check does not agree"));
        }
        Ok(())
    }
}

fn damaged(what: &str) -> Error {
    Error::corrupt(format!("the value is damaged: {what}"))
}

/// By what values call a dictionary.
fn name(dictionary: &Dictionary) -> u32 {
    dictionary.digest() as u32
}

fn form(codec: CodecId, block: u8, dictionary: Option<&Dictionary>) -> u8 {
    codec.0 | block | if dictionary.is_some() { NAMED } else { 0 }
}

fn put(form: u8, dictionary: Option<&Dictionary>, raw: &[u8], body: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&VALUE_MAGIC);
    out.push(form);
    put_varint(out, raw.len() as u64);
    if let Some(dictionary) = dictionary {
        out.extend_from_slice(&name(dictionary).to_le_bytes());
    }
    let check = check_of(out, dictionary, raw, body);
    out.extend_from_slice(&check.to_le_bytes());
    out.extend_from_slice(body);
}

fn check_of(head: &[u8], dictionary: Option<&Dictionary>, raw: &[u8], body: &[u8]) -> u32 {
    let seed = xxh3_64_with_seed(head, dictionary.map_or(0, Dictionary::digest));
    xxh3_64_with_seed(raw, seed ^ xxh3_64(body)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn values(method: &str, dictionary: Option<&Arc<Dictionary>>) -> Values {
        let config = ValueConfig {
            method: method.parse().unwrap(),
            dictionary: dictionary.cloned(),
            known: Vec::new(),
            len_min: 64,
            len_max: 1 << 20,
        };
        Values::new(config).unwrap()
    }

    fn text(len: usize) -> Vec<u8> {
        (0..)
            .flat_map(|i: usize| format!("{{\"user\":{},\"name\":\"u{}\"}},", i * 7919 % 1000, i % 13).into_bytes())
            .take(len)
            .collect()
    }

    fn dictionary() -> Arc<Dictionary> {
        Arc::new(Dictionary::new(text(2000)).unwrap())
    }

    fn encoded(values: &Values, raw: &[u8]) -> Option<Vec<u8>> {
        values.encode(raw, &mut ValueContexts::default()).unwrap().map(<[u8]>::to_vec)
    }

    fn decoded(values: &Values, value: &[u8]) -> Result<Option<Vec<u8>>> {
        values.decode(value, &mut ValueContexts::default())
    }

    #[test]
    fn values_come_back_and_are_shorter() {
        let dictionary = dictionary();
        for method in
            ["zstd", "zstd:level=19", "zstd:level=-5", "lz4", "lz4:hc=9", "xz", "bzip2", "zlib", "snappy", "split"]
        {
            let named = Some(&dictionary).filter(|_| method.starts_with("zstd") || method.starts_with("lz4"));
            for dictionary in [None, named] {
                let values = values(method, dictionary);
                let mut contexts = ValueContexts::default();
                for len in [64, 65, 300, 1000, 65_535, 65_536, 65_537] {
                    for raw in [text(len), vec![7; len]] {
                        let Some(value) = values.encode(&raw, &mut contexts).unwrap().map(<[u8]>::to_vec) else {
                            assert!(len < 1000, "{method} {len}");
                            continue;
                        };
                        assert!(value.len() < raw.len() && value.starts_with(&VALUE_MAGIC));
                        assert_eq!(
                            values.decode(&value, &mut contexts).unwrap().as_ref(),
                            Some(&raw),
                            "{method} {len}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_longest_values_come_back_and_leave_no_memory() {
        let (values, mut contexts) = (values("zstd", None), ValueContexts::default());
        let raw = text(1 << 20);
        let value = values.encode(&raw, &mut contexts).unwrap().unwrap().to_vec();
        assert_eq!(values.decode(&value, &mut contexts).unwrap(), Some(raw));
        contexts.out.reserve(KEPT_MAX + 1);
        contexts.trim();
        assert_eq!(contexts.out.capacity(), 0);
    }

    /// Values of version 0.1, which every later version must read.
    #[test]
    fn stored_values_are_read_for_ever() {
        let samples: [(&str, &[u8]); 6] = [
            ("block", include_bytes!("../tests/streams/values-v1-block.nrv")),
            ("dictionary", include_bytes!("../tests/streams/values-v1-dictionary.nrv")),
            ("lz4-dictionary", include_bytes!("../tests/streams/values-v1-lz4-dictionary.nrv")),
            ("zlib", include_bytes!("../tests/streams/values-v1-zlib.nrv")),
            ("frame", include_bytes!("../tests/streams/values-v1-frame.nrv")),
            ("store", include_bytes!("../tests/streams/values-v1-store.nrv")),
        ];
        let values = values("store", Some(&dictionary()));
        for (name, value) in samples {
            let raw = match name {
                "frame" => vec![7; 70_000],
                "store" => b"NRV\x1a and so on".to_vec(),
                _ => text(400),
            };
            assert_eq!(decoded(&values, value).unwrap(), Some(raw), "{name}");
        }
    }

    #[test]
    fn a_dictionary_helps_short_values() {
        let (with, without) = (values("zstd", Some(&dictionary())), values("zstd", None));
        let raw = &text(3000)[2500..2700];
        assert!(encoded(&with, raw).unwrap().len() < 80);
        assert!(encoded(&without, raw).is_none_or(|v| v.len() > 90));
        let error = decoded(&without, &encoded(&with, raw).unwrap()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unsupported);
    }

    #[test]
    fn other_values_stay_as_they_are() {
        let values = values("zstd", None);
        let noise: Vec<u8> = (0..1000u64).map(|i| xxh3_64(&i.to_le_bytes()) as u8).collect();
        for raw in [&b""[..], b"N", b"NRV", b"123456", &text(63), &noise, &text((1 << 20) + 1)] {
            assert_eq!(encoded(&values, raw), None);
            assert_eq!(decoded(&values, raw).unwrap(), None);
        }
        let store = self::values("store", None);
        assert_eq!(encoded(&store, &text(1000)), None);
        for method in ["lz4", "zlib", "zstd"] {
            let all = Values::new(ValueConfig { len_min: 0, ..self::values(method, None).config }).unwrap();
            assert_eq!(encoded(&all, b""), None);
        }
    }

    #[test]
    fn values_that_look_encoded_are_wrapped() {
        for values in [values("zstd", None), values("store", None)] {
            for raw in
                [&VALUE_MAGIC[..], b"NRV\x1a\x43and more", &encoded(&self::values("zstd", None), &text(500)).unwrap()]
            {
                let value = encoded(&values, raw).unwrap();
                assert_eq!(decoded(&values, &value).unwrap().as_deref(), Some(raw));
            }
            let long = [&VALUE_MAGIC[..], &[7; 1 << 20]].concat();
            let error = values.encode(&long, &mut ValueContexts::default()).map(|_| ()).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Limit);
        }
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_told() {
        let dictionary = dictionary();
        for (method, named) in
            [("zstd", None), ("zstd", Some(&dictionary)), ("lz4", Some(&dictionary)), ("zlib", None), ("store", None)]
        {
            let values = values(method, named);
            let raw = if method == "store" { [&VALUE_MAGIC[..], &text(200)].concat() } else { text(400) };
            let value = encoded(&values, &raw).unwrap();
            for len in VALUE_MAGIC.len()..value.len() {
                let error = decoded(&values, &value[..len]).unwrap_err();
                assert!([ErrorKind::Truncated, ErrorKind::Corrupt].contains(&error.kind), "{method} {len}");
            }
            assert!(decoded(&values, &[&value[..], b"x"].concat()).is_err());
            for bit in 8 * VALUE_MAGIC.len()..8 * value.len() {
                let mut flipped = value.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(decoded(&values, &flipped).is_err(), "{method} {bit}");
            }
        }
    }

    #[test]
    fn images_are_refused() {
        let mut value = encoded(&values("zlib", None), &text(500)).unwrap();
        value[VALUE_MAGIC.len()] = CodecId::LEPTON.0;
        assert_eq!(decoded(&values("zstd", None), &value).unwrap_err().kind, ErrorKind::Unsupported);
        let config = ValueConfig { method: Method::LEPTON, ..values("zstd", None).config };
        assert_eq!(Values::new(config).unwrap_err().kind, ErrorKind::Misuse);
    }

    #[test]
    fn lengths_are_bounded_before_anything_is_decoded() {
        let mut value = VALUE_MAGIC.to_vec();
        value.push(CodecId::ZSTD.0);
        put_varint(&mut value, (1 << 20) + 1);
        value.extend_from_slice(&[0; 40]);
        assert_eq!(decoded(&values("zstd", None), &value).unwrap_err().kind, ErrorKind::Limit);
        let config = |len_max| ValueConfig { len_max, ..values("zstd", None).config };
        assert!(Values::new(config(VALUE_MAX)).is_ok());
        assert_eq!(Values::new(config(VALUE_MAX + 1)).unwrap_err().kind, ErrorKind::Misuse);
    }

    #[test]
    fn wrong_configurations_are_refused_and_old_dictionaries_stay_readable() {
        let (old, new) = (dictionary(), Arc::new(Dictionary::new(text(3000)).unwrap()));
        let config = ValueConfig {
            dictionary: Some(Arc::clone(&new)),
            known: vec![Arc::clone(&old), new],
            ..values("zstd", None).config
        };
        let raw = text(300);
        let value = encoded(&values("zstd", Some(&old)), &raw).unwrap();
        let both = Values::new(config.clone()).unwrap();
        assert_eq!(decoded(&both, &value).unwrap(), Some(raw));
        let error = Values::new(ValueConfig { method: "xz".parse().unwrap(), ..config }).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Misuse);
    }
}
