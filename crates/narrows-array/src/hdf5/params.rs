//! Parameters of the filter for a dataset, as words of 32 bits that HDF5 keeps with it (`docs/format.md`,
//! section 16).

use narrows::{Error, Result};

use crate::bound::Bound;
use crate::choose::{Mode, Options};
use crate::chunk;
use crate::numbers::{half_bits, to_f64};
use crate::view::{ArrayView, Dtype, Layout, RANK_MAX, raw_len};
use crate::words::{ByteOrder, Kind};

/// Version of the words.
const VERSION: u32 = 1;

/// Most fill values, and most exact ranges: the fields of the first word.
const FILLS_MAX: usize = 3;
const EXACT_MAX: usize = 3;

/// What floats hold where something is missing although the dataset's fill value is another: the fill value
/// of NetCDF's library, and that of CF's tables as f32 and as f64. NetCDF's programs keep it as an attribute,
/// which a filter does not see.
const MISSING: [f64; 3] = [9.969_209_968_386_869e36, 1e20f32 as f64, 1e20];

/// Most words: the first one, hints, fill values, ranges, elements.
pub const WORDS_MAX: usize = 1 + 11 + 2 * FILLS_MAX + 4 * EXACT_MAX + 1 + RANK_MAX;

/// Chunks are written whole and once: their values may lie anywhere within the bound.
const WHOLE_CHUNKS: u32 = 1 << 23;

/// Elements whose values no bound may change.
const EXACT: u32 = 1 << 15;

/// The chunks of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elements {
    /// Type of the elements.
    pub dtype: Dtype,
    /// Order of their bytes.
    pub order: ByteOrder,
    /// Lengths of a chunk's axes, slowest first.
    pub shape: Vec<usize>,
    /// The bytes are no numbers that a bound could hold for: booleans, enumerations, bit fields.
    pub exact: bool,
}

impl Elements {
    /// Bytes of a chunk.
    ///
    /// # Errors
    /// They are more than chunks may have.
    pub fn raw_len(&self) -> Result<usize> {
        raw_len(self.dtype, &self.shape)
            .ok_or_else(|| Error::limit(format!("a chunk has at most {} bytes; use shorter chunks", crate::RAW_MAX)))
    }

    /// Adds a last axis of length 1, if the shape has none and there is a place. The words then end with one
    /// that alone says "exact": NCO gives variables that follow in a file the last word only.
    #[must_use]
    pub fn ending_in_one(mut self) -> Self {
        if self.shape.last() != Some(&1) && self.shape.len() < RANK_MAX {
            self.shape.push(1);
        }
        self
    }
}

/// All that the filter knows. Who creates a dataset states mode and bound; the filter adds the elements.
#[derive(Debug, Clone, PartialEq)]
pub struct Params {
    /// Mode and rate; the rate is kept as an f32.
    pub options: Options,
    /// The bound, without `range`.
    pub bound: Bound,
    /// The chunks, once the dataset is there.
    pub elements: Option<Elements>,
}

impl Default for Params {
    fn default() -> Self {
        let bound = Bound { rewritable: true, ..Bound::default() };
        Self { options: Options::default(), bound, elements: None }
    }
}

