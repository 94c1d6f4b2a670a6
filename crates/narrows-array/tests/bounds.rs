//! No value leaves its bound, whatever its bits: checked by arithmetic that owes nothing to the crate.

mod common;

use common::{Random, elements, float, scalar, view};
use narrows_array::{
    ArrayView, BackEnd, Bound, ByteOrder, Chooser, Coder, Dtype, Kept, Options, Pipeline, RAW_MAX, Step,
};

const FLOATS: [Dtype; 5] = [Dtype::F16, Dtype::F32, Dtype::F64, Dtype::C64, Dtype::C128];

/// All that was stated, one hint after the other.
fn allows(bound: &Bound, range: f64, x: f64, y: f64) -> bool {
    let error = (x - y).abs();
    let within = |limit: f64| error <= limit;
    bound.abs.is_none_or(within)
        && bound.range_rel.is_none_or(|r| within(r * range))
        && bound.rel.is_none_or(|r| within((r * x.abs()).max(bound.floor.unwrap_or(0.0))))
        && bound.digits.is_none_or(|d| within(0.5 * 10f64.powi(1 - d as i32) * x.abs()))
        && bound.bits.is_none_or(|b| within(2f64.powi(-(b as i32) - 1) * x.abs()))
}

fn is_kept(bound: &Bound, dtype: Dtype, x: f64) -> bool {
    let cast = |f: f64| if matches!(dtype, Dtype::F32 | Dtype::C64) { f64::from(f as f32) } else { f };
    !x.is_finite()
        || x == 0.0 && x.is_sign_negative()
        || bound.fills.iter().any(|&f| cast(f) == x)
        || bound.exact.iter().any(|&(low, high)| (low..=high).contains(&x))
}

fn random_bound(random: &mut Random) -> Bound {
    let mut bound = Bound::default();
    let power = |random: &mut Random| 10f64.powf(random.unit() * 12.0 - 9.0);
    let which = random.below(31) + 1;
    if which & 1 != 0 {
        bound.abs = Some(power(random) * 100.0);
    }
    if which & 2 != 0 && which & 1 == 0 {
        bound.range_rel = Some(power(random).min(0.5));
    }
    if which & 4 != 0 {
        bound.rel = Some(power(random).min(2.0));
        if which & 1 == 0 {
            bound.floor = Some(power(random));
        }
    }
    if which & 8 != 0 && random.below(2) == 0 {
        bound.digits = Some(1 + random.below(8) as u32);
    }
    if which & 16 != 0 && random.below(2) == 0 {
        bound.bits = Some(random.below(24) as u32);
    }
    if random.below(3) == 0 {
        bound.fills = vec![1e20, -9999.0];
    }
    if random.below(4) == 0 {
        bound.exact = vec![(-1.0, 5.0), (1e10, f64::MAX)];
    }
    bound.rewritable = random.below(3) == 0;
    bound
}

/// Encodes and checks every element; returns the number of elements that changed.
fn check(view: &ArrayView<'_>, bound: &Bound, chunk: &[u8]) -> usize {
    let array = scalar::decode(chunk);
    assert_eq!(Coder::new().decode(chunk, RAW_MAX).unwrap().bytes, array.bytes, "two decoders differ");
    let kept: Option<Kept> = narrows_array::info(chunk).unwrap().bound;
    assert_eq!(kept.map(|k| ([k.abs, k.rel, k.floor], k.worst_abs, k.worst_rel)), array.bound);
    let words = view.bytes.len() * view.dtype.bytes().max(1)
        / view.dtype.bytes().max(1)
        / match view.dtype {
            Dtype::C64 => 4,
            Dtype::C128 => 8,
            other => other.bytes(),
        };
    let value = |bytes: &[u8], i: usize| float(view.dtype, view.order, bytes, i);
    let finite: Vec<f64> = (0..words)
        .map(|i| value(view.bytes, i).1)
        .filter(|x| x.is_finite() && !is_kept(bound, view.dtype, *x))
        .collect();
    let range = finite.iter().copied().fold(f64::MIN, f64::max) - finite.iter().copied().fold(f64::MAX, f64::min);
    let mut changed = 0;
    for i in 0..words {
        let ((a, x), (b, y)) = (value(view.bytes, i), value(&array.bytes, i));
        if a == b {
            continue;
        }
        changed += 1;
        assert!(!is_kept(bound, view.dtype, x), "{x:e} was to be kept and became {y:e}: {bound:?}");
        assert!(y.is_finite() && allows(bound, range, x, y), "{x:e} became {y:e}: {bound:?} {}", view.dtype);
        let kept = kept.expect("a lossy chunk states its bound");
        assert!((x - y).abs() <= f64::from(kept.worst_abs), "{:e} is worse than {:e}", (x - y).abs(), kept.worst_abs);
        if let Some(worst) = kept.worst_rel {
            assert!((x - y).abs() / x.abs() <= f64::from(worst));
        }
    }
    changed
}

