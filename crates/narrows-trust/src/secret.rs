//! The secret of a key, and what follows from it: the key, its public part, and the fingerprint of that.

use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use crate::error::{Blame, Error, Fault, Result};
use crate::tls::provider;

/// Length of the secret of an Ed25519 key in bytes (RFC 8032, section 5.1.5).
pub(crate) const SECRET_LEN: usize = 32;
/// Length of a fingerprint in bytes.
pub(crate) const FINGERPRINT_LEN: usize = 32;
/// Prefix of the secret of an Ed25519 key in PKCS #8 (RFC 8410, section 7).
const PKCS8_HEAD: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// A new random secret of a key.
pub(crate) fn random() -> Result<[u8; SECRET_LEN]> {
    let mut secret = [0; SECRET_LEN];
    provider()
        .secure_random
        .fill(&mut secret)
        .map_err(|_| Error::new(Fault::Local, "the system gives no random bytes"))?;
    Ok(secret)
}

/// BLAKE3 of the public key that belongs to a secret.
pub(crate) fn fingerprint_of_secret(secret: &[u8; SECRET_LEN]) -> Result<[u8; FINGERPRINT_LEN]> {
    match certified(secret)?.cert.first() {
        Some(public) => Ok(fingerprint(public)),
        None => Err(no_public_part()),
    }
}

pub(crate) fn fingerprint(public: &CertificateDer<'_>) -> [u8; FINGERPRINT_LEN] {
    *blake3::hash(public).as_bytes()
}

fn no_public_part() -> Error {
    Error::new(Fault::Bug, "a key has no public part; this is a bug")
}

pub(crate) fn certified(secret: &[u8; SECRET_LEN]) -> Result<CertifiedKey> {
    let pkcs8 = PrivatePkcs8KeyDer::from([&PKCS8_HEAD[..], secret].concat());
    let key = rustls::crypto::ring::sign::any_eddsa_type(&pkcs8).blame(Fault::Trust)?;
    let public = key.public_key().ok_or_else(no_public_part)?;
    Ok(CertifiedKey::new(vec![CertificateDer::from(public.to_vec())], key))
}
