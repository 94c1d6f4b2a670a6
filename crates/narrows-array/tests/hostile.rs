//! Damaged and hostile chunks give errors: no panic, no other values, no memory that was not earned.

mod common;

use common::{Random, elements, view};
use narrows::ErrorKind;
use narrows_array::{
    ArrayView, BackEnd, Bound, ByteOrder, Chooser, Coder, Dtype, Options, Pipeline, RAW_MAX, Step, file, npy,
};

/// A chunk for each kind of pipeline.
fn chunks() -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut random = Random(21);
    let mut coder = Coder::new();
    let lossless: [&[Step]; 6] = [
        &[],
        &[Step::Split],
        &[Step::Rank],
        &[Step::Mask, Step::Lorenzo { axes: 3, zigzag: true }, Step::Split],
        &[Step::Lorenzo { axes: 1, zigzag: false }],
        &[Step::Rank, Step::Lorenzo { axes: 2, zigzag: true }],
    ];
    let lossy: [&[Step]; 4] = [
        &[Step::Linear],
        &[Step::LogLinear],
        &[Step::Bits, Step::Lorenzo { axes: 1, zigzag: true }],
        &[Step::Interpolate, Step::Lorenzo { axes: 0, zigzag: true }, Step::Split],
    ];
    let mut all = Vec::new();
    let mut put = |steps: &[Step], bound: Bound| {
        for back_end in [BackEnd::Store, BackEnd::Zstd(3), BackEnd::Lz4, BackEnd::Pco(4), BackEnd::Xz(1)] {
            let bytes = elements(Dtype::F32, ByteOrder::Little, 24 * 10, 4, &mut random);
            let view = view(Dtype::F32, ByteOrder::Little, &[24, 10], &bytes);
            let pipeline = Pipeline::new(steps, back_end);
            if let Some(chunk) = coder.encode_with(&view, &pipeline, &bound).unwrap() {
                let decoded = coder.decode(&chunk, RAW_MAX).unwrap().bytes;
                all.push((chunk, decoded));
            }
        }
    };
    lossless.iter().for_each(|steps| put(steps, Bound::default()));
    for steps in lossy {
        put(steps, Bound { rel: Some(0.01), ..Bound::default() });
        put(steps, Bound::abs(0.1));
    }
    let bytes = elements(Dtype::Record(12), ByteOrder::Little, 100, 2, &mut random);
    let inner = vec![Pipeline::new([], BackEnd::Pco(2)), Pipeline::new([], BackEnd::Zstd(1))];
    let pipeline = Pipeline::with_columns(Vec::new(), vec![8, 4], inner.clone());
    let chunk = coder.encode_with(&ArrayView::new(Dtype::Record(12), &[100], &bytes), &pipeline, &Bound::default());
    all.push((chunk.unwrap().unwrap(), bytes.clone()));
    let pipeline = Pipeline::with_columns(vec![Step::Unpack12], vec![2, 2], inner);
    let chunk = coder.encode_with(&ArrayView::new(Dtype::Record(1), &[1200], &bytes), &pipeline, &Bound::default());
    all.push((chunk.unwrap().unwrap(), bytes));
    assert!(all.len() > 40);
    all
}

#[test]
fn every_truncation_of_every_kind_of_chunk_is_an_error() {
    let mut coder = Coder::new();
    for (chunk, _) in chunks() {
        for len in 0..chunk.len() {
            assert!(coder.decode(&chunk[..len], RAW_MAX).is_err(), "{len} of {} bytes", chunk.len());
        }
        let mut longer = chunk.clone();
        longer.push(0);
        assert!(coder.decode(&longer, RAW_MAX).is_err());
    }
}

#[test]
fn every_changed_byte_gives_an_error_or_the_same_values() {
    let mut coder = Coder::new();
    for (chunk, bytes) in chunks() {
        for at in 0..chunk.len() {
            for change in [1, 2, 4, 8, 16, 32, 64, 128, 255] {
                let mut damaged = chunk.clone();
                damaged[at] ^= change;
                if let Ok(array) = coder.decode(&damaged, 1 << 20) {
                    assert_eq!(array.bytes, bytes, "byte {at} changed by {change}");
                }
            }
        }
    }
}

/// The same bytes as another type, with other axes or another bound are other values.
#[test]
fn every_bit_of_a_header_is_under_the_check() {
    let bytes = vec![7; 4 * 64];
    let mut coder = Coder::new();
    let zstd = Pipeline::new([], BackEnd::Zstd(3));
    for (dtype, shape) in
        [(Dtype::F32, &[8, 8][..]), (Dtype::I64, &[4, 8]), (Dtype::C64, &[32]), (Dtype::Bool, &[16, 16])]
    {
        for bound in [Bound::default(), Bound::abs(0.5)] {
            let view = ArrayView::new(dtype, shape, &bytes);
            let chunk = coder.encode_with(&view, &zstd, &bound).unwrap().unwrap();
            let good = coder.decode_all(&chunk, RAW_MAX).unwrap();
            for bit in 0..8 * chunk.len() {
                let mut bad = chunk.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                if let Ok(other) = coder.decode_all(&bad, RAW_MAX) {
                    assert_eq!((&good.0, &good.1), (&other.0, &other.1), "{dtype}: bit {bit}");
                }
            }
        }
    }
}

#[test]
fn any_bytes_behind_a_valid_header_are_decoded_or_refused() {
    let mut random = Random(22);
    let mut coder = Coder::new();
    let all = chunks();
    for round in 0..60_000 {
        let (chunk, _) = &all[round % all.len()];
        let mut damaged = chunk.clone();
        for _ in 0..=random.below(6) {
            let at = 20 + random.below(damaged.len() - 20);
            damaged[at] = random.next() as u8;
        }
        let _ = coder.decode(&damaged, 1 << 20);
    }
}

