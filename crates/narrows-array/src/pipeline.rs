//! Pipelines: steps and a back end, and how a chunk's body is made of them and read.

use std::fmt;
use std::str::FromStr;

use narrows::{Error, Result};

use crate::back_end::{BackEnd, Coders};
use crate::bound::Tolerance;
use crate::places;
use crate::quantise;
use crate::step::{STEPS_MAX, Stage, Step, lorenzo, mask, rank, split, unpack};
use crate::words::{Reader, Word, Words, each, put_varint};

/// Steps, a back end, and a pipeline for each column if there are columns.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pipeline {
    /// At most [`STEPS_MAX`].
    pub steps: Vec<Step>,
    /// What ends it.
    pub back_end: BackEnd,
    /// One for each column of the last step.
    pub columns: Vec<Self>,
}

impl Pipeline {
    /// A pipeline without columns.
    pub fn new(steps: impl Into<Vec<Step>>, back_end: BackEnd) -> Self {
        Self { steps: steps.into(), back_end, columns: Vec::new() }
    }

    /// One that ends in columns, whose widths are in bytes.
    pub fn with_columns(mut steps: Vec<Step>, widths: Vec<u16>, columns: Vec<Self>) -> Self {
        steps.push(Step::Columns(widths));
        Self { steps, back_end: BackEnd::Columns, columns }
    }

    /// Whether a step loses information within a bound.
    pub fn is_lossy(&self) -> bool {
        self.steps.iter().any(Step::is_lossy)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push((self.steps.len() as u8) << 6 | self.back_end.number());
        self.steps.iter().for_each(|step| step.write(out));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let head = reader.byte()?;
        if head & 0x30 != 0 {
            return Err(Error::unsupported(
                "the pipeline of the chunk is unknown: it is damaged, or of a newer version of Narrows",
            ));
        }
        let count = usize::from(head >> 6);
        let steps = (0..count).map(|_| Step::read(reader)).collect::<Result<Vec<_>>>()?;
        let back_end = BackEnd::from_number(head & 15)?;
        let last = steps.last().is_some_and(|s| matches!(s, Step::Columns(_)));
        let inner = steps.iter().rev().skip(1).any(|s| matches!(s, Step::Columns(_)));
        if inner || last != (back_end == BackEnd::Columns) || steps.iter().skip(1).any(Step::is_lossy) {
            return Err(Error::corrupt("steps in an order that has no meaning"));
        }
        Ok(Self { steps, back_end, columns: Vec::new() })
    }
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            match step {
                Step::Split => f.write_str("split"),
                Step::Columns(widths) => write!(f, "columns {}", widths.len()),
                Step::Lorenzo { axes, zigzag } => write!(f, "lorenzo {axes:b}{}", if *zigzag { "z" } else { "" }),
                Step::Rank => f.write_str("rank"),
                Step::Unpack12 => f.write_str("unpack12"),
                Step::Mask => f.write_str("mask"),
                Step::Linear => f.write_str("linear"),
                Step::LogLinear => f.write_str("loglinear"),
                Step::Bits => f.write_str("bits"),
                Step::Interpolate => f.write_str("interpolate"),
            }?;
            f.write_str(" + ")?;
        }
        if self.back_end != BackEnd::Columns {
            return write!(f, "{}", self.back_end);
        }
        f.write_str("[")?;
        for (i, column) in self.columns.iter().enumerate() {
            write!(f, "{}{column}", if i > 0 { ", " } else { "" })?;
        }
        f.write_str("]")
    }
}

impl FromStr for Pipeline {
    type Err = Error;

