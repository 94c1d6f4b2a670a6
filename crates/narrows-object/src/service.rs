//! The layer between `object_store` and the network: no request follows a redirect, no answer but the content
//! of an object is long, none may take for ever, and lists lose keys that `object_store` could not take.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, header};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};

use crate::condition::Conditions;
use crate::error::{CUT_OFF, REDIRECTED};
use crate::odd_keys::without;
use crate::pace::{Pace, WINDOW};
use crate::pages::PAGES;
use crate::signer::Signer;

/// As `aws` and `curl` wait at most about so long for a connection.
pub(crate) const CONNECT_FOR: Duration = Duration::from_secs(10);
/// How long the host of credentials within a cloud may take to take a connection. Outside there is none.
pub(crate) const METADATA_FOR: Duration = Duration::from_secs(1);
/// The longest that one request may take: a part of 8 MiB at 28 kB/s.
const REQUEST_FOR: Duration = Duration::from_secs(300);
/// Longest page of a list: 1,000 keys of 1,024 bytes need 7 MiB if every byte is an entity of six, and
/// the 5,000 of Azure 22 MiB if every character has four bytes.
const LIST_MAX: usize = 32 << 20;
/// Longest answer that is neither a list nor content: credentials, and what became of an upload.
const ANSWER_MAX: usize = 1 << 20;
/// So much of the words of an error is read; a store needs some hundred bytes.
const ERROR_MAX: usize = 64 << 10;

/// Keys that lists had and no file can have.
pub(crate) type OddKeys = Arc<Mutex<Vec<String>>>;

/// Makes the clients of a store.
#[derive(Debug)]
pub(crate) struct Connector {
    pub(crate) conditions: Conditions,
    pub(crate) odd_keys: OddKeys,
    pub(crate) signer: Signer,
}

/// What a client of `object_store` is to know.
pub(crate) fn options(is_plain: bool) -> ClientOptions {
    ClientOptions::new().with_allow_http(is_plain).with_connect_timeout(CONNECT_FOR).with_timeout(REQUEST_FOR)
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // Another part of the program may have chosen one already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // That of `object_store` follows redirects, and takes the token of the session along to any host.
        let get = |options: &ClientOptions, key| options.get_config_value(&key);
        let of_metadata = ClientOptions::new().with_connect_timeout(METADATA_FOR);
        let is_of_metadata =
            get(options, ClientConfigKey::ConnectTimeout) == get(&of_metadata, ClientConfigKey::ConnectTimeout);
        let client = reqwest::Client::builder()
            .user_agent(concat!("narrows/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(if is_of_metadata { METADATA_FOR } else { CONNECT_FOR })
            .timeout(REQUEST_FOR)
            .https_only(get(options, ClientConfigKey::AllowHttp).as_deref() != Some("true"))
            .http1_only()
            .build()
            .map_err(|e| object_store::Error::Generic { store: "HTTP client", source: Box::new(e) })?;
        Ok(HttpClient::new(Service {
            inner: HttpClient::new(client),
            conditions: self.conditions.clone(),
            odd_keys: Arc::clone(&self.odd_keys),
            signer: self.signer.clone(),
        }))
    }
}

#[derive(Debug)]
struct Service {
    inner: HttpClient,
    conditions: Conditions,
    odd_keys: OddKeys,
    signer: Signer,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if let Some((name, value)) = self.conditions.of(&request) {
            request.headers_mut().insert(name, value);
            self.signer.sign(&mut request).await.map_err(|e| failed(e.to_string()))?;
        }
        let has = |pair: &str| request.uri().query().is_some_and(|query| query.split('&').any(|p| p == pair));
        let (is_list, is_of_s3) = (has("list-type=2") || has("comp=list"), has("list-type=2"));
        let method = request.method().clone();
        // Content is always asked for by a range, and read by those who know how long it is.
        let is_content = method == Method::GET && request.headers().contains_key(header::RANGE);
        let answer = self.inner.execute(request);
        let response = match method {
            Method::GET | Method::HEAD | Method::DELETE => {
                tokio::time::timeout(WINDOW, answer).await.map_err(|_| slow())??
            }
            // Its body may take longer, and completing an upload too.
            _ => answer.await?,
        };
        let status = response.status();
        if status.is_redirection() && status != http::StatusCode::NOT_MODIFIED {
            return Err(failed(redirected(response.headers())));
        }
        if method == Method::HEAD || is_content && status.is_success() {
            return Ok(response);
        }
        let (mut parts, body) = response.into_parts();
        if !status.is_success() {
            // What there is of it is enough; a store that is busy has no whole one.
            let (said, _) = collect(body, ERROR_MAX).await;
            parts.headers.remove(header::CONTENT_LENGTH);
            let said = String::from_utf8_lossy(&said).into_owned();
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(said)));
        }
        let most = if is_list { LIST_MAX } else { ANSWER_MAX };
        let (body, end) = collect(body, most).await;
        end?;
        if !is_list {
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(body)));
        }
        let kept = std::str::from_utf8(&body)
            .ok()
            .filter(|_| is_of_s3)
            .and_then(|answer| without(answer, &mut self.odd_keys.lock().unwrap_or_else(PoisonError::into_inner)));
        if kept.is_some() {
            parts.headers.remove(header::CONTENT_LENGTH);
        }
        let body = kept.map_or(body, Bytes::from);
        let page = String::from_utf8_lossy(&body);
        // Only lists of all objects have pages that are noted.
        PAGES.try_with(|pages| pages.borrow_mut().note(&page)).unwrap_or(Ok(())).map_err(failed)?;
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(body)))
    }
}

