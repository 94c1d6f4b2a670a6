//! Comparison of a file with an object, by length and time.

use std::time::{Duration, SystemTime};

use narrows_object::Head;
use narrows_object::meta::FileMeta;

/// Length, and seconds and nanoseconds of the modification time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) len: u64,
    pub(super) mtime: (i64, u32),
}

/// Whether the file at `local` is what `head` would become. The clock of the store says nothing about
/// objects of Narrows: they keep the time of the file.
pub(super) fn is_same(local: Stamp, head: &Head) -> bool {
    let meta = FileMeta::parse(&head.metadata);
    match (meta.plain, meta.len, meta.mtime) {
        (Some(_), Some(len), Some(mtime)) => local == Stamp { len, mtime },
        (Some(_), ..) => false,
        (None, ..) => local == Stamp { len: head.object.len, mtime: since_1970(head.object.written) },
    }
}

/// As [`is_same`], for a file that is to become `head`: an object of another program is the same if it
/// is as long and was written after the file, as `aws s3 sync` decides.
pub(super) fn is_stored(local: Stamp, head: &Head, plain: bool) -> bool {
    let meta = FileMeta::parse(&head.metadata);
    match meta.plain {
        Some(form) => form == plain && is_same(local, head),
        None => plain && local.len == head.object.len && since_1970(head.object.written) >= local.mtime,
    }
}

/// A time as files have it.
pub(super) fn since_1970(time: SystemTime) -> (i64, u32) {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => (after.as_secs() as i64, after.subsec_nanos()),
        Err(before) => {
            let before: Duration = before.duration();
            let (s, ns) = (before.as_secs() as i64, before.subsec_nanos());
            if ns == 0 { (-s, 0) } else { (-s - 1, 1_000_000_000 - ns) }
        }
    }
}

#[cfg(test)]
mod tests {
    use narrows_object::{Object, Version};

    use super::*;

    fn head(meta: FileMeta, len: u64, written: u64) -> Head {
        let written = SystemTime::UNIX_EPOCH + Duration::from_secs(written);
        let object = Object { key: "k".into(), len, written, version: Version::default() };
        Head { object, metadata: meta.pairs().into_iter().collect() }
    }

    #[test]
    fn a_file_is_the_same_by_what_was_kept_of_it() {
        let local = Stamp { len: 1000, mtime: (500, 7) };
        let kept = FileMeta { len: Some(1000), mtime: Some((500, 7)), plain: Some(false), ..FileMeta::default() };
        // Neither the stored length nor the clock of the store matters.
        assert!(is_same(local, &head(kept, 10, 0)) && is_stored(local, &head(kept, 10, 0), false));
        assert!(!is_stored(local, &head(kept, 10, 0), true), "the other form");
        for other in [
            FileMeta { len: Some(1001), ..kept },
            FileMeta { mtime: Some((500, 8)), ..kept },
            FileMeta { mtime: None, ..kept },
            FileMeta { len: None, ..kept },
        ] {
            assert!(!is_same(local, &head(other, 1000, 500)) && !is_stored(local, &head(other, 1000, 900), false));
        }
        let foreign = FileMeta::default();
        assert!(
            is_stored(local, &head(foreign, 1000, 501), true) && !is_stored(local, &head(foreign, 1000, 499), true)
        );
        assert!(!is_stored(local, &head(foreign, 1000, 501), false));
        assert!(is_same(Stamp { len: 9, mtime: (5, 0) }, &head(foreign, 9, 5)));
        assert!(!is_same(Stamp { len: 9, mtime: (5, 0) }, &head(foreign, 9, 6)));
    }

    #[test]
    fn times_before_1970_count_backwards() {
        let at = |ms: i64| SystemTime::UNIX_EPOCH.checked_sub(Duration::from_millis(ms as u64)).unwrap();
        assert_eq!(
            (since_1970(at(1000)), since_1970(at(1500)), since_1970(at(0))),
            ((-1, 0), (-2, 500_000_000), (0, 0))
        );
    }
}
