//! A disk of a given rate: a loop device with a file system, throttled by the kernel.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

/// Room for the longest load, stored plain, and the file system itself.
const LEN: u64 = 256 << 20;
/// Limit on written bytes of a device, of all processes (cgroup version 1).
const THROTTLE: &str = "/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device";

pub(super) struct Disk {
    folder: PathBuf,
    device: String,
    /// Major and minor number of the device.
    number: String,
    narrows: PathBuf,
}

impl Disk {
    /// Makes the disk in a file below `folder`. Everything is removed on drop.
    pub(super) fn start(folder: &Path, mb_per_s: u32) -> Result<Self> {
        ensure!(Path::new(THROTTLE).exists(), "this kernel cannot throttle a disk by cgroup version 1");
        let narrows = std::env::current_exe()?.with_file_name("narrows");
        ensure!(narrows.is_file(), "{} is missing; build all with cargo build --release", narrows.display());
        let image = folder.join("disk");
        fs::File::create(&image)?.set_len(LEN)?;
        let folder = folder.join("mounted");
        fs::create_dir_all(&folder)?;
        let device = said("losetup", &["-f", "--show", &image.to_string_lossy()])?;
        let number = fs::metadata(&device)?.rdev();
        let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
        let disk = Self { folder, device, number, narrows };
        said("mkfs.ext4", &["-q", "-F", &disk.device])?;
        said("mount", &[&disk.device, &disk.folder.to_string_lossy()])?;
        disk.throttle(u64::from(mb_per_s) * 1_000_000)?;
        Ok(disk)
    }

    /// Seconds that `pipe` takes to store a file, past the cache of the kernel. What is stored is
    /// then unpacked and compared.
    pub(super) fn store(&self, file: &Path, policy: &str, scratch: &Path) -> Result<f64> {
        let out = self.folder.join("out.nrw");
        let line = "set -o pipefail; \"$NARROWS\" pipe -q --policy \"$POLICY\" <\"$FILE\" | \
                    dd of=\"$OUT\" bs=64K iflag=fullblock oflag=direct status=none";
        let mut command = Command::new("bash");
        command.args(["-c", line]).env("NARROWS", &self.narrows).env("POLICY", policy);
        command.env("FILE", file).env("OUT", &out).env("XDG_CACHE_HOME", scratch).stdin(Stdio::null());
        let begun = Instant::now();
        ensure!(command.status().context("cannot run bash")?.success(), "pipe onto the disk failed");
        let seconds = begun.elapsed().as_secs_f64();
        let same = Command::new("bash")
            .args(["-c", "\"$NARROWS\" pipe -d -q <\"$OUT\" | cmp -s - \"$FILE\""])
            .env("NARROWS", &self.narrows)
            .env("FILE", file)
            .env("OUT", &out)
            .status()?;
        ensure!(same.success(), "something else was stored by {policy}");
        fs::remove_file(&out)?;
        Ok(seconds)
    }

    fn throttle(&self, bytes_per_s: u64) -> Result<()> {
        fs::write(THROTTLE, format!("{} {bytes_per_s}\n", self.number))
            .context("cannot throttle the disk; it needs root")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.throttle(0);
        let _ = said("umount", &[&self.folder.to_string_lossy()]);
        let _ = said("losetup", &["-d", &self.device]);
    }
}

fn said(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} failed: {}", error.trim().replace('\n', " "));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
