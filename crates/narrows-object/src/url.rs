//! The addresses of objects: `s3://BUCKET/KEY`, `gs://`, `az://`, `file:///PATH`.

use std::fmt;

/// Which kind of store an address names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Amazon S3, and what speaks its protocol.
    S3,
    /// Google Cloud Storage.
    Gs,
    /// Azure Blob Storage; the bucket is a container.
    Az,
    /// Files of this host.
    File,
}

impl Scheme {
    const ALL: [Self; 4] = [Self::S3, Self::Gs, Self::Az, Self::File];

    /// The word before `://`.
    pub fn name(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gs => "gs",
            Self::Az => "az",
            Self::File => "file",
        }
    }
}

/// Longest key in bytes: that of S3 and Google; Azure allows as many characters.
pub const KEY_LEN_MAX: usize = 1024;

/// The address of an object, or of all objects whose keys begin with it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Url {
    /// The kind of store.
    pub scheme: Scheme,
    /// The bucket or container; empty for files.
    pub bucket: String,
    /// The key, without a leading slash. It is taken literally, without escapes, as by `aws s3`.
    pub key: String,
}

impl Url {
    /// Whether `text` names a store, rightly or wrongly spelled.
    pub fn is_url(text: &[u8]) -> bool {
        Scheme::ALL.iter().any(|scheme| {
            let rest = text.strip_prefix(scheme.name().as_bytes());
            rest.is_some_and(|rest| rest.starts_with(b"://"))
        })
    }

    /// Parses an address; `None` if it has no scheme of a store.
    ///
    /// # Errors
    /// The text to show to whoever typed it.
    pub fn parse(text: &[u8]) -> Option<Result<Self, String>> {
        Self::is_url(text).then(|| {
            let shown = String::from_utf8_lossy(text);
            let text = std::str::from_utf8(text).map_err(|_| format!("'{shown}': a key is UTF-8 text"))?;
            let (name, rest) = text.split_once("://").unwrap_or(("", text));
            let scheme = Scheme::ALL.into_iter().find(|scheme| scheme.name() == name);
            let scheme = scheme.ok_or_else(|| format!("'{shown}' names no store"))?;
            if scheme == Scheme::File {
                let path = rest.strip_prefix("localhost").unwrap_or(rest);
                let Some(key) = path.strip_prefix('/') else {
                    return Err(format!("'{shown}' is not a file of this host; write file:///PATH"));
                };
                return Ok(Self { scheme, bucket: String::new(), key: key.to_owned() });
            }
            let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
            let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
            if bucket.is_empty() || !bucket.chars().all(is_valid) {
                return Err(format!("'{shown}' has no valid bucket; write {name}://BUCKET/KEY"));
            }
            if key.len() > KEY_LEN_MAX {
                return Err(format!("'{shown}': a key has at most {KEY_LEN_MAX} bytes"));
            }
            Ok(Self { scheme, bucket: bucket.to_owned(), key: key.to_owned() })
        })
    }

    /// The address of another key in the same bucket.
    pub fn with_key(&self, key: impl Into<String>) -> Self {
        Self { key: key.into(), ..self.clone() }
    }

    /// The address of `name` below this one.
    pub fn join(&self, name: &str) -> Self {
        let slash = if self.key.is_empty() || self.key.ends_with('/') { "" } else { "/" };
        self.with_key(format!("{}{slash}{name}", self.key))
    }

    /// Whether it names everything below it: it ends in a slash, or is a whole bucket.
    pub fn is_prefix(&self) -> bool {
        self.key.is_empty() || self.key.ends_with('/')
    }

    /// The last component of the key.
    pub fn name(&self) -> &str {
        self.key.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", self.scheme.name(), self.bucket, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_other_programs() {
        let parse = |text: &str| Url::parse(text.as_bytes());
        let url = |scheme, bucket: &str, key: &str| Some(Ok(Url { scheme, bucket: bucket.into(), key: key.into() }));
        assert_eq!(parse("s3://b/a/b c%20.nrw"), url(Scheme::S3, "b", "a/b c%20.nrw"));
        assert_eq!(parse("gs://b"), url(Scheme::Gs, "b", ""));
        assert_eq!(parse("az://c/x/"), url(Scheme::Az, "c", "x/"));
        assert_eq!(parse("file:///tmp/x"), url(Scheme::File, "", "tmp/x"));
        assert_eq!(parse("file://localhost/tmp"), url(Scheme::File, "", "tmp"));
        for local in ["s3", "s3:/b/k", "./s3://b", "/s3://b", "ssh://host/x", ""] {
            assert_eq!(parse(local), None, "{local}");
        }
        for bad in ["s3://", "s3:///k", "s3://b@c/k", "file://host/x", "file://x"] {
            assert!(matches!(parse(bad), Some(Err(_))), "{bad}");
        }
        assert!(matches!(Url::parse(b"s3://b/\xff"), Some(Err(_))));
        assert!(matches!(parse(&format!("s3://b/{}", "x".repeat(1025))), Some(Err(_))));
    }

    #[test]
    fn names_are_below_an_address() {
        let url = Url::parse(b"s3://b/dir").unwrap().unwrap();
        assert_eq!((url.join("x/y").key.as_str(), url.name()), ("dir/x/y", "dir"));
        assert_eq!(url.with_key("").join("x").to_string(), "s3://b/x");
        assert!(url.with_key("dir/").is_prefix() && !url.is_prefix());
        assert_eq!(url.with_key("dir/").join("x").key, "dir/x");
    }
}
