//! Writing a directory: leaves, the pages above them up to one root, and the trailer.

use std::io::{self, Write};

use narrows::{Error, Result};

use crate::columns::LeafWriter;
use crate::directory::{Child, put_child};

use crate::item::{Content, Item, LIST_INLINE_MAX, LIST_MAX, List};
use crate::trailer::{DEPTH_MAX, Trailer};

/// Raw bytes after which a page ends: some 1,500 entries. One page is read for one entry.
const PAGE_LEN: usize = 32 << 10;
/// Weight after which a page ends: only of long paths that share most of their bytes.
const PAGE_WEIGHT: usize = 1 << 20;

/// Writes the pages of a directory to `sink`.
pub(crate) struct Builder<W> {
    sink: W,
    /// Raw offset where the directory begins.
    begin: u64,
    at: u64,
    leaf: LeafWriter,
    /// First path in the current leaf.
    first: Vec<u8>,
    pages: Vec<Child>,
}

impl<W: Write> Builder<W> {
    /// The directory begins at this raw offset.
    pub(crate) fn new(sink: W, begin: u64) -> Self {
        Self { sink, begin, at: begin, leaf: LeafWriter::default(), first: Vec::new(), pages: Vec::new() }
    }

    /// Adds an item; they come in the order of their paths.
    pub(crate) fn push(&mut self, mut item: Item) -> Result<()> {
        if let Content::File { list: list @ List::Here(_), .. } = &mut item.content
            && let List::Here(bytes) = list
            && bytes.len() > LIST_INLINE_MAX
        {
            if bytes.len() > LIST_MAX {
                return Err(Error::limit("a file has too many extents"));
            }
            let bytes = std::mem::take(bytes);
            *list = List::There { at: self.at, len: bytes.len() };
            self.write(&bytes)?;
        }
        if self.leaf.is_empty() {
            self.first.clone_from(&item.entry.path);
        }
        self.leaf.put(&item, self.begin)?;
        if self.leaf.len() >= PAGE_LEN || self.leaf.weight >= PAGE_WEIGHT {
            self.end_leaf()?;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let at = self.at;
        self.sink.write_all(bytes)?;
        self.at += bytes.len() as u64;
        Ok(at)
    }

    fn end_leaf(&mut self) -> Result<()> {
        let leaf = std::mem::take(&mut self.leaf);
        let (first, bytes) = (std::mem::take(&mut self.first), leaf.finish());
        let len = bytes.len() as u64;
        let at = self.write(&bytes)?;
        self.pages.push(Child { first, at, len });
        Ok(())
    }

    /// Writes the rest and the trailer; returns the sink.
    pub(crate) fn finish(mut self, entries: u64, bytes: u64) -> Result<W> {
        if !self.leaf.is_empty() {
            self.end_leaf()?;
        }
        if self.pages.is_empty() {
            // An empty directory is one empty leaf.
            self.end_leaf()?;
        }
        let mut depth = 0;
        while self.pages.len() > 1 {
            depth += 1;
            let mut above: Vec<Child> = Vec::new();
            let mut below = std::mem::take(&mut self.pages).into_iter();
            while let Some(child) = below.next() {
                let first = child.first.clone();
                let mut page = Vec::new();
                let mut weight = child.weight();
                put_child(&child, b"", self.begin, &mut page);
                let mut before = child.first;
                while page.len() < PAGE_LEN
                    && weight < PAGE_WEIGHT
                    && let Some(child) = below.next()
                {
                    weight += child.weight();
                    put_child(&child, &before, self.begin, &mut page);
                    before = child.first;
                }
                let at = self.write(&page)?;
                above.push(Child { first, at, len: page.len() as u64 });
            }
            self.pages = above;
        }
        let root = self.pages.pop().ok_or_else(|| Error::misuse("a directory without a root; this is a bug"))?;
        if depth > DEPTH_MAX {
            return Err(Error::limit("the directory has too many levels"));
        }
        let mut trailer = Vec::new();
        let content_end = self.begin;
        Trailer { depth, content_end, root: root.at, root_len: root.len, entries, bytes }.put(&mut trailer);
        self.write(&trailer)?;
        Ok(self.sink)
    }
}
