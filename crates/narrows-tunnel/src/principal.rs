//! Identity of a client, as far as its proof says: the same one comes back with another certificate.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// A client, by a hash: proofs may be long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Principal([u8; 32]);

impl Principal {
    /// The one with this certificate, or with this raw key: that of a token, whose holders are one client.
    ///
    /// Names and not the certificate count, since it is replaced at its time; all of them, since a name
    /// more may be that of somebody else.
    pub(super) fn of(proof: &CertificateDer<'_>) -> Self {
        let cert = EndEntityCert::try_from(proof).ok();
        let mut names: Vec<String> = Vec::new();
        if let Some(cert) = &cert {
            names.extend(cert.valid_dns_names().map(|name| format!("dns:{}", name.to_ascii_lowercase())));
            names.extend(cert.valid_uri_names().map(|name| format!("uri:{name}")));
        }
        names.sort_unstable();
        names.dedup();
        let mut hash = blake3::Hasher::new();
        let parts = names.iter().map(String::as_bytes).chain(names.is_empty().then_some(&proof[..]));
        for part in parts {
            hash.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        Self(hash.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use narrows_test::authority::Authority;
    use rustls::pki_types::pem::PemObject;

    use super::*;

    #[test]
    fn names_make_a_client_and_without_them_the_whole_proof() {
        if !narrows_test::has("openssl") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let ca = Authority::new(dir.path(), "ca");
        let mut number = 0;
        let mut of = |names: &str| {
            number += 1;
            let file = number.to_string();
            ca.sign(&file, names, 30);
            Principal::of(&CertificateDer::from_pem_file(dir.path().join(format!("{file}.pem"))).unwrap())
        };
        let alice = of("DNS:alice,URI:spiffe://x/alice");
        assert_eq!(of("URI:spiffe://x/alice,DNS:Alice"), alice);
        for other in ["DNS:alice", "DNS:alice,URI:spiffe://x/alice,DNS:bob", "DNS:alice,DNS:spiffe"] {
            assert_ne!(of(other), alice, "{other}");
        }
        assert_ne!(of("IP:192.0.2.1"), of("IP:192.0.2.1"), "no name that counts");
        let raw = |byte| Principal::of(&CertificateDer::from(vec![byte; 44]));
        assert!(raw(1) == raw(1) && raw(1) != raw(2));
    }
}
