//! JPEG images in content: no record ends within one, so that the engine sees it whole and can recompress it.

use narrows::entry::DATA_LEN_MAX;
use narrows::jpeg::{self, Found};

/// Length of a read where images are looked for: the longest image that a record holds.
pub(super) const READ_LEN: usize = DATA_LEN_MAX;

/// Where a record of these bytes must end because of images: after the last whole one, or before one of
/// which there is more to come. `None`: it may end anywhere.
pub(super) fn record_end(bytes: &[u8]) -> Option<usize> {
    let (mut from, mut end) = (0, None);
    loop {
        match jpeg::find(&bytes[from..]) {
            Some(Found::Whole { at, len }) => {
                from += at + len;
                end = Some(from);
            }
            // One that a whole record does not hold is cut as other bytes are.
            Some(Found::Begins { at }) if from + at > 0 => return Some(from + at),
            _ => return end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_end_beside_images() {
        let image = narrows_test::jpeg(300, 200, true, 1);
        let text = b"no image. ".repeat(500);
        let (t, i) = (text.len(), image.len());
        assert!(i >= jpeg::LEN_MIN);
        assert_eq!(record_end(&text), None);
        assert_eq!(record_end(&[&text[..], &image, &text].concat()), Some(t + i));
        assert_eq!(record_end(&[&image[..], &image, &text].concat()), Some(2 * i));
        assert_eq!(record_end(&[&text[..], &image[..i - 1]].concat()), Some(t));
        assert_eq!(record_end(&[&image[..], &image[..i / 2]].concat()), Some(i));
        assert_eq!(record_end(&image[..i - 1]), None);
        assert_eq!(record_end(&[]), None);
    }
}
