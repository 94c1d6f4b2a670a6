//! Every type, order, shape and pipeline gives back what went in.

mod common;

use common::{Random, elements, view};
use narrows_array::{
    ArrayView, BackEnd, Bound, ByteOrder, Chooser, Coder, Dtype, Layout, Mode, Options, Pipeline, RAW_MAX, Step,
    candidates,
};

const ORDERS: [ByteOrder; 2] = [ByteOrder::Little, ByteOrder::Big];

fn dtypes() -> Vec<Dtype> {
    Dtype::all().chain([Dtype::Record(1), Dtype::Record(12), Dtype::Record(7)]).collect()
}

fn shapes() -> Vec<Vec<usize>> {
    let shapes: [&[usize]; 14] = [
        &[],
        &[0],
        &[3, 0, usize::MAX],
        &[1],
        &[2],
        &[1, 1, 1],
        &[997],
        &[13, 17],
        &[1, 40, 1, 9],
        &[300, 2],
        &[2, 300],
        &[5, 6, 7],
        &[3, 4, 5, 6],
        &[2, 2, 3, 2, 3, 4],
    ];
    shapes.map(<[usize]>::to_vec).to_vec()
}

/// All chains of steps that may stand before a back end.
fn chains() -> Vec<Vec<Step>> {
    let difference = |axes, zigzag| Step::Lorenzo { axes, zigzag };
    let mut chains = vec![vec![]];
    let first = [Step::Split, Step::Rank, Step::Mask, Step::Unpack12];
    let differences: Vec<Step> =
        [1, 2, 3, 7, 10, 15].into_iter().flat_map(|a| [difference(a, false), difference(a, true)]).collect();
    for step in first.iter().chain(&differences) {
        chains.push(vec![step.clone()]);
    }
    for step in [Step::Rank, Step::Mask, Step::Unpack12] {
        for second in differences.iter().chain([&Step::Split]) {
            chains.push(vec![step.clone(), second.clone()]);
            chains.push(vec![step.clone(), second.clone(), Step::Split]);
        }
    }
    for second in differences {
        chains.push(vec![second, Step::Split]);
    }
    chains.push(vec![Step::Mask, Step::Rank, difference(1, true)]);
    chains.push(vec![difference(1, false), Step::Rank, Step::Split]);
    chains.push(vec![difference(0, true), Step::Split]);
    chains
}

#[test]
fn every_type_order_shape_and_chain_comes_back() {
    let mut random = Random(1);
    let mut coder = Coder::new();
    let back_ends = [BackEnd::Store, BackEnd::Lz4, BackEnd::Zstd(1), BackEnd::Pco(2)];
    let mut applied = vec![0; chains().len()];
    for (i, dtype) in dtypes().into_iter().enumerate() {
        for (j, shape) in shapes().into_iter().enumerate() {
            let n = if shape.contains(&0) { 0 } else { shape.iter().product() };
            let order = ORDERS[(i + j) % 2];
            let kind = (i + 3 * j) % 5;
            let bytes = elements(dtype, order, n, kind, &mut random);
            let view = view(dtype, order, &shape, &bytes);
            for (k, chain) in chains().into_iter().enumerate() {
                let pipeline = Pipeline::new(chain, back_ends[(i + j + k) % 4]);
                let Some(chunk) = coder.encode_with(&view, &pipeline, &Bound::default()).unwrap() else { continue };
                let (array, info, read) = coder.decode_all(&chunk, RAW_MAX).unwrap();
                assert_eq!(array.bytes, bytes, "{dtype} {shape:?} {pipeline}");
                assert_eq!((array.dtype, array.order, array.shape.clone()), (dtype, order, shape.clone()));
                assert_eq!(read.steps, pipeline.steps);
                assert_eq!((info.raw_len, info.bound), (bytes.len(), None));
                applied[k] += 1;
            }
        }
    }
    // Some chains never apply: a rank has one byte, and unpacked numbers one axis.
    let used = applied.iter().filter(|&&count| count >= 9).count();
    assert!(used >= 70 && applied.iter().sum::<usize>() > 4000, "{used} chains: {applied:?}");
}

