//! The set of removals that a user has seen and agreed to, by its names.

use narrows::entry::TEXT_LEN_MAX;

/// Most names that are agreed to at once, of 16 bytes each: nobody looks at more, and neither end keeps more
/// than 64 MiB for them.
pub const CONFIRMED_MAX: usize = 4 << 20;

/// Hash of a set of names, whatever their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confirmed(pub(super) [u8; 32]);

/// A set of names as the user reads them, which is what was agreed to.
#[derive(Debug, Clone, Default)]
pub struct NameSet {
    hashes: Vec<[u8; 16]>,
    is_sorted: bool,
}

impl NameSet {
    /// Adds a name; false if there are [`CONFIRMED_MAX`] already.
    pub fn add(&mut self, name: &str) -> bool {
        if self.hashes.len() == CONFIRMED_MAX {
            return false;
        }
        self.hashes.push(hash(name));
        self.is_sorted = false;
        true
    }

    /// The hash of all that were added.
    pub fn confirmed(&mut self) -> Confirmed {
        self.sort();
        Confirmed(blake3::hash(self.hashes.as_flattened()).into())
    }

    /// Whether the name was added.
    pub fn has(&mut self, name: &str) -> bool {
        self.sort();
        self.hashes.binary_search(&hash(name)).is_ok()
    }

    fn sort(&mut self) {
        if !self.is_sorted {
            self.hashes.sort_unstable();
            self.hashes.dedup();
            self.is_sorted = true;
        }
    }
}

/// An answer has as much of a name, so the other end knows no more of it.
fn hash(name: &str) -> [u8; 16] {
    let end = (0..=name.len().min(TEXT_LEN_MAX)).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    let mut short = [0; 16];
    short.copy_from_slice(&blake3::hash(&name.as_bytes()[..end]).as_bytes()[..16]);
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_names_are_the_same_set_in_any_order_and_no_others_are() {
        let set = |names: &[&str]| {
            let mut set = NameSet::default();
            names.iter().for_each(|name| assert!(set.add(name)));
            set
        };
        let mut both = set(&["b", "a/"]);
        assert_eq!(both.confirmed(), set(&["a/", "b"]).confirmed());
        for other in [&["b"][..], &["a", "b"], &["a/", "b", "c"], &[]] {
            assert_ne!(both.confirmed(), set(other).confirmed(), "{other:?}");
        }
        assert!(both.has("b") && both.has("a/") && !both.has("a") && both.add("a") && both.has("a"));
        // An answer is cut between characters.
        let long = "ä".repeat(TEXT_LEN_MAX);
        assert_eq!(set(&[&long]).confirmed(), set(&[&long[..TEXT_LEN_MAX]]).confirmed());
        let long = format!("x{long}");
        assert_eq!(set(&[&long]).confirmed(), set(&[&long[..TEXT_LEN_MAX - 1]]).confirmed());
    }
}
