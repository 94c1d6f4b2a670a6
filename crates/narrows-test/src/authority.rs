//! Authorities of certificates, made by openssl, for tests that asked for it by `has`.

use std::path::Path;
use std::process::Command;

/// An authority in a folder.
pub struct Authority<'a> {
    dir: &'a Path,
    name: &'a str,
}

/// Runs openssl in a folder.
///
/// # Panics
/// If it fails, as all here do.
pub fn openssl(dir: &Path, words: &str) {
    let output = Command::new("openssl").current_dir(dir).args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
}

const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";

impl<'a> Authority<'a> {
    /// A new one: `NAME.pem` and `NAME.key` in `dir`.
    pub fn new(dir: &'a Path, name: &'a str) -> Self {
        openssl(dir, &format!("req -x509 {KEY} -keyout {name}.key -out {name}.pem -days 30 -subj /CN={name}"));
        std::fs::write(dir.join(format!("{name}.index")), "").unwrap();
        std::fs::write(dir.join(format!("{name}.index.attr")), "unique_subject = no\n").unwrap();
        for counter in ["number", "serial"] {
            std::fs::write(dir.join(format!("{name}.{counter}")), "1000\n").unwrap();
        }
        let config = format!(
            "[ca]\ndefault_ca = own\n[own]\ndatabase = {name}.index\nnew_certs_dir = .\ncertificate = {name}.pem\n\
             private_key = {name}.key\nserial = {name}.serial\ncrlnumber = {name}.number\ndefault_md = sha256\ndefault_days = 30\n\
             policy = any\nunique_subject = no\n[any]\ncommonName = supplied\n"
        );
        std::fs::write(dir.join(format!("{name}.cnf")), config).unwrap();
        Self { dir, name }
    }

    /// A certificate `FILE.pem`, and its `FILE.key`, with these alternative names, for so many days from
    /// now.
    pub fn sign(&self, file: &str, names: &str, days: u32) {
        self.sign_with(file, names, &format!("-days {days}"));
    }

    /// One for the time between two moments, as `YYYYMMDDHHMMSSZ`.
    pub fn sign_between(&self, file: &str, names: &str, [begin, end]: [&str; 2]) {
        self.sign_with(file, names, &format!("-startdate {begin} -enddate {end}"));
    }

    fn sign_with(&self, file: &str, names: &str, time: &str) {
        let ca = self.name;
        openssl(self.dir, &format!("req {KEY} -keyout {file}.key -out {file}.csr -subj /CN=anything"));
        std::fs::write(self.dir.join("extensions"), format!("subjectAltName={names}\n")).unwrap();
        openssl(
            self.dir,
            &format!("ca -batch -notext -config {ca}.cnf -in {file}.csr -out {file}.pem -extfile extensions {time}"),
        );
    }

    /// A list of revoked certificates, which is new for so many days.
    pub fn list(&self, file: &str, revoked: &[&str], days: i32) {
        let ca = self.name;
        let index = self.dir.join(format!("{ca}.index"));
        let before = std::fs::read(&index).unwrap();
        for name in revoked {
            openssl(self.dir, &format!("ca -batch -config {ca}.cnf -revoke {name}.pem"));
        }
        let time = if days > 0 {
            format!("-crldays {days}")
        } else {
            "-crl_lastupdate 20200101000000Z -crl_nextupdate 20210101000000Z".to_owned()
        };
        openssl(self.dir, &format!("ca -batch -config {ca}.cnf -gencrl -out {file} {time}"));
        // The next list begins again.
        std::fs::write(index, before).unwrap();
    }
}
