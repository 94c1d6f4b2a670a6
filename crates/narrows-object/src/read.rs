//! An object that is read at any byte, by several threads at once.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use narrows_file::ReadAt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange};

use crate::error::{Act, explain, is_beyond_end, no_object};
use crate::object::Head;
use crate::pace::{Pace, TooSlow};
use crate::pieces::{Pieces, State};
use crate::runtime;
use crate::store::{self, Store};
use crate::url::Url;

/// Read at the end of an object at once: as much as of a file, with what its index says of some 9,000
/// blocks, 2 GB. On a new connection over 40 ms, 256 KiB come two round trips later.
const TAIL: u64 = 64 << 10;
/// What copies add to the names of files.
const SUFFIX: &str = ".nrw";
/// An answer that is too slow is asked for once more, on another connection, so often.
const SLOW_MAX: usize = 3;
/// The longest that a range may take with all attempts: twice the longest request.
const RANGE_FOR: Duration = Duration::from_secs(600);
/// How often a waiting read asks whether it is to stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// An object that is read at any byte. The first request finds its length; all others have the
/// condition that it is still the same object.
#[derive(Clone)]
pub struct ObjectFile(Arc<Owner>);

/// Ends the requests of an object when nobody reads it any more.
struct Owner(Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.pieces().abort();
    }
}

struct Shared {
    store: Store,
    path: Path,
    url: Url,
    known: OnceLock<Known>,
    /// Held by the first request.
    first: Mutex<()>,
    pieces: Mutex<Pieces>,
    arrived: Condvar,
}

/// What the first answer says.
#[derive(Debug, Clone)]
struct Known {
    len: u64,
    /// `None` if it is weak, which matches nothing.
    etag: Option<String>,
    head: Arc<Head>,
}

impl Known {
    fn of(head: Head) -> Self {
        let etag = head.object.version.etag.clone().filter(|etag| !etag.starts_with("W/"));
        Self { len: head.object.len, etag, head: Arc::new(head) }
    }

    /// Whether an answer is about the same content. A store may know no conditions, and have weak tags or
    /// none: then all that it says of the object is compared.
    fn is_same(&self, head: &Head) -> bool {
        let (then, now) = (&self.head.object, &head.object);
        if then.len != now.len {
            return false;
        }
        if self.etag.is_some() {
            return self.etag == now.version.etag;
        }
        let same = |a: &Option<String>, b: &Option<String>| a.is_none() || b.is_none() || a == b;
        same(&then.version.etag, &now.version.etag)
            && same(&then.version.number, &now.version.number)
            && then.written == now.written
    }
}

impl ObjectFile {
    /// The object `key`. Nothing is asked of the store yet.
    ///
    /// # Errors
    /// There cannot be such a key.
    pub fn new(store: &Store, key: &str) -> io::Result<Self> {
        let path = store::path(key)?;
        let shared = Shared {
            url: store.url(key),
            store: store.clone(),
            path,
            known: OnceLock::new(),
            first: Mutex::default(),
            pieces: Mutex::default(),
            arrived: Condvar::new(),
        };
        Ok(Self(Arc::new(Owner(Arc::new(shared)))))
    }

    /// Reads `range` from its beginning to its end, several requests at a time.
    pub fn reader(&self, range: Range<u64>) -> ObjectReader {
        ObjectReader { file: self.clone(), at: range.start, end: range.end }
    }

    /// What it is, with its metadata: of the first answer, so that it costs no request of its own.
    ///
    /// # Errors
    /// The store fails, or there is no such object.
    pub fn head(&self) -> io::Result<Arc<Head>> {
        self.len()?;
        Ok(Arc::clone(&self.0.0.known()?.head))
    }

    /// Its address.
    pub fn url(&self) -> &Url {
        &self.0.0.url
    }
}

impl ReadAt for ObjectFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.0.read(buf, offset, false)
    }

    fn len(&self) -> io::Result<u64> {
        let shared = &self.0.0;
        if shared.known.get().is_none() {
            shared.first(GetRange::Suffix(TAIL))?;
        }
        shared.known().map(|known| known.len)
    }

    fn read_tail(&self, most: usize) -> io::Result<(u64, Vec<u8>)> {
        let shared = &self.0.0;
        if shared.known.get().is_none() {
            shared.first(GetRange::Suffix(TAIL.max(most as u64)))?;
        }
        let len = shared.known()?.len;
        let mut tail = vec![0; usize::try_from(len).unwrap_or(usize::MAX).min(most)];
        let begin = len - tail.len() as u64;
        self.read_exact_at(&mut tail, begin)?;
        Ok((len, tail))
    }

    fn will_read(&self, offset: u64, len: u64) -> io::Result<()> {
        let shared = &self.0.0;
        if let Some(known) = shared.known.get() {
            let mut pieces = shared.pieces();
            let missing = pieces.missing(offset..offset.saturating_add(len.min(4 * crate::pieces::PIECE)), known.len);
            shared.fetch_all(&mut pieces, missing, known)?;
        }
        Ok(())
    }
}