/// Random bits, values near each other with random bits among them, and smooth ones.
fn bytes_of(dtype: Dtype, n: usize, kind: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = elements(dtype, ByteOrder::Little, n, kind % 5, random);
    if kind % 5 != 1 {
        let noise = elements(dtype, ByteOrder::Little, n, 1, random);
        let width = dtype.bytes();
        for _ in 0..n / 40 {
            let at = random.below(n) * width;
            bytes[at..at + width].copy_from_slice(&noise[at..at + width]);
        }
        let specials: [u64; 4] = [f64::NAN.to_bits() | 77, f64::INFINITY.to_bits(), (-0.0f64).to_bits(), 1];
        if dtype == Dtype::F64 {
            for special in specials {
                let at = random.below(n) * 8;
                bytes[at..at + 8].copy_from_slice(&special.to_le_bytes());
            }
        }
        if dtype == Dtype::F32 {
            for special in [0x7fc0_1234u32, 0x7f80_0000, 0x8000_0000, 1] {
                let at = random.below(n) * 4;
                bytes[at..at + 4].copy_from_slice(&special.to_le_bytes());
            }
        }
    }
    bytes
}

fn run(values: usize, seed: u64) -> (usize, usize) {
    let mut random = Random(seed);
    let steps: [&[Step]; 6] = [
        &[Step::Linear],
        &[Step::LogLinear],
        &[Step::Bits, Step::Lorenzo { axes: 1, zigzag: true }, Step::Split],
        &[Step::Interpolate],
        &[Step::Linear, Step::Lorenzo { axes: 3, zigzag: true }, Step::Split],
        &[Step::Interpolate, Step::Lorenzo { axes: 0, zigzag: true }, Step::Split],
    ];
    let shapes: [&[usize]; 6] = [&[4096], &[64, 64], &[2, 2048], &[16, 16, 16], &[4, 8, 16, 8], &[1, 4096, 1]];
    let (mut seen, mut changed, mut round) = (0, 0, 0usize);
    let mut coder = Coder::new();
    while seen < values {
        let dtype = FLOATS[round % 5];
        let bound = random_bound(&mut random);
        let shape = shapes[random.below(6)];
        let bytes = bytes_of(dtype, 4096, random.below(5), &mut random);
        let view = view(dtype, ByteOrder::Little, shape, &bytes);
        if round % 4 == 0 {
            let mut chooser = Chooser::new(Options::default(), bound.clone()).unwrap();
            changed += check(&view, &bound, &chooser.encode(&view).unwrap());
        } else {
            let back_end = if round % 2 == 0 { BackEnd::Zstd(1) } else { BackEnd::Lz4 };
            let pipeline = Pipeline::new(steps[random.below(6)], back_end);
            if let Some(chunk) = coder.encode_with(&view, &pipeline, &bound).unwrap() {
                changed += check(&view, &bound, &chunk);
            }
        }
        seen += 4096;
        round += 1;
    }
    (seen, changed)
}

#[test]
fn no_value_leaves_its_bound_in_three_million() {
    let (seen, changed) = run(3_000_000, 11);
    assert!(changed > seen / 10, "{changed} of {seen} values changed: the test tests little");
}

#[test]
#[ignore = "10^8 values take minutes; three million are tested above, and `make test-full` runs this"]
fn no_value_leaves_its_bound_in_a_hundred_million() {
    let (seen, changed) = run(100_000_000, 12);
    println!("{changed} of {seen} values changed");
}