    /// Reads what [`fmt::Display`] prints, but columns, whose widths it does not print.
    fn from_str(s: &str) -> Result<Self> {
        let wrong = |part: &str| {
            Error::misuse(format!(
                "'{part}' is no part of a pipeline: steps are split, lorenzo 11 (axes, the last one right; 11z for \
                 unsigned differences), rank, unpack12, mask, linear, loglinear, bits, interpolate, joined by +; the \
                 end is store, lz4, zstd 3, xz 6 or pco 8"
            ))
        };
        let mut parts: Vec<&str> = s.split('+').map(str::trim).collect();
        let end = parts.pop().unwrap_or_default();
        let level = |name: &str| end.strip_prefix(name).and_then(|level| level.trim().parse::<u8>().ok());
        let back_end = match end {
            "store" => BackEnd::Store,
            "lz4" => BackEnd::Lz4,
            _ => level("zstd")
                .filter(|l| (1..=22).contains(l))
                .map(|l| BackEnd::Zstd(l.into()))
                .or_else(|| level("xz").filter(|l| *l <= 9).map(|l| BackEnd::Xz(l.into())))
                .or_else(|| level("pco").filter(|l| *l <= 12).map(BackEnd::Pco))
                .ok_or_else(|| wrong(end))?,
        };
        let step = |part: &&str| {
            Ok(match *part {
                "split" => Step::Split,
                "rank" => Step::Rank,
                "unpack12" => Step::Unpack12,
                "mask" => Step::Mask,
                "linear" => Step::Linear,
                "loglinear" => Step::LogLinear,
                "bits" => Step::Bits,
                "interpolate" => Step::Interpolate,
                _ => {
                    let axes = part.strip_prefix("lorenzo").map(str::trim).ok_or_else(|| wrong(part))?;
                    let (axes, zigzag) = axes.strip_suffix('z').map_or((axes, false), |axes| (axes, true));
                    let axes = u8::from_str_radix(axes, 2).ok().filter(|a| *a < 16 && (*a > 0 || zigzag));
                    Step::Lorenzo { axes: axes.ok_or_else(|| wrong(part))?, zigzag }
                }
            })
        };
        let steps = parts.iter().map(step).collect::<Result<Vec<_>>>()?;
        if steps.len() > STEPS_MAX {
            return Err(Error::misuse(format!("a pipeline has at most {STEPS_MAX} steps")));
        }
        Ok(Self::new(steps, back_end))
    }
}

/// What encoding needs beside words and pipeline.
pub(crate) struct Making<'a> {
    pub coders: &'a mut Coders,
    /// The bound in force, for lossy steps.
    pub tolerance: Option<&'a Tolerance>,
    /// Elements stored exactly because they missed the bound.
    pub missed: usize,
}

/// Appends pipeline and body. `None` if a step does not apply to these words.
pub(crate) fn encode(
    pipeline: &Pipeline,
    mut words: Words,
    mut stage: Stage,
    making: &mut Making<'_>,
    out: &mut Vec<u8>,
) -> Option<()> {
    if pipeline.steps.len() > STEPS_MAX {
        return None;
    }
    pipeline.write(out);
    for step in &pipeline.steps {
        if let Step::Columns(widths) = step {
            return encode_columns(pipeline, widths, words, &stage, making, out);
        }
        (words, stage) = apply(step, words, stage, making, out)?;
    }
    let differences = pipeline.steps.last().is_some_and(|s| matches!(s, Step::Lorenzo { .. } | Step::Interpolate));
    making.coders.encode(pipeline.back_end, differences, words, stage.kind, out)
}

/// Whether what comes to the back end are differences, in which it need not look for more.
pub(crate) fn has_differences(steps: &[Step]) -> bool {
    matches!(steps.last(), Some(Step::Lorenzo { .. } | Step::Interpolate))
}

/// Applies one step and appends its side data.
pub(crate) fn apply(
    step: &Step,
    mut words: Words,
    stage: Stage,
    making: &mut Making<'_>,
    out: &mut Vec<u8>,
) -> Option<(Words, Stage)> {
    let mut detail = 0;
    match step {
        Step::Columns(_) => return None,
        Step::Split => words = Words::W1(split::apply(&words)),
        Step::Lorenzo { axes, zigzag } => {
            stage.after(step, 0)?;
            lorenzo::apply(&mut words, stage.kind, &stage.axes, *axes, *zigzag);
        }
        Step::Rank => {
            stage.after(step, 0)?;
            let ranked = rank::apply(&words, stage.kind)?;
            detail = ranked.list.len();
            put_varint(out, detail as u64);
            let mut list = Vec::new();
            making.coders.encode(BackEnd::Pco(8), false, ranked.list, stage.kind, &mut list)?;
            put_varint(out, list.len() as u64);
            out.extend(list);
            words = ranked.ranks;
        }
        Step::Unpack12 => {
            let Words::W1(bytes) = &words else { return None };
            let (unpacked, phase) = unpack::apply(bytes, out);
            detail = phase;
            words = Words::W2(unpacked);
        }
        Step::Mask => {
            stage.after(step, 0)?;
            let value = mask::candidate(&words, stage.kind)?;
            let runs = mask::apply(&mut words, value, &stage.axes);
            out.extend(&value.to_le_bytes()[..stage.width]);
            places::write(&runs, making.coders, out);
        }
        Step::Linear | Step::LogLinear | Step::Bits | Step::Interpolate => {
            stage.after(step, 0)?;
            let quantised = quantise::apply(step, &words, &stage, making.tolerance?)?;
            making.missed += quantised.missed;
            quantised.write_side(making.coders, out);
            words = quantised.words;
        }
    }
    let stage = stage.after(step, detail)?;
    Some((words, stage))
}

