//! Files of released versions read for ever. `UPDATE_FILES=1` writes those of this version that are
//! not there yet; files are only ever added.

mod common;

use std::path::Path;

use common::{alone, linked, read_all, sample, stored};
use narrows_file::File;
use narrows_file::check::check;

#[test]
fn stored_files_of_this_version_read_as_they_did() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files");
    let raw = sample(150_000, 42);
    for (name, options) in [("v1-linked.nrw", linked()), ("v1-alone.nrw", alone())] {
        let path = folder.join(name);
        if std::env::var_os("UPDATE_FILES").is_some() && !path.exists() {
            std::fs::write(&path, stored(&raw, options)).unwrap();
        }
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
        let file = File::open(&bytes[..]).unwrap();
        assert!(read_all(&file).unwrap() == raw, "{name}");
        assert!(check(&file, 1, true).unwrap().is_good());
        assert_eq!(file.members()[0].sums.1.len(), 1, "{name} has sums");
    }
}