/// A chunk that is filled in many writes, as HDF5 and Zarr do it: each decodes what is there, changes a
/// part and encodes all of it again.
#[test]
fn bounds_do_not_add_up_over_writes() {
    const N: usize = 1024;
    const PARTS: usize = 16;
    let mut random = Random(14);
    let mut coder = Coder::new();
    let mut changed = [0; 2];
    for round in 0..300 {
        let dtype = FLOATS[round % 3];
        let ranged = round % 2;
        let mut bound = random_bound(&mut random);
        bound.rewritable = true;
        if ranged == 1 {
            bound =
                Bound { range_rel: Some(10f64.powf(-1.0 - 3.0 * random.unit())), rewritable: true, ..Bound::default() };
        } else if bound.range_rel.take().is_some() && bound.is_lossless() {
            bound.digits = Some(3);
        }
        let written = bytes_of(dtype, N, 2 + random.below(3), &mut random);
        let width = dtype.bytes();
        let mut stored = vec![0; N * width];
        let mut chooser = Chooser::new(Options::default(), bound.clone()).unwrap();
        for part in 0..PARTS {
            let part = part * N / PARTS * width..(part + 1) * N / PARTS * width;
            stored[part.clone()].copy_from_slice(&written[part]);
            if random.below(4) == 0 {
                chooser = Chooser::new(Options::default(), bound.clone()).unwrap();
            }
            let chunk = chooser.encode(&view(dtype, ByteOrder::Little, &[N], &stored)).unwrap();
            stored = coder.decode(&chunk, RAW_MAX).unwrap().bytes;
        }
        if ranged == 0 {
            let again = chooser.encode(&view(dtype, ByteOrder::Little, &[N], &stored)).unwrap();
            assert!(coder.decode(&again, RAW_MAX).unwrap().bytes == stored, "{bound:?} {dtype}");
        }
        let value = |bytes: &[u8], i: usize| float(dtype, ByteOrder::Little, bytes, i);
        let finite = || (0..N).map(|i| value(&written, i).1).filter(|x| x.is_finite());
        let range = finite().fold(0.0, f64::max) - finite().fold(0.0, f64::min);
        for i in 0..N {
            let ((a, x), (b, y)) = (value(&written, i), value(&stored, i));
            if a != b {
                changed[ranged] += 1;
                assert!(!is_kept(&bound, dtype, x) && allows(&bound, range, x, y), "{x:e} became {y:e}: {bound:?}");
            }
        }
    }
    assert!(changed.iter().all(|&n| n > 300 * N / 20), "{changed:?} values changed: the test tests little");
}

#[test]
fn integers_stay_within_their_bound() {
    let mut random = Random(13);
    let mut coder = Coder::new();
    let mut changed = 0;
    for round in 0..400 {
        let dtype =
            [Dtype::I8, Dtype::I16, Dtype::I32, Dtype::I64, Dtype::U8, Dtype::U16, Dtype::U32, Dtype::U64][round % 8];
        let bytes = elements(dtype, ByteOrder::Little, 1000, random.below(2), &mut random);
        let abs = [0.0, 0.5, 1.0, 2.7, 100.0, 1e6, 1e18][random.below(7)];
        let view = view(dtype, ByteOrder::Little, &[1000], &bytes);
        let bound = Bound { rewritable: round % 3 == 0, ..Bound::abs(abs) };
        let mut chooser = Chooser::new(Options::default(), bound).unwrap();
        let chunk = chooser.encode(&view).unwrap();
        let array = coder.decode(&chunk, RAW_MAX).unwrap();
        let signed = matches!(dtype, Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64);
        let value = |bytes: &[u8]| {
            let negative = signed && bytes.last().is_some_and(|b| b >> 7 == 1);
            let mut wide = [if negative { 255 } else { 0 }; 16];
            wide[..bytes.len()].copy_from_slice(bytes);
            i128::from_le_bytes(wide)
        };
        let width = dtype.bytes();
        for (a, b) in bytes.chunks_exact(width).zip(array.bytes.chunks_exact(width)) {
            let error = value(a).abs_diff(value(b));
            changed += usize::from(error > 0);
            assert!(error as f64 <= abs, "{dtype}: {} became {}, bound {abs}", value(a), value(b));
        }
    }
    assert!(changed > 10_000);
}

#[test]
fn fills_stay_and_do_not_count_as_exceptions() {
    let mut random = Random(14);
    let bytes = elements(Dtype::F32, ByteOrder::Little, 10_000, 4, &mut random);
    let view = view(Dtype::F32, ByteOrder::Little, &[100, 100], &bytes);
    for fills in [vec![1e20], vec![]] {
        let bound = Bound { abs: Some(0.5), fills, ..Bound::default() };
        let mut chooser = Chooser::new(Options::default(), bound.clone()).unwrap();
        let chunk = chooser.encode(&view).unwrap();
        assert!(check(&view, &bound, &chunk) > 5000);
        assert!(chunk.len() * 5 < bytes.len(), "{} bytes", chunk.len());
    }
}

