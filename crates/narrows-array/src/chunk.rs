//! Chunks: header and body, by docs/format.md, section 15.

use narrows::{Error, Result};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::back_end::{BackEnd, Coders};
use crate::bound::{Bound, Tolerance, Worst, verify};
use crate::pipeline::{self, Making, Pipeline};
use crate::step::Stage;
use crate::view::{Array, ArrayView, Dtype, Layout, RANK_MAX, raw_len};
use crate::words::{ByteOrder, Reader, Words, put_varint};

/// First bytes of a chunk: name and version.
pub const MAGIC: [u8; 4] = [b'N', b'r', b'A', 1];

/// Flag of the header: a bound follows.
const BND: u8 = 1;
/// Flag of the header: column-major.
const COL: u8 = 2;

/// Share of exceptions, 1 of so many, from which a chunk is lossless instead.
const EXCEPTIONS_MAX: usize = 4;

/// What a chunk says of its errors.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Kept {
    /// The bound: abs(x - y) <= min(abs, max(rel abs(x), floor)).
    pub abs: Option<f64>,
    /// See `abs`.
    pub rel: Option<f64>,
    /// See `abs`.
    pub floor: Option<f64>,
    /// Whether some values were to be kept exactly.
    pub keeps: bool,
    /// Not below the largest error.
    pub worst_abs: f32,
    /// Not below the largest error for its value; only with `rel`.
    pub worst_rel: Option<f32>,
    /// Elements stored exactly because they would have missed the bound.
    pub exceptions: usize,
}

/// What the header of a chunk says.
#[derive(Debug, Clone, PartialEq)]
pub struct Info {
    /// Type of the elements.
    pub dtype: Dtype,
    /// Order of their bytes.
    pub order: ByteOrder,
    /// Order of the axes in memory.
    pub layout: Layout,
    /// Lengths of the axes, as the user sees them.
    pub shape: Vec<usize>,
    /// Bytes of the elements.
    pub raw_len: usize,
    /// XXH3 of the decoded bytes, seeded with that of the header.
    pub check: u64,
    seed: u64,
    /// The bound, if the chunk was made with one.
    pub bound: Option<Kept>,
}

/// Words of a chunk and what stands before its first step.
pub(crate) fn load(view: &ArrayView<'_>) -> (Words, Stage) {
    let words = Words::read(view.bytes, view.dtype.word_bytes(), view.order);
    (words, first_stage(view.dtype, view.slowest_first()))
}

fn first_stage(dtype: Dtype, mut axes: Vec<usize>) -> Stage {
    if dtype.words() > 1 {
        axes.push(dtype.words());
    }
    Stage { kind: dtype.kind(), width: dtype.word_bytes(), axes }
}

/// Writes dtype, flags, rank, width and shape.
pub(crate) fn write_shape(
    dtype: Dtype,
    order: ByteOrder,
    layout: Layout,
    slowest_first: &[usize],
    flags: u8,
    out: &mut Vec<u8>,
) {
    out.push(dtype.number() | u8::from(order == ByteOrder::Big) << 7);
    out.push(flags | if layout == Layout::ColumnMajor { COL } else { 0 });
    out.push(slowest_first.len() as u8);
    if let Dtype::Record(width) = dtype {
        put_varint(out, width.into());
    }
    slowest_first.iter().for_each(|&d| put_varint(out, d as u64));
}

/// What [`write_shape`] wrote: type, orders, flags, shape as the user sees it.
pub(crate) fn read_shape(reader: &mut Reader<'_>) -> Result<(Dtype, ByteOrder, Layout, u8, Vec<usize>)> {
    let number = reader.byte()?;
    let order = if number & 0x80 != 0 { ByteOrder::Big } else { ByteOrder::Little };
    let flags = reader.byte()?;
    if flags & !(BND | COL) != 0 {
        return Err(Error::unsupported("the chunk has unknown flags: it is damaged, or of a newer version of Narrows"));
    }
    let layout = if flags & COL != 0 { Layout::ColumnMajor } else { Layout::RowMajor };
    let rank = usize::from(reader.byte()?);
    if rank > RANK_MAX {
        return Err(Error::corrupt(format!("{rank} axes are more than {RANK_MAX}")));
    }
    let dtype = match number & 0x7f {
        0 => match reader.count(u16::MAX.into(), "bytes of a record")? {
            0 => return Err(Error::corrupt("records without bytes")),
            width => Dtype::Record(width as u16),
        },
        number => Dtype::from_number(number).ok_or_else(|| {
            Error::unsupported(format!(
                "element type {number} is unknown: the chunk is damaged, or of a newer version of Narrows"
            ))
        })?,
    };
    let mut shape = Vec::with_capacity(rank);
    for _ in 0..rank {
        shape.push(reader.count(usize::MAX, "length of an axis")?);
    }
    if layout == Layout::ColumnMajor {
        shape.reverse();
    }
    Ok((dtype, order, layout, flags, shape))
}

