//! A real ssh server.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A private OpenSSH server on a free port of the loopback device.
pub(crate) struct Sshd {
    child: Child,
    port: u16,
    key: PathBuf,
}

impl Sshd {
    /// Returns `None` if sshd is not installed or cannot be started; the test is then recorded as
    /// skipped.
    #[track_caller]
    pub(crate) fn start(folder: &Path) -> Option<Self> {
        let Some(sshd) = ["/usr/sbin/sshd", "/usr/bin/sshd"].into_iter().find(|p| Path::new(p).exists()) else {
            narrows_test::lacks("sshd");
            return None;
        };
        if !narrows_test::has("ssh-keygen") || !narrows_test::has("ssh") {
            return None;
        }
        let started = Self::listening(sshd, folder);
        if started.is_none() {
            narrows_test::skip("no OpenSSH server can be started here");
        }
        started
    }

    fn listening(sshd: &str, folder: &Path) -> Option<Self> {
        for key in ["host", "user"] {
            let mut make = Command::new("ssh-keygen");
            make.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.join(key));
            assert!(make.status().ok()?.success());
        }
        // sshd needs this folder when it runs as root; normally its start script makes it.
        let _ = fs::create_dir("/run/sshd");
        let port = super::free_port();
        let option = |text: String| ["-o".to_owned(), text];
        let mut child = Command::new(sshd)
            .args(["-D", "-e", "-f", "/dev/null"])
            .args(option(format!("Port={port}")))
            .args(option("ListenAddress=127.0.0.1".into()))
            .args(option(format!("HostKey={}", folder.join("host").display())))
            .args(option(format!("AuthorizedKeysFile={}", folder.join("user.pub").display())))
            .args(option("StrictModes=no".into()))
            .args(option("PidFile=none".into()))
            .args(option("PasswordAuthentication=no".into()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        let mut log = child.stderr.take()?;
        let mut seen = [0; 4096];
        let n = log.read(&mut seen).ok()?;
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        let listening = String::from_utf8_lossy(&seen[..n]).contains("listening");
        let own = Self { child, port, key: folder.join("user") };
        listening.then_some(own)
    }

    pub(crate) fn shell(&self) -> String {
        format!(
            "ssh -F /dev/null -p {} -i {} -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
             -o LogLevel=ERROR -o IdentitiesOnly=yes",
            self.port,
            self.key.display()
        )
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