/// A part of an object from its beginning to its end.
pub struct ObjectReader {
    file: ObjectFile,
    at: u64,
    end: u64,
}

impl Read for ObjectReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(buf.len());
        let n = self.file.0.0.read(&mut buf[..most], self.at, true)?;
        self.at += n as u64;
        Ok(n)
    }
}

impl Shared {
    fn pieces(&self) -> MutexGuard<'_, Pieces> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> io::Result<&Known> {
        self.known.get().ok_or_else(|| io::Error::other("the store said nothing about the object"))
    }

    /// The first request, which finds the length.
    fn first(&self, range: GetRange) -> io::Result<()> {
        let _alone = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        if self.known.get().is_some() {
            return Ok(());
        }
        let named = |e: object_store::Error| match explain(&e, Act::Read, &self.url) {
            e if e.kind() == io::ErrorKind::NotFound => self.missing(e),
            e => e,
        };
        let wait = |options| runtime::wait(&self.store.stop, get(&self.store, &self.path, options));
        let options = GetOptions { range: Some(range.clone()), ..GetOptions::default() };
        let (known, begin, bytes) = match wait(options)? {
            Ok((head, range, bytes)) => (Known::of(head), range.start, bytes),
            // Azure has no ranges from the end, and nobody has a range of nothing.
            Err(e) if is_beyond_end(&e) || matches!(e, object_store::Error::NotSupported { .. }) => {
                let head = runtime::wait(&self.store.stop, store::head(&self.store.objects, &self.path))?;
                let head = head.map_err(named)?;
                let head = head.ok_or_else(|| self.missing(no_object()))?;
                let known = Known::of(head);
                check_len(known.len)?;
                let begin = match range {
                    GetRange::Suffix(n) => known.len.saturating_sub(n),
                    _ => known.len,
                };
                let bytes = if begin < known.len {
                    let options = GetOptions {
                        range: Some(GetRange::Bounded(begin..known.len)),
                        if_match: known.etag.clone(),
                        ..GetOptions::default()
                    };
                    wait(options)?.map_err(named)?.2
                } else {
                    Bytes::new()
                };
                (known, begin, bytes)
            }
            Err(e) => return Err(named(e)),
        };
        check_len(known.len)?;
        if !bytes.is_empty() {
            self.pieces().put(begin..begin + bytes.len() as u64, State::Ready(bytes));
        }
        let _ = self.known.set(known);
        Ok(())
    }

    /// The error of an object that is not there, with the name that a copy gives to it if that is there.
    fn missing(&self, error: io::Error) -> io::Error {
        let key = format!("{}{SUFFIX}", self.url.key);
        match self.store.head(&key) {
            Ok(Some(_)) => io::Error::new(error.kind(), format!("{error}; {} is there", self.store.url(&key))),
            _ => error,
        }
    }

    fn read(self: &Arc<Self>, buf: &mut [u8], offset: u64, in_order: bool) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        if self.known.get().is_none() {
            let most = if in_order { crate::pieces::PIECE } else { 64 << 10 };
            self.first(GetRange::Bounded(offset..offset.saturating_add(most.max(buf.len() as u64))))?;
        }
        let known = self.known()?;
        if offset >= known.len {
            return Ok(0);
        }
        let range = offset..known.len.min(offset.saturating_add(buf.len() as u64));
        let mut pieces = self.pieces();
        let ahead = pieces.note(range.clone(), known.len, in_order);
        let missing = pieces.missing(ahead, known.len);
        self.fetch_all(&mut pieces, missing, known)?;
        let missing = pieces.missing(range.clone(), known.len);
        self.fetch_all(&mut pieces, missing, known)?;
        loop {
            if let Some(error) = pieces.take_failed(offset) {
                return Err(error);
            }
            match pieces.at(offset) {
                Some(piece) => {
                    if let State::Ready(bytes) = &piece.state {
                        let begin = (offset - piece.range.start) as usize;
                        let n = (bytes.len() - begin).min((range.end - offset) as usize);
                        buf[..n].copy_from_slice(&bytes[begin..begin + n]);
                        return Ok(n);
                    }
                }
                // It came, and other threads have read so much meanwhile that it is gone.
                None => {
                    let missing = pieces.missing(range.clone(), known.len);
                    self.fetch_all(&mut pieces, missing, known)?;
                }
            }
            if (self.store.stop)() {
                return Err(runtime::stopped());
            }
            let waited = self.arrived.wait_timeout(pieces, LOOK_EVERY);
            pieces = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn fetch_all(self: &Arc<Self>, pieces: &mut Pieces, ranges: Vec<Range<u64>>, known: &Known) -> io::Result<()> {
        if ranges.is_empty() {
            return Ok(());
        }
        let handle = runtime::handle()?;
        for range in ranges {
            let (shared, known, wanted) = (Arc::clone(self), known.clone(), range.clone());
            let task = handle.spawn(async move {
                let result = shared.fetch(wanted.clone(), &known).await;
                shared.pieces().arrived(&wanted, result);
                shared.arrived.notify_all();
            });
            pieces.put(range, State::Pending(Some(task.abort_handle())));
        }
        Ok(())
    }

    /// Fetches a range of the object that is known.
    async fn fetch(&self, range: Range<u64>, known: &Known) -> io::Result<Bytes> {
        let options = GetOptions {
            range: Some(GetRange::Bounded(range.clone())),
            if_match: known.etag.clone(),
            ..GetOptions::default()
        };
        let (head, got, bytes) =
            get(&self.store, &self.path, options).await.map_err(|e| explain(&e, Act::Read, &self.url))?;
        if !known.is_same(&head) {
            // The store does not know the condition.
            return Err(io::Error::other(
                "the object was replaced while it was read; read it again from its beginning",
            ));
        }
        if got != range || bytes.len() as u64 != range.end - range.start {
            return Err(io::Error::other("the store sent other bytes than those that were asked for"));
        }
        Ok(bytes)
    }
}

