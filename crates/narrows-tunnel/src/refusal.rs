//! Why TLS was refused, by this end or the other one, in words.

use narrows_host::words::shown;
use rustls::{AlertDescription, CertificateError, Error, PeerIncompatible};

/// Their proofs are of different kinds.
pub(super) const MIXED: &str = "one end has a token, the other one a certificate";

/// What an end says whose proof is not accepted, or that does not accept the other's; `None` if the error
/// is about something else. Names in it are those of the other end, and escaped.
pub(super) fn words(e: &Error) -> Option<String> {
    let words = match e {
        Error::InvalidCertificate(e) => of_certificate(e),
        Error::NoCertificatesPresented => "the other end shows no certificate".into(),
        Error::PeerIncompatible(PeerIncompatible::IncorrectCertificateTypeExtension) => MIXED.into(),
        Error::AlertReceived(alert) => {
            let why = of_alert(*alert)?;
            format!("the other end does not accept this one's token or certificate{why}")
        }
        _ => return None,
    };
    Some(shown(words.as_bytes()))
}

/// The other end's certificate is refused here.
fn of_certificate(e: &CertificateError) -> String {
    use CertificateError as E;
    let its = "the other end's certificate";
    match e {
        E::Expired | E::ExpiredContext { .. } => format!("{its} has expired"),
        E::NotValidYet | E::NotValidYetContext { .. } => format!("{its} is not valid yet; compare the clocks"),
        E::Revoked => format!("{its} is revoked"),
        E::UnknownIssuer => format!("{its} is of none of the authorities in --ca"),
        E::UnknownRevocationStatus => format!("{its} is of an authority that has no list in --crl"),
        E::ExpiredRevocationList | E::ExpiredRevocationListContext { .. } => {
            format!("{its} cannot be judged: the list in --crl has expired")
        }
        E::NotValidForName => format!("{its} has none of the names of --allow-name"),
        E::NotValidForNameContext { expected, presented } => {
            // The library writes `DnsName("a")`.
            let plain = |name: &String| {
                name.split_once("(\"").map_or(&**name, |(_, rest)| rest).trim_end_matches("\")").to_owned()
            };
            let names: Vec<_> = presented.iter().map(plain).collect();
            let names = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
            format!("{its} is for {names}, not for {}", expected.to_str())
        }
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => format!("{its} is for another purpose"),
        E::ApplicationVerificationFailure => {
            "this end does not accept the other's key: its token is of another one".into()
        }
        // Another error than the library's own.
        E::Other(e) => format!("{its} is not accepted: {}", e.0),
        other => format!("{its} is not accepted: {other}"),
    }
}

/// The other end has refused this one's.
fn of_alert(alert: AlertDescription) -> Option<&'static str> {
    use AlertDescription as A;
    Some(match alert {
        A::CertificateExpired => ": its certificate has expired, or is not valid yet",
        A::CertificateRevoked => ": its certificate is revoked",
        A::UnknownCA => ": its certificate is of an authority that the other end does not know",
        A::UnsupportedCertificate => ": its certificate is for another purpose",
        A::BadCertificate => ": its certificate has another name than the other end allows",
        A::AccessDenied => ": it is of another server",
        A::CertificateRequired => ": it shows none",
        A::HandshakeFailure => "; one end may have a token, the other one a certificate",
        A::CertificateUnknown | A::DecryptError => "",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_certificate_do_not_steer_a_terminal() {
        let names = ["a\u{1b}[2J\nb", "c\u{202e}d", "e\u{9b}f"].map(String::from).to_vec();
        let expected = "db.example".try_into().unwrap();
        let said = words(&CertificateError::NotValidForNameContext { expected, presented: names }.into()).unwrap();
        assert!(said.chars().all(|c| c.is_ascii() && !c.is_control()), "{said:?}");
        assert!(said.contains("db.example") && said.contains("u{202e}"), "{said}");
    }

    #[test]
    fn refusals_are_told_from_other_errors_and_say_what_to_look_at() {
        for (error, part) in [
            (Error::InvalidCertificate(CertificateError::Expired), "has expired"),
            (Error::InvalidCertificate(CertificateError::NotValidYet), "compare the clocks"),
            (Error::InvalidCertificate(CertificateError::Revoked), "is revoked"),
            (Error::InvalidCertificate(CertificateError::UnknownIssuer), "--ca"),
            (Error::InvalidCertificate(CertificateError::ExpiredRevocationList), "--crl has expired"),
            (Error::InvalidCertificate(CertificateError::UnknownRevocationStatus), "no list in --crl"),
            (Error::AlertReceived(AlertDescription::CertificateExpired), "not valid yet"),
            (Error::AlertReceived(AlertDescription::UnknownCA), "does not know"),
            (Error::NoCertificatesPresented, "no certificate"),
        ] {
            let words = words(&error).unwrap();
            assert!(words.contains(part), "{words}");
        }
        for error in [
            Error::AlertReceived(AlertDescription::InternalError),
            Error::AlertReceived(AlertDescription::NoApplicationProtocol),
            Error::DecryptError,
        ] {
            assert_eq!(words(&error), None);
        }
    }
}
