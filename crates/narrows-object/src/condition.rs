//! Conditions of writing. `object_store` sends none with the request that completes an upload, so they are
//! added on its way out. Signatures of S3 and Google do not cover these headers; `signer.rs` is for Azure's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

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

/// The conditions of uploads that are being completed, by their id or path.
#[derive(Debug, Clone, Default)]
pub(crate) struct Conditions(Arc<Mutex<HashMap<String, (HeaderName, HeaderValue)>>>);

impl Conditions {
    /// Adds `condition` to the request that completes the upload `id`, until that is dropped.
    pub(crate) fn set(&self, id: &str, condition: &Condition, scheme: Scheme) -> Set {
        if let Some(header) = condition.header(scheme) {
            self.lock().insert(id.to_owned(), header);
        }
        Set { conditions: self.clone(), id: id.to_owned() }
    }

    /// The header that a request is to get.
    pub(crate) fn of(&self, request: &HttpRequest) -> Option<(HeaderName, HeaderValue)> {
        let set = self.lock();
        if set.is_empty() {
            return None;
        }
        let query = request.uri().query().unwrap_or_default();
        let value = |key: &str| query.split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
        let id = match *request.method() {
            Method::POST => unescaped(value("uploadId")?),
            Method::PUT if value("comp") == Some("blocklist") => unescaped(request.uri().path()),
            _ => return None,
        };
        set.iter()
            .find(|(known, _)| **known == id || id.ends_with(&format!("/{known}")))
            .map(|(_, header)| header.clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, (HeaderName, HeaderValue)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
