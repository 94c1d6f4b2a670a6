//! Ends that prove themselves by certificates of an authority, read from PEM files.
//!
//! Names are those of the subject alternative names, DNS and URI (RFC 9525 has no others for
//! services): the common name of a subject is not looked at.

use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use narrows_host::whole;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, OtherError, RootCertStore, ServerConfig,
    SignatureScheme,
};
use webpki::EndEntityCert;

use crate::tls::{self, only_tls13, provider};

/// Longest PEM file: a bundle of all public authorities has a quarter of this, a list of 10,000 revoked
/// certificates too.
const FILE_MAX: u64 = 1 << 20;
/// Certificates between one of an end and its authority: of those in use, nobody has half as many.
const BETWEEN_MAX: usize = 8;

/// The files of one end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// The certificate of this end, then those between it and the authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities whose certificates the other end may have.
    pub ca: PathBuf,
    /// Lists of revoked certificates: with it, one of each authority whose certificates come.
    pub crl: Option<PathBuf>,
    /// Names of which the other end's certificate must have one. Without any, an acceptor takes all
    /// certificates of its authorities, and a dialer the one for the host that it connects to.
    pub names: Vec<String>,
}

/// How files looked when they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp(Vec<Option<[i64; 7]>>);

impl Files {
    /// The configuration of an acceptor. `protocol`: the name that both ends must agree on (ALPN).
    ///
    /// # Errors
    /// If a file cannot be read, or has not what it should.
    pub fn server(&self, protocol: &[u8]) -> io::Result<Arc<ServerConfig>> {
        let config = tls::server_config(self.dialers()?, self.own()?, protocol);
        config.map(Arc::new).map_err(io::Error::other)
    }

    /// The configuration of a dialer.
    ///
    /// # Errors
    /// As for [`Files::server`].
    pub fn client(&self, protocol: &[u8]) -> io::Result<Arc<ClientConfig>> {
        let config = tls::client_config(self.acceptor()?, self.own()?, protocol);
        config.map(Arc::new).map_err(io::Error::other)
    }

    /// Who judges the dialers of an acceptor.
    ///
    /// # Errors
    /// As for [`Files::server`].
    pub fn dialers(&self) -> io::Result<Arc<dyn ClientCertVerifier>> {
        let builder = WebPkiClientVerifier::builder_with_provider(self.roots()?, provider());
        // Of an old list nobody knows what is missing in it, as for OpenSSL.
        let builder = builder.with_crls(self.revoked()?).enforce_revocation_expiration();
        let inner = builder.build().map_err(|e| self.no_verifier(&e))?;
        Ok(Arc::new(Named { inner, names: self.names.clone() }))
    }

    /// Who judges the acceptor of a dialer.
    ///
    /// # Errors
    /// As for [`Files::server`].
    pub fn acceptor(&self) -> io::Result<Arc<dyn ServerCertVerifier>> {
        let builder = WebPkiServerVerifier::builder_with_provider(self.roots()?, provider());
        let builder = builder.with_crls(self.revoked()?).enforce_revocation_expiration();
        let inner = builder.build().map_err(|e| self.no_verifier(&e))?;
        Ok(Arc::new(Named { inner, names: self.names.clone() }))
    }

    /// How the files look now; another stamp means that they are to be read again.
    pub fn stamp(&self) -> Stamp {
        let look = |path: &PathBuf| {
            let data = std::fs::metadata(path).ok()?;
            // The last three are of a change of its mode or owner too: a key that others could read may be
            // in use when they cannot.
            let (ino, len) = (data.ino().cast_signed(), data.len().cast_signed());
            Some([ino, len, data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec(), data.mode().into()])
        };
        Stamp([&self.cert, &self.key, &self.ca].into_iter().chain(&self.crl).map(look).collect())
    }

