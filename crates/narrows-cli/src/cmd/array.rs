//! `narrows array`: encodes, decodes and compares arrays of numbers.

use std::io::{IsTerminal, Read, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use narrows::{Error, ErrorKind};
use narrows_array::file::{self, Cut};
use narrows_array::{ArrayView, ByteOrder, Chooser, Coder, Dtype, Layout, RAW_MAX, candidates, info, npy};

use self::peers::ForPython;
use crate::args::array::{ArrayCommand, BenchArgs, DecodeArgs, EncodeArgs, Input};
use crate::files::{Source, Target, Waiting, Witness, refuse_same};
use crate::report;

mod peers;

/// Longest header of a .npy file with what is before it.
const NPY_HEAD: u64 = 12 + (1 << 16);

/// Longest raw input without --shape, and longest encoded input: they are read whole.
const WHOLE_MAX: u64 = 16 << 30;

/// Runs `narrows array`.
pub(crate) fn run(command: &ArrayCommand) -> Result<()> {
    match command {
        ArrayCommand::Encode(args) => encode(args),
        ArrayCommand::Decode(args) => decode(args),
        ArrayCommand::Bench(args) => bench(args),
    }
}

/// An array that is read chunk by chunk.
struct Elements {
    dtype: Dtype,
    order: ByteOrder,
    layout: Layout,
    shape: Vec<usize>,
    /// What was read with the header.
    head: Vec<u8>,
    file: Waiting,
    witness: Witness,
    /// The prefix of errors.
    cannot: String,
}

impl Elements {
    /// `is_kept`: what is read is to come back as it is.
    fn open(input: &Input, is_kept: bool) -> Result<Self> {
        let source = Source::open(Some(&input.file))?;
        let (cannot, witness) = (source.name().to_string(), source.witness()?);
        let mut file = source.into_reader();
        let mut head = Vec::new();
        if let Some(dtype) = input.dtype {
            let order = if input.big_endian { ByteOrder::Big } else { ByteOrder::Little };
            let mut shape = input.shape.clone();
            if shape.is_empty() {
                (&mut file).take(WHOLE_MAX + 1).read_to_end(&mut head).context(cannot.clone())?;
                if head.len() as u64 > WHOLE_MAX || head.len() % dtype.bytes() != 0 {
                    let text = format!(
                        "no elements of {dtype} have {} together; state --shape",
                        report::count(head.len(), "byte", "bytes")
                    );
                    return Err(Error::misuse(text).into());
                }
                shape = vec![head.len() / dtype.bytes()];
            }
            return Ok(Self { dtype, order, layout: Layout::RowMajor, shape, head, file, witness, cannot });
        }
        // The header is short; what follows it belongs to the elements.
        (&mut file).take(NPY_HEAD).read_to_end(&mut head).context(cannot.clone())?;
        let header = npy::parse(&head).map_err(|e| match e.kind {
            // A whole file, whose elements are none of an array of numbers.
            ErrorKind::Unsupported => Error::misuse(e.message),
            _ => e,
        });
        let header = header.with_context(|| cannot.clone())?;
        head.drain(..header.data_at);
        if header.is_text && is_kept {
            let text = format!(
                "it holds byte strings, which would come back as records (|V{0}); encode its elements alone, \
                 with --type r{0} and --shape",
                header.dtype.bytes()
            );
            return Err(anyhow::Error::from(Error::misuse(text)).context(cannot));
        }
        let npy::Header { dtype, order, layout, shape, .. } = header;
        Ok(Self { dtype, order, layout, shape, head, file, witness, cannot })
    }

    fn cut(&self, input: &Input) -> Result<Cut> {
        Ok(Cut::new(self.dtype, self.order, self.layout, &self.shape, input.chunk)?)
    }

    /// Hands on the bytes of each chunk; fails if the file changed meanwhile.
    fn each(mut self, cut: &Cut, mut sink: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut reader = self.head.as_slice().chain(&mut self.file);
        let mut chunk = Vec::new();
        for len in cut.lengths() {
            chunk.clear();
            (&mut reader).take(len as u64).read_to_end(&mut chunk).context(self.cannot.clone())?;
            if chunk.len() < len {
                return Err(Error::truncated("the input ends before its array does").into());
            }
            sink(&chunk)?;
        }
        if reader.read(&mut [0]).context(self.cannot.clone())? > 0 {
            return Err(Error::misuse("the input has more bytes than its array; check --shape").into());
        }
        self.witness.is_unchanged()
    }
}

/// Binary data on a terminal helps nobody and may change its settings.
fn refuse_terminal(target: &Target, force: bool) -> Result<()> {
    if target.is_stdout() && std::io::stdout().is_terminal() && !force {
        return Err(anyhow!("binary data is not written to a terminal; redirect stdout, use -o FILE, or -f to force"));
    }
    Ok(())
}

/// Three digits, never below the value.
fn not_below(value: f64) -> String {
    let mut shown = value;
    loop {
        let text = format!("{shown:.2e}");
        if text.parse::<f64>().is_ok_and(|read| read >= value) || !value.is_finite() {
            return text;
        }
        // Half of the last digit shown.
        shown += value * 0.0005;
    }
}

fn encode(args: &EncodeArgs) -> Result<()> {
    refuse_same(&args.input.file, [args.output.as_deref()])?;
    let elements = Elements::open(&args.input, true)?;
    let cut = elements.cut(&args.input)?;
    let mut chooser = Chooser::new(args.input.options(), args.input.hints.bound())?;
    let target = Target::open(args.output.as_deref())?;
    refuse_terminal(&target, args.force)?;
    let mut out = target.file()?;
    let cannot = target.name().to_string();
    let (mut raw, mut wire, mut worst, mut exceptions) = (0usize, 0usize, 0f32, 0usize);
    let mut worst_rel: Option<f32> = None;
    let header = cut.header();
    out.write_all(&header).context(cannot.clone())?;
    wire += header.len();
    elements.each(&cut, |bytes| {
        let chunk = cut.encode(bytes, &mut chooser)?;
        // The length stands before the chunk.
        let at = chunk.iter().position(|b| *b < 0x80).map_or(0, |i| i + 1);
        if let Some(kept) = info(&chunk[at..])?.bound {
            worst = worst.max(kept.worst_abs);
            worst_rel = kept.worst_rel.map(|rel| rel.max(worst_rel.unwrap_or(0.0))).or(worst_rel);
            exceptions += kept.exceptions;
        }
        raw += bytes.len();
        wire += chunk.len();
        out.write_all(&chunk).context(cannot.clone())
    })?;
    target.commit(false).context(cannot)?;
    if !args.quiet {
        let pipeline = chooser.pipeline().map(|p| format!("; {p}")).unwrap_or_default();
        let errors = if chooser.bound().is_lossless() {
            String::new()
        } else {
            let relative =
                worst_rel.map(|rel| format!(" ({} of its value)", not_below(rel.into()))).unwrap_or_default();
            let exceptions = report::count(exceptions, "value", "values");
            format!("; worst error {}{relative}, {exceptions} exact instead", not_below(worst.into()))
        };
        let ratio = raw as f64 / wire as f64;
        let raw_words = report::count(raw, "byte", "bytes");
        report::note(format_args!("{raw_words} to {wire}, ratio {ratio:.2}{errors}{pipeline}"));
    }
    Ok(())
}

fn decode(args: &DecodeArgs) -> Result<()> {
    refuse_same(&args.file, [args.output.as_deref()])?;
    let encoded = read_whole(&args.file)?;
    let chunks = file::chunks(&encoded).with_context(|| args.file.display().to_string())?;
    let target = Target::open(args.output.as_deref())?;
    refuse_terminal(&target, args.force)?;
    let mut out = target.file()?;
    let cannot = target.name().to_string();
    if !args.raw {
        let header = npy::header(chunks.dtype, chunks.order, chunks.layout, &chunks.shape);
        out.write_all(&header).context(cannot.clone())?;
    }
    file::decode(chunks, RAW_MAX, |array| Ok(out.write_all(&array.bytes)?))?;
    target.commit(false).context(cannot)
}

fn read_whole(path: &Path) -> Result<Vec<u8>> {
    let source = Source::open(Some(path))?;
    let name = source.name().to_string();
    let mut bytes = Vec::new();
    source.into_file().take(WHOLE_MAX + 1).read_to_end(&mut bytes).context(name)?;
    if bytes.len() as u64 > WHOLE_MAX {
        return Err(Error::limit(format!("an encoded array has at most {WHOLE_MAX} bytes")).into());
    }
    Ok(bytes)
}

/// One row of the table.
#[derive(Default)]
struct Row {
    wire: usize,
    encode_s: f64,
    decode_s: f64,
    chunks: usize,
}

fn bench(args: &BenchArgs) -> Result<()> {
    let elements = Elements::open(&args.input, false)?;
    let (dtype, order, layout, shape) = (elements.dtype, elements.order, elements.layout, elements.shape.clone());
    let cut = elements.cut(&args.input)?;
    let (bound, options) = (args.input.hints.bound(), args.input.options());
    let mut chooser = Chooser::new(options.clone(), bound.clone())?;
    let mut coder = Coder::new();
    let mut rows = std::collections::BTreeMap::<String, Row>::new();
    let (mut raw, mut count) = (0, 0);
    let mut copy = args.peers.as_ref().map(|_| ForPython::new(&elements)).transpose()?;
    elements.each(&cut, |bytes| {
        if let Some(copy) = &mut copy {
            copy.add(bytes)?;
        }
        let mut piece = shape.clone();
        let slowest = if layout == Layout::RowMajor { piece.first_mut() } else { piece.last_mut() };
        if let Some(slowest) = slowest.filter(|d| **d > 0 && !bytes.is_empty()) {
            let all: usize = shape.iter().product::<usize>() / *slowest * dtype.bytes();
            *slowest = bytes.len() / all.max(1);
        }
        let view = ArrayView { dtype, order, layout, shape: &piece, bytes };
        let mut measure = |name: String, encode: &mut dyn FnMut(&mut Coder) -> Result<Option<Vec<u8>>>| {
            let started = Instant::now();
            let Some(chunk) = encode(&mut coder)? else { return Ok::<_, anyhow::Error>(()) };
            let encoded = Instant::now();
            coder.decode(&chunk, RAW_MAX)?;
            let row = rows.entry(name).or_default();
            row.decode_s += encoded.elapsed().as_secs_f64();
            row.encode_s += (encoded - started).as_secs_f64();
            row.wire += chunk.len();
            row.chunks += 1;
            Ok(())
        };
        measure("(chosen)".into(), &mut |_| Ok(Some(chooser.encode(&view)?)))?;
        for pipeline in candidates(&view, &options, &bound)? {
            measure(pipeline.to_string(), &mut |coder| Ok(coder.encode_with(&view, &pipeline, &bound)?))?;
        }
        raw += bytes.len();
        count += 1;
        Ok(())
    })?;
    // A pipeline that fits only some chunks cannot be compared.
    let mut rows: Vec<_> = rows.into_iter().filter(|(_, row)| row.chunks == count).collect();
    rows.sort_by_key(|(_, row)| row.wire);
    report::out(format_args!("{:>9} {:>10} {:>10}  pipeline", "ratio", "MB/s in", "MB/s out"))?;
    for (name, row) in rows {
        let rate = |s: f64| raw as f64 / s.max(1e-9) / 1e6;
        let ratio = raw as f64 / row.wire as f64;
        report::out(format_args!("{ratio:>9.3} {:>10.0} {:>10.0}  {name}", rate(row.encode_s), rate(row.decode_s)))?;
    }
    if let (Some(copy), Some(python)) = (copy, &args.peers) {
        copy.measure(python, args.input.chunk, &bound)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::not_below;

    #[test]
    fn what_is_printed_is_never_below_the_truth() {
        for value in [0.0, 1.0, 0.01, 9.999e-5, 9.994e20, 1.0001, 3.3333e-300, f64::from(0.1f32), f64::MAX / 2.0] {
            let read: f64 = not_below(value).parse().unwrap();
            assert!(read >= value && read <= value * 1.01, "{value:e} {read:e}");
        }
        assert_eq!(not_below(1.0), "1.00e0");
    }
}
