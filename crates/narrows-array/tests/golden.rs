//! Stored chunks of version 1 decode to the same bytes for ever, and every chunk that is written today
//! decodes by a second decoder, made from docs/format.md alone.
//!
//! `UPDATE_CHUNKS=1 cargo test -p narrows-array --test golden` stores chunks that are missing. Stored ones
//! are only ever added.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use common::{Random, elements, scalar};
use narrows_array::{
    ArrayView, BackEnd, Bound, ByteOrder, Chooser, Coder, Dtype, Layout, Mode, Options, Pipeline, RAW_MAX, Step, file,
};

const BACK_ENDS: [BackEnd; 5] = [BackEnd::Store, BackEnd::Lz4, BackEnd::Zstd(3), BackEnd::Xz(1), BackEnd::Pco(8)];

fn lorenzo(axes: u8, zigzag: bool) -> Step {
    Step::Lorenzo { axes, zigzag }
}

/// Every step, alone and before others, and bounds that it serves.
fn pipelines() -> Vec<(&'static str, Vec<Step>, Bound)> {
    let exact = Bound::default();
    let abs = Bound { abs: Some(0.05), fills: vec![1e20], ..Bound::default() };
    let rel = Bound { rel: Some(1e-3), ..Bound::default() };
    let floor = Bound { floor: Some(0.01), ..rel.clone() };
    let all = Bound { abs: Some(0.02), exact: vec![(10.0, 12.0)], ..floor.clone() };
    vec![
        ("plain", vec![], exact.clone()),
        ("split", vec![Step::Split], exact.clone()),
        ("lorenzo", vec![lorenzo(1, false)], exact.clone()),
        ("lorenzo-all-split", vec![lorenzo(7, true), Step::Split], exact.clone()),
        ("lorenzo-first", vec![lorenzo(4, false)], exact.clone()),
        ("rank", vec![Step::Rank], exact.clone()),
        ("rank-lorenzo-split", vec![Step::Rank, lorenzo(2, true), Step::Split], exact.clone()),
        ("mask", vec![Step::Mask], exact.clone()),
        ("mask-lorenzo-split", vec![Step::Mask, lorenzo(3, true), Step::Split], exact.clone()),
        ("linear", vec![Step::Linear], abs.clone()),
        ("linear-lorenzo", vec![Step::Linear, lorenzo(3, false)], abs.clone()),
        ("loglinear", vec![Step::LogLinear], rel.clone()),
        ("loglinear-floor", vec![Step::LogLinear, lorenzo(1, true)], floor),
        ("loglinear-all", vec![Step::LogLinear], all),
        ("bits", vec![Step::Bits], Bound { bits: Some(7), ..exact.clone() }),
        ("digits", vec![Step::Bits, lorenzo(1, true)], Bound { digits: Some(3), ..exact }),
        ("interpolate", vec![Step::Interpolate], abs.clone()),
        ("interpolate-split", vec![Step::Interpolate, lorenzo(0, true), Step::Split], abs),
    ]
}

/// Few elements for stored chunks: smooth with fills, or few distinct values.
fn short(dtype: Dtype, order: ByteOrder) -> Vec<u8> {
    let mut bytes = elements(dtype, order, 120, 4, &mut Random(31));
    bytes.extend(elements(dtype, order, 96, 2, &mut Random(32)));
    bytes
}

