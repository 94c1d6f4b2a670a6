//! Errors of a store as one line that tells what to do.

use std::error::Error as _;
use std::io::{self, ErrorKind};

use object_store::Error;

use crate::url::{Scheme, Url};

/// What was tried, for the words of its failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Read,
    Write,
    List,
    Delete,
}

/// How errors of redirects begin, which name the remedy.
pub(crate) const REDIRECTED: &str = "the store redirects";
/// How errors of answers begin that are too long.
pub(crate) const CUT_OFF: &str = "an answer of the store is longer than ";
/// Most characters of the words of a store that are shown.
const SHOWN: usize = 500;

/// The error for `act` on `url`.
pub(crate) fn explain(error: &Error, act: Act, url: &Url) -> io::Error {
    let whole = chain(error);
    let element = |name: &str| {
        let text = between(&whole, &format!("<{name}>"), &format!("</{name}>")).unwrap_or_default();
        // Anybody may have written it, and it goes to a terminal.
        text.chars().filter(|c| !c.is_control()).take(SHOWN).collect::<String>()
    };
    let (code, message) = (element("Code"), element("Message"));
    let code = code.as_str();
    let refused = |why: &str| {
        let variables = match url.scheme {
            Scheme::S3 => "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
            Scheme::Gs => "GOOGLE_APPLICATION_CREDENTIALS",
            Scheme::Az => "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
            Scheme::File => "",
        };
        let why = match why.is_empty() {
            true => format!(
                "the store denies access; check the credentials and what they allow (set {variables}; for public \
                 objects give --no-sign-request)"
            ),
            false => format!("{why}: set {variables}"),
        };
        let said = if code.is_empty() { String::new() } else { format!(" ({code}: {message})") };
        io::Error::new(ErrorKind::PermissionDenied, format!("{why}{said}"))
    };
    let no_bucket = || {
        let what = if url.scheme == Scheme::Az { "container" } else { "bucket" };
        io::Error::new(ErrorKind::NotFound, format!("there is no {what} named {}", url.bucket))
    };
    if code == "NoSuchBucket" || code == "ContainerNotFound" || whole.contains("The specified bucket does not exist") {
        return no_bucket();
    }
    let refusals = ["AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"];
    // Not every request's error has a kind of its own.
    let is_refused =
        refusals.contains(&code) || ["401 ", "403 "].iter().any(|s| whole.contains(&format!("status code: {s}")));
    let cause = last(error);
    match error {
        _ if cause.starts_with(REDIRECTED)
            || cause.starts_with(CUT_OFF)
            || cause.starts_with("the list of the store") =>
        {
            io::Error::other(cause)
        }
        _ if ["Account must be specified", "Missing AccessKeyId", "Missing SecretAccessKey"]
            .contains(&cause.as_str()) =>
        {
            refused("the credentials are not complete")
        }
        _ if is_refused => refused(""),
        Error::NotFound { .. } if act == Act::List => no_bucket(),
        Error::NotFound { .. } => no_object(),
        Error::Precondition { .. } if act == Act::Read => {
            io::Error::other("the object was replaced while it was read; read it again from its beginning")
        }
        Error::Precondition { .. } => {
            io::Error::other("the object was changed by somebody else meanwhile, and is kept")
        }
        Error::AlreadyExists { .. } => {
            io::Error::new(ErrorKind::AlreadyExists, "there is an object of that name already")
        }
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => refused(""),
        Error::InvalidPath { .. } => {
            let text = "a key with an empty component, `.`, `..` or control characters cannot be used";
            io::Error::new(ErrorKind::InvalidInput, text)
        }
        Error::NotSupported { .. } | Error::NotImplemented { .. } => {
            io::Error::new(ErrorKind::Unsupported, format!("this store cannot do it: {}", last(error)))
        }
        _ if whole.contains("redirect") || code == "PermanentRedirect" || code == "AuthorizationHeaderMalformed" => {
            match element("Region").as_str() {
                "" => io::Error::other("the bucket is in another region: set AWS_REGION or --region"),
                region => io::Error::other(format!("the bucket is in {region}: give --region {region}")),
            }
        }
        _ if whole.contains("error trying to connect") || whole.contains("client error (Connect)") => {
            io::Error::new(ErrorKind::NotConnected, format!("cannot connect to the store: {}", last(error)))
        }
        _ if !code.is_empty() => io::Error::other(format!("the store failed: {code}: {message}")),
        _ => match between(&whole, "status code: ", ":") {
            Some(status) => io::Error::other(format!("the store failed: HTTP status {status}")),
            None if whole.contains("timed out") => io::Error::new(ErrorKind::TimedOut, "the store does not answer"),
            None => io::Error::other(format!("the store failed: {}", last(error))),
        },
    }
}

/// The error of an object that is not there.
pub(crate) fn no_object() -> io::Error {
    io::Error::new(ErrorKind::NotFound, "there is no such object")
}

/// Whether a range was asked of an object that is empty or shorter; some servers send all of it then.
pub(crate) fn is_beyond_end(error: &Error) -> bool {
    let whole = chain(error);
    ["status code: 416", "InvalidRange", "non-partial response"].iter().any(|text| whole.contains(text))
}

/// An error and its causes, as text.
fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push('\n');
        text += &error.to_string();
        cause = error.source();
    }
    text
}

/// The innermost cause, in one line.
fn last(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().filter(|c| !c.is_control()).take(SHOWN).collect()
}

fn between<'t>(text: &'t str, begin: &str, end: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(begin)?;
    rest.split_once(end).map(|(found, _)| found.trim())
}
