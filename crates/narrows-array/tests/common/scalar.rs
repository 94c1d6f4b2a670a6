//! A decoder of chunks that is written from docs/format.md, section 15, alone, one value at a time. It
//! shares nothing with the crate but the libraries of the back ends. Whatever is wrong panics.

use narrows::codec::{CodecId, Contexts};
use pco::data_types::Number;
use pco::wrapped::FileDecompressor;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// What a chunk says and holds.
pub(crate) struct Decoded {
    pub(crate) bytes: Vec<u8>,
    /// abs, rel, floor as far as they are stated; worst, worst relative.
    pub(crate) bound: Option<([Option<f64>; 3], f32, Option<f32>)>,
    /// Numbers of the steps of the outermost pipeline, and of its back end.
    pub(crate) steps: Vec<u8>,
    pub(crate) back_end: u8,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Unsigned,
    Signed,
    Float,
}

/// Words between two steps.
#[derive(Clone)]
struct Stage {
    kind: Kind,
    width: usize,
    axes: Vec<usize>,
}

impl Stage {
    fn len(&self) -> usize {
        self.axes.iter().product()
    }

    fn bits(&self) -> u32 {
        8 * self.width as u32
    }

    fn mask(&self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }

    fn signed(&self, word: u64) -> i64 {
        (word << (64 - self.bits())) as i64 >> (64 - self.bits())
    }

    /// The ordered form of a word.
    fn ordered(&self, word: u64) -> u64 {
        let top = 1 << (self.bits() - 1);
        match self.kind {
            Kind::Unsigned => word,
            Kind::Signed => word ^ top,
            Kind::Float if word & top != 0 => !word & self.mask(),
            Kind::Float => word | top,
        }
    }

    /// The word of an ordered float.
    fn float_of_ordered(&self, ordered: u64) -> u64 {
        let top = 1 << (self.bits() - 1);
        if ordered & top != 0 { ordered ^ top } else { !ordered & self.mask() }
    }

    /// The bits of a number rounded to the type, ties to even.
    fn round(&self, y: f64) -> u64 {
        match self.width {
            2 => half_of(y),
            4 => u64::from((y as f32).to_bits()),
            _ => y.to_bits(),
        }
    }
}

fn half_of(y: f64) -> u64 {
    let sign = if y.is_sign_negative() { 1 << 15 } else { 0 };
    let a = y.abs();
    if a >= 65520.0 {
        return sign | 0x7c00;
    }
    let exponent = (-14..=15).rev().find(|&e| a >= 2f64.powi(e)).unwrap_or(-14);
    // Units of the last place; 1024 of them are the leading bit. Rounding up may carry into the exponent.
    let units = (a / 2f64.powi(exponent - 10)).round_ties_even() as u64;
    sign | if units < 1024 { units } else { ((exponent + 15) as u64 * 1024) + units - 1024 }
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(len);
        self.0 = tail;
        head
    }

    fn byte(&mut self) -> u8 {
        self.take(1)[0]
    }

    fn varint(&mut self) -> usize {
        let mut value = 0;
        for i in 0.. {
            let byte = self.byte();
            value |= usize::from(byte & 127) << (7 * i);
            if byte < 128 {
                break;
            }
        }
        value
    }

    fn f64(&mut self) -> f64 {
        f64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    fn f32(&mut self) -> f32 {
        f32::from_le_bytes(self.take(4).try_into().unwrap())
    }

    fn block(&mut self, len: usize) -> Vec<u8> {
        let kind = self.byte();
        let wire_len = self.varint();
        let wire = self.take(wire_len);
        if kind == 0 { wire.to_vec() } else { expand(CodecId::ZSTD, wire, len) }
    }

    /// Indices of the elements of a place list.
    fn places(&mut self) -> Vec<usize> {
        let runs = self.varint();
        let mut places = Vec::new();
        if runs > 0 {
            let len = self.varint();
            let content = self.block(len);
            let mut content = Input(&content);
            let mut at = 0;
            for _ in 0..runs {
                at += content.varint();
                for _ in 0..content.varint() {
                    places.push(at);
                    at += 1;
                }
            }
            assert!(content.0.is_empty());
        }
        places
    }
}

fn expand(id: CodecId, wire: &[u8], len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    let mut contexts = Contexts::default();
    let decoded = contexts.decoder(id.codec().unwrap()).decode(&[], wire, &mut out).unwrap();
    assert_eq!(decoded, len);
    out
}

