//! Dictionaries for messages: their content, and the tables that LZ4 and zstd build from it once
//! for all flows. Also encodes single messages without a dictionary, by the same calls.

use std::fmt;
use std::sync::{Arc, OnceLock};

use zstd_safe::zstd_sys;
use zstd_safe::{CCtx, CDict, CParameter, DCtx, DDict, DParameter, FrameFormat, ResetDirective};

use super::DecodeError;
use super::liblz4::{self, ACCEL_FIRST, FastState, Filled};

/// Minimum length of a dictionary in bytes: a shorter one holds nothing useful.
pub const DICTIONARY_MIN: usize = 64;
/// Maximum length of a dictionary in bytes: the reach of LZ4's offsets.
pub const DICTIONARY_MAX: usize = 64 << 10;
/// Minimum length of a trained dictionary in bytes: zstd's trainer makes no shorter ones, since its
/// tables take most of that.
pub const DICTIONARY_TRAINED_MIN: usize = 256;

/// Magic number of a zstd dictionary with tables. Without it, any bytes are a dictionary of raw
/// content.
const TRAINED_MAGIC: [u8; 4] = [0x37, 0xa4, 0x30, 0xec];

/// Frame header of every zstd-encoded message, not sent: no optional field, a window of 128 KiB.
const ZSTD_FRAME_HEADER: [u8; 2] = [0, 0x38];
const ZSTD_PREFIX_LEN: usize = 5;

/// A dictionary, shared by all flows that use it.
pub struct Dictionary {
    content: Arc<[u8]>,
    digest: u64,
    lz4: OnceLock<Filled>,
    /// For levels 1 and 3, which need separate tables.
    zstd: [OnceLock<Option<CDict<'static>>>; 2],
    zstd_decoder: OnceLock<Option<DDict<'static>>>,
}

impl Dictionary {
    /// `None` if the content is too short or too long, or begins like a dictionary with tables and
    /// these are malformed.
    pub fn new(content: Vec<u8>) -> Option<Self> {
        if !(DICTIONARY_MIN..=DICTIONARY_MAX).contains(&content.len()) {
            return None;
        }
        let digest = Self::digest_of(&content);
        let new = Self {
            content: content.into(),
            digest,
            lz4: OnceLock::new(),
            zstd: [OnceLock::new(), OnceLock::new()],
            zstd_decoder: OnceLock::new(),
        };
        let sound = !new.content.starts_with(&TRAINED_MAGIC) || new.decoder().is_some();
        sound.then_some(new)
    }

    /// The first 8 bytes of the content's BLAKE3 hash, little-endian; 1 instead of 0.
    pub fn digest_of(content: &[u8]) -> u64 {
        let hash = blake3::hash(content);
        let first = *hash.as_bytes().first_chunk().expect("32 bytes");
        u64::from_le_bytes(first).max(1)
    }

    /// The bytes of the dictionary.
    pub fn content(&self) -> &[u8] {
        &self.content
    }

    /// The digest of the content ([`Dictionary::digest_of`]).
    pub fn digest(&self) -> u64 {
        self.digest
    }

    fn lz4(&self) -> &Filled {
        self.lz4.get_or_init(|| Filled::new(&self.content))
    }

    fn zstd(&self, level: i32) -> Option<&CDict<'static>> {
        let (i, level) = if level < 3 { (0, 1) } else { (1, 3) };
        self.zstd[i].get_or_init(|| CDict::try_create(&self.content, level)).as_ref()
    }

    fn decoder(&self) -> Option<&DDict<'static>> {
        self.zstd_decoder.get_or_init(|| DDict::try_create(&self.content)).as_ref()
    }
}

impl fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dictionary({} bytes, {:016x})", self.content.len(), self.digest)
    }
}

/// Contexts of one thread that encode and decode single messages, with or without a dictionary.
pub struct DictionaryContexts {
    lz4: FastState,
    zstd: CCtx<'static>,
    zstd_level: Option<i32>,
    decoder: DCtx<'static>,
    /// Input of zstd's decoder and output of its encoder: a body after its frame and block
    /// headers.
    framed: Vec<u8>,
}

impl Default for DictionaryContexts {
    fn default() -> Self {
        let mut zstd = CCtx::create();
        for parameter in [
            CParameter::Format(FrameFormat::Magicless),
            CParameter::ContentSizeFlag(false),
            CParameter::DictIdFlag(false),
        ] {
            zstd.set_parameter(parameter).expect("zstd knows these parameters");
        }
        let mut decoder = DCtx::create();
        decoder.set_parameter(DParameter::Format(FrameFormat::Magicless)).expect("zstd knows this parameter");
        Self { lz4: FastState::default(), zstd, zstd_level: None, decoder, framed: Vec::new() }
    }
}