fn encode_columns(
    pipeline: &Pipeline,
    widths: &[u16],
    words: Words,
    stage: &Stage,
    making: &mut Making<'_>,
    out: &mut Vec<u8>,
) -> Option<()> {
    let (stages, row) = stage.columns(widths)?;
    if stages.len() != pipeline.columns.len() {
        return None;
    }
    let rows = Rows::new(words, row, widths);
    let mut offset = 0;
    for ((stage, &width), column) in stages.into_iter().zip(widths).zip(&pipeline.columns) {
        let words = rows.column(offset, usize::from(width), &stage);
        let mut body = Vec::new();
        let whole =
            (column.columns.is_empty()).then(|| encode(column, words.clone(), stage.clone(), making, &mut body));
        if whole.flatten().is_none() {
            body.clear();
            encode(&Pipeline::new([], BackEnd::Store), words, stage, making, &mut body)?;
        }
        put_varint(out, body.len() as u64);
        out.extend(body);
        offset += usize::from(width);
    }
    Some(())
}

/// Rows whose columns are taken out: as words if all columns are of that width, else as bytes.
pub(crate) enum Rows {
    Words(Words),
    Bytes(Vec<u8>, usize),
}

impl Rows {
    pub(crate) fn new(words: Words, row: usize, widths: &[u16]) -> Self {
        if widths.iter().all(|&w| usize::from(w) == words.width()) {
            Self::Words(words)
        } else {
            Self::Bytes(words.into_bytes(Default::default()), row)
        }
    }

    /// The words of the column at this offset, for rows of as many words as `stage` goes into all.
    pub(crate) fn column(&self, offset: usize, width: usize, stage: &Stage) -> Words {
        let (bytes, row) = match self {
            Self::Words(words) => {
                let count = words.len() / stage.len().max(1);
                return each!(words, v => Word::wrap(v.iter().skip(offset / width).step_by(count.max(1)).copied().collect()));
            }
            Self::Bytes(bytes, row) => (bytes, *row),
        };
        let pieces = bytes.chunks_exact(row).map(|r| &r[offset..offset + width]);
        match (stage.width == width, width) {
            (true, 2) => Words::W2(pieces.map(u16::read_le).collect()),
            (true, 4) => Words::W4(pieces.map(u32::read_le).collect()),
            (true, 8) => Words::W8(pieces.map(u64::read_le).collect()),
            _ => Words::W1(pieces.flatten().copied().collect()),
        }
    }
}

/// Side data of a step, as read.
enum Side<'a> {
    None,
    List(Words),
    Rest(unpack::Rest<'a>),
    Mask(u64, places::Runs),
    Quantiser(quantise::Side),
}

/// Reads pipeline and body to the words of `stage`. Returns the pipeline as written.
pub(crate) fn decode(
    reader: &mut Reader<'_>,
    stage: &Stage,
    coders: &mut Coders,
    has_bound: bool,
    within_columns: bool,
) -> Result<(Words, Pipeline)> {
    let mut pipeline = Pipeline::read(reader)?;
    let within = within_columns && pipeline.back_end == BackEnd::Columns;
    if within || pipeline.is_lossy() && !has_bound {
        return Err(Error::corrupt("columns within columns, or a lossy step without a bound"));
    }
    let mut stages = vec![stage.clone()];
    let mut sides = Vec::new();
    for step in &pipeline.steps {
        if matches!(step, Step::Columns(_)) {
            break;
        }
        let stage = stages.last().expect("never empty");
        let misfit = || Error::corrupt("a step does not fit what is before it");
        let mut detail = 0;
        // Refused before its side data is read, which may depend on it.
        stage.after(step, detail).ok_or_else(misfit)?;
        let side = match step {
            Step::Rank => {
                detail = reader.count(rank::DISTINCT_MAX.min(stage.len()), "distinct values")?;
                let len = reader.count(reader.0.len(), "length of the list")?;
                let list = Stage { kind: stage.kind, width: stage.width, axes: vec![detail] };
                Side::List(coders.decode(BackEnd::Pco(8), reader.take(len)?, &list)?)
            }
            Step::Unpack12 => {
                let (rest, phase) = unpack::Rest::read(reader, stage.len())?;
                detail = phase;
                Side::Rest(rest)
            }
            Step::Mask => {
                let mut value = [0; 8];
                value[..stage.width].copy_from_slice(reader.take(stage.width)?);
                Side::Mask(u64::from_le_bytes(value), places::read(reader, stage.len(), coders)?)
            }
            Step::Linear | Step::LogLinear | Step::Bits | Step::Interpolate => {
                Side::Quantiser(quantise::Side::read(step, stage, reader, coders)?)
            }
            _ => Side::None,
        };
        sides.push(side);
        let next = stage.after(step, detail).ok_or_else(misfit)?;
        stages.push(next);
    }
    let last = stages.last().expect("never empty");
    let mut words = match pipeline.steps.last() {
        Some(Step::Columns(widths)) => {
            let (words, columns) = decode_columns(widths, reader, last, coders)?;
            pipeline.columns = columns;
            words
        }
        _ => coders.decode(pipeline.back_end, std::mem::take(&mut reader.0), last)?,
    };
    for ((step, side), stage) in pipeline.steps.iter().zip(sides).zip(&stages).rev() {
        words = invert(step, side, words, stage)?;
    }
    Ok((words, pipeline))
}

