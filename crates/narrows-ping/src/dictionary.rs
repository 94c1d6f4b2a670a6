//! Loads dictionaries from files.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use narrows::message::{DICTIONARY_MAX, DICTIONARY_MIN, Dictionary};

/// Loads a dictionary that `narrows train` or the zstd program wrote, or any other bytes that
/// messages have in common.
///
/// # Errors
/// The file cannot be read, is shorter than [`DICTIONARY_MIN`] or longer than [`DICTIONARY_MAX`], or
/// is a malformed zstd dictionary.
pub fn load(path: &Path) -> Result<Arc<Dictionary>> {
    let shown = path.display();
    let cannot = || format!("cannot read the dictionary {shown}");
    let mut content = Vec::new();
    // One byte beyond the limit shows that the file is longer.
    File::open(path)
        .with_context(cannot)?
        .take(DICTIONARY_MAX as u64 + 1)
        .read_to_end(&mut content)
        .with_context(cannot)?;
    match content.len() {
        ..DICTIONARY_MIN => bail!("{shown} is too short for a dictionary: it has less than {DICTIONARY_MIN} bytes"),
        DICTIONARY_MIN..=DICTIONARY_MAX => {}
        _ => bail!("{shown} is too long for a dictionary: make one of at most 64K, `narrows train --size 64K`"),
    }
    let dictionary = Dictionary::new(content);
    Ok(Arc::new(dictionary.with_context(|| format!("{shown} is a damaged dictionary: its tables are malformed"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_dictionary_is_said_in_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let try_with = |bytes: &[u8]| {
            let path = folder.path().join("dict");
            std::fs::write(&path, bytes).unwrap();
            load(&path).map(|d| d.content().len()).map_err(|e| format!("{e:#}"))
        };
        assert_eq!(try_with(&[7; DICTIONARY_MAX]), Ok(DICTIONARY_MAX));
        assert!(try_with(&[7; DICTIONARY_MAX + 1]).unwrap_err().contains("too long"));
        assert!(try_with(b"short").unwrap_err().contains("too short"));
        let damaged = [&[0x37, 0xa4, 0x30, 0xec], &[7; 100][..]].concat();
        assert!(try_with(&damaged).unwrap_err().contains("damaged"));
        assert!(load(&folder.path().join("none")).unwrap_err().to_string().contains("none"));
        // It has no end.
        assert!(load(Path::new("/dev/zero")).unwrap_err().to_string().contains("too long"));
    }
}
