//! `narrows check` of packs: the directory beside the entries, and the damaged members.

use std::ops::Range;

use crate::{packs, report};
use narrows::{ErrorKind, Result};
use narrows_file::check::Report;
use narrows_file::{File, OpenOptions, ReadAt};
use narrows_host::words::shown_name;
use narrows_pack::{AHEAD, Checked, Pack, check_members, compare_directory, followed, members_in, read_trailer};
use serde_json::{Value, json};

/// Most damaged members that are named: 1 MiB of text.
const NAMED_MAX: usize = 1 << 13;

/// What was found of a pack.
#[derive(Default)]
pub(super) struct Found {
    checked: Checked,
    /// Damaged members, and why they are.
    damaged: Vec<(String, String)>,
    /// How many members the directory describes wrongly.
    others: u64,
    /// Whether the directory was compared with the entries.
    compared: bool,
    /// Whether files were compared with their digests.
    sums: bool,
    /// What is wrong with the directory.
    fault: Option<String>,
}

/// Compares the directory of a pack with its entries. Returns what was found, and up to where all blocks were
/// decoded by that. Nothing if it is no pack, or not whole: then [`check`] tells more.
pub(super) fn compare<R: ReadAt>(file: &File<R>, threads: usize) -> Result<(Found, u64)> {
    let mut found = Found::default();
    let pack = match read_trailer(file) {
        Ok(Some(_)) => open(file),
        Ok(None) => return Ok((found, 0)),
        Err(e) => Err(e),
    };
    let pack = match pack {
        Err(e) if e.source.is_some() => return Err(e),
        Err(_) => return Ok((found, 0)),
        Ok(pack) => pack,
    };
    let mut others = Vec::new();
    let compared = compare_directory(&pack, threads, |item, why| {
        found.others += 1;
        if others.len() < NAMED_MAX {
            others.push((shown_name(&item.entry.path), why.to_owned()));
        }
    });
    match compared {
        Ok(compared) => {
            (found.compared, found.damaged) = (compared, others);
            let decoded = if compared { pack.trailer().content_end } else { 0 };
            Ok((found, decoded))
        }
        Err(e) if e.source.is_some() => Err(e),
        // Which ends the check too.
        Err(e) if e.kind == ErrorKind::Limit => Ok((found, 0)),
        Err(e) => {
            found.fault = Some(format!("its directory does not fit its entries: {e}"));
            Ok((found, 0))
        }
    }
}

/// Reads the directory of a pack; `None` if it is none. With `sums`, every member is compared with its
/// digest, else those are damaged that have bytes in damaged blocks. `found` is what is known already.
pub(super) fn check<R: ReadAt>(
    file: &File<R>,
    report: &Report,
    mut found: Found,
    sums: bool,
    threads: usize,
) -> Result<Option<Found>> {
    if report.damaged.is_empty()
        && let Some(fault) = followed(file)?
    {
        return Ok(Some(Found { fault: Some(fault.to_string()), ..Found::default() }));
    }
    match read_trailer(file) {
        Ok(None) if report.damaged.is_empty() && packs::lacks_directory(file)? => {
            let fault = Some(packs::no_directory().to_string());
            return Ok(Some(Found { fault, ..Found::default() }));
        }
        Ok(None) => return Ok(None),
        Err(e) if e.source.is_some() => return Err(e),
        // The block with the trailer is damaged, which the report has, or the trailer itself.
        Err(_) if !report.damaged.is_empty() => return Ok(None),
        Ok(Some(_)) | Err(_) => {}
    }
    if !report.damaged.is_empty() {
        // That is why it did not fit.
        (found.fault, found.damaged, found.others) = (None, Vec::new(), 0);
    }
    let known = std::mem::take(&mut found.damaged);
    let mut damaged: Vec<(String, String)> = Vec::new();
    let mut name = |path: &[u8], why: String| {
        if damaged.len() < NAMED_MAX {
            damaged.push((shown_name(path), why));
        }
    };
    let ranges: Vec<Range<u64>> = report.damaged.iter().map(|(range, _)| range.clone()).collect();
    let checked = open(file).and_then(|pack| match sums {
        true => check_members(&pack, threads, |item, why| name(&item.entry.path, why.to_string())),
        false => members_in(&pack, &ranges, |item| name(&item.entry.path, "it has bytes in a damaged block".into())),
    });
    match checked {
        Ok(checked) => found.checked = checked,
        Err(e) if e.source.is_some() || e.kind == ErrorKind::Limit => return Err(e),
        Err(e) => found.fault = Some(format!("its directory is damaged: {e}")),
    }
    let is_new = |(path, _): &(String, String)| !damaged.iter().any(|(other, _)| other == path);
    let known: Vec<_> = known.into_iter().filter(is_new).collect();
    found.checked.damaged += found.others.min(known.len() as u64);
    damaged.extend(known);
    (found.damaged, found.sums) = (damaged, sums);
    Ok(Some(found))
}

fn open<R: ReadAt>(file: &File<R>) -> Result<Pack<&R>> {
    Pack::open_with(file.source(), OpenOptions::default().cache_max(2 * AHEAD))
}

impl Found {
    pub(super) fn is_good(&self) -> bool {
        self.damaged.is_empty() && self.fault.is_none()
    }

    /// What is wrong.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> + '_ {
        let more = self.checked.damaged.saturating_sub(self.damaged.len() as u64);
        let more = (self.fault.is_none() && more > 0)
            .then(|| format!("damaged too: {}", report::count(more, "more file", "more files")));
        let damaged = self.damaged.iter().map(|(path, why)| format!("{path} is damaged: {why}"));
        damaged.chain(more).chain(self.fault.clone())
    }

    pub(super) fn words(&self) -> String {
        let Checked { entries, compared, .. } = self.checked;
        let entries = report::count(entries, "entry", "entries");
        let more = match (self.sums, self.compared) {
            (true, _) => format!(", {} compared", report::count(compared, "file", "files")),
            (false, true) => String::new(),
            (false, false) => " that are too many to compare with its directory".to_owned(),
        };
        format!("a pack of {entries}{more}")
    }

    pub(super) fn json(&self) -> Value {
        let damaged = self.damaged.iter().map(|(path, why)| json!({"path": path, "why": why}));
        json!({
            "entries": self.checked.entries,
            "directory_compared": self.compared,
            "files_compared": self.checked.compared,
            "files_damaged": self.checked.damaged,
            "damaged": damaged.collect::<Vec<_>>(),
            "fault": self.fault,
        })
    }
}
