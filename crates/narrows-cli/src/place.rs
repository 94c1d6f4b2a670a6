//! Places that a command reads and writes: a path, or the URL of an object. `file:///PATH` is the path.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use narrows_file::ReadAt;
use narrows_host::signals;
use narrows_object::{Condition, CreateOptions, ObjectFile, ObjectWriter, Options, Scheme, Store, Url};

use crate::args::store::StoreArgs;
use crate::files::{self, Stopping};

/// A path of this host or an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// Of this host; `-` is stdin or stdout.
    Path(PathBuf),
    /// Of a store.
    Object(Url),
}

impl Place {
    /// Reads what was typed.
    ///
    /// # Errors
    /// It begins as a URL and is none.
    pub(crate) fn parse(text: impl AsRef<OsStr>) -> Result<Self> {
        let text = text.as_ref();
        match Url::parse(text.as_bytes()) {
            None => Ok(Self::Path(text.into())),
            Some(Err(why)) => Err(narrows::Error::misuse(why).into()),
            Some(Ok(url)) if url.scheme == Scheme::File => Ok(Self::Path(PathBuf::from(format!("/{}", url.key)))),
            Some(Ok(url)) => Ok(Self::Object(url)),
        }
    }

    /// Whether `text` is the URL of a store, and not of a file.
    pub(crate) fn is_object(text: &OsStr) -> bool {
        Url::is_url(text.as_bytes()) && !text.as_bytes().starts_with(b"file:")
    }

    /// The URL, if it is one.
    pub(crate) fn url(&self) -> Option<&Url> {
        match self {
            Self::Path(_) => None,
            Self::Object(url) => Some(url),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Object(url) => url.fmt(f),
        }
    }
}

/// As [`Place::parse`] for a path that stays one: `file:///PATH` is PATH.
pub(crate) fn path_of(text: &Path) -> Result<PathBuf> {
    match Place::parse(text)? {
        Place::Path(path) => Ok(path),
        Place::Object(_) => Ok(text.to_owned()),
    }
}

/// The store of `url`. Its connections serve all objects of the bucket.
///
/// # Errors
/// There are no credentials, or a setting is wrong.
pub(crate) fn store(url: &Url, args: &StoreArgs) -> Result<Store> {
    static OPEN: Mutex<Option<HashMap<Url, Store>>> = Mutex::new(None);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let open = open.get_or_insert_default();
    let bucket = url.with_key("");
    if let Some(store) = open.get(&bucket) {
        return Ok(store.clone());
    }
    let options = Options {
        endpoint: args.endpoint.clone(),
        region: args.region.clone(),
        key: None,
        anonymous: args.no_sign_request,
        path_style: args.path_style.then_some(true),
        stop: Arc::new(|| signals::received().is_some()),
    };
    let store = Store::open(url, &options).with_context(|| format!("cannot use {url}"))?;
    open.insert(bucket, store.clone());
    Ok(store)
}

/// Opens an object. Nothing is read yet.
///
/// # Errors
/// Those of [`store`], or the key cannot be one.
pub(crate) fn object(url: &Url, args: &StoreArgs) -> Result<ObjectFile> {
    if url.is_prefix() {
        let what = if url.key.is_empty() { "a bucket" } else { "a prefix" };
        let text =
            format!("{url} is {what}, and no object; name an object below it (narrows cp -r -n -v {url} . shows them)");
        return Err(narrows::Error::misuse(text).into());
    }
    ObjectFile::new(&store(url, args)?, &url.key).with_context(|| format!("cannot read {url}"))
}

/// Opens a place that is read at any byte: a regular file or an object.
///
/// # Errors
/// It cannot be opened. What is wrong with an object only its first read tells.
pub(crate) fn open_read(place: &Place, args: &StoreArgs) -> Result<Arc<dyn ReadAt>> {
    Ok(match place {
        Place::Path(path) => Arc::new(Stopping(files::open_regular(path)?)),
        Place::Object(url) => Arc::new(object(url, args)?),
    })
}

/// Opens a place that is read from its beginning to its end.
///
/// # Errors
/// Those of [`open_read`].
pub(crate) fn open_stream(place: &Place, args: &StoreArgs) -> Result<Box<dyn Read + Send>> {
    Ok(match place {
        Place::Path(path) => Box::new(files::Source::open(Some(path))?.into_reader()),
        Place::Object(url) => Box::new(object(url, args)?.reader(0..u64::MAX)),
    })
}

/// What is written, and has its name only when it is finished.
pub(crate) enum Target {
    /// A file, a device or stdout.
    Path { target: files::Target, sink: files::Sink },
    /// An object.
    Object(Box<ObjectWriter>),
}

/// Begins to write a place.
///
/// # Errors
/// It cannot be created. Whether an object may be written is known at its end.
pub(crate) fn create(place: &Place, args: &StoreArgs, options: CreateOptions) -> Result<Target> {
    Ok(match place {
        Place::Path(path) => {
            let target = files::Target::open(Some(path))?.replacing(options.condition != Condition::Create);
            Target::Path { sink: target.sink()?, target }
        }
        Place::Object(url) => {
            let writer = ObjectWriter::create(&store(url, args)?, &url.key, options);
            Target::Object(Box::new(writer.with_context(|| format!("cannot write {url}"))?))
        }
    })
}

impl Write for Target {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Path { sink, .. } => sink.write(buf),
            Self::Object(writer) => writer.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Path { sink, .. } => sink.flush(),
            Self::Object(writer) => writer.flush(),
        }
    }
}

impl Target {
    /// Gives it its name.
    ///
    /// # Errors
    /// It cannot be given; then what was there is there still.
    pub(crate) fn finish(self) -> io::Result<()> {
        match self {
            Self::Path { target, sink } => {
                drop(sink);
                target.commit(false)
            }
            Self::Object(writer) => writer.finish().map(drop),
        }
    }

    /// The file that is written, if it is one of this host.
    pub(crate) fn file(&self) -> Option<Result<File>> {
        match self {
            Self::Path { target, .. } => Some(target.file()),
            Self::Object(_) => None,
        }
    }
}

/// Arguments in which `file:///PATH` is PATH.
pub(crate) fn without_file_urls(texts: &[OsString]) -> Result<Vec<OsString>> {
    let each = texts.iter().map(|text| {
        Ok(match Place::parse(text)? {
            Place::Path(path) => path.into_os_string(),
            Place::Object(_) => OsString::from_vec(text.as_bytes().to_vec()),
        })
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_files_are_paths() {
        assert_eq!(Place::parse("file:///a/b").unwrap(), Place::Path("/a/b".into()));
        assert_eq!(Place::parse("a/b").unwrap(), Place::Path("a/b".into()));
        assert_eq!(Place::parse("s3://b/k").unwrap().to_string(), "s3://b/k");
        assert!(Place::parse("s3://").is_err());
        assert!(Place::is_object(OsStr::new("gs://b")) && !Place::is_object(OsStr::new("file:///x")));
    }
}
