//! TLS 1.3 with raw public keys (RFC 7250). Each end presents an Ed25519 key and accepts exactly
//! one key, so there are no names, authorities or dates to verify. The key of the client is derived
//! from the secret in its token.

use std::sync::Arc;

use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, DistinguishedName, ServerConfig,
    ServerConnection, SignatureScheme,
};

use crate::error::{Blame, Fault, Result};
use crate::keys::{Keys, Token};
use crate::secret::{FINGERPRINT_LEN, certified, fingerprint, fingerprint_of_secret};
use crate::tls::{self, only_tls13, provider};

/// TLS asks for a name, which raw keys do not use.
pub const NAME: &str = "narrows";
/// The TLS connection of a client with this token. `protocol`: the name that both ends must agree on (ALPN).
///
/// # Errors
/// If the token has no key in it.
pub fn client(token: &Token, protocol: &[u8]) -> Result<ClientConnection> {
    let name = ServerName::try_from(NAME).blame_for(Fault::Bug, "the name is no name")?;
    ClientConnection::new(client_config(token, protocol)?, name).blame(Fault::Bug)
}

/// The TLS configuration of a client with this token.
///
/// # Errors
/// The token has no key in it.
pub fn client_config(token: &Token, protocol: &[u8]) -> Result<Arc<ClientConfig>> {
    let own = Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::new(certified(&token.client)?)));
    let mut config = tls::client_config(server_verifier(token), own, protocol).blame(Fault::Bug)?;
    config.enable_sni = false;
    Ok(Arc::new(config))
}

/// Who accepts the server that a token is of, and no other.
pub fn server_verifier(token: &Token) -> Arc<dyn ServerCertVerifier> {
    Arc::new(Accepted { fingerprint: token.fingerprint, provider: provider() })
}

/// The TLS configuration for all connections of a server.
///
/// # Errors
/// A key has no public part, which is a bug.
pub fn server_config(keys: &Keys, protocol: &[u8]) -> Result<Arc<ServerConfig>> {
    let own = Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::new(certified(&keys.server)?)));
    Ok(Arc::new(tls::server_config(client_verifier(keys)?, own, protocol).blame(Fault::Bug)?))
}

/// Who accepts the clients of a server, and no others.
///
/// # Errors
/// As for [`server_config`].
pub fn client_verifier(keys: &Keys) -> Result<Arc<dyn ClientCertVerifier>> {
    Ok(Arc::new(Accepted { fingerprint: fingerprint_of_secret(&keys.client)?, provider: provider() }))
}

/// The TLS connection of a server for one client.
///
/// # Errors
/// None with a configuration of [`server_config`].
pub fn server_connection(config: &Arc<ServerConfig>) -> Result<ServerConnection> {
    ServerConnection::new(Arc::clone(config)).blame(Fault::Bug)
}

/// Verifier that accepts exactly one key.
#[derive(Debug)]
struct Accepted {
    fingerprint: [u8; FINGERPRINT_LEN],
    provider: Arc<CryptoProvider>,
}

impl Accepted {
    fn check(&self, public: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        if fingerprint(public) == self.fingerprint {
            return Ok(());
        }
        Err(rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn check_signature(
        &self,
        message: &[u8],
        public: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let public = SubjectPublicKeyInfoDer::from(public.as_ref());
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &public, signed, algorithms)
    }
}

/// The signatures of either end, which are checked with the key itself.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Err(only_tls13())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            self.check_signature(message, cert, dss)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for Accepted {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }

    signatures!();
}

impl ClientCertVerifier for Accepted {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    signatures!();
}