#[test]
fn columns_come_back_with_a_pipeline_for_each() {
    let mut random = Random(2);
    let mut coder = Coder::new();
    let columns = |widths: &[u16]| {
        let pipelines = [
            Pipeline::new([], BackEnd::Pco(4)),
            Pipeline::new([Step::Rank], BackEnd::Zstd(3)),
            Pipeline::new([Step::Lorenzo { axes: 1, zigzag: true }, Step::Split], BackEnd::Lz4),
        ];
        let each = (0..widths.len()).map(|i| pipelines[i % 3].clone()).collect();
        Pipeline::with_columns(Vec::new(), widths.to_vec(), each)
    };
    let cases: [(Dtype, &[usize], &[u16]); 7] = [
        (Dtype::Record(12), &[500], &[4, 8]),
        (Dtype::Record(12), &[20, 25], &[1, 3, 2, 6]),
        (Dtype::C64, &[300], &[4, 4]),
        (Dtype::C128, &[10, 30], &[8, 8]),
        (Dtype::F32, &[200, 3], &[4, 4, 4]),
        (Dtype::F64, &[200, 3], &[8, 16]),
        (Dtype::Record(1), &[6400], &[4, 4, 8]),
    ];
    for (dtype, shape, widths) in cases {
        for order in ORDERS {
            let n = shape.iter().product();
            let bytes = elements(dtype, order, n, 0, &mut random);
            let view = view(dtype, order, shape, &bytes);
            let pipeline = columns(widths);
            let chunk = coder.encode_with(&view, &pipeline, &Bound::default()).unwrap().expect("applies");
            let (array, _, read) = coder.decode_all(&chunk, RAW_MAX).unwrap();
            assert_eq!(array.bytes, bytes, "{dtype} {widths:?}");
            assert_eq!(read.columns.len(), widths.len());
        }
    }
}

#[test]
fn the_chooser_gives_back_every_type_in_every_mode_and_never_grows_much() {
    let mut random = Random(3);
    let mut coder = Coder::new();
    for mode in [Mode::Fast, Mode::Balanced, Mode::Archive] {
        for dtype in dtypes() {
            let mut chooser = Chooser::new(Options { mode, ..Options::default() }, Bound::default()).unwrap();
            for (j, shape) in shapes().into_iter().chain([vec![60, 70], vec![9001]]).enumerate() {
                let n = if shape.contains(&0) { 0 } else { shape.iter().product() };
                let order = ORDERS[j % 2];
                let bytes = elements(dtype, order, n, j % 5, &mut random);
                let layout = if j % 3 == 0 { Layout::ColumnMajor } else { Layout::RowMajor };
                let view = ArrayView { layout, ..view(dtype, order, &shape, &bytes) };
                let chunk = chooser.encode(&view).unwrap();
                assert!(chunk.len() <= bytes.len() + 64 + shape.len() * 10);
                let array = coder.decode(&chunk, RAW_MAX).unwrap();
                assert_eq!(array.view().bytes, bytes, "{dtype} {shape:?} {mode:?}");
                assert_eq!((array.layout, array.shape), (layout, shape));
            }
        }
    }
}

#[test]
fn the_same_chunks_give_the_same_bytes() {
    let mut random = Random(4);
    let bytes = elements(Dtype::F32, ByteOrder::Little, 40 * 10_000, 0, &mut random);
    let encode = |bound: Bound| {
        let mut chooser = Chooser::new(Options::default(), bound).unwrap();
        let chunks = bytes.chunks(40_000).map(|b| chooser.encode(&ArrayView::new(Dtype::F32, &[100, 100], b)).unwrap());
        (chunks.collect::<Vec<_>>(), chooser.trials())
    };
    for bound in [Bound::default(), Bound::abs(0.01), Bound { rel: Some(1e-3), ..Bound::default() }] {
        let (chunks, trials) = encode(bound.clone());
        assert_eq!(encode(bound).0, chunks);
        assert!(trials < chunks.len() as u64 / 2, "{trials} trials for {} chunks", chunks.len());
    }
}

