//! How many names the files of a pack have.

use std::collections::HashMap;

use narrows::entry::EntryKind;
use narrows_file::ReadAt;

use crate::pack::Pack;

/// Most files of which the names are counted: 32 MiB of memory.
const FILES_MAX: usize = 1 << 20;

/// Numbers of names, by the numbers of files that have several.
pub(super) struct Names(HashMap<u64, u32>);

impl Names {
    /// Reads the whole directory, once, as far as it can be read.
    pub(super) fn of<R: ReadAt>(pack: &Pack<R>) -> Self {
        let mut names = HashMap::new();
        for item in pack.walk(b"").map_while(Result::ok) {
            let EntryKind::HardLink { of } = item.entry.kind else { continue };
            if names.len() < FILES_MAX || names.contains_key(&of) {
                *names.entry(of).or_insert(1) += 1;
            }
        }
        Self(names)
    }

    /// Of one file: 1 if it is not known that it has others.
    pub(super) fn count(&self, id: u64) -> u32 {
        self.0.get(&id).copied().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::packed;

    #[test]
    fn names_of_links_are_counted() {
        let home = tempfile::tempdir().unwrap();
        let top = home.path().join("top");
        std::fs::create_dir(&top).unwrap();
        for name in ["a", "b"] {
            std::fs::write(top.join(name), name).unwrap();
        }
        std::fs::hard_link(top.join("a"), top.join("c")).unwrap();
        std::fs::hard_link(top.join("a"), top.join("d")).unwrap();
        let bytes = packed(&top);
        let pack = Pack::open(&bytes[..]).unwrap();
        let names = Names::of(&pack);
        let count = |path: &str| names.count(pack.find(path.as_bytes()).unwrap().unwrap().id);
        assert_eq!((count("top/a"), count("top/b")), (3, 1));
    }
}
