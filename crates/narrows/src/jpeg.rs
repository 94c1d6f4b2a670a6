//! JPEG images in plain bytes: where one begins and ends, and what it takes to recompress it. Only markers
//! are read, no pixels. Found are images of one scan (baseline and extended sequential), as cameras
//! write them.

/// The shortest image that is worth a block of its own: a tenth of it covers some frame headers, and what
/// its neighbours lose by ending there.
pub const LEN_MIN: usize = 8 << 10;
/// The longest image that is recompressed: a block, which every reader takes.
pub const LEN_MAX: usize = crate::frame::BASELINE_BLOCK_MAX;

/// Memory of an image while it is recompressed: 64 coefficients of 2 bytes for each of its 8x8 blocks.
const BLOCK_MEMORY: usize = 128;
/// Bytes that a block of 8x8 must take on average. Photos have 4 to 30; flat drawings with fewer are left
/// alone, so that the memory is known from the length.
const BLOCK_BYTES: usize = 4;
/// So many blocks more are always allowed: headers and tables of small images say nothing about pixels.
const BLOCKS_FREE: usize = 4096;
/// Blocks for each byte of the recompressed scan, at most: empty blocks take no bytes and time, so a few
/// bytes would keep a reader busy for seconds. Photos have a tenth of that.
const CODED_BLOCKS: usize = 2;

const SOI: [u8; 3] = [0xff, 0xd8, 0xff];

/// Most memory of the coefficients of an image with so many bytes.
pub const fn memory_max(raw_len: usize) -> usize {
    BLOCK_MEMORY * blocks_max(raw_len)
}

const fn blocks_max(raw_len: usize) -> usize {
    raw_len / BLOCK_BYTES + BLOCKS_FREE
}

/// An image found in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// It begins and ends here.
    Whole {
        /// Offset of its first byte.
        at: usize,
        /// Its length.
        len: usize,
    },
    /// It begins here and goes on after the bytes.
    Begins {
        /// Offset of its first byte.
        at: usize,
    },
}

/// The first image that is worth a block of its own.
pub fn find(bytes: &[u8]) -> Option<Found> {
    let mut from = 0;
    loop {
        let at = from + first(&bytes[from..])?;
        from = match end_of(&bytes[at..]) {
            Ok(len) if len >= LEN_MIN => return Some(Found::Whole { at, len }),
            Ok(len) => at + len,
            Err(Stop::Short) => return Some(Found::Begins { at }),
            Err(Stop::Other) => at + 2,
        };
    }
}

/// Whether bytes begin as an image does.
pub(crate) fn begins(bytes: &[u8]) -> bool {
    bytes.starts_with(&SOI)
}

/// Where the first bytes of an image are.
pub(crate) fn first(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += bytes[at..].iter().position(|byte| *byte == SOI[0])?;
        if begins(&bytes[at..]) {
            return Some(at);
        }
        at += 1;
    }
}

/// Why bytes are no image that is recompressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// They end before it does.
    Short,
    /// They are something else.
    Other,
}

/// Length of the image that begins with the first byte.
fn end_of(bytes: &[u8]) -> Result<usize, Stop> {
    let head = Head::of_image(bytes)?;
    let mut at = head.len;
    loop {
        at += bytes[at..].iter().position(|byte| *byte == 0xff).ok_or(Stop::Short)?;
        match bytes.get(at + 1).ok_or(Stop::Short)? {
            // An escaped 255, and marks between stretches of the scan.
            0x00 | 0xd0..=0xd7 => at += 2,
            0xff => at += 1,
            0xd9 if head.blocks <= blocks_max(at + 2) => return Ok(at + 2),
            _ => return Err(Stop::Other),
        }
        if at > LEN_MAX {
            return Err(Stop::Other);
        }
    }
}

/// The segments of an image before its scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// Their length, that of the image's first two bytes included.
    pub(crate) len: usize,
    /// Blocks of 8x8 of all components.
    blocks: usize,
}

impl Head {
    /// The head of an image that begins with the first byte.
    pub(crate) fn of_image(bytes: &[u8]) -> Result<Self, Stop> {
        match bytes.split_at_checked(2) {
            Some(([0xff, 0xd8], segments)) => Self::of_segments(segments),
            Some(_) => Err(Stop::Other),
            None => Err(Stop::Short),
        }
    }

    /// The same without the first two bytes.
    pub(crate) fn of_segments(bytes: &[u8]) -> Result<Self, Stop> {
        let (mut at, mut frame) = (0, None);
        loop {
            let &[mark, marker, high, low] = bytes[at..].first_chunk().ok_or(Stop::Short)?;
            let len = usize::from(u16::from_be_bytes([high, low]));
            if mark != 0xff || len < 2 || !is_known(marker) {
                return Err(Stop::Other);
            }
            let segment = bytes.get(at + 4..at + 2 + len).ok_or(Stop::Short)?;
            at += 2 + len;
            match (marker, frame) {
                (0xc0 | 0xc1, None) => frame = Some(Frame::parse(segment).ok_or(Stop::Other)?),
                (0xda, Some(frame)) if frame.is_whole_in(segment) => {
                    return Ok(Self { len: 2 + at, blocks: frame.blocks });
                }
                (0xc0 | 0xc1 | 0xda, _) => return Err(Stop::Other),
                _ => {}
            }
        }
    }

    /// Whether so many bytes may be all of its scan, recompressed.
    pub(crate) fn is_coded_in(self, scan_len: usize) -> bool {
        self.blocks <= CODED_BLOCKS * scan_len + BLOCKS_FREE
    }