    /// Whether the own certificate is valid today. The other end finds out otherwise.
    ///
    /// # Errors
    /// If it has expired or is not valid yet, or as for [`Files::server`].
    pub fn are_own_in_time(&self) -> io::Result<()> {
        let own = certificates(&self.cert)?;
        let Some((end_entity, others)) = own.split_first() else { return Ok(()) };
        // The verifier looks at the time first (a test holds it to that): the authorities of the other end
        // need not be those of this one.
        let judged = self.dialers()?.verify_client_cert(end_entity, others, UnixTime::now());
        let Err(rustls::Error::InvalidCertificate(why)) = judged else { return Ok(()) };
        match why {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                Err(about(&self.cert, "the certificate has expired"))
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                Err(about(&self.cert, "the certificate is not valid yet"))
            }
            _ => Ok(()),
        }
    }

    fn roots(&self) -> io::Result<Arc<RootCertStore>> {
        let mut roots = RootCertStore::empty();
        for cert in certificates(&self.ca)? {
            roots.add(cert).map_err(|e| about(&self.ca, e))?;
        }
        Ok(Arc::new(roots))
    }

    fn revoked(&self) -> io::Result<Vec<CertificateRevocationListDer<'static>>> {
        self.crl.as_ref().map_or(Ok(Vec::new()), |path| entries(path, "revocation list"))
    }

    fn own(&self) -> io::Result<Arc<SingleCertAndKey>> {
        let (key, data) = text_of(&self.key)?;
        if data.mode() & 0o007 != 0 {
            let path = self.key.display();
            return Err(io::Error::other(format!(
                "{path}: all users may read the key; make it private: chmod 600 {path}"
            )));
        }
        let key = PrivateKeyDer::from_pem_slice(&key).map_err(|e| about(&self.key, no_pem(&e, "private key")))?;
        let chain = certificates(&self.cert)?;
        are_few(chain.get(1..).unwrap_or_default()).map_err(|why| about(&self.cert, why))?;
        let own = CertifiedKey::from_der(chain, key, &provider());
        own.map(|own| Arc::new(own.into())).map_err(|e| {
            let (cert, key) = (self.cert.display(), self.key.display());
            io::Error::other(format!("{cert} and {key} are no certificate and its key: {e}"))
        })
    }

    fn no_verifier(&self, e: &VerifierBuilderError) -> io::Error {
        match (e, &self.crl) {
            (VerifierBuilderError::InvalidCrl(_), Some(path)) => about(path, "it is no revocation list"),
            _ => about(&self.ca, e),
        }
    }
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    entries(path, "certificate")
}

/// What a PEM file has of one kind: at least one.
fn entries<T: PemObject>(path: &Path, what: &str) -> io::Result<Vec<T>> {
    let found = T::pem_slice_iter(&text_of(path)?.0).collect::<Result<Vec<_>, _>>();
    match found {
        Ok(found) if found.is_empty() => Err(about(path, format_args!("there is no {what} in it"))),
        found => found.map_err(|e| about(path, no_pem(&e, what))),
    }
}

/// What a file has, and how it looks.
fn text_of(path: &Path) -> io::Result<(Vec<u8>, Metadata)> {
    let (file, data) = whole::open_regular(path).map_err(|e| about(path, e))?;
    let mut text = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut text).map_err(|e| about(path, e))?;
    if text.len() as u64 > FILE_MAX {
        return Err(about(path, "the file is too long"));
    }
    Ok((text, data))
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

/// Whether there is one way at most from a certificate through these. Otherwise a stranger who names
/// forged ones like the authority has a signature verified for each way, and each takes 0.1 ms.
fn are_few(between: &[CertificateDer<'_>]) -> Result<(), &'static str> {
    if between.len() > BETWEEN_MAX {
        return Err("it comes with too many certificates of authorities");
    }
    // What cannot be read leads nowhere.
    let parsed: Vec<_> = between.iter().filter_map(|cert| EndEntityCert::try_from(cert).ok()).collect();
    let repeated =
        |(at, cert): (usize, &EndEntityCert<'_>)| parsed[..at].iter().any(|other| other.subject() == cert.subject());
    if parsed.iter().enumerate().any(repeated) {
        return Err("it comes with two certificates of one authority");
    }
    Ok(())
}

/// The same, for a verifier.
fn judge_number(between: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
    are_few(between).map_err(|why| CertificateError::Other(OtherError(Arc::from(Box::from(why)))).into())
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

/// A verifier that wants few certificates, and one of some names.
#[derive(Debug)]
struct Named<V: ?Sized> {
    names: Vec<String>,
    inner: Arc<V>,
}

/// The signatures of either end, which the inner verifier checks.
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
            self.inner.verify_tls13_signature(message, cert, dss)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.inner.supported_verify_schemes()
        }
    };
}

/// An acceptor's view of its dialers.
impl ClientCertVerifier for Named<dyn ClientCertVerifier> {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        judge_number(intermediates)?;
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        has_name(end_entity, &self.names).map(|()| verified)
    }

    signatures!();
}

/// A dialer's view of its acceptor.
impl ServerCertVerifier for Named<WebPkiServerVerifier> {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        judge_number(intermediates)?;
        let verified = self.inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The name is what it looks at last (a test holds it to that): all else is proved. Some of the
            // names may stand for hosts that have others.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.names.is_empty() => {}
            verified => {
                verified?;
            }
        }
        has_name(end_entity, &self.names).map(|()| ServerCertVerified::assertion())
    }

    signatures!();
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_change_of_the_mode_changes_the_stamp() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, "key").unwrap();
        let files = Files { cert: path.clone(), key: path.clone(), ca: path.clone(), crl: None, names: Vec::new() };
        let before = files.stamp();
        assert_eq!(files.stamp(), before);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
        assert_ne!(files.stamp(), before);
    }
}