#[test]
fn lengths_are_refused_before_they_are_allocated() {
    let mut coder = Coder::new();
    let header = |shape: &[u8], raw_len: &[u8]| {
        let mut chunk = narrows_array::MAGIC.to_vec();
        chunk.extend([10, 0, shape.len() as u8]);
        chunk.extend(shape);
        chunk.extend(raw_len);
        chunk.extend([0; 8]);
        chunk
    };
    // A length that differs from the shape, one above the caller's limit.
    assert_eq!(coder.decode(&header(&[5, 5], &[99]), RAW_MAX).unwrap_err().kind, ErrorKind::Corrupt);
    let mut large = header(&[127, 127], &[132, 248, 3]);
    large.extend([2, 0]);
    assert_eq!(coder.decode(&large, 64_515).unwrap_err().kind, ErrorKind::Limit);
    // Rank, type, version, flags.
    let chunk = header(&[5, 5], &[100]);
    for (at, value, kind) in [
        (3, 2, ErrorKind::Unsupported),
        (4, 15, ErrorKind::Unsupported),
        (5, 4, ErrorKind::Unsupported),
        (6, 33, ErrorKind::Corrupt),
        (0, 0, ErrorKind::Corrupt),
    ] {
        let mut chunk = chunk.clone();
        chunk[at] = value;
        assert_eq!(coder.decode(&chunk, RAW_MAX).unwrap_err().kind, kind, "byte {at}");
    }
    assert!(coder.decode_into(&chunk, &mut [0; 3]).is_err());
    // pco with a dictionary of 2^25 entries, and with a look-back window of 2^24.
    for pco in [[4, 1, 0xf4, 0xff, 0xff, 0x1f, 0, 0, 0, 0], [4, 1, 0x20, 0x17, 0, 0, 0, 0, 0, 0]] {
        let mut chunk = chunk.clone();
        chunk.extend([4, pco.len() as u8]);
        chunk.extend(pco);
        assert_eq!(coder.decode(&chunk, RAW_MAX).unwrap_err().kind, ErrorKind::Corrupt);
    }
}

#[test]
fn views_whose_shape_and_bytes_differ_are_refused() {
    let mut chooser = Chooser::new(Options::default(), Bound::default()).unwrap();
    for shape in [&[3][..], &[], &[usize::MAX, 2], &[1 << 40], &[2; 33]] {
        assert!(chooser.encode(&ArrayView::new(Dtype::F32, shape, &[0; 16])).is_err());
    }
}

#[test]
fn files_come_back_and_every_truncation_is_an_error() {
    let mut random = Random(23);
    for shape in [&[50, 7, 3][..], &[], &[0, 4], &[1, 900]] {
        let n = shape.iter().product();
        let bytes = elements(Dtype::F64, ByteOrder::Big, n, 0, &mut random);
        let view = view(Dtype::F64, ByteOrder::Big, shape, &bytes);
        let mut chooser = Chooser::new(Options::default(), Bound::default()).unwrap();
        let encoded = file::encode(&view, &mut chooser, 2000).unwrap();
        let decode = |encoded: &[u8]| {
            let mut decoded: Vec<u8> = Vec::new();
            let chunks = file::chunks(encoded)?;
            assert_eq!(chunks.shape, shape);
            file::decode(chunks, 1 << 20, |array| {
                decoded.extend(&array.bytes);
                Ok(())
            })?;
            Ok::<_, narrows::Error>(decoded)
        };
        assert_eq!(decode(&encoded).unwrap(), bytes);
        for len in 0..encoded.len() {
            assert!(decode(&encoded[..len]).is_err(), "{len} of {}", encoded.len());
        }
    }
}

#[test]
fn npy_headers_come_back_and_nonsense_is_refused() {
    use narrows_array::Layout;
    for dtype in Dtype::all().chain([Dtype::Record(12)]) {
        for (order, layout) in [(ByteOrder::Little, Layout::RowMajor), (ByteOrder::Big, Layout::ColumnMajor)] {
            for shape in [&[][..], &[0], &[3, 4, 5]] {
                let header = npy::header(dtype, order, layout, shape);
                assert_eq!(header.len() % 64, 0);
                let read = npy::parse(&header).unwrap();
                assert_eq!((read.dtype, read.layout, &read.shape[..]), (dtype, layout, shape));
                assert!(dtype.bytes() == 1 || matches!(dtype, Dtype::Record(_)) || read.order == order);
                assert_eq!(read.data_at, header.len());
                for len in 0..header.len() {
                    assert!(npy::parse(&header[..len]).is_err());
                }
            }
        }
    }
    let wrap = |text: &str, version: u8| {
        let mut file = npy::MAGIC.to_vec();
        file.extend([version, 0]);
        file.extend((text.len() as u32).to_le_bytes()[..if version == 1 { 2 } else { 4 }].iter());
        file.extend(text.bytes());
        file
    };
    let good = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }";
    for version in [1, 2, 3] {
        assert_eq!(npy::parse(&wrap(good, version)).unwrap().shape, [3]);
    }
    assert!(npy::parse(&wrap(good, 4)).is_err());
    for bad in [
        "",
        "{",
        "{}",
        "{'descr': '<f4'}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '<f4', 'fortran_order': 1, 'shape': (3,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999,), }",
        "{'descr': '<V0', 'fortran_order': False, 'shape': (3,), }",
    ] {
        assert!(npy::parse(&wrap(bad, 1)).is_err(), "{bad}");
    }
}
