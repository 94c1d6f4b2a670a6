//! Packs of released versions read for ever. `UPDATE_FILES=1` writes those of this version that are
//! not there yet; files are only ever added.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use narrows::entry::EntryKind;
use narrows_copy::filter::Filter;
use narrows_copy::scan::Root;
use narrows_file::Mode;
use narrows_pack::{Content, Input, Pack, PackOptions, pack};

/// Content that compresses, but not to nothing.
fn text(len: usize) -> Vec<u8> {
    let words = ["wind ", "and ", "rain ", "over ", "the ", "sea\n"];
    (0..).flat_map(|i: usize| words[(i * i / 7 + i / 3) % 6].bytes()).take(len).collect()
}

fn files() -> [(&'static str, Vec<u8>); 4] {
    [
        ("tree/a/first.txt", text(40_000)),
        ("tree/a/second.txt", [&text(40_000)[..], b"and more"].concat()),
        ("tree/b/empty", Vec::new()),
        ("tree/b/note", b"a note".to_vec()),
    ]
}

#[test]
fn stored_packs_of_this_version_read_as_they_did() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files");
    for (name, mode) in [
        ("v1-balanced.nrw", Mode::Balanced),
        ("v1-archive.nrw", Mode::Archive),
        ("v2-balanced.nrw", Mode::Balanced),
        ("v2-archive.nrw", Mode::Archive),
    ] {
        let path = folder.join(name);
        if std::env::var_os("UPDATE_FILES").is_some() && !path.exists() {
            let home = tempfile::tempdir().unwrap();
            for (path, content) in files() {
                let path = home.path().join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, content).unwrap();
            }
            std::os::unix::fs::symlink("a/first.txt", home.path().join("tree/link")).unwrap();
            std::fs::hard_link(home.path().join("tree/b/note"), home.path().join("tree/b/same")).unwrap();
            let roots = vec![Root::open(&home.path().join("tree"), true).unwrap()];
            let input = Input { roots, unopened: Vec::new(), filter: Filter::new(&[]).unwrap() };
            let options = PackOptions::default().mode(mode);
            let (bytes, _) = pack(input, Vec::new(), &options, &Arc::default(), &|t| panic!("{t}"), &|_| ()).unwrap();
            std::fs::write(&path, bytes).unwrap();
        }
        let pack = Pack::open(std::fs::File::open(&path).unwrap_or_else(|e| panic!("{name}: {e}"))).unwrap();
        let all: Vec<_> = pack.walk(b"").map(Result::unwrap).collect();
        let paths: Vec<_> = all.iter().map(|item| std::str::from_utf8(&item.entry.path).unwrap()).collect();
        let expected = ["tree", "tree/a", "tree/a/first.txt", "tree/a/second.txt", "tree/b", "tree/b/empty"];
        assert_eq!(paths, [&expected[..], &["tree/b/note", "tree/b/same", "tree/link"]].concat());
        for (path, content) in files() {
            let item = pack.find(path.as_bytes()).unwrap().unwrap();
            let mut read = Vec::new();
            pack.member(&item).unwrap().reader().read_to_end(&mut read).unwrap();
            assert!(read == content, "{name}: {path}");
        }
        assert_eq!(all[7].content, Content::Of(b"tree/b/note".to_vec()));
        assert_eq!(all[8].entry.kind, EntryKind::Symlink { target: b"a/first.txt".to_vec() });
        assert!(pack.trailer().content_end < 60_000, "the repeat is stored once");
    }
}