#[test]
fn more_than_a_quarter_of_exceptions_means_lossless() {
    let mut random = Random(15);
    let bytes = elements(Dtype::F64, ByteOrder::Little, 4096, 1, &mut random);
    let view = view(Dtype::F64, ByteOrder::Little, &[4096], &bytes);
    let mut chooser = Chooser::new(Options::default(), Bound::abs(1e-6)).unwrap();
    let chunk = chooser.encode(&view).unwrap();
    assert_eq!(check(&view, chooser.bound(), &chunk), 0);
    let kept = narrows_array::info(&chunk).unwrap().bound.unwrap();
    assert_eq!((kept.abs, kept.worst_abs), (Some(1e-6), 0.0));
}

#[test]
fn bounds_without_sense_are_refused_and_0_means_exact() {
    for bad in [f64::NAN, -1.0, f64::INFINITY] {
        assert!(Chooser::new(Options::default(), Bound::abs(bad)).is_err());
        assert!(Chooser::new(Options::default(), Bound { rel: Some(bad), ..Bound::default() }).is_err());
    }
    assert!(Chooser::new(Options::default(), Bound { floor: Some(1.0), ..Bound::default() }).is_err());
    assert!(Chooser::new(Options::default(), Bound { digits: Some(0), ..Bound::default() }).is_err());
    let bytes = elements(Dtype::F32, ByteOrder::Little, 4096, 0, &mut Random(16));
    let view = view(Dtype::F32, ByteOrder::Little, &[4096], &bytes);
    let mut chooser = Chooser::new(Options::default(), Bound::abs(0.0)).unwrap();
    assert_eq!(Coder::new().decode(&chooser.encode(&view).unwrap(), RAW_MAX).unwrap().bytes, bytes);
}

#[test]
fn rounded_bits_stay_within_half_a_unit_and_keep_fills() {
    let bytes = elements(Dtype::F32, ByteOrder::Big, 10_000, 4, &mut Random(17));
    let view = view(Dtype::F32, ByteOrder::Big, &[10_000], &bytes);
    let bound = Bound { fills: vec![1e20], bits: Some(7), ..Bound::default() };
    let rounded = narrows_array::round_bits(&view, 7, &bound).unwrap();
    for i in 0..10_000 {
        let value = |bytes: &[u8]| float(Dtype::F32, ByteOrder::Big, bytes, i);
        let ((a, x), (b, y)) = (value(&bytes), value(&rounded));
        assert!(allows(&bound, 0.0, x, y), "{x} {y}");
        assert!(a == b || b & 0xffff == 0 && !is_kept(&bound, Dtype::F32, x));
    }
    let ints = ArrayView::new(Dtype::I32, &[2], &[0; 8]);
    assert!(narrows_array::round_bits(&ints, 7, &bound).is_err());
}

/// Every kind of extreme value of a float type, among ordinary ones.
fn extremes(dtype: Dtype, order: ByteOrder) -> Vec<u8> {
    let (width, exponent_at, sign_at) = match dtype {
        Dtype::F16 => (2, 10, 15),
        Dtype::F32 | Dtype::C64 => (4, 23, 31),
        _ => (8, 52, 63),
    };
    let infinity = (1u64 << sign_at) - (1 << exponent_at);
    let mut magnitudes = vec![0, 1, 2, 77, (1 << exponent_at) - 1, 1 << exponent_at, infinity - 1, infinity];
    // Not-a-numbers, quiet and signalling, with payloads; one; neighbours of one.
    let one = (infinity >> exponent_at >> 1) << exponent_at;
    magnitudes.extend([infinity + 1, infinity | 1 << (exponent_at - 1), infinity | 123, one, one + 1, one - 1]);
    magnitudes.extend((0..50).map(|i| one + (i << exponent_at >> 3)));
    let words = magnitudes.iter().flat_map(|&m| [m, m | 1 << sign_at]);
    let bytes = |word: u64| {
        let mut bytes = word.to_le_bytes()[..width].to_vec();
        if order == ByteOrder::Big {
            bytes.reverse();
        }
        bytes
    };
    words.flat_map(bytes).collect()
}