impl Params {
    /// # Errors
    /// The bound is no bound, has more fill values or ranges than fit, or elements have more than
    /// [`RAW_MAX`](crate::RAW_MAX) bytes.
    pub fn words(&self) -> Result<Vec<u32>> {
        let bound = &self.bound;
        bound.check()?;
        if bound.fills.len() > FILLS_MAX || bound.exact.len() > EXACT_MAX {
            return Err(Error::misuse(format!(
                "a filter keeps at most {FILLS_MAX} fill values and {EXACT_MAX} exact ranges"
            )));
        }
        if bound.range.is_some() || self.options.method.is_some() {
            return Err(Error::misuse("a filter has no field for a range of the array, nor for a method"));
        }
        let rate = self.options.encode_rate.map(|rate| rate as f32);
        if rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
            return Err(Error::misuse("the rate is a number of bytes per second, above 0"));
        }
        let mut first = VERSION | mode_number(self.options.mode) << 8;
        first |= (bound.fills.len() as u32) << 12 | (bound.exact.len() as u32) << 14;
        first |= if bound.rewritable { 0 } else { WHOLE_CHUNKS };
        let mut words = vec![0];
        for (i, number) in [bound.abs, bound.rel, bound.floor, bound.range_rel].into_iter().enumerate() {
            if let Some(number) = number {
                first |= 1 << (16 + i);
                put(number, &mut words);
            }
        }
        for (bit, number) in [(20, bound.digits), (21, bound.bits), (22, rate.map(f32::to_bits))] {
            if let Some(number) = number {
                first |= 1 << bit;
                words.push(number);
            }
        }
        bound.fills.iter().for_each(|&fill| put(fill, &mut words));
        bound.exact.iter().for_each(|&(low, high)| {
            put(low, &mut words);
            put(high, &mut words);
        });
        words[0] = first;
        if let Some(elements) = &self.elements {
            elements.raw_len()?;
            if elements.shape.len() > RANK_MAX {
                return Err(Error::misuse(format!("a chunk has at most {RANK_MAX} axes")));
            }
            let width = if let Dtype::Record(width) = elements.dtype { u32::from(width) } else { 0 };
            let big = if elements.order == ByteOrder::Big { 0x80 } else { 0 };
            let exact = if elements.exact { EXACT } else { 0 };
            let rank = (elements.shape.len() as u32) << 8;
            words.push(u32::from(elements.dtype.number()) | big | rank | exact | width << 16);
            for &axis in &elements.shape {
                words.push(u32::try_from(axis).map_err(|_| Error::limit("an axis of a chunk is below 2^32"))?);
            }
        }
        Ok(words)
    }

    /// Adds what must stay exact beside the stated values: the dataset's own fill value, of which these are
    /// the bytes, and what floats are known to hold where something is missing. With a range, `None` is 0.
    /// Values that have no place among the fill values become exact ranges.
    ///
    /// # Errors
    /// Neither has a place left for the dataset's fill value.
    pub fn keep_missing(&mut self, fill: Option<&[u8]>) -> Result<()> {
        let Some(elements) = self.elements.as_ref().filter(|e| !e.exact && !self.bound.is_lossless()) else {
            return Ok(());
        };
        let dtype = elements.dtype;
        let zero = vec![0; dtype.bytes()];
        // Chunks at the edge are padded by it, which is no part of their range.
        let fill = fill.or(self.bound.range_rel.map(|_| zero.as_slice())).filter(|bytes| bytes.len() == zero.len());
        if let Some(bytes) = fill {
            let one = ArrayView { dtype, order: elements.order, layout: Layout::RowMajor, shape: &[1], bytes };
            let (words, stage) = chunk::load(&one);
            for value in to_f64(&words, stage.kind) {
                if !self.keep(value, dtype) {
                    return Err(Error::misuse(format!(
                        "no place is left for the dataset's fill value, {value:e}, which stays exact too: state \
                         {} fill values and exact ranges at most, or a range that holds it",
                        FILLS_MAX + EXACT_MAX - dtype.words()
                    )));
                }
            }
        }
        if dtype.kind() == Kind::Float {
            for value in MISSING {
                self.keep(value, dtype);
            }
        }
        Ok(())
    }

    /// Keeps a value exact; false if there is no place for it.
    fn keep(&mut self, value: f64, dtype: Dtype) -> bool {
        let cast = |v: f64| match dtype {
            Dtype::F16 => half::f16::from_bits(half_bits(v)).to_f64(),
            Dtype::F32 | Dtype::C64 => f64::from(v as f32),
            _ => v,
        };
        let (value, bound) = (cast(value), &mut self.bound);
        // What is not finite stays anyway.
        let is_kept = !value.is_finite()
            || bound.fills.iter().any(|&fill| cast(fill) == value)
            || bound.exact.iter().any(|&(low, high)| low <= value && value <= high);
        if is_kept {
            return true;
        }
        if bound.fills.len() < FILLS_MAX {
            bound.fills.push(value);
        } else if bound.exact.len() < EXACT_MAX {
            bound.exact.push((value, value));
        } else {
            return false;
        }
        true
    }

    /// Reads words as HDF5 hands them over. No words mean no hints.
    ///
    /// # Errors
    /// They are of another version, or nonsense.
    pub fn from_words(words: &[u32]) -> Result<Self> {
        let mut reader = Reader(words);
        let first = if words.is_empty() { VERSION } else { reader.word()? };
        if first & 0xff != VERSION {
            return Err(Error::unsupported(format!(
                "parameters of version {} are unknown to this filter, which has {VERSION}: upgrade it, or make them by narrows hdf5 --params",
                first & 0xff
            )));
        }
        if first >> 24 != 0 {
            return Err(Error::unsupported("the filter's parameters have flags of a newer version; upgrade it"));
        }
        let has = |bit: u32| first >> bit & 1 == 1;
        let mode = match first >> 8 & 15 {
            0 => Mode::Balanced,
            1 => Mode::Fast,
            2 => Mode::Archive,
            mode => return Err(nonsense(format!("mode {mode}"))),
        };
        let mut bound = Bound { rewritable: first & WHOLE_CHUNKS == 0, ..Bound::default() };
        let numbers = [&mut bound.abs, &mut bound.rel, &mut bound.floor, &mut bound.range_rel];
        for (i, number) in numbers.into_iter().enumerate() {
            *number = if has(16 + i as u32) { Some(reader.number()?) } else { None };
        }
        bound.digits = if has(20) { Some(reader.word()?) } else { None };
        bound.bits = if has(21) { Some(reader.word()?) } else { None };
        let rate = if has(22) { Some(f64::from(f32::from_bits(reader.word()?))) } else { None };
        if rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
            return Err(nonsense("the rate"));
        }
        for _ in 0..first >> 12 & 3 {
            bound.fills.push(reader.number()?);
        }
        for _ in 0..first >> 14 & 3 {
            bound.exact.push((reader.number()?, reader.number()?));
        }
        bound.check()?;
        let elements = if reader.0.is_empty() { None } else { Some(reader.elements()?) };
        if !reader.0.is_empty() {
            return Err(nonsense("their number"));
        }
        Ok(Self { options: Options { mode, encode_rate: rate, method: None }, bound, elements })
    }

    /// Reads words of a dataset.
    ///
    /// # Errors
    /// As [`Params::from_words`]; or the elements are missing.
    pub(crate) fn with_elements(words: &[u32]) -> Result<(Self, Elements)> {
        let mut params = Self::from_words(words)?;
        let elements = params.elements.take();
        let elements = elements.ok_or_else(|| {
            Error::misuse("the filter's parameters do not say what the elements are: it does not apply to their type")
        })?;
        Ok((params, elements))
    }
}

