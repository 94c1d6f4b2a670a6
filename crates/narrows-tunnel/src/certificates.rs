//! Ends that prove themselves by certificates of an authority, read from PEM files.
//!
//! Names are those of the subject alternative names, DNS and URI (RFC 9525 has no others for
//! services): the common name of a subject is not looked at.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    SignatureScheme,
};
use webpki::EndEntityCert;

use super::settings::PROTOCOL;

/// Longest PEM file: a bundle of all public authorities has a quarter of this.
const FILE_MAX: u64 = 1 << 20;

/// The files of one end.
#[derive(Debug, Clone)]
pub struct Files {
    /// The certificate of this end, then those between it and the authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities whose certificates the other end may have.
    pub ca: PathBuf,
    /// Names of which the other end's certificate must have one. Without any, an acceptor takes all
    /// certificates of its authorities, and a dialer the one for the host that it connects to.
    pub names: Vec<String>,
}

/// How files looked when they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp(Vec<Option<(u64, u64, i64, i64)>>);

impl Files {
    /// The configuration of an acceptor.
    ///
    /// # Errors
    /// If a file cannot be read, or has not what it should.
    pub fn server(&self) -> io::Result<Arc<ServerConfig>> {
        let provider = provider();
        let roots = Arc::new(self.roots()?);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
        let verifier = Named { verifier: verifier.map_err(io::Error::other)?, names: self.names.clone() };
        let (chain, key) = self.own()?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(io::Error::other)?
            .with_client_cert_verifier(Arc::new(verifier))
            .with_single_cert(chain, key)
            .map_err(|e| self.own_is_wrong(&e))?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    /// The configuration of a dialer.
    ///
    /// # Errors
    /// As for [`Files::server`].
    pub fn client(&self) -> io::Result<Arc<ClientConfig>> {
        let provider = provider();
        let verifier = Server { roots: self.roots()?, names: self.names.clone(), provider: Arc::clone(&provider) };
        let (chain, key) = self.own()?;
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(chain, key)
            .map_err(|e| self.own_is_wrong(&e))?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        // Every connection proves itself anew, also after a reload.
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Arc::new(config))
    }

    /// How the files look now; another stamp means that they are to be read again.
    pub fn stamp(&self) -> Stamp {
        let look = |path: &PathBuf| {
            let data = std::fs::metadata(path).ok()?;
            Some((data.ino(), data.len(), data.mtime(), data.mtime_nsec()))
        };
        Stamp([&self.cert, &self.key, &self.ca].into_iter().map(look).collect())
    }

    fn roots(&self) -> io::Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        for cert in certificates(&self.ca)? {
            roots.add(cert).map_err(|e| about(&self.ca, e))?;
        }
        Ok(roots)
    }

    fn own(&self) -> io::Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let data = std::fs::metadata(&self.key).map_err(|e| about(&self.key, e))?;
        if data.mode() & 0o007 != 0 {
            let path = self.key.display();
            return Err(io::Error::other(format!(
                "{path}: all users may read the key; make it private: chmod 600 {path}"
            )));
        }
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|e| about(&self.key, no_pem(&e, "private key")))?;
        Ok((certificates(&self.cert)?, key))
    }

    fn own_is_wrong(&self, e: &rustls::Error) -> io::Error {
        let (cert, key) = (self.cert.display(), self.key.display());
        io::Error::other(format!("{cert} and {key} are no certificate and its key: {e}"))
    }
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let len = std::fs::metadata(path).map_err(|e| about(path, e))?.len();
    if len > FILE_MAX {
        return Err(about(path, "the file is too long"));
    }
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found {
        Ok(found) if found.is_empty() => Err(about(path, "there is no certificate in it")),
        found => found.map_err(|e| about(path, no_pem(&e, "certificate"))),
    }
}

fn no_pem(e: &rustls::pki_types::pem::Error, what: &str) -> String {
    match e {
        rustls::pki_types::pem::Error::Io(e) => narrows_host::words::e_text(e),
        _ => format!("there is no {what} in it ({e})"),
    }
}

fn about(path: &Path, e: impl std::fmt::Display) -> io::Error {
    io::Error::other(narrows_host::words::without_os_numbers(&format!("{}: {e}", path.display())))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Whether a certificate has one of the names, or none is asked for.
fn has_name(cert: &CertificateDer<'_>, names: &[String]) -> Result<(), rustls::Error> {
    if names.is_empty() {
        return Ok(());
    }
    let cert = EndEntityCert::try_from(cert).map_err(|_| CertificateError::BadEncoding)?;
    let dns = cert.valid_dns_names().any(|own| names.iter().any(|name| name.eq_ignore_ascii_case(own)));
    let uri = cert.valid_uri_names().any(|own| names.iter().any(|name| name == own));
    if dns || uri { Ok(()) } else { Err(CertificateError::NotValidForName.into()) }
}

/// An acceptor's view of its dialers.
#[derive(Debug)]
struct Named {
    verifier: Arc<dyn ClientCertVerifier>,
    names: Vec<String>,
}

impl ClientCertVerifier for Named {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.verifier.verify_client_cert(end_entity, intermediates, now)?;
        has_name(end_entity, &self.names).map(|()| verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// A dialer's view of its acceptor.
#[derive(Debug)]
struct Server {
    roots: RootCertStore,
    names: Vec<String>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Server {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let cert = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&cert, &self.roots, intermediates, now, algorithms)?;
        if self.names.is_empty() {
            verify_server_name(&cert, server_name)?;
        } else {
            has_name(end_entity, &self.names)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("only TLS 1.3 is spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
