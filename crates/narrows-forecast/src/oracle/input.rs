//! Reading the data of a file, a folder or stdin.

use std::fs::{self, File};
use std::io::{IsTerminal, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use narrows_host::files;

/// Maximum depth of folders, which protects the stack; deeper ones are a mistake or an attack.
const DEPTH_MAX: usize = 128;

/// The data to analyse.
pub struct Input {
    pub bytes: Vec<u8>,
    /// Whether there was more data than was read.
    pub is_cut: bool,
    /// Length of the file, if it is one.
    pub len: Option<u64>,
}

const ENDLESS: &str = "it is a device, whose data may have no end; give a file, a folder, or - for stdin";

/// Reads the first `max_len` bytes.
///
/// # Errors
/// It cannot be read, has no end, or has no data.
pub fn read(path: &Path, max_len: usize) -> Result<Input> {
    let (mut bytes, mut len) = (Vec::new(), None);
    if files::is_dash(path) {
        let stdin = files::stdin()?;
        let is_device = stdin.metadata().is_ok_and(|data| data.file_type().is_char_device()) && !stdin.is_terminal();
        take(stdin, max_len, &mut bytes).context("cannot read stdin")?;
        if is_device && bytes.len() > max_len {
            bail!("cannot read stdin: {ENDLESS}");
        }
    } else {
        let data = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
        let kind = data.file_type();
        if kind.is_char_device() || kind.is_block_device() {
            bail!("cannot read {}: {ENDLESS}", path.display());
        }
        if data.is_dir() {
            take_folder(path, 0, max_len, &mut bytes)?;
        } else {
            take_file(path, max_len, &mut bytes)?;
        }
        len = data.is_file().then_some(data.len());
    }
    if bytes.is_empty() {
        bail!("{} contains no data", if files::is_dash(path) { "stdin".into() } else { path.display().to_string() });
    }
    let is_cut = bytes.len() > max_len;
    bytes.truncate(max_len);
    Ok(Input { bytes, is_cut, len })
}

fn take_file(path: &Path, max_len: usize, bytes: &mut Vec<u8>) -> Result<()> {
    let cannot = || format!("cannot read {}", path.display());
    take(File::open(path).with_context(cannot)?, max_len, bytes).with_context(cannot)
}

/// Reads one byte more than wanted, to know whether there is more.
fn take(file: File, max_len: usize, bytes: &mut Vec<u8>) -> std::io::Result<()> {
    let room = (max_len + 1).saturating_sub(bytes.len());
    file.take(room as u64).read_to_end(bytes).map(|_| ())
}

/// Reads files in the order of their names, each folder at the position of its name, until there is
/// enough. Links and devices are skipped; a file that cannot be read is an error.
fn take_folder(folder: &Path, depth: usize, max_len: usize, bytes: &mut Vec<u8>) -> Result<()> {
    let cannot = || format!("cannot read {}", folder.display());
    if depth > DEPTH_MAX {
        bail!("{}: folders are nested more than {DEPTH_MAX} deep", folder.display());
    }
    let list = fs::read_dir(folder).with_context(cannot)?;
    let mut paths: Vec<PathBuf> = list.map(|e| Ok(e?.path())).collect::<std::io::Result<_>>().with_context(cannot)?;
    paths.sort();
    for path in paths {
        if bytes.len() > max_len {
            return Ok(());
        }
        let kind = fs::symlink_metadata(&path).with_context(|| format!("cannot read {}", path.display()))?;
        if kind.is_dir() {
            take_folder(&path, depth + 1, max_len, bytes)?;
        } else if kind.is_file() {
            take_file(&path, max_len, bytes)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_its_files_in_order_up_to_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("b")).unwrap();
        for (name, text) in [("c", "3"), ("a", "1"), ("b/x", "2")] {
            fs::write(at(name), text).unwrap();
        }
        std::os::unix::fs::symlink("/dev/zero", at("d")).unwrap();
        let whole = read(folder.path(), 3).unwrap();
        assert_eq!((whole.bytes.as_slice(), whole.is_cut), (&b"123"[..], false));
        let cut = read(folder.path(), 2).unwrap();
        assert_eq!((cut.bytes.as_slice(), cut.is_cut), (&b"12"[..], true));
        assert!(read(&at("none"), 9).is_err());
        // Deeper than anything may be, and after what is enough.
        let deep = (0..=DEPTH_MAX).fold(at("z"), |path, _| path.join("z"));
        fs::create_dir_all(deep).unwrap();
        assert!(read(folder.path(), 3).is_err());
        assert_eq!(read(folder.path(), 2).unwrap().bytes, b"12", "nothing is looked for that is not needed");
        for device in ["/dev/zero", "/dev/null"] {
            let Err(error) = read(Path::new(device), 9) else { panic!("{device}") };
            assert!(error.to_string().contains("it is a device"), "{error}");
        }
        fs::write(at("empty"), "").unwrap();
        assert!(read(&at("empty"), 9).is_err());
    }
}
