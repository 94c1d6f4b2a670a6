//! Code shared by the fuzz targets.

use std::sync::{Arc, Mutex};

use narrows::ErrorKind;
use narrows::block::{Block, BufferPool};
use narrows::codec::Contexts;
use narrows::flow::{Budget, Decoding, Here};
use narrows::receiver::{Receiver, ReceiverConfig};
use narrows::stored::Stored;

/// What a sink has stored.
#[derive(Default)]
struct Shelf(Mutex<Vec<u8>>);

impl Stored for Shelf {
    fn read_raw(&self, out: &mut [u8], at: u64) -> std::io::Result<usize> {
        let bytes = self.0.lock().unwrap();
        let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..)).unwrap_or_default();
        let n = rest.len().min(out.len());
        out[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
}

/// A few bytes of copies stand for megabytes.
const DELIVERED_MAX: usize = 16 << 20;

/// Feeds a receiver as a driver would. It must return an error or continue, stay within its memory
/// limit, and deliver the same if it reads copies back.
pub fn receive(stream: &[u8], cut: usize) {
    let (kept, end) = receive_from(stream, cut, None);
    let (read_back, other_end) = receive_from(stream, cut, Some(Arc::default()));
    // One of them may hear of an error before it reads what came before that.
    assert!(kept.starts_with(&read_back) || read_back.starts_with(&kept));
    assert!(end.is_some() == other_end.is_some() || kept.len().max(read_back.len()) > DELIVERED_MAX);
}

/// Returns the raw bytes, and the kind of the error.
fn receive_from(stream: &[u8], cut: usize, shelf: Option<Arc<Shelf>>) -> (Vec<u8>, Option<ErrorKind>) {
    let config = ReceiverConfig { memory_max: 1 << 20, reach_max: 1 << 20, ..ReceiverConfig::default() };
    let mut receiver = Decoding::new(Receiver::new(config, BufferPool::default()));
    if let Some(shelf) = &shelf {
        receiver.read_back(shelf.clone(), 1 << 20);
    }
    let mut contexts = Contexts::default();
    let pool = BufferPool::default();
    let mut delivered = Vec::new();
    for piece in stream.chunks(cut) {
        if let Err(e) = receiver.receive(Block::from_vec(piece.to_vec())) {
            return (delivered, Some(e.kind));
        }
        if let Err(e) = receiver.work(Budget::ALL, &mut Here { contexts: &mut contexts, buffers: &pool }) {
            return (delivered, Some(e.kind));
        }
        while let Some(raw) = receiver.read() {
            delivered.extend_from_slice(&raw);
            if let Some(shelf) = &shelf {
                shelf.0.lock().unwrap().extend_from_slice(&raw);
                receiver.stored(raw.len());
            }
        }
        assert!(delivered.len() <= stream.len() * (2 << 20));
        if delivered.len() > DELIVERED_MAX {
            return (delivered, None);
        }
    }
    let end = receiver.close().err().map(|e| e.kind);
    (delivered, end)
}