fn words_of(bytes: &[u8], width: usize) -> Vec<u64> {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &b| word << 8 | u64::from(b));
    bytes.chunks(width).map(word).collect()
}

fn pco_words(mut input: Input<'_>, stage: &Stage) -> Vec<u64> {
    fn section<N: Number>(wire: &[u8], len: usize, word: impl Fn(N) -> u64) -> Vec<u64> {
        let (file, rest) = FileDecompressor::new(wire).unwrap();
        let (mut chunk, rest) = file.chunk_decompressor::<N, _>(rest).unwrap();
        let mut page = chunk.page_decompressor(rest, len).unwrap();
        let mut numbers = vec![N::default(); len];
        assert!(page.read(&mut numbers).unwrap().finished);
        numbers.into_iter().map(word).collect()
    }
    let mut words = Vec::new();
    while words.len() < stage.len() {
        let len = (stage.len() - words.len()).min(1 << 20);
        let wire_len = input.varint();
        let wire = input.take(wire_len);
        words.extend(match (stage.width, stage.kind) {
            (1, _) => section::<u8>(wire, len, u64::from),
            (2, Kind::Signed) => section::<i16>(wire, len, |n| u64::from(n as u16)),
            (2, _) => section::<u16>(wire, len, u64::from),
            (4, Kind::Float) => section::<f32>(wire, len, |n| n.to_bits().into()),
            (4, Kind::Signed) => section::<i32>(wire, len, |n| u64::from(n as u32)),
            (4, _) => section::<u32>(wire, len, u64::from),
            (_, Kind::Float) => section::<f64>(wire, len, f64::to_bits),
            (_, Kind::Signed) => section::<i64>(wire, len, |n| n as u64),
            _ => section::<u64>(wire, len, |n| n),
        });
    }
    assert!(input.0.is_empty());
    words
}

fn back_end(number: u8, wire: &[u8], stage: &Stage) -> Vec<u64> {
    let len = stage.len() * stage.width;
    let bytes = match number {
        0 => wire.to_vec(),
        1 => expand(CodecId::LZ4, wire, len),
        2 => expand(CodecId::ZSTD, wire, len),
        3 => expand(CodecId::XZ, wire, len),
        4 => return pco_words(Input(wire), stage),
        _ => panic!("back end {number}"),
    };
    assert_eq!(bytes.len(), len);
    words_of(&bytes, stage.width)
}

/// Axes without those of length 1, the first ones joined until `max` are left.
fn joined(axes: &[usize], max: usize) -> Vec<usize> {
    let mut axes: Vec<usize> = axes.iter().copied().filter(|&d| d != 1).collect();
    while axes.len() > max {
        axes[1] *= axes[0];
        axes.remove(0);
    }
    if axes.is_empty() { vec![1] } else { axes }
}

/// What a step needs to be undone.
enum Side {
    None,
    Lorenzo(u8),
    List(Vec<u64>),
    Unpack(Vec<u8>, Vec<u8>),
    Mask(u64, Vec<usize>),
    Lossy(Vec<f64>, Vec<usize>, Vec<u64>),
}

