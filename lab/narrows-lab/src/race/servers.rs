//! The race's own servers for the tools that need one: OpenSSH, and `narrows serve` with TLS.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::net::{End, Net};
use super::tools;

/// A `narrows serve --listen` at the receiver, for the whole file system.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    pub(crate) token: PathBuf,
}

impl Server {
    pub(crate) fn start(net: &Net, folder: &Path, narrows: &str) -> Result<Self> {
        let token = folder.join("token");
        let mut command = net.command(End::Receiver, narrows);
        command.args(["serve", "--json", "--listen", &format!("{}:0", net.address()), "--dir", "/", "--key-file"]);
        let mut child = command
            .arg(folder.join("key"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run narrows serve")?;
        let mut said = [0; 4096];
        let n = child.stdout.as_mut().context("a pipe")?.read(&mut said)?;
        let mut server = Self { child, port: 0, token };
        let said: Value = serde_json::from_slice(&said[..n]).context("narrows serve does not start")?;
        let text = |name: &str| said[name].as_str().context("narrows serve printed something unexpected");
        server.port = text("listening")?.rsplit(':').next().unwrap_or_default().parse()?;
        fs::write(&server.token, text("token")?)?;
        fs::set_permissions(&server.token, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An OpenSSH server at the receiver, started for this run.
pub(crate) struct Sshd {
    child: Child,
    pub(crate) port: u16,
    key: PathBuf,
}

impl Sshd {
    pub(crate) fn start(net: &Net, folder: &Path) -> Result<Self> {
        for key in ["host", "user"].into_iter().filter(|k| !folder.join(k).exists()) {
            let mut make = Command::new("ssh-keygen");
            make.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.join(key));
            ensure!(make.status().context("cannot run ssh-keygen")?.success(), "ssh-keygen failed");
        }
        // sshd's directory for privilege separation, which it uses only as root.
        let _ = fs::create_dir("/run/sshd");
        let port = net.free_port()?;
        let sshd = tools::find("sshd").context("sshd is missing; install an OpenSSH server")?;
        let mut command = net.command(End::Receiver, &sshd.to_string_lossy());
        command.args(["-D", "-e", "-f", "/dev/null", "-o", "Subsystem=sftp internal-sftp"]);
        command.args(["-o", &format!("Port={port}"), "-o", &format!("ListenAddress={}", net.address())]);
        command.args(["-o", &format!("HostKey={}", folder.join("host").display())]);
        command.args(["-o", &format!("AuthorizedKeysFile={}", folder.join("user.pub").display())]);
        command.args(["-o", "StrictModes=no", "-o", "PidFile=none", "-o", "UseDNS=no"]);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run sshd; install an OpenSSH server")?;
        let mut log = child.stderr.take().context("a pipe")?;
        let mut said = [0; 4096];
        let n = log.read(&mut said)?;
        let server = Self { child, port, key: folder.join("user") };
        let said = String::from_utf8_lossy(&said[..n]).into_owned();
        if !said.contains("listening") {
            bail!("sshd does not start, it may need root: {}", said.trim().replace(['\r', '\n'], " "));
        }
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Ok(server)
    }

    pub(crate) fn options(&self, port: u16, flag: &str) -> String {
        format!(
            "{flag} {port} -i {} -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
            self.key.display()
        )
    }

    pub(crate) fn ssh(&self, port: u16) -> String {
        format!("ssh -F none {}", self.options(port, "-p"))
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
