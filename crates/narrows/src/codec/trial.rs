//! Trial encodings, of which only the length is kept.

use super::{Contexts, Method};

/// Encodes pieces only for their lengths. It keeps the encoders.
#[derive(Default)]
pub struct Trial {
    contexts: Contexts,
    encoded: Vec<u8>,
}

impl Trial {
    /// Encoded length of `raw` in bytes, at most that of `raw`.
    pub fn encoded_len(&mut self, method: Method, raw: &[u8]) -> usize {
        self.encoded.resize(raw.len(), 0);
        let encoder = self.contexts.encoder(method.info());
        encoder.encode(method.level, &[], raw, &mut self.encoded).unwrap_or(raw.len())
    }
}