fn pipeline(input: &mut Input<'_>, first: &Stage) -> (Vec<u64>, Vec<u8>, u8) {
    let head = input.byte();
    let mut steps = Vec::new();
    for _ in 0..head >> 6 {
        let number = input.byte();
        let parameters = match number {
            2 => (0..input.varint()).map(|_| input.varint()).collect(),
            3 => vec![usize::from(input.byte())],
            _ => Vec::new(),
        };
        steps.push((number, parameters));
    }
    let numbers = steps.iter().map(|s| s.0).collect();
    let mut stages = vec![first.clone()];
    let mut sides = Vec::new();
    let mut words = None;
    for (number, parameters) in &steps {
        let stage = stages.last().unwrap().clone();
        let n = stage.len();
        let wide = if stage.width == 8 { 8 } else { 4 };
        let (side, next) = match number {
            1 => (Side::None, Stage { kind: Kind::Unsigned, width: 1, axes: vec![n * stage.width] }),
            2 => {
                words = Some(columns(input, &stage, parameters));
                break;
            }
            3 => {
                let kind = if parameters[0] & 16 != 0 { Kind::Unsigned } else { Kind::Signed };
                (Side::Lorenzo(parameters[0] as u8), Stage { kind, ..stage })
            }
            4 => {
                let distinct = input.varint();
                let len = input.varint();
                let list = pco_words(Input(input.take(len)), &Stage { axes: vec![distinct], ..stage.clone() });
                let width = if distinct <= 256 { 1 } else { 2 };
                (Side::List(list), Stage { kind: Kind::Unsigned, width, axes: stage.axes })
            }
            5 => {
                let phase = usize::from(input.byte());
                let before = input.take(phase).to_vec();
                let pairs = (n - phase) / 3;
                let behind = input.take(n - phase - 3 * pairs).to_vec();
                (Side::Unpack(before, behind), Stage { kind: Kind::Unsigned, width: 2, axes: vec![2 * pairs] })
            }
            6 => {
                let value = words_of(input.take(stage.width), stage.width)[0];
                (Side::Mask(value, input.places()), stage)
            }
            7..=10 => {
                let mut count = [1, 8, 1, 2][usize::from(*number) - 7];
                let mut axes = stage.axes.clone();
                if *number == 10 {
                    count += levels(&stage.axes);
                    axes = vec![n];
                }
                let parameters = (0..count).map(|_| input.f64()).collect();
                let places = input.places();
                let values = match places.len() {
                    0 => Vec::new(),
                    count => words_of(&input.block(count * stage.width), stage.width),
                };
                (Side::Lossy(parameters, places, values), Stage { kind: Kind::Signed, width: wide, axes })
            }
            other => panic!("step {other}"),
        };
        sides.push(side);
        stages.push(next);
    }
    let mut words = words.unwrap_or_else(|| {
        let rest = std::mem::take(&mut input.0);
        back_end(head & 15, rest, stages.last().unwrap())
    });
    for ((step, side), i) in steps.iter().zip(sides).zip(0..).collect::<Vec<_>>().into_iter().rev() {
        words = undo(step.0, side, &words, &stages[i], &stages[i + 1]);
    }
    assert_eq!(words.len(), first.len());
    (words, numbers, head & 15)
}

fn columns(input: &mut Input<'_>, stage: &Stage, widths: &[usize]) -> Vec<u64> {
    let row: usize = widths.iter().sum();
    let len = stage.len() * stage.width;
    let mut outer = stage.axes.clone();
    if outer.pop().unwrap() * stage.width != row {
        assert!(outer.is_empty() && len.is_multiple_of(row));
        outer = vec![len / row];
    }
    let mut bytes = vec![0; len];
    let mut offset = 0;
    for &width in widths {
        let mut column = match width {
            _ if width == stage.width => Stage { kind: stage.kind, width, axes: outer.clone() },
            1 | 2 | 4 | 8 => Stage { kind: Kind::Unsigned, width, axes: outer.clone() },
            _ => Stage { kind: Kind::Unsigned, width: 1, axes: [&outer[..], &[width]].concat() },
        };
        if column.axes.is_empty() {
            column.axes.push(1);
        }
        let wire_len = input.varint();
        let mut body = Input(input.take(wire_len));
        let (words, _, _) = pipeline(&mut body, &column);
        assert!(body.0.is_empty());
        let content: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()[..column.width].to_vec()).collect();
        for (i, piece) in content.chunks(width).enumerate() {
            bytes[i * row + offset..][..width].copy_from_slice(piece);
        }
        offset += width;
    }
    words_of(&bytes, stage.width)
}