/// The first `most` bytes of an answer, and what ended it before its end.
async fn collect(body: HttpResponseBody, most: usize) -> (Bytes, Result<(), HttpError>) {
    let mut stream = body.bytes_stream();
    let mut pace = Pace::new();
    let mut bytes = BytesMut::new();
    let end = loop {
        match pace.next(&mut stream).await {
            Ok(Some(Ok(more))) => {
                let room = most - bytes.len();
                bytes.extend_from_slice(&more[..more.len().min(room)]);
                if more.len() > room {
                    break Err(failed(format!("{CUT_OFF}{} KiB, which it has no reason for", most >> 10)));
                }
            }
            Ok(Some(Err(e))) => break Err(e),
            Ok(None) => break Ok(()),
            Err(_) => break Err(slow()),
        }
    };
    (bytes.freeze(), end)
}

/// An error after which the request is not tried again.
fn failed(why: String) -> HttpError {
    HttpError::new_boxed(HttpErrorKind::Decode, why.into())
}

/// An error after which it is tried again.
fn slow() -> HttpError {
    let text = format!("timed out: the answer brought next to nothing for {} s", WINDOW.as_secs());
    HttpError::new_boxed(HttpErrorKind::Timeout, text.into())
}

/// What is said of a redirect: the credentials are for the store that was named.
fn redirected(headers: &HeaderMap) -> String {
    // They are shown, and anybody may have written them.
    let word = |text: &str| {
        text.chars().take(255).take_while(|c| c.is_ascii_alphanumeric() || "-._:[]/".contains(*c)).collect::<String>()
    };
    let value = |name: &str| Some(word(headers.get(name)?.to_str().ok()?)).filter(|text| !text.is_empty());
    let host = value("location").and_then(|address| {
        let (scheme, rest) = address.split_once("://")?;
        Some(format!("{scheme}://{}", rest.split('/').next().unwrap_or_default()))
    });
    let to = host.as_ref().map(|host| format!(" to {host}")).unwrap_or_default();
    match (value("x-amz-bucket-region"), host) {
        (Some(region), _) => format!("{REDIRECTED}{to}: the bucket is in {region}; give --region {region}"),
        (None, Some(host)) => {
            format!("{REDIRECTED}{to}; if that is right, give --endpoint {host}, or the --region of the bucket")
        }
        (None, None) => format!("{REDIRECTED}: the bucket is in another region; give --region, or --endpoint"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use crate::store::{Options, Store};
    use crate::url::Url;

    /// A store that gives `answer` to every request, and what it was asked.
    fn store(answer: impl Fn() -> Vec<u8> + Send + 'static) -> (Store, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&asked);
        std::thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                let mut head = [0; 8192];
                let n = client.read(&mut head).unwrap_or(0);
                seen.lock().unwrap().push(String::from_utf8_lossy(&head[..n]).into_owned());
                let _ = client.write_all(&answer());
            }
        });
        let key = Some(("id".to_owned(), "secret".to_owned()));
        let options = Options { endpoint: Some(endpoint), key, region: Some("r".into()), ..Options::default() };
        (Store::open(&Url::parse(b"s3://b/").unwrap().unwrap(), &options).unwrap(), asked)
    }

    fn answer(head: &str, body: &str) -> Vec<u8> {
        let len = body.len();
        format!("HTTP/1.1 {head}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}").into_bytes()
    }

    #[test]
    fn redirects_are_not_followed_and_say_where_to() {
        let (elsewhere, asked_elsewhere) = store(|| answer("403 no", ""));
        drop(elsewhere.head("warm"));
        let host = asked_elsewhere.lock().unwrap()[0]
            .split("\r\n")
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("host: ").map(str::to_owned));
        let host = host.unwrap();
        asked_elsewhere.lock().unwrap().clear();
        let to = host.clone();
        let (store, asked) =
            store(move || answer(&format!("307 Temporary Redirect\r\nLocation: http://{to}/evil"), ""));
        for error in [store.head("k").unwrap_err(), store.list("").unwrap_err()] {
            let text = error.to_string();
            assert!(text.contains(&format!("--endpoint http://{host}")) && !text.contains('\n'), "{text}");
        }
        assert_eq!(asked.lock().unwrap().len(), 2, "it is not tried again");
        assert!(asked_elsewhere.lock().unwrap().is_empty());
        let (store, _) = self::store(|| {
            answer("301 Moved\r\nx-amz-bucket-region: eu-west-1", "<Error><Code>PermanentRedirect</Code></Error>")
        });
        let text = store.head("k").unwrap_err().to_string();
        assert!(text.contains("the bucket is in eu-west-1; give --region eu-west-1"), "{text}");
    }

    #[test]
    fn answers_that_are_no_content_have_an_end() {
        let long = || {
            let head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<ListBucketResult>";
            [&head[..], &b"<!-- -->".repeat((LIST_MAX >> 3) + 1)].concat()
        };
        let text = store(long).0.list("").unwrap_err().to_string();
        assert!(text.contains("longer than 32768 KiB"), "{text}");
        let error = || answer("400 no", &format!("<Error><Code>Odd</Code><Message>m</Message>{}", " ".repeat(9 << 20)));
        let text = store(error).0.list("").unwrap_err().to_string();
        assert_eq!(text, "the store failed: Odd: m");
    }

    #[test]
    fn a_list_that_goes_round_is_given_up() {
        let page = "<ListBucketResult><IsTruncated>true</IsTruncated>\
                    <NextContinuationToken>same</NextContinuationToken><KeyCount>0</KeyCount></ListBucketResult>";
        let (store, asked) = store(|| answer("200 OK", page));
        let text = store.list("").unwrap_err().to_string();
        assert!(text.contains("repeats a page"), "{text}");
        assert_eq!(asked.lock().unwrap().len(), 2);
    }
}
