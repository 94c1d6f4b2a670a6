//! JPEG images for tests: made-up coefficients, in the format that cameras write.

/// Coefficients that follow each other: mostly zeros, then a small number.
const RUN_MAX: u8 = 4;
const SIZE_MAX: u8 = 5;
const CODE_BITS: u32 = 8;
/// Brightness goes up and down between these.
const LEVEL_MAX: i32 = 200;

/// A baseline image; in colour with chroma of half the size, else grey.
pub fn jpeg(width: u16, height: u16, in_colour: bool, seed: u64) -> Vec<u8> {
    let factors: &[u8] = if in_colour { &[0x22, 0x11, 0x11] } else { &[0x11] };
    let [h1, h0, w1, w0] = [height.to_be_bytes(), width.to_be_bytes()].concat()[..] else { unreachable!() };
    let mut frame = vec![8, h1, h0, w1, w0, factors.len() as u8];
    let mut scan = vec![factors.len() as u8];
    for (i, factor) in factors.iter().enumerate() {
        frame.extend([i as u8 + 1, *factor, 0]);
        scan.extend([i as u8 + 1, 0]);
    }
    scan.extend([0, 63, 0]);
    // All codes have eight bits, far more than they need: that is what recompression gains.
    let pairs = (0..RUN_MAX).flat_map(|run| (1..=SIZE_MAX).map(move |size| run << 4 | size));
    let others: Vec<u8> = std::iter::once(0).chain(pairs).collect();
    let mut tables = [&[0u8][..], &lengths(12), &(0..12).collect::<Vec<u8>>(), &[0x10]].concat();
    tables.extend(lengths(others.len() as u8));
    tables.extend(&others);

    let mut image = vec![0xff, 0xd8];
    put(&mut image, 0xe0, b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0");
    put(&mut image, 0xdb, &[&[0][..], &(0..64).map(|i| 3 + i / 2).collect::<Vec<u8>>()].concat());
    put(&mut image, 0xc0, &frame);
    put(&mut image, 0xc4, &tables);
    put(&mut image, 0xda, &scan);

    let mut bits = Bits { out: image, held: 0, count: 0 };
    // Not 0, and another one for each seed.
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let side = if in_colour { 16 } else { 8 };
    let units = usize::from(width).div_ceil(side) * usize::from(height).div_ceil(side);
    let mut levels = [0; 3];
    for _ in 0..units {
        for (factor, level) in factors.iter().zip(&mut levels) {
            (0..(factor >> 4) * (factor & 15)).for_each(|_| block(&mut bits, &mut random, level, &others));
        }
    }
    while bits.count > 0 {
        bits.put(1, 1);
    }
    bits.out.extend([0xff, 0xd9]);
    bits.out
}

fn block(bits: &mut Bits, random: &mut Random, level: &mut i32, others: &[u8]) {
    let step = (random.below(15) as i32 - 7).clamp(-LEVEL_MAX - *level, LEVEL_MAX - *level);
    *level += step;
    let size = 32 - step.unsigned_abs().leading_zeros();
    bits.put(size, CODE_BITS);
    // Of a negative number all bits are inverted.
    bits.put(if step < 0 { (step - 1) as u32 } else { step as u32 }, size);
    let mut at = 1;
    for _ in 0..random.below(12) {
        let most = 1 + random.below(SIZE_MAX.into());
        let (run, size) = (random.below(RUN_MAX.into()), 1 + random.below(most));
        at += run + 1;
        if at > 63 {
            break;
        }
        let code = others.iter().position(|pair| u32::from(*pair) == run << 4 | size).unwrap_or_default();
        bits.put(code as u32, CODE_BITS);
        // Half of the values are negative.
        bits.put(random.below(1 << size), size);
    }
    bits.put(0, CODE_BITS);
}

/// Counts of codes by their lengths.
fn lengths(codes: u8) -> [u8; 16] {
    let mut lengths = [0; 16];
    lengths[CODE_BITS as usize - 1] = codes;
    lengths
}

fn put(image: &mut Vec<u8>, marker: u8, segment: &[u8]) {
    image.extend([0xff, marker]);
    image.extend((segment.len() as u16 + 2).to_be_bytes());
    image.extend(segment);
}

struct Bits {
    out: Vec<u8>,
    held: u32,
    count: u32,
}

impl Bits {
    fn put(&mut self, value: u32, bits: u32) {
        for i in (0..bits).rev() {
            self.held = self.held << 1 | value >> i & 1;
            self.count += 1;
            if self.count == 8 {
                self.out.push(self.held as u8);
                if self.held == 0xff {
                    self.out.push(0);
                }
                (self.held, self.count) = (0, 0);
            }
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32 % end
    }
}