fn undo(number: u8, side: Side, words: &[u64], stage: &Stage, behind: &Stage) -> Vec<u64> {
    let n = stage.len();
    match (number, side) {
        (1, _) => {
            let byte = |i: usize, j: usize| words[j * n + i] << (8 * j);
            (0..n).map(|i| (0..stage.width).map(|j| byte(i, j)).sum()).collect()
        }
        (3, Side::Lorenzo(axes)) => lorenzo(axes, words, stage),
        (4, Side::List(list)) => {
            assert!(list.windows(2).all(|p| stage.ordered(p[0]) < stage.ordered(p[1])));
            words.iter().map(|&i| list[i as usize]).collect()
        }
        (5, Side::Unpack(before, after)) => {
            let mut bytes = before;
            for pair in words.chunks(2) {
                bytes.extend([pair[0] as u8, (pair[0] >> 8 | pair[1] >> 8 << 4) as u8, pair[1] as u8]);
            }
            bytes.extend(after);
            bytes.into_iter().map(u64::from).collect()
        }
        (6, Side::Mask(value, places)) => {
            let mut words = words.to_vec();
            places.into_iter().for_each(|i| words[i] = value);
            words
        }
        (_, Side::Lossy(p, places, values)) => {
            let q: Vec<i64> = words.iter().map(|&w| behind.signed(w)).collect();
            let mut words: Vec<u64> = match number {
                7 if stage.kind != Kind::Float => {
                    q.iter().map(|&q| (i128::from(q) * p[0] as i128) as u64 & stage.mask()).collect()
                }
                7 => q.iter().map(|&q| stage.round(q as f64 * p[0])).collect(),
                8 => q.iter().map(|&q| stage.round(log_linear(q as f64, &p))).collect(),
                9 => q.iter().map(|&q| leading_bits(q, p[0] as u32, stage)).collect(),
                _ => interpolated(&q, &p, &stage.axes).into_iter().map(|y| stage.round(y)).collect(),
            };
            places.into_iter().zip(values).for_each(|(i, value)| words[i] = value);
            words
        }
        _ => panic!("step {number}"),
    }
}

fn lorenzo(bits: u8, words: &[u64], stage: &Stage) -> Vec<u64> {
    let mut words = words.to_vec();
    if bits & 16 != 0 {
        for word in &mut words {
            // Even ones are d >= 0, odd ones below.
            *word = if *word % 2 == 0 { *word / 2 } else { !(*word / 2) & stage.mask() };
        }
    }
    let axes = joined(&stage.axes, 4);
    for bit in 0..4 {
        if bits >> bit & 1 == 1 {
            let axis = axes.len() - 1 - bit;
            let stride: usize = axes[axis + 1..].iter().product();
            for i in 0..words.len() {
                let index = i / stride % axes[axis];
                if index > 0 {
                    words[i] = words[i].wrapping_add(words[i - stride]) & stage.mask();
                }
            }
        }
    }
    if stage.kind == Kind::Float {
        words.iter_mut().for_each(|w| *w = stage.float_of_ordered(*w));
    }
    words
}

fn log_linear(q: f64, p: &[f64]) -> f64 {
    let &[l, g1, t, e, c, g2, u, h] = p else { panic!() };
    let a = q.abs();
    let y = if a <= g1 {
        a * l
    } else if a <= g2 {
        (t * exp2((a - g1) * e)) * c
    } else {
        u + (a - g2) * h
    };
    if q < 0.0 { -y } else { y }
}

/// (ln 2)^j / j!, from j = 0 on.
const TERMS: [f64; 14] = [
    1.0,
    std::f64::consts::LN_2,
    0.240_226_506_959_100_72,
    0.055_504_108_664_821_58,
    0.009_618_129_107_628_477,
    0.001_333_355_814_642_844_3,
    0.000_154_035_303_933_816_1,
    1.525_273_380_405_984_1e-5,
    1.321_548_679_014_431e-6,
    1.017_808_600_923_97e-7,
    7.054_911_620_801_123e-9,
    4.445_538_271_870_811_6e-10,
    2.567_843_599_348_820_6e-11,
    1.369_148_885_390_412_8e-12,
];

fn exp2(v: f64) -> f64 {
    if v < -1022.0 {
        return 0.0;
    }
    if v >= 1023.0 {
        return f64::INFINITY;
    }
    let i = v.round_ties_even();
    let f = v - i;
    let mut sum = 0.0;
    for term in TERMS.iter().rev() {
        sum = sum * f + term;
    }
    sum * 2f64.powi(i as i32)
}

fn leading_bits(q: i64, k: u32, stage: &Stage) -> u64 {
    let sign = 1 << (stage.bits() - 1);
    if q >= 0 { (q as u64) << k } else { ((-1 - q) as u64) << k | sign }
}

fn three(axes: &[usize]) -> [usize; 3] {
    let axes = joined(axes, 3);
    let at = |i: usize| if axes.len() + i >= 3 { axes[axes.len() + i - 3] } else { 1 };
    [at(0), at(1), at(2)]
}

fn levels(axes: &[usize]) -> usize {
    let longest = three(axes).into_iter().max().unwrap();
    (0..).find(|&j| 1 << j >= longest).unwrap()
}

