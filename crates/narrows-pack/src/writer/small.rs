//! Small files, whose contents are written together under one hash (format.md section 8.4).

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use fastcdc::v2020::FastCDC;
use narrows::Result;
use narrows::entry::{EntryKind, GROUP_FILES_MAX, GROUP_LEN_MAX};
use narrows_copy::holes::has_hole;
use narrows_host::file_state::{Change, FileState};
use narrows_host::words::shown_name;
use rustix::fs::Stat;

use super::Packer;
use crate::item::{Content, Extent, List, put_extents};
use crate::repeats::{CHUNK_LENS, Place, REPEAT_MIN, hash, read_at};

/// Longest file whose content is in a group, in bytes. The hash of a longer one is less than a hundredth of what
/// compressed text of it takes.
pub(super) const SMALL_MAX: usize = 32 << 10;
/// Bytes of contents after which a group ends: what is read and hashed for one of its files, in some 0.1 ms.
const GROUP_LEN: usize = 128 << 10;
const _: () = assert!(GROUP_LEN + SMALL_MAX <= GROUP_LEN_MAX);

/// Small files whose contents are written together.
#[derive(Default)]
pub(super) struct Group {
    /// Numbers and lengths.
    files: Vec<(u64, usize)>,
    contents: Vec<u8>,
    /// Chunks by which later files repeat them: hash, number, offset in the file, place in `contents`.
    chunks: Vec<(u128, u64, usize, usize)>,
}

impl<W: Write + Send + 'static> Packer<'_, W> {
    /// Adds a small file to the group; false if it must come alone: it has holes or repeats others, it changes,
    /// or it cannot be read.
    pub(super) fn small(&mut self, i: usize, fd: &OwnedFd, stat: &Stat) -> Result<bool> {
        let entry = &self.items[i].item.entry;
        let EntryKind::File { len, .. } = entry.kind else { return Ok(false) };
        let (len, mtime, path) = (len as usize, (entry.mtime_s, entry.mtime_ns), entry.path.clone());
        if (stat.st_blocks as u64).saturating_mul(512) < len as u64 && has_hole(fd, len as u64) {
            return Ok(false);
        }
        let Ok(state) = FileState::from(stat).settled(|| FileState::of(fd)) else { return Ok(false) };
        // A byte more: files such as those of /proc are longer than they say.
        let mut content = vec![0; len + 1];
        let whole = read_at(fd, &mut content, 0).is_ok_and(|n| n == len);
        let is_same = |now: FileState| state.change(&now) == Change::Nothing && now.mtime == mtime;
        if !whole || !FileState::of(fd).is_ok_and(is_same) {
            return Ok(false);
        }
        content.truncate(len);
        let mut chunks = Vec::new();
        if self.options.repeats && len >= REPEAT_MIN {
            for chunk in FastCDC::new(&content, CHUNK_LENS.0, CHUNK_LENS.1, CHUNK_LENS.2) {
                let bytes = &content[chunk.offset..chunk.offset + chunk.length];
                let Some(key) = hash(bytes) else { continue };
                if let Some(place) = self.index.find(key)
                    && self.other_has(place, bytes)
                {
                    return Ok(false);
                }
                chunks.push((key, chunk.offset));
            }
        }
        let begin = self.group.contents.len();
        self.group.chunks.extend(chunks.into_iter().map(|(key, at)| (key, i as u64, at, begin + at)));
        self.group.files.push((i as u64, len));
        self.group.contents.append(&mut content);
        self.items[i].whole = true;
        self.packed.files += 1;
        self.packed.bytes += len as u64;
        self.progress.bytes_done.fetch_add(len as u64, Ordering::Relaxed);
        self.progress.files_done.fetch_add(1, Ordering::Relaxed);
        (self.on_file)(&shown_name(&path));
        if self.group.contents.len() >= GROUP_LEN || self.group.files.len() == GROUP_FILES_MAX {
            self.end_group()?;
        }
        Ok(true)
    }

    /// Writes the small files that wait.
    pub(super) fn end_group(&mut self) -> Result<()> {
        let Group { files, contents, chunks } = std::mem::take(&mut self.group);
        if files.is_empty() {
            return Ok(());
        }
        let mut record = Vec::with_capacity(contents.len() + (64 << 10));
        let end_at = self.out.at;
        let begin = end_at + self.records.group(&files, &contents, &mut record) as u64;
        self.out.put(&record)?;
        for (key, id, offset, at) in chunks {
            self.index.put(key, Place { id, offset: offset as u64, raw: begin + at as u64 });
        }
        let mut raw = begin;
        for (id, len) in files {
            let mut list = Vec::new();
            let extent = [Extent { raw: Some(raw), len: len as u64 }];
            put_extents(if len == 0 { &[] } else { &extent }, end_at, &mut list);
            self.items[id as usize].item.content = Content::File { end_at, list: List::Here(list) };
            raw += len as u64;
        }
        Ok(())
    }
}