/// Names, chunks and what they decode to, as made today.
fn made() -> Vec<(String, Vec<u8>)> {
    let mut coder = Coder::new();
    let mut made = Vec::new();
    let mut put = |name: String, view: &ArrayView<'_>, pipeline: &Pipeline, bound: &Bound| {
        if let Some(chunk) = coder.encode_with(view, pipeline, bound).unwrap() {
            made.push((name, chunk));
        }
    };
    for (j, dtype) in
        [Dtype::F32, Dtype::F16, Dtype::F64, Dtype::I16, Dtype::I64, Dtype::U8, Dtype::C64].into_iter().enumerate()
    {
        let order = if dtype == Dtype::F64 { ByteOrder::Big } else { ByteOrder::Little };
        let bytes = short(dtype, order);
        for (i, (name, steps, bound)) in pipelines().into_iter().enumerate() {
            let bound =
                if dtype.is_float() { bound } else { Bound { abs: bound.abs.map(|_| 2.0), ..Bound::default() } };
            let layout = if i % 5 == 4 { Layout::ColumnMajor } else { Layout::RowMajor };
            let view = ArrayView { order, layout, ..ArrayView::new(dtype, &[6, 4, 9], &bytes) };
            // f32 has every name, the others some; words as they are have all back ends.
            if dtype != Dtype::F32 && i % 3 != j % 3 {
                continue;
            }
            let every = i == 0 && dtype == Dtype::F32;
            let back_ends = BACK_ENDS.into_iter().enumerate().filter(|(k, _)| every || *k == i % 5);
            for (_, back_end) in back_ends {
                let back = back_end.to_string();
                let back = back.split(' ').next().unwrap();
                put(format!("{dtype}-{name}-{back}"), &view, &Pipeline::new(steps.clone(), back_end), &bound);
            }
        }
    }
    let inner = || vec![Pipeline::new([lorenzo(1, true)], BackEnd::Zstd(1)), Pipeline::new([], BackEnd::Pco(8))];
    let bytes = short(Dtype::Record(12), ByteOrder::Little);
    let records = ArrayView::new(Dtype::Record(12), &[216], &bytes);
    put("r12-columns".into(), &records, &Pipeline::with_columns(vec![], vec![8, 4], inner()), &Bound::default());
    put("r12-columns-odd".into(), &records, &Pipeline::with_columns(vec![], vec![7, 5], inner()), &Bound::default());
    let plain = ArrayView::new(Dtype::Record(1), &[600], &bytes[..600]);
    for phase in 0..3 {
        let bytes = &plain.bytes[phase..];
        let shape = [bytes.len()];
        let plain = ArrayView::new(Dtype::Record(1), &shape, bytes);
        let pipeline = Pipeline::with_columns(vec![Step::Unpack12], vec![2, 2], inner());
        put(format!("r1-unpack12-{phase}"), &plain, &pipeline, &Bound::default());
    }
    put(
        "empty".into(),
        &ArrayView::new(Dtype::F32, &[3, 0], &[]),
        &Pipeline::new([], BackEnd::Store),
        &Bound::abs(1.0),
    );
    put(
        "one".into(),
        &ArrayView::new(Dtype::F64, &[], &bytes[..8]),
        &Pipeline::new([], BackEnd::Pco(8)),
        &Bound::default(),
    );
    made
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

#[test]
fn stored_chunks_decode_to_the_same_bytes_for_ever() {
    if std::env::var_os("UPDATE_CHUNKS").is_some() {
        fs::create_dir_all(folder()).unwrap();
        for (name, chunk) in made() {
            let path = folder().join(format!("{name}.nra"));
            if !path.exists() {
                fs::write(path.with_extension("raw"), scalar::decode(&chunk).bytes).unwrap();
                fs::write(path, chunk).unwrap();
            }
        }
    }
    let mut coder = Coder::new();
    let (mut steps, mut back_ends) = (BTreeSet::new(), BTreeSet::new());
    let mut bounds = [0; 3];
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "nra") {
            let chunk = fs::read(&path).unwrap();
            let raw = fs::read(path.with_extension("raw")).unwrap();
            let array = coder.decode(&chunk, RAW_MAX).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            assert!(array.bytes == raw, "{}", path.display());
            let second = scalar::decode(&chunk);
            assert!(second.bytes == raw, "{}", path.display());
            steps.extend(second.steps);
            back_ends.insert(second.back_end);
            if let Some((stated, ..)) = second.bound {
                stated.iter().zip(&mut bounds).for_each(|(stated, count)| *count += usize::from(stated.is_some()));
            }
        }
    }
    assert_eq!(steps.into_iter().collect::<Vec<_>>(), (1..=10).collect::<Vec<_>>(), "a step has no stored chunk");
    assert_eq!(back_ends.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 15]);
    assert!(bounds.iter().all(|count| *count > 2), "{bounds:?}");
}

