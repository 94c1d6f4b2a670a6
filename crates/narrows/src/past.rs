//! The past of a flow: its latest raw bytes, to which copies refer.
//!
//! A ring of segments. A segment is allocated when the flow first comes to it, so a short flow with
//! a large reach takes as much memory as it has bytes. Bytes may be left out; what was is never
//! returned.

/// Length of a segment in bytes: a large reach grows in steps that do not matter, and a comparison
/// seldom crosses a border.
const SEGMENT: usize = 1 << 20;

/// The latest raw bytes of a flow, `reach` at most.
#[derive(Default)]
pub(crate) struct Past {
    reach: usize,
    segment_len: usize,
    segments: Vec<Segment>,
    /// Raw offset after the last byte.
    end: u64,
}

/// A piece of the ring. Bytes `from..to` of it are those of the flow from `number` times the length
/// of a segment on.
struct Segment {
    bytes: Box<[u8]>,
    number: u64,
    from: usize,
    to: usize,
}

impl Past {
    /// A past of `reach` bytes, a power of two; with 0 nothing is kept.
    pub(crate) fn new(reach: usize) -> Self {
        debug_assert!(reach == 0 || reach.is_power_of_two());
        Self { reach, segment_len: reach.min(SEGMENT), segments: Vec::new(), end: 0 }
    }

    /// Bytes that it keeps.
    pub(crate) fn reach(&self) -> usize {
        self.reach
    }

    /// Bytes of memory that it holds.
    pub(crate) fn memory(&self) -> usize {
        self.segments.len() * self.segment_len
    }

    /// Raw offset after the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Adds the next bytes of the flow.
    pub(crate) fn push(&mut self, raw: &[u8]) {
        self.end += raw.len() as u64;
        if self.reach == 0 {
            return;
        }
        // What would be overwritten at once is not written.
        let mut raw = &raw[raw.len().saturating_sub(self.reach)..];
        while !raw.is_empty() {
            let at = self.end - raw.len() as u64;
            let (number, within) = self.place(at);
            let n = raw.len().min(self.segment_len - within);
            let segment = self.segment_mut(number);
            if segment.number != number || segment.to != within {
                (segment.number, segment.from) = (number, within);
            }
            segment.bytes[within..within + n].copy_from_slice(&raw[..n]);
            segment.to = within + n;
            raw = &raw[n..];
        }
    }

    /// Leaves out the next `len` bytes of the flow. Up to a segment before them is forgotten too.
    pub(crate) fn skip(&mut self, len: u64) {
        self.end += len;
    }

    /// The bytes from `at` on that lie in one piece; none if those are not kept.
    pub(crate) fn from(&self, at: u64) -> &[u8] {
        if self.reach == 0 || at >= self.end || self.end - at > self.reach as u64 {
            return &[];
        }
        let (number, within) = self.place(at);
        match self.segment(number) {
            Some(s) if s.from <= within && within < s.to => &s.bytes[within..s.to],
            _ => &[],
        }
    }

    /// The bytes before `at` that lie in one piece; none if those are not kept.
    pub(crate) fn before(&self, at: u64) -> &[u8] {
        let oldest = self.end.saturating_sub(self.reach as u64);
        if self.reach == 0 || at > self.end || at <= oldest {
            return &[];
        }
        let (number, within) = self.place(at - 1);
        let within = within + 1;
        match self.segment(number) {
            Some(s) if s.from < within && within <= s.to => {
                let kept = usize::try_from(at - oldest).unwrap_or(usize::MAX);
                &s.bytes[s.from.max(within.saturating_sub(kept))..within]
            }
            _ => &[],
        }
    }

    /// Copies the bytes from `at` on; `false` if not all of them are kept.
    pub(crate) fn copy(&self, mut at: u64, mut out: &mut [u8]) -> bool {
        while !out.is_empty() {
            let piece = self.from(at);
            let n = piece.len().min(out.len());
            if n == 0 {
                return false;
            }
            out[..n].copy_from_slice(&piece[..n]);
            out = &mut out[n..];
            at += n as u64;
        }
        true
    }

    fn place(&self, at: u64) -> (u64, usize) {
        (at / self.segment_len as u64, (at % self.segment_len as u64) as usize)
    }

    fn index(&self, number: u64) -> usize {
        // One more than the reach has, since the oldest are still needed while one is filled.
        (number % (self.reach / self.segment_len + 1) as u64) as usize
    }

    fn segment(&self, number: u64) -> Option<&Segment> {
        self.segments.get(self.index(number)).filter(|s| s.number == number)
    }

    fn segment_mut(&mut self, number: u64) -> &mut Segment {
        let index = self.index(number);
        while self.segments.len() <= index {
            let bytes = vec![0; self.segment_len].into_boxed_slice();
            self.segments.push(Segment { bytes, number: u64::MAX, from: 0, to: 0 });
        }
        &mut self.segments[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(len: usize) -> Vec<u8> {
        (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 23) as u8).collect()
    }

    #[test]
    fn it_is_the_latest_bytes_however_they_came() {
        let all = flow(40_000);
        for reach in [16, 256, 4096, 1 << 20] {
            for step in [1, 7, 16, 255, 1000, 40_000] {
                let mut past = Past::new(reach);
                let mut at = 0;
                for piece in all.chunks(step) {
                    past.push(piece);
                    at += piece.len();
                    let oldest = at.saturating_sub(reach);
                    let mut out = vec![0; at - oldest];
                    assert!(past.copy(oldest as u64, &mut out) && out == all[oldest..at], "{reach} {step} {at}");
                    assert!(oldest == 0 || past.from(oldest as u64 - 1).is_empty(), "older bytes are gone");
                    assert!(past.from(at as u64).is_empty() && !past.copy(at as u64 - 1, &mut [0; 2]));
                    let before = past.before(at as u64);
                    assert!(!before.is_empty() && all[..at].ends_with(before));
                }
                assert!(past.memory() <= reach + reach.min(SEGMENT));
            }
        }
    }

    #[test]
    fn what_was_left_out_is_never_returned() {
        let all = flow(5000);
        let mut past = Past::new(1024);
        past.push(&all[..700]);
        past.skip(200);
        past.push(&all[900..1100]);
        for at in 0..1100 {
            // With the gap the rest of its segment went too.
            let kept = (900..1100).contains(&at);
            let piece = past.from(at);
            assert_eq!(!piece.is_empty(), kept, "{at}");
            assert!(all[at as usize..].starts_with(piece));
            let before = past.before(at + 1);
            assert_eq!(!before.is_empty(), kept, "before {at}");
            assert!(all[..=at as usize].ends_with(before));
        }
        // A whole turn of the ring is left out.
        past.skip(3000);
        past.push(&all[4100..4200]);
        assert!((0..4100).all(|at| past.from(at).is_empty()));
    }

    #[test]
    fn without_a_reach_nothing_is_kept() {
        let mut past = Past::new(0);
        past.push(b"abc");
        assert!(past.from(0).is_empty() && past.before(3).is_empty() && !past.copy(0, &mut [0]));
        assert_eq!((past.end(), past.memory()), (3, 0));
    }
}
