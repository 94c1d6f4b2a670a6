//! `narrows check` of packs: the directory, and the damaged members.

use std::ops::Range;

use narrows::{ErrorKind, Result};
use narrows_file::check::Report;
use narrows_file::{File, OpenOptions, ReadAt};
use narrows_host::words::shown;
use narrows_pack::{AHEAD, Checked, Pack, check_members, members_in, read_trailer};
use serde_json::{Value, json};

/// Most damaged members that are named: 1 MiB of text.
const NAMED_MAX: usize = 1 << 13;

/// What was found of a pack.
pub(super) struct Found {
    checked: Checked,
    /// Damaged members, and why they are.
    damaged: Vec<(String, String)>,
    /// What is wrong with the directory.
    fault: Option<String>,
}

/// Reads the directory of a pack; `None` if it is none. With `sums`, every member is compared with its
/// digest, else those are damaged that have bytes in damaged blocks.
pub(super) fn check<R: ReadAt>(file: &File<R>, report: &Report, sums: bool, threads: usize) -> Result<Option<Found>> {
    match read_trailer(file) {
        Ok(None) => return Ok(None),
        Err(e) if e.source.is_some() => return Err(e),
        // The block with the trailer is damaged, which the report has, or the trailer itself.
        Err(_) if !report.damaged.is_empty() => return Ok(None),
        Ok(Some(_)) | Err(_) => {}
    }
    let mut damaged: Vec<(String, String)> = Vec::new();
    let mut name = |path: &[u8], why: String| {
        if damaged.len() < NAMED_MAX {
            damaged.push((shown(path), why));
        }
    };
    let ranges: Vec<Range<u64>> = report.damaged.iter().map(|(range, _)| range.clone()).collect();
    let pack = Pack::open_with(file.source(), OpenOptions::default().cache_max(2 * AHEAD));
    let checked = pack.and_then(|pack| match sums {
        true => check_members(&pack, threads, |item, why| name(&item.entry.path, why.to_string())),
        false => members_in(&pack, &ranges, |item| name(&item.entry.path, "it has bytes in a damaged block".into())),
    });
    let (checked, fault) = match checked {
        Ok(checked) => (checked, None),
        Err(e) if e.source.is_some() || e.kind == ErrorKind::Limit => return Err(e),
        Err(e) => (Checked::default(), Some(format!("its directory is damaged: {e}"))),
    };
    Ok(Some(Found { checked, damaged, fault }))
}

impl Found {
    pub(super) fn is_good(&self) -> bool {
        self.damaged.is_empty() && self.fault.is_none()
    }

    /// What is wrong.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> + '_ {
        let more = self.checked.damaged.saturating_sub(self.damaged.len() as u64);
        let more = (self.fault.is_none() && more > 0).then(|| format!("{more} more files are damaged"));
        let damaged = self.damaged.iter().map(|(path, why)| format!("{path} is damaged: {why}"));
        damaged.chain(more).chain(self.fault.clone())
    }

    pub(super) fn words(&self) -> String {
        let Checked { entries, compared, .. } = self.checked;
        let entry = if entries == 1 { "entry" } else { "entries" };
        match compared {
            0 => format!("a pack of {entries} {entry}"),
            n => format!("a pack of {entries} {entry}, {n} files compared"),
        }
    }

    pub(super) fn json(&self) -> Value {
        let damaged = self.damaged.iter().map(|(path, why)| json!({"path": path, "why": why}));
        json!({
            "entries": self.checked.entries,
            "files_compared": self.checked.compared,
            "files_damaged": self.checked.damaged,
            "damaged": damaged.collect::<Vec<_>>(),
            "fault": self.fault,
        })
    }
}