fn mode_number(mode: Mode) -> u32 {
    match mode {
        Mode::Balanced => 0,
        Mode::Fast => 1,
        Mode::Archive => 2,
    }
}

fn nonsense(what: impl std::fmt::Display) -> Error {
    Error::misuse(format!("the filter's parameters are nonsense: {what}; narrows hdf5 --params makes them"))
}

/// The low half first.
fn put(number: f64, words: &mut Vec<u32>) {
    let bits = number.to_bits();
    words.extend([bits as u32, (bits >> 32) as u32]);
}

struct Reader<'a>(&'a [u32]);

impl Reader<'_> {
    fn word(&mut self) -> Result<u32> {
        let (&word, rest) = self.0.split_first().ok_or_else(|| nonsense("they end early"))?;
        self.0 = rest;
        Ok(word)
    }

    fn number(&mut self) -> Result<f64> {
        let (low, high) = (self.word()?, self.word()?);
        Ok(f64::from_bits(u64::from(high) << 32 | u64::from(low)))
    }

    fn elements(&mut self) -> Result<Elements> {
        let first = self.word()?;
        let (number, rank, width) = ((first & 0x7f) as u8, (first >> 8 & 0x7f) as usize, (first >> 16) as u16);
        let dtype = match number {
            0 if width > 0 => Dtype::Record(width),
            0 => return Err(nonsense("records without bytes")),
            _ if width > 0 => return Err(nonsense("a width")),
            _ => Dtype::from_number(number).ok_or_else(|| nonsense(format!("element type {number}")))?,
        };
        if rank > RANK_MAX {
            return Err(nonsense(format!("{rank} axes")));
        }
        let order = if first & 0x80 != 0 { ByteOrder::Big } else { ByteOrder::Little };
        let shape = (0..rank).map(|_| Ok(self.word()? as usize)).collect::<Result<_>>()?;
        let elements = Elements { dtype, order, shape, exact: first & EXACT != 0 };
        elements.raw_len()?;
        Ok(elements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Params {
        Params {
            options: Options { mode: Mode::Archive, encode_rate: Some(2e8), method: None },
            bound: Bound {
                abs: Some(0.1),
                rel: Some(0.01),
                floor: Some(1e-6),
                range_rel: Some(1e-3),
                digits: Some(3),
                bits: Some(10),
                range: None,
                fills: vec![1e20, -9999.0, f64::NAN],
                exact: vec![(f64::NEG_INFINITY, -1e3), (0.0, 0.0), (1e10, f64::INFINITY)],
                rewritable: false,
            },
            elements: Some(Elements {
                dtype: Dtype::F64,
                order: ByteOrder::Big,
                shape: vec![1; RANK_MAX],
                exact: true,
            }),
        }
    }

    #[test]
    fn words_come_back() {
        assert_eq!(Params::default().words().unwrap(), [1]);
        assert_eq!(Params::from_words(&[]).unwrap(), Params::default());
        let words = full().words().unwrap();
        assert_eq!(words.len(), WORDS_MAX);
        // NaN differs from itself.
        assert_eq!(Params::from_words(&words).unwrap().words().unwrap(), words);
        let elements = |dtype| Elements { dtype, order: ByteOrder::Little, shape: vec![3, 5], exact: false };
        for dtype in Dtype::all().chain([Dtype::Record(1), Dtype::Record(u16::MAX)]) {
            let params = Params { elements: Some(elements(dtype)), ..Params::default() };
            assert_eq!(Params::from_words(&params.words().unwrap()).unwrap(), params);
        }
    }

    #[test]
    fn the_last_word_alone_is_valid_and_exact() {
        for (bound, shape) in [
            (Bound::abs(0.1), &[][..]),
            (Bound { fills: vec![1e20], ..Bound::abs(0.1) }, &[12]),
            (Bound::default(), &[10, 500]),
            (Bound::abs(0.1), &[10, 500, 1]),
            (Bound::abs(0.1), &[[1; RANK_MAX - 2].as_slice(), &[2]].concat()),
        ] {
            let elements =
                Elements { dtype: Dtype::F32, order: ByteOrder::Little, shape: shape.to_vec(), exact: false };
            let bytes = elements.raw_len().unwrap();
            let elements = elements.ending_in_one();
            assert_eq!(elements.raw_len().unwrap(), bytes);
            assert!(elements.shape.len() <= shape.len() + 1);
            let words = Params { bound, elements: Some(elements), ..Params::default() }.words().unwrap();
            let last = Params::from_words(&words[words.len() - 1..]).unwrap();
            assert_eq!(last, Params::default(), "{shape:?}");
        }
        let full = Elements { shape: vec![2; RANK_MAX], ..full().elements.unwrap() };
        assert_eq!(full.clone().ending_in_one(), full);
    }

    /// What stays exact of a dataset with this fill value: fill values and ranges.
    type Kept = (Vec<f64>, Vec<(f64, f64)>);

    fn kept(bound: Bound, dtype: Dtype, fill: Option<&[u8]>) -> Result<Kept> {
        let elements = Elements { dtype, order: ByteOrder::Big, shape: vec![4], exact: false };
        let mut params = Params { bound, elements: Some(elements), ..Params::default() };
        params.keep_missing(fill)?;
        assert!(params.words().is_ok());
        Ok((params.bound.fills, params.bound.exact))
    }

    #[test]
    fn the_fill_value_of_a_dataset_is_kept_beside_stated_ones() {
        let [netcdf, cf, wide] = MISSING;
        let stated = |fills: &[f64]| Bound { fills: fills.to_vec(), ..Bound::abs(0.1) };
        let fill = Some(&[0xc6, 0x1c, 0x3c, 0x00][..]); // -9999
        assert_eq!(kept(stated(&[]), Dtype::F32, fill).unwrap(), (vec![-9999.0, netcdf, cf], vec![]));
        assert_eq!(kept(stated(&[1e20]), Dtype::F32, fill).unwrap(), (vec![1e20, -9999.0, netcdf], vec![]));
        let full = kept(stated(&[1.0, 2.0, 3.0]), Dtype::F32, fill).unwrap();
        assert_eq!(full, (vec![1.0, 2.0, 3.0], vec![(-9999.0, -9999.0), (netcdf, netcdf), (cf, cf)]));
        let ranges = Bound { exact: vec![(5.0, 6.0); 3], ..stated(&[1.0, 2.0, 3.0]) };
        let error = kept(ranges.clone(), Dtype::F32, fill).unwrap_err().to_string();
        assert!(error.contains("no place is left for the dataset's fill value, -9.999e3"), "{error}");
        assert!(kept(Bound { exact: vec![(f64::MIN, -9000.0); 3], ..ranges }, Dtype::F32, fill).is_ok());
        // Halves, both halves of a pair, integers, what is padded by where none was set.
        assert_eq!(kept(stated(&[]), Dtype::F16, Some(&[0xc8, 0x80])).unwrap(), (vec![-9.0], vec![]));
        let pair = [0x40, 0x40, 0, 0, 0xc0, 0x80, 0, 0];
        let both = kept(stated(&[]), Dtype::C64, Some(&pair)).unwrap();
        assert_eq!(both, (vec![3.0, -4.0, netcdf], vec![(cf, cf)]));
        assert_eq!(kept(stated(&[]), Dtype::I16, Some(&[0xff, 0xf7])).unwrap(), (vec![-9.0], vec![]));
        assert_eq!(kept(stated(&[]), Dtype::F64, None).unwrap(), (vec![netcdf, cf, wide], vec![]));
        let padded = Bound { range_rel: Some(0.1), ..Bound::default() };
        assert_eq!(kept(padded, Dtype::I32, None).unwrap(), (vec![0.0], vec![]));
        assert_eq!(kept(Bound::default(), Dtype::F32, fill).unwrap(), (vec![], vec![]));
    }

    #[test]
    fn other_versions_and_nonsense_are_refused() {
        let words = full().words().unwrap();
        let hints = words.len() - 1 - RANK_MAX;
        for len in 1..words.len() {
            assert_eq!(Params::from_words(&words[..len]).is_ok(), len == hints, "{len} words");
        }
        let longer: Vec<u32> = words.iter().copied().chain([0]).collect();
        assert!(Params::from_words(&longer).is_err());
        for first in [0, 2, 255, 1 | 3 << 8, 1 | 1 << 24, 1 | 1 << 31, 1 | 1 << 16, 1 | 1 << 12] {
            assert!(Params::from_words(&[first]).is_err(), "{first:#x}");
        }
        // Negative, infinite and NaN bounds; a floor without rel; digits of 0.
        for high in [0xbff0_0000, 0x7ff0_0000, 0x7ff8_0000] {
            assert!(Params::from_words(&[1 | 1 << 16, 0, high]).is_err());
        }
        assert!(Params::from_words(&[1 | 1 << 18, 0, 0x3ff0_0000]).is_err());
        assert!(Params::from_words(&[1 | 1 << 20, 0]).is_err());
        // Elements: type 15, no width, 33 axes, above the limit.
        for elements in [&[15][..], &[0], &[10 | 33 << 8], &[11 | 2 << 8, 1 << 16, 1 << 16], &[10 | 1 << 16]] {
            let words: Vec<u32> = [1].iter().chain(elements).copied().collect();
            assert!(Params::from_words(&words).is_err(), "{elements:?}");
        }
    }

    #[test]
    fn any_words_are_read_or_refused() {
        let mut state = 7u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        };
        for _ in 0..100_000 {
            let count = next() as usize % 12;
            let mut words: Vec<u32> = (0..count).map(|_| next() >> (next() % 32)).collect();
            if let Some(first) = words.first_mut() {
                *first = *first & 0xff_ff00 | 1;
            }
            if let Ok(params) = Params::from_words(&words) {
                assert!(params.words().is_ok());
            }
        }
    }
}
