//! Conditions of writing. `object_store` sends none with the request that completes an upload, so they are
//! added on its way out. Signatures of S3 and Google do not cover these headers; `signer.rs` is for Azure's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{HeaderName, HeaderValue, Method};
use object_store::client::HttpRequest;

use crate::url::Scheme;

/// When an object may be written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Condition {
    /// Always: another one of that name is replaced.
    #[default]
    None,
    /// Only if there is none of that name.
    Create,
    /// Only if the one of that name is still this one.
    IfMatch(Version),
}

/// Which content an object has, in the words of its store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Version {
    /// The ETag.
    pub etag: Option<String>,
    /// Of Google the generation; of others the version, if they keep several.
    pub number: Option<String>,
}

impl Condition {
    /// The header that states it; `None` if the store has none for it.
    fn header(&self, scheme: Scheme) -> Option<(HeaderName, HeaderValue)> {
        let (name, value) = match (self, scheme) {
            (Self::None, _) | (_, Scheme::File) => return None,
            (Self::Create, Scheme::Gs) => ("x-goog-if-generation-match", "0"),
            (Self::Create, _) => ("if-none-match", "*"),
            (Self::IfMatch(version), Scheme::Gs) => ("x-goog-if-generation-match", version.number.as_deref()?),
            (Self::IfMatch(version), _) => ("if-match", version.etag.as_deref()?),
        };
        Some((HeaderName::from_static(name), HeaderValue::from_str(value).ok()?))
    }
}

/// The header of a condition, if there is one.
type Header = Option<(HeaderName, HeaderValue)>;

/// The conditions of uploads to a bucket that are being completed, by their id or path.
#[derive(Debug, Clone)]
pub(crate) struct Conditions {
    bucket: Arc<str>,
    set: Arc<Mutex<HashMap<String, Header>>>,
}

impl Conditions {
    /// Those of a bucket.
    pub(crate) fn of_bucket(bucket: &str) -> Self {
        Self { bucket: bucket.into(), set: Arc::default() }
    }

    /// Adds `condition` to the request that completes the upload `id`, until that is dropped.
    pub(crate) fn set(&self, id: &str, condition: &Condition, scheme: Scheme) -> Set {
        self.lock().insert(id.to_owned(), condition.header(scheme));
        Set { conditions: self.clone(), id: id.to_owned() }
    }

    /// The header that a request is to get.
    pub(crate) fn of(&self, request: &HttpRequest) -> Header {
        let set = self.lock();
        if set.is_empty() {
            return None;
        }
        let query = request.uri().query().unwrap_or_default();
        let value = |key: &str| query.split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
        match *request.method() {
            Method::POST => set.get(&unescaped(value("uploadId")?)).cloned().flatten(),
            Method::PUT if value("comp") == Some("blocklist") => {
                let path = unescaped(request.uri().path());
                let path = path.strip_prefix('/')?;
                // Of a server of one's own the account stands before the container.
                let behind_account = path.split_once('/').map(|(_, rest)| rest);
                let key = |path: &str| Some(path.strip_prefix(&*self.bucket)?.strip_prefix('/')?.to_owned());
                let keys = [Some(path), behind_account].into_iter().flatten().filter_map(key);
                keys.filter_map(|key| set.get(&key)).next().cloned().flatten()
            }
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Header>> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A condition that is set.
pub(crate) struct Set {
    conditions: Conditions,
    id: String,
}

impl Drop for Set {
    fn drop(&mut self) {
        self.conditions.lock().remove(&self.id);
    }
}

fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let escape = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match escape.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|_| byte == b'%') {
            Some(value) => {
                bytes.push(value);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_goes_with_its_own_upload_only() {
        let conditions = Conditions::of_bucket("box");
        let request = |method: Method, uri: &str| {
            let uri = format!("http://host{uri}");
            let header =
                conditions.of(&http::Request::builder().method(method).uri(uri).body(Vec::new().into()).unwrap());
            header.map(|(_, value)| value.to_str().unwrap().to_owned())
        };
        let block_list = |path: &str| request(Method::PUT, &format!("{path}?comp=blocklist"));
        let version = |etag: &str| Version { etag: Some(etag.to_owned()), number: None };
        let set = |id: &str, etag: &str| conditions.set(id, &Condition::IfMatch(version(etag)), Scheme::Az);
        let _short = set("x", "1");
        assert_eq!(block_list("/box/x").as_deref(), Some("1"));
        assert_eq!(block_list("/account/box/x").as_deref(), Some("1"));
        for other in ["/box/a/x", "/account/box/a/x", "/other/x", "/x", "/boxx", "/account/box/xx"] {
            assert_eq!(block_list(other), None, "{other}");
        }
        let long = set("a/x y", "2");
        assert_eq!(block_list("/box/a/x%20y").as_deref(), Some("2"));
        let unconditional = conditions.set("box/x", &Condition::None, Scheme::Az);
        assert_eq!(block_list("/box/box/x"), None);
        drop((long, unconditional));
        assert_eq!(block_list("/box/a/x%20y"), None);
        let _id = set("id/1", "3");
        assert_eq!(request(Method::POST, "/box/k?uploadId=id%2F1").as_deref(), Some("3"));
        assert_eq!(request(Method::POST, "/box/k?uploadId=1"), None);
        assert_eq!(request(Method::GET, "/box/x?comp=blocklist"), None);
    }
}
