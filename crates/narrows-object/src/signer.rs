//! Signs requests of Azure once more: the signature by an account key covers their conditions, which are
//! added when `object_store` has signed.

use std::sync::{Arc, OnceLock, Weak};

use http::header;
use object_store::azure::{AzureAuthorizer, AzureCredential, AzureCredentialProvider};
use object_store::client::{CredentialProvider, HttpRequest};

/// The account of the emulators, where none is given.
const EMULATOR: &str = "devstoreaccount1";

/// Does nothing until it has credentials.
#[derive(Debug, Clone, Default)]
pub(crate) struct Signer(Arc<OnceLock<Known>>);

#[derive(Debug)]
struct Known {
    /// They own the client that owns the signer.
    credentials: Weak<dyn CredentialProvider<Credential = AzureCredential>>,
    account: String,
}

impl Signer {
    pub(crate) fn set(&self, credentials: &AzureCredentialProvider, account: Option<String>) {
        let account = account.unwrap_or_else(|| EMULATOR.to_owned());
        let _ = self.0.set(Known { credentials: Arc::downgrade(credentials), account });
    }

    /// Signs a request again that was signed by an account key. Tokens cover no headers.
    pub(crate) async fn sign(&self, request: &mut HttpRequest) -> object_store::Result<()> {
        let Some(Known { credentials, account }) = self.0.get() else { return Ok(()) };
        let Some(credentials) = credentials.upgrade() else { return Ok(()) };
        if !request.headers().contains_key(header::AUTHORIZATION) {
            return Ok(());
        }
        let credential = credentials.get_credential().await?;
        if !matches!(*credential, AzureCredential::AccessKey(_)) {
            return Ok(());
        }
        request.headers_mut().remove(header::AUTHORIZATION);
        AzureAuthorizer::new(&credential, account).try_authorize(request)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Mutex;

    use object_store::azure::AzureAccessKey;
    use object_store::client::HttpRequestBody;

    use super::*;
    use crate::condition::Condition;
    use crate::meta;
    use crate::store::{Options, Store};
    use crate::url::Url;
    use crate::write::{CreateOptions, ObjectWriter};

    const ACCOUNT: &str = "devstoreaccount1";
    /// That of all emulators.
    const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

    struct Asked {
        method: String,
        target: String,
        headers: BTreeMap<String, String>,
        body: Vec<u8>,
    }

    fn read(client: &mut BufReader<TcpStream>) -> Option<Asked> {
        let mut line = String::new();
        client.read_line(&mut line).ok().filter(|n| *n > 0)?;
        let mut words = line.split(' ').map(str::to_owned);
        let (method, target) = (words.next()?, words.next()?);
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            client.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        let len = headers.get("content-length").and_then(|len| len.parse().ok()).unwrap_or(0);
        let mut body = vec![0; len];
        client.read_exact(&mut body).ok()?;
        Some(Asked { method, target, headers, body })
    }

    /// The signature of a request at this moment; `None` if the second of its date is over.
    fn signature(asked: &Asked, host: &str) -> Option<String> {
        let mut request =
            http::Request::builder().method(asked.method.as_str()).uri(format!("http://{host}{}", asked.target));
        for (name, value) in asked.headers.iter().filter(|(name, _)| *name != "authorization") {
            request = request.header(name, value);
        }
        let mut request: HttpRequest = request.body(HttpRequestBody::empty()).unwrap();
        let credential = AzureCredential::AccessKey(AzureAccessKey::try_new(KEY).unwrap());
        AzureAuthorizer::new(&credential, ACCOUNT).try_authorize(&mut request).unwrap();
        let value = |name: &str| Some(request.headers().get(name)?.to_str().ok()?.to_owned());
        (value("date")? == asked.headers["date"]).then(|| value("authorization"))?
    }

    /// A store that takes everything, and what it was asked. It compares the signature of what completes an
    /// upload.
    fn store() -> (Store, Arc<Mutex<Vec<Asked>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let asked = Arc::<Mutex<Vec<Asked>>>::default();
        let (seen, at) = (Arc::clone(&asked), host.clone());
        let serve = move |client: TcpStream, seen: Arc<Mutex<Vec<Asked>>>, host: String| {
            let mut client = BufReader::new(client);
            while let Some(asked) = read(&mut client) {
                let completes = asked.target.contains("comp=blocklist");
                let answer = match signature(&asked, &host) {
                    _ if asked.method == "HEAD" => "404 none",
                    // It is signed again when it is tried again.
                    None if completes => "503 busy",
                    Some(right) if completes && asked.headers["authorization"] != right => "403 not signed so",
                    _ => "201 Created\r\nETag: \"0x1\"",
                };
                seen.lock().unwrap().push(asked);
                let answer = format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n");
                if client.get_mut().write_all(answer.as_bytes()).is_err() {
                    break;
                }
            }
        };
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (seen, host) = (Arc::clone(&seen), at.clone());
                std::thread::spawn(move || serve(client, seen, host));
            }
        });
        let endpoint = format!("http://{host}/{ACCOUNT}");
        let url = Url::parse(b"az://c/").unwrap().unwrap();
        let key = Some((ACCOUNT.to_owned(), KEY.to_owned()));
        let store = Store::open(&url, &Options { endpoint: Some(endpoint), key, ..Options::default() });
        (store.unwrap(), asked)
    }

    #[test]
    fn long_objects_of_azure_keep_their_metadata_and_their_condition() {
        let (store, asked) = store();
        for (len, condition) in [(5, Condition::Create), (20 << 20, Condition::Create), (20 << 20, Condition::None)] {
            asked.lock().unwrap().clear();
            let metadata = vec![(meta::FORM.to_owned(), meta::FORM_PACK.to_owned())];
            let options = CreateOptions { condition: condition.clone(), metadata, ..CreateOptions::default() };
            let mut writer = ObjectWriter::create(&store, "a/b c", options).unwrap();
            writer.write_all(&vec![7; len]).unwrap();
            writer.finish().unwrap();
            let asked = asked.lock().unwrap();
            let blocks = asked.iter().filter(|r| r.target.contains("comp=block&"));
            let sent: usize = blocks.map(|r| r.body.len()).sum();
            let last = asked.last().unwrap();
            let whole = if len > 5 { sent } else { last.body.len() };
            assert_eq!((whole, last.target.contains("comp=blocklist")), (len, len > 5));
            assert_eq!(last.headers["x-ms-meta-narrows_form"], "pack");
            assert_eq!(last.headers["x-ms-meta-narrows_upload"].len(), 16);
            let is_new = last.headers.get("if-none-match").is_some_and(|value| value == "*");
            assert_eq!(is_new, condition == Condition::Create);
            let bad = |r: &Asked| r.headers.keys().any(|name| name.starts_with("x-ms-meta-narrows-"));
            assert!(!asked.iter().any(bad), "names of metadata are identifiers");
        }
    }
}