fn invert(step: &Step, side: Side<'_>, mut words: Words, stage: &Stage) -> Result<Words> {
    Ok(match (step, side) {
        (Step::Split, _) => match &words {
            Words::W1(planes) => split::invert(planes, stage.width),
            _ => words,
        },
        (Step::Lorenzo { axes, zigzag }, _) => {
            lorenzo::invert(&mut words, stage.kind, &stage.axes, *axes, *zigzag);
            words
        }
        (Step::Rank, Side::List(list)) => rank::invert(&words, &list, stage.kind)?,
        (Step::Unpack12, Side::Rest(rest)) => {
            let bytes = u16::get(&words).and_then(|words| unpack::invert(words, &rest));
            Words::W1(bytes.ok_or_else(|| Error::corrupt("a number has more than 12 bits"))?)
        }
        (Step::Mask, Side::Mask(value, runs)) => {
            mask::invert(&mut words, value, &runs);
            words
        }
        (_, Side::Quantiser(side)) => quantise::invert(step, &side, &words, stage)?,
        _ => words,
    })
}

fn decode_columns(
    widths: &[u16],
    reader: &mut Reader<'_>,
    stage: &Stage,
    coders: &mut Coders,
) -> Result<(Words, Vec<Pipeline>)> {
    let (stages, row) = stage.columns(widths).ok_or_else(|| Error::corrupt("columns do not fit the rows"))?;
    // Columns as wide as the words before them are put together as words.
    let same = widths.iter().all(|&w| usize::from(w) == stage.width);
    let mut bytes = vec![0; if same { 0 } else { stage.bytes() }];
    let mut whole = Words::read(&vec![0; if same { stage.bytes() } else { 0 }], stage.width, Default::default());
    let mut pipelines = Vec::with_capacity(stages.len());
    let mut offset = 0;
    let mut first = None;
    for (stage, &width) in stages.iter().zip(widths) {
        let len = reader.count(reader.0.len(), "length of a column")?;
        let mut body = Reader(reader.take(len)?);
        let (words, pipeline) = decode(&mut body, stage, coders, false, true)?;
        pipelines.push(pipeline);
        let width = usize::from(width);
        if same {
            // Two columns are put together at once, which is twice as fast.
            match first.take() {
                None if widths.len() == 2 && offset == 0 => first = Some(words),
                Some(first) => each!(&mut whole, v => put_pair(v, &first, &words)),
                None => each!(&mut whole, v => put_column(v, &words, offset / width, widths.len())),
            }
            offset += width;
            continue;
        }
        let pieces = bytes.chunks_exact_mut(row).map(|r| &mut r[offset..offset + width]);
        if stage.width == width {
            each!(&words, v => pieces.zip(v).for_each(|(piece, w)| w.put_le(piece)));
        } else if let Words::W1(v) = &words {
            pieces.zip(v.chunks_exact(width)).for_each(|(piece, b)| piece.copy_from_slice(b));
        }
        offset += width;
    }
    if !reader.0.is_empty() {
        return Err(Error::corrupt("bytes behind the last column"));
    }
    Ok((if same { whole } else { Words::read(&bytes, stage.width, Default::default()) }, pipelines))
}

fn put_pair<W: Word>(v: &mut [W], first: &Words, second: &Words) {
    if let (Some(first), Some(second)) = (W::get(first), W::get(second)) {
        let both = first.iter().zip(second);
        v.chunks_exact_mut(2).zip(both).for_each(|(to, (a, b))| (to[0], to[1]) = (*a, *b));
    }
}

fn put_column<W: Word>(v: &mut [W], column: &Words, first: usize, count: usize) {
    if let Some(column) = W::get(column) {
        v.iter_mut().skip(first).step_by(count).zip(column).for_each(|(to, from)| *to = *from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipeline_has_so_many_steps_and_no_more() {
        let steps = |n| format!("{}store", "split+".repeat(n)).parse::<Pipeline>().map(|pipeline| pipeline.steps.len());
        assert_eq!(steps(STEPS_MAX).unwrap(), STEPS_MAX);
        assert!(steps(STEPS_MAX + 1).is_err());
    }
}
