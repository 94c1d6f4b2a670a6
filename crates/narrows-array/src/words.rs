//! Elements in memory as vectors of unsigned words, whatever their type.

use narrows::{Error, Result};

/// Order of the bytes of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub enum ByteOrder {
    #[default]
    Little,
    Big,
}

/// What the bits of a word mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Unsigned,
    Signed,
    Float,
}

/// Words of one width.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Words {
    W1(Vec<u8>),
    W2(Vec<u16>),
    W4(Vec<u32>),
    W8(Vec<u64>),
}

/// Runs an expression with the vector of a `Words`, for each width.
macro_rules! each {
    ($words:expr, $v:ident => $body:expr) => {
        match $words {
            $crate::words::Words::W1($v) => $body,
            $crate::words::Words::W2($v) => $body,
            $crate::words::Words::W4($v) => $body,
            $crate::words::Words::W8($v) => $body,
        }
    };
}
pub(crate) use each;

/// An unsigned word.
pub(crate) trait Word: Copy + Default + Ord + std::hash::Hash + std::fmt::Debug + Send + 'static {
    const BYTES: usize;
    const BITS: u32 = 8 * Self::BYTES as u32;

    fn wrap(v: Vec<Self>) -> Words;
    fn get(words: &Words) -> Option<&[Self]>;
    /// The low bits of `v`.
    fn low(v: u64) -> Self;
    fn wide(self) -> u64;
    fn read_le(bytes: &[u8]) -> Self;
    fn read_be(bytes: &[u8]) -> Self;
    fn put_le(self, out: &mut [u8]);
    fn put_be(self, out: &mut [u8]);
    /// Byte i, the lowest first.
    fn byte(self, i: usize) -> u8;
    /// With byte i, which is 0, replaced.
    fn with_byte(self, i: usize, byte: u8) -> Self;
    fn sub(self, other: Self) -> Self;
    fn add(self, other: Self) -> Self;
    fn zigzag(self) -> Self;
    fn unzigzag(self) -> Self;
    fn flip_top(self) -> Self;
    /// The ordered form of a float's bits, and back.
    fn order_float(self) -> Self;
    fn unorder_float(self) -> Self;

    fn order(self, kind: Kind) -> Self {
        match kind {
            Kind::Unsigned => self,
            Kind::Signed => self.flip_top(),
            Kind::Float => self.order_float(),
        }
    }
}

macro_rules! word {
    ($type:ty, $signed:ty, $variant:ident) => {
        impl Word for $type {
            const BYTES: usize = size_of::<$type>();

            fn wrap(v: Vec<Self>) -> Words {
                Words::$variant(v)
            }
            fn get(words: &Words) -> Option<&[Self]> {
                if let Words::$variant(v) = words { Some(v) } else { None }
            }
            #[inline]
            fn low(v: u64) -> Self {
                v as Self
            }
            #[inline]
            fn wide(self) -> u64 {
                u64::from(self)
            }
            #[inline]
            fn read_le(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("exact chunks"))
            }
            #[inline]
            fn read_be(bytes: &[u8]) -> Self {
                Self::from_be_bytes(bytes.try_into().expect("exact chunks"))
            }
            #[inline]
            fn put_le(self, out: &mut [u8]) {
                out.copy_from_slice(&self.to_le_bytes());
            }
            #[inline]
            fn put_be(self, out: &mut [u8]) {
                out.copy_from_slice(&self.to_be_bytes());
            }
            #[inline]
            fn byte(self, i: usize) -> u8 {
                (self >> (8 * i)) as u8
            }
            #[inline]
            fn with_byte(self, i: usize, byte: u8) -> Self {
                self | Self::from(byte) << (8 * i)
            }
            #[inline]
            fn sub(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline]
            fn zigzag(self) -> Self {
                (self << 1) ^ ((self as $signed) >> (Self::BITS - 1)) as Self
            }
            #[inline]
            fn unzigzag(self) -> Self {
                (self >> 1) ^ (self & 1).wrapping_neg()
            }
            #[inline]
            fn flip_top(self) -> Self {
                self ^ (1 << (Self::BITS - 1))
            }
            #[inline]
            fn order_float(self) -> Self {
                self ^ (((self as $signed) >> (Self::BITS - 1)) as Self | 1 << (Self::BITS - 1))
            }
            #[inline]
            fn unorder_float(self) -> Self {
                self ^ (((!self as $signed) >> (Self::BITS - 1)) as Self | 1 << (Self::BITS - 1))
            }
        }
    };
}

