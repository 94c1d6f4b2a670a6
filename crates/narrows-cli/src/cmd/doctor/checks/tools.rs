//! Devices, programs and files beside this one that single commands need.

use std::env;
use std::fs::{self, File};
use std::path::Path;

use super::{Check, which};
use crate::cmd::hdf5;

/// The bit of CAP_SYS_ADMIN, with which a process mounts by itself.
const SYS_ADMIN: u32 = 21;

pub(super) fn mount() -> Check {
    const NAME: &str = "mount";
    const DEVICE: &str = "/dev/fuse";
    if !Path::new(DEVICE).exists() {
        return Check::missing(NAME, format!("no {DEVICE}"), "load the module fuse; give containers the device");
    }
    if let Err(e) = File::options().read(true).write(true).open(DEVICE) {
        let e = narrows_host::words::without_os_numbers(&e.to_string());
        return Check::missing(NAME, format!("{DEVICE}: {e}"), "give this user or container the device");
    }
    let helper = which("fusermount3").or_else(|| which("fusermount"));
    match (helper, may_mount()) {
        (Some(helper), _) => Check::ok(NAME, format!("{DEVICE}, {}", helper.display())),
        (None, true) => Check::ok(NAME, DEVICE),
        (None, false) => Check::missing(NAME, "no fusermount3", "install it (package fuse3)"),
    }
}

fn may_mount() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let rights = rights.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    rights.is_some_and(|rights| rights >> SYS_ADMIN & 1 == 1)
}

pub(super) fn ssh() -> Check {
    let advice = "install it (package openssh-client), or name another with cp -e; narrows:// needs none";
    of_program("ssh", advice)
}

pub(super) fn tar() -> Check {
    of_program("tar", "install it; cp needs it for hosts that have no narrows")
}

fn of_program(name: &'static str, advice: &str) -> Check {
    match which(name) {
        Some(path) => Check::ok(name, path.display().to_string()),
        None => Check::missing(name, "not in PATH", advice),
    }
}

/// The HDF5 filter, and whether programs find it.
pub(super) fn hdf5() -> Check {
    const NAME: &str = "hdf5";
    let folder = match hdf5::folder() {
        Ok(folder) => folder,
        Err(e) => return Check::missing(NAME, "no filter", e.to_string()),
    };
    let shown = folder.display().to_string();
    let named = env::var_os("HDF5_PLUGIN_PATH").unwrap_or_default();
    let is_named = env::split_paths(&named).any(|path| path.canonicalize().is_ok_and(|path| path == folder));
    if is_named {
        return Check::ok(NAME, shown);
    }
    let advice = "export HDF5_PLUGIN_PATH=$(narrows hdf5 --path) lets HDF5 programs find it";
    Check::limited(NAME, format!("{shown}, not in HDF5_PLUGIN_PATH"), advice)
}