    /// Whether an image of this length with this head is recompressed.
    pub(crate) fn fits(self, raw_len: usize) -> bool {
        raw_len <= LEN_MAX && self.blocks <= blocks_max(raw_len)
    }
}

/// Frame and scan of sequential images, tables, restart interval, applications' segments and comments.
fn is_known(marker: u8) -> bool {
    matches!(marker, 0xc0 | 0xc1 | 0xc4 | 0xda | 0xdb | 0xdd | 0xe0..=0xef | 0xfe)
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    components: usize,
    blocks: usize,
}

impl Frame {
    fn parse(segment: &[u8]) -> Option<Self> {
        let (&[precision, h1, h0, w1, w0, count], components) = segment.split_first_chunk()?;
        let side = |high, low| usize::from(u16::from_be_bytes([high, low]));
        let (height, width) = (side(h1, h0), side(w1, w0));
        let (components, rest) = components.as_chunks::<3>();
        if precision != 8 || height == 0 || width == 0 || !matches!(count, 1 | 3) {
            return None;
        }
        if components.len() != usize::from(count) || !rest.is_empty() {
            return None;
        }
        let factors = components.iter().map(|[_, factors, _]| (usize::from(factors >> 4), usize::from(factors & 15)));
        let (mut across, mut down, mut blocks) = (1, 1, 0);
        for (x, y) in factors {
            if !(1..=2).contains(&x) || !(1..=2).contains(&y) {
                return None;
            }
            (across, down) = (across.max(x), down.max(y));
            blocks += x * y;
        }
        let units = width.div_ceil(8 * across) * height.div_ceil(8 * down);
        Some(Self { components: components.len(), blocks: units * blocks })
    }

    /// Whether a scan has all components, and all of their coefficients.
    fn is_whole_in(self, scan: &[u8]) -> bool {
        let len = 4 + 2 * self.components;
        scan.len() == len && usize::from(scan[0]) == self.components && scan[len - 3..] == [0, 63, 0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(marker: u8, body: &[u8]) -> Vec<u8> {
        [&[0xff, marker][..], &(body.len() as u16 + 2).to_be_bytes(), body].concat()
    }

    fn frame(width: u16, height: u16) -> Vec<u8> {
        let [h1, h0] = height.to_be_bytes();
        let [w1, w0] = width.to_be_bytes();
        segment(0xc0, &[8, h1, h0, w1, w0, 3, 1, 0x22, 0, 2, 0x11, 0, 3, 0x11, 0])
    }

    /// The markers of an image, with a scan of so many bytes.
    fn image(scan_len: usize) -> Vec<u8> {
        let scan = segment(0xda, &[3, 1, 0, 2, 0, 3, 0, 0, 63, 0]);
        let mut image = [&[0xff, 0xd8][..], &segment(0xe0, b"JFIF\0"), &frame(64, 64), &scan].concat();
        image.extend((0..scan_len).map(|i| (i % 251) as u8));
        image.extend([0xff, 0x00, 0xff, 0xd3, 7, 0xff, 0xd9]);
        image
    }

    #[test]
    fn images_are_found_where_they_are() {
        let image = image(20_000);
        for before in [0, 1, 777] {
            let bytes = [&vec![0xff; before][..], &image, b"behind \xff\xd8\xff and \xff\xd8"].concat();
            assert_eq!(find(&bytes), Some(Found::Whole { at: before, len: image.len() }), "{before}");
            for end in (before + SOI.len()..before + image.len()).step_by(97) {
                assert_eq!(find(&bytes[..end]), Some(Found::Begins { at: before }), "{before} {end}");
            }
            assert_eq!(find(&bytes[before + 1..]), None);
        }
    }

    #[test]
    fn others_are_passed_over() {
        let long = image(20_000);
        // A thumbnail within a segment, a short image, one with two frames, and a progressive one.
        let thumbnail = [&[0xff, 0xd8][..], &segment(0xe1, &image(9_000)), &long[2..]].concat();
        assert_eq!(find(&thumbnail), Some(Found::Whole { at: 0, len: thumbnail.len() }));
        assert_eq!(find(&image(1000)), None);
        let twice = [&[0xff, 0xd8][..], &frame(8, 8), &long[2..]].concat();
        assert_eq!(find(&twice), None);
        let mut progressive = long.clone();
        let at = progressive.windows(2).position(|w| w == [0xff, 0xc0]).unwrap();
        progressive[at + 1] = 0xc2;
        assert_eq!(find(&progressive), None);
        assert_eq!(find(b""), None);
    }

    #[test]
    fn an_image_whose_pixels_take_more_memory_than_its_bytes_allow_is_none() {
        let bytes = [&[0xff, 0xd8][..], &frame(65_535, 65_535), &image(20_000)[2..]].concat();
        assert_eq!(find(&bytes), None);
        let head = |width, height| {
            let scan = segment(0xda, &[3, 1, 0, 2, 0, 3, 0, 0, 63, 0]);
            Head::of_segments(&[frame(width, height), scan].concat()).unwrap()
        };
        assert_eq!(head(64, 64).blocks, 16 * 6);
        assert_eq!(head(65, 1).blocks, 5 * 6);
        assert!(head(64, 64).fits(1) && !head(4000, 3000).fits(1 << 20) && head(4000, 3000).fits(2 << 20));
        assert!(!head(64, 64).fits(LEN_MAX + 1));
        assert!(head(64, 64).is_coded_in(0));
        assert!(!head(4000, 3000).is_coded_in(138_000) && head(4000, 3000).is_coded_in(139_000));
    }
}