/// Files of several chunks: exact, and within a bound with axes in the other order.
fn made_files() -> [(&'static str, Vec<u8>, Vec<u8>); 2] {
    let encode = |dtype, layout, bound| {
        let raw = elements(dtype, ByteOrder::Little, 1200, 4, &mut Random(34));
        let view = ArrayView { layout, ..ArrayView::new(dtype, &[20, 5, 12], &raw) };
        file::encode(&view, &mut Chooser::new(Options::default(), bound).unwrap(), 1 << 10).unwrap()
    };
    let exact = encode(Dtype::I16, Layout::RowMajor, Bound::default());
    let within = encode(Dtype::F32, Layout::ColumnMajor, Bound::abs(0.05));
    [("v1-exact", exact), ("v1-abs", within)].map(|(name, file)| {
        let raw = decoded(&file);
        (name, file, raw)
    })
}

fn decoded(file: &[u8]) -> Vec<u8> {
    let mut raw = Vec::new();
    file::decode(file::chunks(file).unwrap(), RAW_MAX, |array| {
        raw.extend_from_slice(&array.bytes);
        Ok(())
    })
    .unwrap();
    raw
}

#[test]
fn stored_files_of_chunks_decode_to_the_same_bytes_for_ever() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/files");
    if std::env::var_os("UPDATE_CHUNKS").is_some() {
        fs::create_dir_all(&folder).unwrap();
        for (name, file, raw) in made_files() {
            let path = folder.join(format!("{name}.nra"));
            if !path.exists() {
                fs::write(path.with_extension("raw"), raw).unwrap();
                fs::write(path, file).unwrap();
            }
        }
    }
    for (name, dtype, layout) in
        [("v1-exact", Dtype::I16, Layout::RowMajor), ("v1-abs", Dtype::F32, Layout::ColumnMajor)]
    {
        let path = folder.join(format!("{name}.nra"));
        let stored = fs::read(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
        let chunks = file::chunks(&stored).unwrap();
        assert_eq!((chunks.dtype, chunks.layout, &chunks.shape[..]), (dtype, layout, &[20, 5, 12][..]), "{name}");
        assert!(chunks.rows < 12, "{name} has several chunks");
        assert!(decoded(&stored) == fs::read(path.with_extension("raw")).unwrap(), "{name}");
    }
}

#[test]
fn two_decoders_agree_on_every_step_type_and_shape() {
    let mut random = Random(33);
    let mut coder = Coder::new();
    let shapes: [&[usize]; 9] =
        [&[], &[1], &[0], &[7], &[1, 300], &[17, 19], &[5, 1, 33], &[3, 4, 5, 6], &[2, 3, 2, 3, 2, 3]];
    let dtypes: Vec<Dtype> = Dtype::all().chain([Dtype::Record(1), Dtype::Record(6)]).collect();
    let (mut compared, mut round) = (0, 0);
    for dtype in dtypes {
        for shape in shapes {
            let n = shape.iter().product();
            for (_, steps, bound) in pipelines() {
                round += 1;
                let order = if round % 3 == 0 { ByteOrder::Big } else { ByteOrder::Little };
                let bytes = elements(dtype, order, n, round % 5, &mut random);
                let view = ArrayView { order, ..ArrayView::new(dtype, shape, &bytes) };
                for back_end in BACK_ENDS {
                    let pipeline = Pipeline::new(steps.clone(), back_end);
                    let Some(chunk) = coder.encode_with(&view, &pipeline, &bound).unwrap() else { continue };
                    let bytes = coder.decode(&chunk, RAW_MAX).unwrap().bytes;
                    assert!(scalar::decode(&chunk).bytes == bytes, "{dtype} {shape:?} {pipeline}");
                    let mut into = vec![0; bytes.len()];
                    coder.decode_into(&chunk, &mut into).unwrap();
                    assert!(into == bytes);
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 4000, "{compared} chunks");
}

#[test]
fn two_decoders_agree_on_what_the_chooser_makes() {
    let mut random = Random(34);
    for mode in [Mode::Fast, Mode::Balanced, Mode::Archive] {
        for dtype in Dtype::all().chain([Dtype::Record(1), Dtype::Record(8)]) {
            for kind in 0..5 {
                let bytes = elements(dtype, ByteOrder::Little, 40 * 60, kind, &mut random);
                let view = ArrayView::new(dtype, &[40, 60], &bytes);
                for bound in [Bound::default(), Bound::abs(1.0), Bound { rel: Some(0.01), ..Bound::default() }] {
                    let mut chooser = Chooser::new(Options { mode, ..Options::default() }, bound).unwrap();
                    let chunk = chooser.encode(&view).unwrap();
                    let decoded = Coder::new().decode(&chunk, RAW_MAX).unwrap().bytes;
                    assert!(scalar::decode(&chunk).bytes == decoded, "{dtype} {:?}", chooser.pipeline());
                }
            }
        }
    }
}