/// Appends the header. `xxh3` is that of the decoded bytes with the seed that it is given.
fn write_header(view: &ArrayView<'_>, bound: Option<&Kept>, xxh3: impl FnOnce(u64) -> u64, out: &mut Vec<u8>) {
    out.extend(MAGIC);
    let flags = if bound.is_some() { BND } else { 0 };
    write_shape(view.dtype, view.order, view.layout, &view.slowest_first(), flags, out);
    put_varint(out, view.bytes.len() as u64);
    let mut tail = Vec::new();
    if let Some(kept) = bound {
        let stated = [kept.abs, kept.rel, kept.floor];
        let which = stated.iter().enumerate().map(|(i, v)| u8::from(v.is_some()) << i).sum::<u8>();
        tail.push(which | u8::from(kept.keeps) << 3);
        stated.iter().flatten().for_each(|v| tail.extend(v.to_le_bytes()));
        tail.extend(kept.worst_abs.to_le_bytes());
        if kept.rel.is_some() {
            tail.extend(kept.worst_rel.unwrap_or(0.0).to_le_bytes());
        }
        put_varint(&mut tail, kept.exceptions as u64);
    }
    let check = xxh3(seed(out, &tail));
    out.extend(check.to_le_bytes());
    out.append(&mut tail);
}

/// The seed of the check, from what stands before and after it in the header: axes and type that are
/// damaged would give the right bytes another meaning.
fn seed(before: &[u8], behind: &[u8]) -> u64 {
    xxh3_64_with_seed(behind, xxh3_64(before))
}

fn read_header(reader: &mut Reader<'_>) -> Result<Info> {
    let whole = reader.0;
    let magic = reader.take(4)?;
    if magic[..3] != MAGIC[..3] {
        return Err(Error::corrupt("this is no chunk of an array: it does not begin with NrA"));
    }
    if magic[3] != MAGIC[3] {
        return Err(Error::unsupported(format!(
            "version {} of chunks is unknown: the chunk is damaged, or of a newer version of Narrows",
            magic[3]
        )));
    }
    let (dtype, order, layout, flags, shape) = read_shape(reader)?;
    let stated = reader.count(crate::RAW_MAX, "bytes of the elements")?;
    if raw_len(dtype, &shape) != Some(stated) {
        return Err(Error::corrupt("the chunk's shape and length differ"));
    }
    let before = &whole[..whole.len() - reader.0.len()];
    let check = reader.u64()?;
    let rest = reader.0;
    let bound = if flags & BND != 0 { Some(read_bound(reader, stated)?) } else { None };
    let seed = seed(before, &rest[..rest.len() - reader.0.len()]);
    Ok(Info { dtype, order, layout, shape, raw_len: stated, check, seed, bound })
}

fn read_bound(reader: &mut Reader<'_>, raw_len: usize) -> Result<Kept> {
    let which = reader.byte()?;
    let mut number = |bit: u8| {
        (which >> bit & 1 == 1)
            .then(|| match reader.f64()? {
                v if v.is_finite() && v > 0.0 => Ok(v),
                _ => Err(Error::corrupt("the chunk's bound is no bound")),
            })
            .transpose()
    };
    let (abs, rel, floor) = (number(0)?, number(1)?, number(2)?);
    if which & !15 != 0 || abs.or(rel).is_none() || floor.is_some() && rel.is_none() {
        return Err(Error::corrupt("the chunk's bound is no bound"));
    }
    let worst_abs = reader.f32()?;
    let worst_rel = if rel.is_some() { Some(reader.f32()?) } else { None };
    let valid = |v: f32| v >= 0.0;
    if !valid(worst_abs) || !worst_rel.is_none_or(valid) {
        return Err(Error::corrupt("the chunk's worst error is no error"));
    }
    let exceptions = reader.count(raw_len, "exceptions")?;
    Ok(Kept { abs, rel, floor, keeps: which & 8 != 0, worst_abs, worst_rel, exceptions })
}

/// Least f32 that is not below v.
fn up(v: f64) -> f32 {
    let near = v as f32;
    if f64::from(near) < v { near.next_up() } else { near }
}

impl Kept {
    fn new(tolerance: &Tolerance, worst: Worst, exceptions: usize) -> Self {
        Self {
            abs: tolerance.abs,
            rel: tolerance.rel,
            floor: tolerance.floor,
            keeps: !tolerance.keep.is_empty(),
            worst_abs: up(worst.abs),
            worst_rel: tolerance.rel.map(|_| up(worst.rel)),
            exceptions,
        }
    }
}

/// Encodes with a given pipeline. `None` if it does not apply, or, if it is lossy, does not hold the bound:
/// what it made is decoded and compared.
pub(crate) fn encode_with(
    view: &ArrayView<'_>,
    loaded: &(Words, Stage),
    pipeline: &Pipeline,
    tolerance: Option<&Tolerance>,
    coders: &mut Coders,
) -> Option<Vec<u8>> {
    let (words, stage) = loaded;
    let mut body = Vec::new();
    let mut making = Making { coders, tolerance, missed: 0 };
    pipeline::encode(pipeline, words.clone(), stage.clone(), &mut making, &mut body)?;
    let missed = making.missed;
    let mut lossy = None;
    let mut worst = Worst::default();
    if pipeline.is_lossy() {
        if missed * EXCEPTIONS_MAX > words.len() {
            return None;
        }
        let mut reader = Reader(&body);
        let (decoded, _) = pipeline::decode(&mut reader, stage, coders, true, false).ok()?;
        worst = verify(words, &decoded, stage.kind, tolerance?)?;
        lossy = Some(decoded.into_bytes(view.order));
    }
    let kept = tolerance.map(|t| Kept::new(t, worst, missed));
    let mut out = Vec::with_capacity(64 + body.len());
    let decoded = lossy.as_deref().unwrap_or(view.bytes);
    write_header(view, kept.as_ref(), |seed| xxh3_64_with_seed(decoded, seed), &mut out);
    out.append(&mut body);
    Some(out)
}

