//! TLS as all programs speak it: version 1.3 only, both ends proved, every connection on its own.

use std::sync::Arc;

use rustls::client::ResolvesClientCert;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::server::ResolvesServerCert;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, Error, ServerConfig};

/// The cryptography that is used.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The configuration of a server that proves itself by `own`. `protocol`: the name that both ends must
/// agree on (ALPN, RFC 7301), so that no other service is taken for this one.
///
/// # Errors
/// None with the cryptography of [`provider`].
pub fn server_config(
    verifier: Arc<dyn ClientCertVerifier>,
    own: Arc<dyn ResolvesServerCert>,
    protocol: &[u8],
) -> Result<ServerConfig, Error> {
    let config = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS13])?;
    let mut config = config.with_client_cert_verifier(verifier).with_cert_resolver(own);
    config.alpn_protocols = vec![protocol.to_vec()];
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The configuration of a client that proves itself by `own`.
///
/// # Errors
/// As for [`server_config`].
pub fn client_config(
    verifier: Arc<dyn ServerCertVerifier>,
    own: Arc<dyn ResolvesClientCert>,
    protocol: &[u8],
) -> Result<ClientConfig, Error> {
    let config = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS13])?;
    let config = config.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = config.with_client_cert_resolver(own);
    config.alpn_protocols = vec![protocol.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

/// The answer of a verifier to a signature of TLS 1.2.
pub fn only_tls13() -> Error {
    Error::General("only TLS 1.3 is spoken here".into())
}