#[test]
fn packed_12_bit_numbers_come_back_at_every_phase() {
    let bytes: Vec<u8> = (0..9000u32)
        .flat_map(|i| {
            let (a, c) = (1000 + i % 50, 2000 - i % 70);
            [a as u8, (a >> 8 | c >> 8 << 4) as u8, c as u8]
        })
        .collect();
    let mut coder = Coder::new();
    let inner = vec![Pipeline::new([], BackEnd::Pco(8)), Pipeline::new([], BackEnd::Pco(8))];
    let pipeline = Pipeline::with_columns(vec![Step::Unpack12], vec![2, 2], inner);
    for (start, end) in [(0, 0), (1, 0), (2, 1), (3, 2), (1, 2)] {
        let bytes = &bytes[start..bytes.len() - end];
        let shape = [bytes.len()];
        let view = ArrayView::new(Dtype::Record(1), &shape, bytes);
        let chunk = coder.encode_with(&view, &pipeline, &Bound::default()).unwrap().expect("applies");
        assert_eq!(coder.decode(&chunk, RAW_MAX).unwrap().bytes, bytes);
        assert!(chunk.len() < 1500, "{start}: {} bytes", chunk.len());
    }
}

#[test]
fn records_without_metadata_become_columns() {
    let mut random = Random(5);
    let mut bytes = Vec::new();
    let mut level = 20f32;
    for i in 0..8000u32 {
        bytes.extend((1_600_000_000 + 60 * i).to_le_bytes());
        for j in 0..7u32 {
            level = ((level + (random.below(5) as f32 - 2.0) * 0.1) * 10.0).round() / 10.0;
            bytes.extend((level + j as f32).to_le_bytes());
        }
    }
    let shape = [bytes.len()];
    let mut chooser = Chooser::new(Options::default(), Bound::default()).unwrap();
    let chunk = chooser.encode(&ArrayView::new(Dtype::Record(1), &shape, &bytes)).unwrap();
    let pipeline = chooser.pipeline().unwrap();
    assert!(matches!(pipeline.steps.last(), Some(Step::Columns(_))), "{pipeline}");
    assert!(chunk.len() * 4 < bytes.len(), "{} bytes by {pipeline}", chunk.len());
}

#[test]
fn candidates_hold_the_winner() {
    let mut random = Random(6);
    let bytes = elements(Dtype::F32, ByteOrder::Little, 128 * 128, 0, &mut random);
    let view = ArrayView::new(Dtype::F32, &[128, 128], &bytes);
    for bound in [Bound::default(), Bound::abs(0.1)] {
        let mut chooser = Chooser::new(Options::default(), bound.clone()).unwrap();
        chooser.encode(&view).unwrap();
        let all = candidates(&view, &Options::default(), &bound).unwrap();
        assert!(all.contains(chooser.pipeline().unwrap()));
    }
}

#[test]
fn the_example_of_the_readme_runs() -> Result<(), Box<dyn std::error::Error>> {
    narrows_test::assert_compiled("README.md".as_ref(), include_str!("round_trip.rs"));
    let bytes: Vec<u8> = (0..64 * 64).flat_map(|i| (i as f32).sin().to_le_bytes()).collect();
    let mut chooser = Chooser::new(Options::default(), Bound { digits: Some(3), ..Bound::default() })?;
    let chunk = chooser.encode(&ArrayView::new(Dtype::F32, &[64, 64], &bytes))?; // one chooser for an array
    let array = Coder::new().decode(&chunk, RAW_MAX)?; // one coder for a thread
    let info = narrows_array::info(&chunk)?; // header: shape, bound, worst error
    assert_eq!((array.bytes.len(), &info.shape[..]), (bytes.len(), &[64, 64][..]));
    Ok(())
}