/// Encodes without compression.
pub(crate) fn store(
    view: &ArrayView<'_>,
    loaded: &(Words, Stage),
    tolerance: Option<&Tolerance>,
    coders: &mut Coders,
) -> Vec<u8> {
    encode_with(view, loaded, &Pipeline::new([], BackEnd::Store), tolerance, coders).expect("store always applies")
}

/// Encodes and decodes chunks with contexts that are kept between them. One for each thread.
#[derive(Default)]
pub struct Coder {
    pub(crate) coders: Coders,
}

impl Coder {
    /// A coder; its contexts are made at first use.
    pub fn new() -> Self {
        Self::default()
    }

    /// Encodes with a given pipeline instead of a chosen one: for comparisons and tests. `None` if it does
    /// not apply to these elements or cannot hold the bound.
    ///
    /// # Errors
    /// The view's length differs from its shape, or the bound is no bound.
    pub fn encode_with(&mut self, view: &ArrayView<'_>, pipeline: &Pipeline, bound: &Bound) -> Result<Option<Vec<u8>>> {
        view.check()?;
        bound.check()?;
        let loaded = load(view);
        let tolerance = bound.for_array(view, &loaded);
        Ok(encode_with(view, &loaded, pipeline, tolerance.as_ref(), &mut self.coders))
    }

    /// Decodes a chunk of at most `raw_max` bytes ([`RAW_MAX`](crate::RAW_MAX) if the caller has no limit).
    ///
    /// # Errors
    /// The chunk is damaged, cut short, longer than `raw_max` or of a newer version.
    pub fn decode(&mut self, chunk: &[u8], raw_max: usize) -> Result<Array> {
        self.decode_all(chunk, raw_max).map(|(array, _, _)| array)
    }

    /// Decodes a chunk into memory of exactly its length.
    ///
    /// # Errors
    /// As [`Coder::decode`]; also if the length differs.
    pub fn decode_into(&mut self, chunk: &[u8], out: &mut [u8]) -> Result<Info> {
        let info = info(chunk)?;
        if info.raw_len != out.len() {
            return Err(Error::misuse(format!("the chunk has {} bytes, and room is for {}", info.raw_len, out.len())));
        }
        let (words, info, _) = self.decode_words(chunk, out.len())?;
        words.write(info.order, out);
        if xxh3_64_with_seed(out, info.seed) != info.check {
            return Err(damaged());
        }
        Ok(info)
    }

    /// Decodes, and says what the header and the pipeline are.
    ///
    /// # Errors
    /// As [`Coder::decode`].
    pub fn decode_all(&mut self, chunk: &[u8], raw_max: usize) -> Result<(Array, Info, Pipeline)> {
        let (words, info, pipeline) = self.decode_words(chunk, raw_max)?;
        let bytes = words.into_bytes(info.order);
        if xxh3_64_with_seed(&bytes, info.seed) != info.check {
            return Err(damaged());
        }
        let array =
            Array { dtype: info.dtype, order: info.order, layout: info.layout, shape: info.shape.clone(), bytes };
        Ok((array, info, pipeline))
    }

    /// Words of the right number; their check is not compared.
    fn decode_words(&mut self, chunk: &[u8], raw_max: usize) -> Result<(Words, Info, Pipeline)> {
        let mut reader = Reader(chunk);
        let info = read_header(&mut reader)?;
        if info.raw_len > raw_max {
            return Err(Error::limit(format!("the chunk has {} bytes, more than the limit {raw_max}", info.raw_len)));
        }
        let mut axes = info.shape.clone();
        if info.layout == Layout::ColumnMajor {
            axes.reverse();
        }
        // Axes beside one of length 0 may be huge, and no step may multiply them.
        let stage = if info.raw_len == 0 { first_stage(info.dtype, vec![0]) } else { first_stage(info.dtype, axes) };
        let (words, pipeline) = pipeline::decode(&mut reader, &stage, &mut self.coders, info.bound.is_some(), false)?;
        if words.len() * words.width() != info.raw_len {
            return Err(damaged());
        }
        Ok((words, info, pipeline))
    }
}

fn damaged() -> Error {
    Error::corrupt("the chunk's check differs: it is damaged")
}

/// Reads the header of a chunk alone.
///
/// # Errors
/// It is damaged, cut short or of a newer version.
pub fn info(chunk: &[u8]) -> Result<Info> {
    read_header(&mut Reader(chunk))
}
