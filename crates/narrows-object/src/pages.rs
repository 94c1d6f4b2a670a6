//! Limits on lists: a store that never ends one must not use up time and memory.

use std::cell::RefCell;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::object::Object;

/// Pages without a key that may follow one another. Stores send them where objects were deleted; each
/// stands for some 1,000 of them.
const EMPTY_MAX: u32 = 1000;
/// Pages of a list: 50 objects in each make as many as [`MEMORY_MAX`] has room for.
const PAGES_MAX: usize = 100_000;
/// Memory for the objects of a list: some 5 million with keys of 100 bytes.
const MEMORY_MAX: u64 = 1 << 30;

tokio::task_local! {
    /// The list that a task reads.
    pub(crate) static PAGES: RefCell<Pages>;
}

/// The pages of a list so far.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// Hashes of the tokens that lead to pages.
    tokens: HashSet<u64>,
    empty: u32,
}

impl Pages {
    /// Takes note of a page.
    ///
    /// # Errors
    /// Why the list is given up.
    pub(crate) fn note(&mut self, answer: &str) -> Result<(), String> {
        let has_keys = ["<Contents>", "<Blob>"].iter().any(|element| answer.contains(element));
        let token = ["NextContinuationToken", "NextMarker"].iter().find_map(|name| {
            let (_, rest) = answer.split_once(&format!("<{name}>"))?;
            rest.split_once(&format!("</{name}>")).map(|(token, _)| token).filter(|token| !token.is_empty())
        });
        let Some(token) = token else { return Ok(()) };
        let mut hasher = DefaultHasher::new();
        token.hash(&mut hasher);
        if !self.tokens.insert(hasher.finish()) {
            return Err("the list of the store never ends: it repeats a page".into());
        }
        if self.tokens.len() > PAGES_MAX {
            return Err(format!("the list of the store has more than {PAGES_MAX} pages; take a longer prefix"));
        }
        self.empty = if has_keys { 0 } else { self.empty + 1 };
        if self.empty > EMPTY_MAX {
            return Err(format!("the list of the store never ends: more than {EMPTY_MAX} pages in a row are empty"));
        }
        Ok(())
    }
}

/// The objects of a list.
#[derive(Default)]
pub(crate) struct Listed {
    pub(crate) objects: Vec<Object>,
    memory: u64,
}

impl Listed {
    /// Adds one; false if there are too many.
    pub(crate) fn add(&mut self, object: Object) -> bool {
        let version = &object.version;
        let texts = [Some(&object.key), version.etag.as_ref(), version.number.as_ref()];
        let len: usize = texts.into_iter().flatten().map(String::capacity).sum();
        self.memory += (len + size_of::<Object>()) as u64;
        self.objects.push(object);
        self.memory <= MEMORY_MAX
    }

    /// What is said of too many.
    pub(crate) fn too_many(&self) -> String {
        format!(
            "there are more than {} objects, which need more than {} MiB of memory; take a part of them at a time, \
             by a longer prefix",
            self.objects.len() - 1,
            MEMORY_MAX >> 20
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(content: &str, token: &str) -> String {
        format!("<R>{content}<NextContinuationToken>{token}</NextContinuationToken></R>")
    }

    #[test]
    fn a_list_that_goes_round_ends() {
        let mut pages = Pages::default();
        for token in ["a", "b", "c"] {
            pages.note(&page("<Contents>", token)).unwrap();
        }
        assert!(pages.note(&page("<Contents>", "b")).unwrap_err().contains("repeats"));
        assert!(pages.note("<R><NextMarker>b</NextMarker></R>").is_err(), "that of Azure");
        pages.note("<R><NextMarker></NextMarker></R>").unwrap();
        pages.note("<R><NextMarker /></R>").unwrap();
    }

    #[test]
    fn empty_pages_end() {
        let mut pages = Pages::default();
        let mut noted = (0..).map(|i| pages.note(&page("", &i.to_string())));
        assert_eq!(noted.position(|noted| noted.is_err()), Some(EMPTY_MAX as usize));
        let mut pages = Pages::default();
        for i in 0..3 * EMPTY_MAX {
            pages.note(&page(if i % 500 == 0 { "<Blob>" } else { "" }, &i.to_string())).unwrap();
        }
    }
}