#[test]
fn extreme_values_and_extreme_bounds_hold() {
    let tiny = [f64::from_bits(1), 1e-310, f64::MIN_POSITIVE, 1e-45, 6e-8, 1e-12];
    let sizes = [1e-3, 0.5, 1.0, 1e3, 65504.0, 1e30, 1e300, f64::MAX];
    let mut bounds = Vec::new();
    for &v in tiny.iter().chain(&sizes) {
        bounds.push(Bound::abs(v));
        bounds.push(Bound { range_rel: Some(v), ..Bound::default() });
        bounds.push(Bound { rel: Some(v), ..Bound::default() });
        bounds.push(Bound { rel: Some(1e-3), floor: Some(v), ..Bound::default() });
        bounds.push(Bound { rel: Some(v), floor: Some(1e-5), abs: Some(0.1), ..Bound::default() });
    }
    bounds.extend([1, 3, 7, 15, 324].map(|d| Bound { digits: Some(d), ..Bound::default() }));
    bounds.extend([0, 1, 10, 52, 1074].map(|b| Bound { bits: Some(b), ..Bound::default() }));
    let mut coder = Coder::new();
    let mut changed = 0;
    for dtype in FLOATS {
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let bytes = extremes(dtype, order);
            for bound in &bounds {
                for shape in
                    [vec![bytes.len() / dtype.bytes()], vec![2, bytes.len() / dtype.bytes() / 2], vec![], vec![0, 4]]
                {
                    let len = shape.iter().product::<usize>() * dtype.bytes();
                    let view = view(dtype, order, &shape, &bytes[..len]);
                    let mut chooser = Chooser::new(Options::default(), bound.clone()).unwrap();
                    changed += check(&view, bound, &chooser.encode(&view).unwrap());
                    for step in [Step::Linear, Step::LogLinear, Step::Bits, Step::Interpolate] {
                        let pipeline = Pipeline::new([step], BackEnd::Zstd(1));
                        if let Some(chunk) = coder.encode_with(&view, &pipeline, bound).unwrap() {
                            changed += check(&view, bound, &chunk);
                        }
                    }
                }
            }
        }
    }
    assert!(changed > 1000, "{changed}");
}

#[test]
fn extreme_integers_stay_within_their_bound() {
    let mut coder = Coder::new();
    for (dtype, values) in [
        (Dtype::I64, [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX - 1, i64::MAX, 1 << 53].map(i128::from)),
        (Dtype::U64, [0, 1, u64::MAX - 1, u64::MAX, 1 << 63, (1 << 63) - 1, 1 << 53, 7].map(i128::from)),
    ] {
        let bytes: Vec<u8> = values.iter().cycle().take(400).flat_map(|v| (*v as u64).to_le_bytes()).collect();
        let view = view(dtype, ByteOrder::Little, &[20, 20], &bytes);
        for abs in [0.5, 1.0, 3.0, 1e9, 9e15, 1.8e16, 9.2e18, 1.8e19, 1e300] {
            let bound = Bound::abs(abs);
            let mut chooser = Chooser::new(Options::default(), bound.clone()).unwrap();
            let mut chunks = vec![chooser.encode(&view).unwrap()];
            chunks.extend(coder.encode_with(&view, &Pipeline::new([Step::Linear], BackEnd::Lz4), &bound).unwrap());
            for chunk in chunks {
                let decoded = coder.decode(&chunk, RAW_MAX).unwrap().bytes;
                assert_eq!(scalar::decode(&chunk).bytes, decoded);
                for (x, y) in values.iter().cycle().zip(decoded.chunks_exact(8)) {
                    let y = u64::from_le_bytes(y.try_into().unwrap());
                    let y = if dtype == Dtype::I64 { i128::from(y as i64) } else { i128::from(y) };
                    assert!(x.abs_diff(y) as f64 <= abs, "{x} became {y} within {abs}");
                }
            }
        }
    }
}

#[test]
fn a_share_of_values_that_are_never_small_costs_nothing_beside_an_absolute_bound() {
    let bytes: Vec<u8> = (0..20_000u32).flat_map(|i| (280.0 + (i as f32 / 50.0).sin()).to_le_bytes()).collect();
    let view = ArrayView::new(Dtype::F32, &[20_000], &bytes);
    let encoded = |bound| Chooser::new(Options::default(), bound).unwrap().encode(&view).unwrap().len();
    let abs = Bound { abs: Some(0.01), ..Bound::default() };
    assert_eq!(encoded(Bound { rel: Some(1e-3), ..abs.clone() }), encoded(abs));
}
