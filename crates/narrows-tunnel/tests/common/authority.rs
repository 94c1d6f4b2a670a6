//! The files of ends that have certificates of an authority.

use std::path::Path;

use narrows_trust::certificates::Files;

pub(crate) fn files(dir: &Path, own: &str, ca: &str, names: &[&str]) -> Files {
    Files {
        crl: None,
        cert: dir.join(format!("{own}.pem")),
        key: dir.join(format!("{own}.key")),
        ca: dir.join(format!("{ca}.pem")),
        names: names.iter().map(|n| (*n).to_owned()).collect(),
    }
}