fn interpolated(q: &[i64], p: &[f64], axes: &[usize]) -> Vec<f64> {
    let (s, m) = (p[0], p[1] as u8);
    let shape = three(axes);
    let stride = [shape[1] * shape[2], shape[2], 1];
    let j = levels(axes);
    let e = |i: usize| s * p[1 + i];
    let mut q = q.iter().map(|&q| q as f64);
    let mut y = vec![0.0; shape.iter().product()];
    y[0] = 0.0 + q.next().unwrap() * if j == 0 { s } else { e(j) };
    for i in (1..=j).rev() {
        let h = 1usize << (i - 1);
        let order: Vec<usize> = if m & 2 != 0 { vec![2, 1, 0] } else { vec![0, 1, 2] };
        for (turn, &axis) in order.iter().enumerate() {
            if shape[axis] <= h {
                continue;
            }
            for place in 0..y.len() {
                let index = |a: usize| place / stride[a] % shape[a];
                let belongs = (0..3).all(|a| match order[..turn].contains(&a) {
                    _ if a == axis => index(a) % (2 * h) == h,
                    true => index(a) % h == 0,
                    false => index(a) % (2 * h) == 0,
                });
                if !belongs {
                    continue;
                }
                let (at, d) = (index(axis), h * stride[axis]);
                let has = |steps: usize| at + steps * h < shape[axis];
                let prediction = if at >= 3 * h && has(1) && has(3) && m & 1 == 0 {
                    0.5625 * (y[place - d] + y[place + d]) - 0.0625 * (y[place - 3 * d] + y[place + 3 * d])
                } else if has(1) {
                    0.5 * (y[place - d] + y[place + d])
                } else if at >= 3 * h {
                    1.5 * y[place - d] - 0.5 * y[place - 3 * d]
                } else {
                    y[place - d]
                };
                y[place] = prediction + q.next().unwrap() * e(i);
            }
        }
    }
    assert!(q.next().is_none());
    y
}

/// Decodes a chunk that is valid.
pub(crate) fn decode(chunk: &[u8]) -> Decoded {
    let mut input = Input(chunk);
    assert_eq!(input.take(4), [0x4e, 0x72, 0x41, 1]);
    let dtype = input.byte();
    let flags = input.byte();
    let rank = input.byte();
    let (kind, width, words) = match dtype & 127 {
        0 => (Kind::Unsigned, 1, input.varint()),
        d @ 1..=4 => (Kind::Signed, 1 << (d - 1), 1),
        d @ 5..=8 => (Kind::Unsigned, 1 << (d - 5), 1),
        d @ 9..=11 => (Kind::Float, 2 << (d - 9), 1),
        12 => (Kind::Unsigned, 1, 1),
        13 => (Kind::Float, 4, 2),
        14 => (Kind::Float, 8, 2),
        d => panic!("dtype {d}"),
    };
    let mut axes: Vec<usize> = (0..rank).map(|_| input.varint()).collect();
    let raw_len = input.varint();
    if words > 1 {
        axes.push(words);
    }
    if axes.contains(&0) {
        axes = vec![0];
    }
    if axes.is_empty() {
        axes.push(1);
    }
    let before = &chunk[..chunk.len() - input.0.len()];
    let check = input.take(8);
    let behind = input.0;
    let bound = (flags & 1 != 0).then(|| {
        let which = input.byte();
        let stated = [0, 1, 2].map(|bit| (which >> bit & 1 == 1).then(|| input.f64()));
        let worst = input.f32();
        let worst_rel = stated[1].map(|_| input.f32());
        input.varint();
        (stated, worst, worst_rel)
    });
    let behind = &behind[..behind.len() - input.0.len()];
    let (words, steps, back_end) = pipeline(&mut input, &Stage { kind, width, axes });
    assert!(input.0.is_empty());
    let word = |word: &u64| {
        let mut bytes = word.to_le_bytes()[..width].to_vec();
        if dtype & 128 != 0 {
            bytes.reverse();
        }
        bytes
    };
    let bytes: Vec<u8> = words.iter().flat_map(word).collect();
    assert_eq!(bytes.len(), raw_len);
    let seed = xxh3_64_with_seed(behind, xxh3_64(before));
    assert_eq!(xxh3_64_with_seed(&bytes, seed).to_le_bytes(), check);
    Decoded { bytes, bound, steps, back_end }
}
