//! Records from which commit and for which target the program is built, for `narrows --version`. Nothing
//! else of where and when it is built goes into it.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=NARROWS_COMMIT");
    let folder = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let commit = commit(Path::new(&folder)).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=NARROWS_COMMIT={commit}");
    println!("cargo:rustc-env=NARROWS_TARGET={}", env::var("TARGET").unwrap_or_default());
}

/// In order: what the builder says, what `cargo package` and `git archive` have written into the sources,
/// and git.
fn commit(folder: &Path) -> Option<String> {
    let told = env::var("NARROWS_COMMIT").ok();
    told.as_deref().and_then(id).or_else(|| packaged(folder)).or_else(|| archived(folder)).or_else(|| current(folder))
}

/// A commit is 40 or, with SHA-256, 64 hexadecimal digits.
fn id(text: &str) -> Option<String> {
    let text = text.trim();
    let is_id = matches!(text.len(), 40 | 64) && text.bytes().all(|b| b.is_ascii_hexdigit());
    is_id.then(|| text.to_owned())
}

fn packaged(folder: &Path) -> Option<String> {
    let text = fs::read_to_string(folder.join(".cargo_vcs_info.json")).ok()?;
    text.split('"').find_map(id)
}

/// `git archive` replaces the placeholder in this file.
fn archived(folder: &Path) -> Option<String> {
    const NAME: &str = "commit.txt";
    println!("cargo:rerun-if-changed={NAME}");
    id(&fs::read_to_string(folder.join(NAME)).ok()?)
}

/// Of builds for others only: else every commit would compile the program again.
fn current(folder: &Path) -> Option<String> {
    // A copy of this crate in another repository must not take its commit.
    let root = folder.parent()?.parent()?;
    if env::var("PROFILE").ok()? != "release" || !root.join(".git").exists() {
        return None;
    }
    // The branch moves with each commit, HEAD with each checkout.
    let branch = git(root, &["symbolic-ref", "-q", "HEAD"]);
    for name in ["HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
        let path = git(root, &["rev-parse", "--git-path", name])?;
        let path = root.join(path);
        // A file that is not there would be looked for by every build.
        if path.exists() {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    id(&git(root, &["rev-parse", "HEAD"])?)
}

fn git(root: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    Some(text.trim().to_owned())
}