/// Refuses lengths that no object has, so that offsets can be added to.
fn check_len(len: u64) -> io::Result<()> {
    match i64::try_from(len) {
        Ok(_) => Ok(()),
        Err(_) => Err(io::Error::other("the store says that the object has more than 2^63 bytes")),
    }
}

/// One request, with what is said about the object and the range that came.
async fn get(store: &Store, path: &Path, options: GetOptions) -> object_store::Result<(Head, Range<u64>, Bytes)> {
    let get = tokio::time::timeout(RANGE_FOR, attempts(store, path, options));
    get.await.unwrap_or_else(|_| Err(generic("the answer takes too long; timed out")))
}

fn generic(text: &str) -> object_store::Error {
    object_store::Error::Generic { store: "object", source: text.into() }
}

async fn attempts(store: &Store, path: &Path, options: GetOptions) -> object_store::Result<(Head, Range<u64>, Bytes)> {
    let mut slow = 0;
    loop {
        let result = store.objects.get_opts(path, options.clone()).await?;
        let (head, range) = (store::head_of(&result), result.range.clone());
        let len = range.end.saturating_sub(range.start);
        let most = match &options.range {
            Some(GetRange::Bounded(asked)) => asked.end - asked.start,
            Some(GetRange::Suffix(n)) => *n,
            _ => u64::MAX,
        };
        if len > most {
            return Err(generic("the store sends more than was asked for"));
        }
        let mut bytes = BytesMut::with_capacity(len as usize);
        let mut stream = result.into_stream();
        let mut pace = Pace::new();
        loop {
            match pace.next(&mut stream).await {
                Ok(Some(Ok(more))) if (bytes.len() + more.len()) as u64 <= len => bytes.extend_from_slice(&more),
                Ok(Some(Ok(_))) => return Err(generic("the store sends more than it said")),
                Ok(Some(Err(e))) => return Err(e),
                Ok(None) => return Ok((head, range, bytes.freeze())),
                Err(TooSlow) if slow < SLOW_MAX => break,
                Err(TooSlow) => return Err(generic("the answer brings next to nothing; timed out")),
            }
        }
        slow += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::condition::Version;
    use crate::object::Object;

    fn head(len: u64, etag: Option<&str>, number: Option<&str>, written: u64) -> Head {
        let version = Version { etag: etag.map(str::to_owned), number: number.map(str::to_owned) };
        let written = SystemTime::UNIX_EPOCH + Duration::from_secs(written);
        Head { object: Object { key: "k".into(), len, written, version }, metadata: Default::default() }
    }

    #[test]
    fn another_object_of_the_same_length_is_told_from_the_first() {
        let is_same = |a: &Head, b: &Head| Known::of(a.clone()).is_same(b);
        let [strong, weak, none] = [Some("\"a\""), Some("W/\"a\""), None].map(|etag| head(9, etag, Some("1"), 5));
        for known in [&strong, &weak, &none] {
            assert!(is_same(known, known));
            assert!(!is_same(known, &head(10, known.object.version.etag.as_deref(), Some("1"), 5)));
        }
        assert!(!is_same(&strong, &head(9, Some("\"b\""), Some("1"), 5)));
        assert!(!is_same(&strong, &none), "a store that had a tag has one");
        // What a tag says counts, not that an object was rewritten with the same content.
        assert!(is_same(&strong, &head(9, Some("\"a\""), Some("2"), 6)));
        assert!(!is_same(&weak, &head(9, Some("W/\"b\""), Some("1"), 5)));
        for known in [&weak, &none] {
            let etag = known.object.version.etag.as_deref();
            assert!(!is_same(known, &head(9, etag, Some("2"), 5)) && !is_same(known, &head(9, etag, Some("1"), 6)));
            assert!(is_same(known, &head(9, None, None, 5)));
        }
    }
}
