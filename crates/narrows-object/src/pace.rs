//! The limit on slow answers of a store.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};

/// An answer that brings less than [`LEAST`] while it is waited for this long is given up: as `curl`'s
/// `--speed-time`.
pub(crate) const WINDOW: Duration = Duration::from_secs(30);
/// Some 1 KiB/s, less than any link that people use; what is shorter comes within one window.
const LEAST: u64 = 32 << 10;

/// An answer brings too little.
#[derive(Debug)]
pub(crate) struct TooSlow;

/// Watches one answer. Time counts only while it is waited for.
pub(crate) struct Pace {
    window: Duration,
    waited: Duration,
    got: u64,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { window: WINDOW, waited: Duration::ZERO, got: 0 }
    }

    /// The next piece of the answer.
    pub(crate) async fn next<E>(
        &mut self,
        answer: &mut (impl Stream<Item = Result<Bytes, E>> + Unpin),
    ) -> Result<Option<Result<Bytes, E>>, TooSlow> {
        let begun = Instant::now();
        let left = self.window.saturating_sub(self.waited);
        let next = tokio::time::timeout(left, answer.next()).await.map_err(|_| TooSlow)?;
        self.waited += begun.elapsed();
        if let Some(Ok(bytes)) = &next {
            self.got += bytes.len() as u64;
            if self.got >= LEAST {
                (self.got, self.waited) = (0, Duration::ZERO);
            }
        }
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;

    /// Takes an answer of pieces of `len` bytes, each after 5 ms, with a window of 100 ms.
    fn taken(len: usize, pieces: usize) -> Result<usize, TooSlow> {
        crate::runtime::handle().unwrap().block_on(async {
            let each = stream::iter(0..pieces).then(move |_| async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                Ok::<_, ()>(Bytes::from(vec![0; len]))
            });
            let mut each = Box::pin(each);
            let mut pace = Pace { window: Duration::from_millis(100), ..Pace::new() };
            let mut n = 0;
            while let Some(piece) = pace.next(&mut each).await? {
                n += piece.unwrap().len();
            }
            Ok(n)
        })
    }

    #[test]
    fn an_answer_that_drips_ends_and_a_steady_one_does_not() {
        assert!(taken(1, 10_000).is_err(), "every piece comes in time, and all are too slow");
        assert_eq!(taken(LEAST as usize, 60).unwrap(), 60 * LEAST as usize);
        assert_eq!(taken(1, 2).unwrap(), 2, "a short answer is no slow one");
    }
}