impl DictionaryContexts {
    /// Encodes `raw` as an LZ4 block; `None` if it is empty or `out` has less than
    /// [`LinkedTable::bound`](super::LinkedTable::bound).
    pub fn encode_lz4(&mut self, dictionary: Option<&Dictionary>, raw: &[u8], out: &mut [u8]) -> Option<usize> {
        if out.len() < liblz4::bound(raw.len()) {
            return None;
        }
        match dictionary {
            None => self.lz4.encode(&[], raw, out, ACCEL_FIRST),
            Some(dictionary) => self.lz4.encode_attached(dictionary.lz4(), raw, out),
        }
    }

    /// Encodes `raw` as the content of one compressed zstd block; `None` if zstd does not make
    /// exactly one.
    pub fn encode_zstd(&mut self, dictionary: Option<&Dictionary>, level: i32, raw: &[u8]) -> Option<&[u8]> {
        if raw.is_empty() || raw.len() > DICTIONARY_MAX {
            return None;
        }
        let room = zstd_safe::compress_bound(raw.len());
        if self.framed.len() < room {
            self.framed.resize(room, 0);
        }
        let cdict = match dictionary {
            Some(dictionary) => Some(dictionary.zstd(level)?),
            None => None,
        };
        if self.zstd_level != Some(level) {
            self.zstd.set_parameter(CParameter::CompressionLevel(level)).ok()?;
            self.zstd_level = Some(level);
        }
        let len = compress_with(&mut self.zstd, cdict, &mut self.framed, raw)?;
        let (prefix, body) = self.framed[..len].split_first_chunk::<ZSTD_PREFIX_LEN>()?;
        // zstd makes raw and RLE blocks of some inputs; such a message is sent with `store`
        // instead.
        let is_one_block = prefix[0] == 0 && prefix[2..] == block_header(body.len());
        is_one_block.then_some(body)
    }

    /// Decodes an LZ4 block of at most `out.len()` raw bytes; its offsets may reach into `history`.
    ///
    /// # Errors
    /// The block is malformed or longer than `out`.
    pub fn decode_lz4(history: &[u8], body: &[u8], out: &mut [u8]) -> Result<usize, DecodeError> {
        liblz4::decode(history, body, out)
    }

    /// Decodes the result of [`DictionaryContexts::encode_zstd`], at most `out.len()` raw bytes.
    ///
    /// # Errors
    /// The body is malformed or longer than `out`, or the dictionary's tables are malformed.
    pub fn decode_zstd(
        &mut self,
        dictionary: Option<&Dictionary>,
        body: &[u8],
        out: &mut [u8],
    ) -> Result<usize, DecodeError> {
        if body.len() > DICTIONARY_MAX {
            return Err(DecodeError);
        }
        self.framed.clear();
        self.framed.extend_from_slice(&ZSTD_FRAME_HEADER);
        self.framed.extend_from_slice(&block_header(body.len()));
        self.framed.extend_from_slice(body);
        let raw_len = match dictionary {
            None => self.decoder.decompress(out, &self.framed),
            Some(dictionary) => {
                self.decoder.decompress_using_ddict(out, &self.framed, dictionary.decoder().ok_or(DecodeError)?)
            }
        };
        raw_len.map_err(|_| DecodeError)
    }
}

/// Header of a compressed block of this length that is the last one of its frame.
fn block_header(len: usize) -> [u8; 3] {
    let bits = (len as u32) << 3 | 2 << 1 | 1;
    let [a, b, c, _] = bits.to_le_bytes();
    [a, b, c]
}

/// The context refers to the dictionary only inside this call.
#[allow(unsafe_code, reason = "zstd-safe wants a dictionary that outlives the context")]
fn compress_with(
    context: &mut CCtx<'static>,
    dictionary: Option<&CDict<'static>>,
    out: &mut [u8],
    raw: &[u8],
) -> Option<usize> {
    let Some(dictionary) = dictionary else { return context.compress2(out, raw).ok() };
    // SAFETY: `lent` leaves this function only inside `context`, and is taken out of it before it
    // returns, whatever compress2 said: resetting the session leaves parameters, of which the
    // dictionary is none that it keeps referring to once it was told to have none.
    let lent: &'static CDict<'static> = unsafe { &*std::ptr::from_ref(dictionary) };
    let result = context.ref_cdict(lent).and_then(|_| context.compress2(out, raw));
    let clean = context.reset(ResetDirective::SessionOnly).and_then(|_| context.disable_dictionary());
    if clean.is_err() {
        // Cannot happen between frames; a context that might refer to the dictionary must not stay.
        *context = CCtx::create();
        return None;
    }
    result.ok()
}

