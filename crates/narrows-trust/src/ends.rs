//! The two ends of a connection, each with its proof and its judge of the other one, by keys or by certificates.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::ServerName;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, ServerConfig};

use crate::certificates::Files;
use crate::error::Result;
use crate::keys::{Keys, Token};
use crate::proof;

/// Who judges the other ends that are connected already.
#[derive(Default, Clone)]
pub struct Trust {
    /// Of an acceptor: its dialers.
    pub dialers: Option<Arc<dyn ClientCertVerifier>>,
    /// Of a dialer: its acceptor.
    pub acceptor: Option<Arc<dyn ServerCertVerifier>>,
}

/// The end that others connect to.
pub struct Server {
    /// Its configuration of TLS.
    pub config: Arc<ServerConfig>,
    /// Who judges its clients.
    pub trust: Trust,
    /// What clients need, if they need a token.
    pub token: Option<String>,
}

impl Server {
    /// One with certificates. `protocol`: the name that both ends must agree on (ALPN).
    ///
    /// # Errors
    /// If a file cannot be read, or has not what it should.
    pub fn by_certificates(files: &Files, protocol: &[u8]) -> io::Result<Self> {
        let trust = Trust { dialers: Some(files.dialers()?), acceptor: None };
        Ok(Self { config: files.server(protocol)?, trust, token: None })
    }

    /// One with the keys of a file, which is made if it is missing.
    ///
    /// # Errors
    /// If the file cannot be read or made, or others may read it.
    pub fn by_keys(path: &Path, protocol: &[u8]) -> Result<Self> {
        let keys = Keys::load(path)?;
        let trust = Trust { dialers: Some(proof::client_verifier(&keys)?), acceptor: None };
        Ok(Self { config: proof::server_config(&keys, protocol)?, trust, token: Some(keys.token()?.to_string()) })
    }
}

/// The end that connects.
pub struct Client {
    /// Its configuration of TLS.
    pub config: Arc<ClientConfig>,
    /// Who judges its server.
    pub trust: Trust,
    /// The name that the server proves, if it is not that of its host.
    name: Option<&'static str>,
}

impl Client {
    /// One with certificates. `protocol`: the name that both ends must agree on (ALPN).
    ///
    /// # Errors
    /// If a file cannot be read, or has not what it should.
    pub fn by_certificates(files: &Files, protocol: &[u8]) -> io::Result<Self> {
        let trust = Trust { dialers: None, acceptor: Some(files.acceptor()?) };
        Ok(Self { config: files.client(protocol)?, trust, name: None })
    }

    /// One with the token of its server.
    ///
    /// # Errors
    /// If the token has no key in it.
    pub fn by_token(token: &Token, protocol: &[u8]) -> Result<Self> {
        let trust = Trust { dialers: None, acceptor: Some(proof::server_verifier(token)) };
        Ok(Self { config: proof::client_config(token, protocol)?, trust, name: Some(proof::NAME) })
    }

    /// The name that the server at `host` has to prove; `None` if no certificate can have it.
    pub fn expected_name(&self, host: &str) -> Option<ServerName<'static>> {
        ServerName::try_from(self.name.unwrap_or(host).to_owned()).ok()
    }
}
