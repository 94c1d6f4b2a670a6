//! Chunks of HDF5 datasets, as the filter and those who write chunks directly make them: the same words
//! and the same elements give a chunk that both read. Without HDF5.

use narrows::{Error, Result};

use crate::choose::Chooser;
use crate::chunk::{self, Coder};
use crate::view::{ArrayView, Layout};

mod params;

pub use params::{Elements, Params, WORDS_MAX};

/// Number of the filter, in the range that HDF5 leaves to private use.
pub const FILTER_ID: u32 = 32768;

/// Datasets whose winners a thread remembers. Models write some hundred variables in turn; a memory is
/// some hundred bytes.
const DATASETS: usize = 256;

/// Encodes and decodes the chunks of datasets. One for each thread.
#[derive(Default)]
pub struct Chunks {
    coder: Coder,
    /// Words and what their dataset was last encoded by, the latest last.
    choosers: Vec<(Vec<u32>, Dataset)>,
}

struct Dataset {
    elements: Elements,
    chooser: Chooser,
}

impl Chunks {
    /// No contexts and no memory yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Encodes a chunk of the dataset whose filter has these words.
    ///
    /// # Errors
    /// The words are of another version, nonsense or lack the elements, or the length is not theirs.
    pub fn encode(&mut self, words: &[u32], raw: &[u8]) -> Result<Vec<u8>> {
        let at = match self.choosers.iter().rposition(|(w, _)| w == words) {
            Some(at) => at,
            None => {
                let (mut params, elements) = Params::with_elements(words)?;
                if elements.exact {
                    params.bound = Default::default();
                }
                if self.choosers.len() == DATASETS {
                    self.choosers.remove(0);
                }
                let chooser = Chooser::new(params.options, params.bound)?;
                self.choosers.push((words.to_vec(), Dataset { elements, chooser }));
                self.choosers.len() - 1
            }
        };
        // Those that are written in turn stay.
        self.choosers[at..].rotate_left(1);
        let (_, Dataset { elements, chooser }) = self.choosers.last_mut().expect("one was just found or pushed");
        let Elements { dtype, order, ref shape, .. } = *elements;
        let view = ArrayView { dtype, order, layout: Layout::RowMajor, shape, bytes: raw };
        chooser.exchange(&mut self.coder);
        let made = chooser.encode(&view);
        chooser.exchange(&mut self.coder);
        made
    }

    /// Decodes a chunk of the dataset whose filter has these words.
    ///
    /// # Errors
    /// As [`Chunks::encode`] for the words; the chunk is damaged, or of elements of another type or shape.
    pub fn decode(&mut self, words: &[u32], stored: &[u8]) -> Result<Vec<u8>> {
        let (_, elements) = Params::with_elements(words)?;
        let info = chunk::info(stored)?;
        let same = info.dtype == elements.dtype && info.order == elements.order && info.shape == elements.shape;
        if !same || info.layout != Layout::RowMajor {
            return Err(Error::corrupt(format!(
                "the chunk has elements of {} and the shape {:?}, its dataset {} and {:?}: it is of another one",
                info.dtype, info.shape, elements.dtype, elements.shape
            )));
        }
        Ok(self.coder.decode(stored, elements.raw_len()?)?.bytes)
    }

    /// Forgets how datasets with these words were encoded, so that a new one does not depend on others.
    pub fn forget(&mut self, words: &[u32]) {
        self.choosers.retain(|(w, _)| w != words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound::Bound;
    use crate::view::Dtype;
    use crate::words::ByteOrder;

    fn words(bound: Bound, dtype: Dtype, shape: &[usize]) -> Vec<u32> {
        let elements = Elements { dtype, order: ByteOrder::Little, shape: shape.to_vec(), exact: false };
        Params { bound, elements: Some(elements), ..Params::default() }.words().unwrap()
    }

    fn ramp(n: usize) -> Vec<u8> {
        (0..n).flat_map(|i| (i as f32 / 10.0).sin().to_le_bytes()).collect()
    }

    #[test]
    fn datasets_that_take_turns_share_contexts_and_keep_their_bounds() {
        let mut chunks = Chunks::new();
        let raw = ramp(16 * 64);
        for i in 0..560 {
            let bound = if i % 2 == 0 { Bound::default() } else { Bound::abs(0.001 * f64::from(i)) };
            let words = words(bound.clone(), Dtype::F32, &[16, 64]);
            let stored = chunks.encode(&words, &raw).unwrap();
            let decoded = chunks.decode(&words, &stored).unwrap();
            let value = |b: &[u8]| f64::from(f32::from_le_bytes(b.try_into().unwrap()));
            let worst = raw.chunks(4).zip(decoded.chunks(4)).map(|(x, y)| (value(x) - value(y)).abs());
            assert!(worst.fold(0.0, f64::max) <= bound.abs.unwrap_or(0.0));
        }
        assert_eq!(chunks.choosers.len(), DATASETS);
    }

    #[test]
    fn a_forgotten_dataset_is_encoded_as_a_new_one() {
        let words = words(Bound::abs(0.01), Dtype::F32, &[32, 128]);
        let pieces: Vec<Vec<u8>> = (1..6).map(|i| ramp(32 * 128 * i).split_off(32 * 128 * (i - 1) * 4)).collect();
        let mut chunks = Chunks::new();
        let all =
            |chunks: &mut Chunks| -> Vec<_> { pieces.iter().map(|p| chunks.encode(&words, p).unwrap()).collect() };
        let first = all(&mut chunks);
        chunks.forget(&words);
        assert_eq!(all(&mut chunks), first);
    }

    #[test]
    fn chunks_of_other_elements_are_refused() {
        let mut chunks = Chunks::new();
        let raw = ramp(200);
        let stored = chunks.encode(&words(Bound::default(), Dtype::F32, &[10, 20]), &raw).unwrap();
        for (dtype, shape) in [(Dtype::F32, &[20, 10][..]), (Dtype::I32, &[10, 20]), (Dtype::F32, &[10, 20, 2])] {
            assert!(chunks.decode(&words(Bound::default(), dtype, shape), &stored).is_err());
        }
        assert!(chunks.encode(&words(Bound::default(), Dtype::F32, &[10, 21]), &raw).is_err());
    }

    #[test]
    fn elements_that_are_no_numbers_stay_exact() {
        let mut elements = Elements { dtype: Dtype::F32, order: ByteOrder::Big, shape: vec![500], exact: true };
        let params = |elements: &Elements| Params {
            bound: Bound::abs(10.0),
            elements: Some(elements.clone()),
            ..Params::default()
        };
        let (mut chunks, raw) = (Chunks::new(), ramp(500));
        let exact = params(&elements).words().unwrap();
        let stored = chunks.encode(&exact, &raw).unwrap();
        assert_eq!(chunks.decode(&exact, &stored).unwrap(), raw);
        elements.exact = false;
        elements.order = ByteOrder::Little;
        let lossy = params(&elements).words().unwrap();
        let stored = chunks.encode(&lossy, &raw).unwrap();
        assert_ne!(chunks.decode(&lossy, &stored).unwrap(), raw);
    }
}