word!(u8, i8, W1);
word!(u16, i16, W2);
word!(u32, i32, W4);
word!(u64, i64, W8);

impl Words {
    pub(crate) fn len(&self) -> usize {
        each!(self, v => v.len())
    }

    pub(crate) fn width(&self) -> usize {
        match self {
            Self::W1(_) => 1,
            Self::W2(_) => 2,
            Self::W4(_) => 4,
            Self::W8(_) => 8,
        }
    }

    /// Reads words of `width` bytes. The length of `bytes` is a multiple of it.
    pub(crate) fn read(bytes: &[u8], width: usize, order: ByteOrder) -> Self {
        fn read<W: Word>(bytes: &[u8], order: ByteOrder) -> Words {
            let words = bytes.chunks_exact(W::BYTES);
            W::wrap(match order {
                ByteOrder::Little => words.map(W::read_le).collect(),
                ByteOrder::Big => words.map(W::read_be).collect(),
            })
        }
        match width {
            1 => Self::W1(bytes.to_vec()),
            2 => read::<u16>(bytes, order),
            4 => read::<u32>(bytes, order),
            _ => read::<u64>(bytes, order),
        }
    }

    pub(crate) fn into_bytes(self, order: ByteOrder) -> Vec<u8> {
        if let Self::W1(v) = self {
            return v;
        }
        let mut bytes = vec![0; self.len() * self.width()];
        self.write(order, &mut bytes);
        bytes
    }

    /// Writes the bytes to `out`, which has room for exactly these.
    pub(crate) fn write(&self, order: ByteOrder, out: &mut [u8]) {
        fn write<W: Word>(v: &[W], order: ByteOrder, out: &mut [u8]) {
            let out = out.chunks_exact_mut(W::BYTES);
            match order {
                ByteOrder::Little => out.zip(v).for_each(|(out, w)| w.put_le(out)),
                ByteOrder::Big => out.zip(v).for_each(|(out, w)| w.put_be(out)),
            }
        }
        match self {
            Self::W1(v) => out.copy_from_slice(v),
            _ => each!(self, v => write(v, order, out)),
        }
    }
}

/// Bytes from outside, read from the front.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len).ok_or_else(short)?;
        self.0 = tail;
        Ok(head)
    }

    pub(crate) fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::read_le(self.take(8)?))
    }

    pub(crate) fn f64(&mut self) -> Result<f64> {
        Ok(f64::from_bits(self.u64()?))
    }

    pub(crate) fn f32(&mut self) -> Result<f32> {
        Ok(f32::from_bits(u32::read_le(self.take(4)?)))
    }

    /// A LEB128 number in the fewest bytes possible.
    pub(crate) fn varint(&mut self) -> Result<u64> {
        let mut v = 0u64;
        for shift in (0..64).step_by(7) {
            let b = self.byte()?;
            if b == 0 && shift > 0 || shift == 63 && b > 1 {
                break;
            }
            v |= u64::from(b & 0x7f) << shift;
            if b < 0x80 {
                return Ok(v);
            }
        }
        Err(Error::corrupt("a number is not in its shortest form"))
    }

    /// A varint that counts things in memory, at most `max`.
    pub(crate) fn count(&mut self, max: usize, what: &str) -> Result<usize> {
        let v = self.varint()?;
        usize::try_from(v)
            .ok()
            .filter(|&v| v <= max)
            .ok_or_else(|| Error::corrupt(format!("{what}: {v} is more than {max}")))
    }
}

fn short() -> Error {
    Error::truncated("the chunk is too short")
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}