/// Trains a dictionary of at most `len_max` bytes by one pass of zstd's fastCover. `samples` holds
/// all samples concatenated. `None` if they are too few or have nothing in common.
///
/// Takes 3 to 20 ms for 256 KiB, within 9 % of what the slow search finds.
#[allow(unsafe_code, reason = "calls into libzstd")]
pub fn train(samples: &[u8], lens: &[usize], len_max: usize) -> Option<Vec<u8>> {
    if lens.len() < 2 || lens.iter().sum::<usize>() != samples.len() || len_max > DICTIONARY_MAX {
        return None;
    }
    let mut out = vec![0u8; len_max];
    // SAFETY: integers and a float only, all zeros is valid and means "by default".
    let mut parameters: zstd_sys::ZDICT_fastCover_params_t = unsafe { std::mem::zeroed() };
    // Segments of 200 bytes by runs of 8, counted in 2^18 places; every position looked at.
    (parameters.k, parameters.d, parameters.f, parameters.accel) = (200, 8, 18, 1);
    parameters.zParams.compressionLevel = 3;
    // SAFETY: `out` has `len_max` bytes; `samples` has as many as all of `lens`, as was just
    // counted, and `lens` as many numbers as are told. The function keeps no pointer.
    let len = unsafe {
        let count = u32::try_from(lens.len()).ok()?;
        let (to, from) = (out.as_mut_ptr().cast(), samples.as_ptr().cast());
        let len = zstd_sys::ZDICT_trainFromBuffer_fastCover(to, len_max, from, lens.as_ptr(), count, parameters);
        if zstd_sys::ZDICT_isError(len) != 0 {
            return None;
        }
        len
    };
    out.truncate(len);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(i: u64) -> Vec<u8> {
        let key = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        format!("{{\"temperature\": {}.{}, \"unit\": \"C\", \"sensor\": \"{:08x}\"}}", 15 + i % 9, key % 10, key >> 40)
            .into_bytes()
    }

    fn samples() -> (Vec<u8>, Vec<usize>) {
        let all: Vec<_> = (0..600).map(message).collect();
        (all.concat(), all.iter().map(Vec::len).collect())
    }

    #[test]
    fn trained_and_raw_dictionaries_shorten_both_codecs_and_read_back() {
        let (bytes, lens) = samples();
        let trained = Dictionary::new(train(&bytes, &lens, 4096).unwrap()).unwrap();
        let raw = Dictionary::new(bytes[..2000].to_vec()).unwrap();
        assert!(trained.content().starts_with(&TRAINED_MAGIC) && trained.digest() != raw.digest());
        let mut contexts = DictionaryContexts::default();
        for i in 1000..1100 {
            let m = message(i);
            let mut lens = Vec::new();
            for dictionary in [None, Some(&trained), Some(&raw), None] {
                let mut out = vec![0; liblz4::bound(m.len())];
                let mut back = vec![0; m.len()];
                let n = contexts.encode_lz4(dictionary, &m, &mut out).unwrap();
                let content = dictionary.map_or(&[][..], Dictionary::content);
                assert_eq!(DictionaryContexts::decode_lz4(content, &out[..n], &mut back), Ok(m.len()));
                assert_eq!(back, m);
                lens.push(n);
                for level in [1, 3] {
                    let Some(body) = contexts.encode_zstd(dictionary, level, &m).map(<[u8]>::to_vec) else { continue };
                    back.fill(0);
                    assert_eq!(contexts.decode_zstd(dictionary, &body, &mut back), Ok(m.len()));
                    assert_eq!(back, m);
                    assert!(dictionary.is_none() || body.len() < m.len() / 2);
                }
            }
            assert_eq!(lens[0], lens[3], "a dictionary serves one message");
            assert!(lens[1] < lens[0] && lens[2] < lens[0]);
        }
    }

    #[test]
    fn dictionaries_out_of_bounds_or_malformed_are_none() {
        assert!(Dictionary::new(vec![1; DICTIONARY_MIN - 1]).is_none());
        assert!(Dictionary::new(vec![1; DICTIONARY_MAX + 1]).is_none());
        assert!(Dictionary::new([&TRAINED_MAGIC[..], &[7; 100]].concat()).is_none());
        assert!(train(b"", &[], 1000).is_none());
        assert!(train(b"abcd", &[2, 2], 1000).is_none(), "too few");
        assert!(train(b"abcd", &[2, 3], 1000).is_none(), "lengths that lie");
    }

    #[test]
    fn bodies_that_are_none_are_errors() {
        let mut contexts = DictionaryContexts::default();
        let mut out = [0; 200];
        for body in [&b""[..], b"\0", b"\xff\xff\xff\xff", &[0x55; 100]] {
            let _ = DictionaryContexts::decode_lz4(b"", body, &mut out);
            assert!(contexts.decode_zstd(None, body, &mut out).is_err());
        }
        let long = vec![7u8; 5000];
        let body = contexts.encode_zstd(None, 1, &[b"abcdefgh", &long[..]].concat()).unwrap().to_vec();
        assert!(contexts.decode_zstd(None, &body, &mut out).is_err(), "more than there is room for");
    }
}
