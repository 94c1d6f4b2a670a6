//! The members of a pack, as `tar t` shows those of an archive.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use narrows::entry::EntryKind;
use narrows_file::ReadAt;
use narrows_host::words::shown_name;
use narrows_pack::{Content, Item, Pack, Selector};
use serde_json::json;

use crate::args::file::ListArgs;
use crate::report;

/// Lists the entries of a pack; false if one of `paths` is not in it.
pub(super) fn list(args: &ListArgs, name: &Path, pack: &Pack<impl ReadAt>, paths: &[PathBuf]) -> Result<bool> {
    let paths: Vec<Vec<u8>> = paths.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect();
    let selector = Selector::new(&paths)?;
    let mut result = Ok(());
    let missing = selector.each(pack, |item| {
        result = show(args, &item);
        result.is_ok()
    });
    result?;
    let missing = missing.map_err(|e| anyhow::Error::from(e).context(name.display().to_string()))?;
    for path in &missing {
        report::note(format_args!("{path} is not in {}; --summary lists several files", name.display()));
    }
    Ok(missing.is_empty())
}

fn show(args: &ListArgs, item: &Item) -> Result<()> {
    if args.json {
        return report::out(as_json(item));
    }
    let path = if item.entry.path.is_empty() { ".".to_owned() } else { shown_name(&item.entry.path) };
    let slash = if item.entry.kind == EntryKind::Folder { "/" } else { "" };
    if !args.long {
        return report::out(format_args!("{path}{slash}"));
    }
    let e = &item.entry;
    let owner = format!("{}/{}", e.uid, e.gid);
    let size = match &e.kind {
        EntryKind::File { len, .. } => len.to_string(),
        EntryKind::CharDevice { major, minor } | EntryKind::BlockDevice { major, minor } => format!("{major},{minor}"),
        _ => "0".to_owned(),
    };
    let target = match (&e.kind, &item.content) {
        (EntryKind::Symlink { target }, _) => format!(" -> {}", shown_name(target)),
        (_, Content::Of(first)) => format!(" link to {}", shown_name(first)),
        _ => String::new(),
    };
    // As tar: owner and size share a column that grows.
    let gap = 18usize.saturating_sub(owner.len());
    report::out(format_args!("{} {owner} {size:>gap$} {} {path}{slash}{target}", mode(item), time(e.mtime_s)))
}

fn as_json(item: &Item) -> serde_json::Value {
    let e = &item.entry;
    let (kind, len) = match &e.kind {
        EntryKind::File { len, .. } => ("file", Some(*len)),
        EntryKind::Stream => ("file", None),
        EntryKind::Folder => ("folder", None),
        EntryKind::Symlink { .. } => ("symlink", None),
        EntryKind::HardLink { .. } => ("hardlink", None),
        EntryKind::Fifo => ("fifo", None),
        EntryKind::CharDevice { .. } => ("char", None),
        EntryKind::BlockDevice { .. } => ("block", None),
    };
    let target = match (&e.kind, &item.content) {
        (EntryKind::Symlink { target }, _) => Some(String::from_utf8_lossy(target).into_owned()),
        (_, Content::Of(first)) => Some(String::from_utf8_lossy(first).into_owned()),
        _ => None,
    };
    let device = match &e.kind {
        EntryKind::CharDevice { major, minor } | EntryKind::BlockDevice { major, minor } => Some([*major, *minor]),
        _ => None,
    };
    json!({
        "path": String::from_utf8_lossy(&e.path),
        "kind": kind,
        "bytes": len,
        "mode": format!("{:04o}", e.mode),
        "uid": e.uid,
        "gid": e.gid,
        "mtime_s": e.mtime_s,
        "mtime_ns": e.mtime_ns,
        "target": target,
        "device": device,
        "xattrs": e.xattrs.iter().filter(|(name, _)| name != b"narrows.link").count(),
    })
}

/// The mode as `ls -l` shows it.
fn mode(item: &Item) -> String {
    let kind = match &item.entry.kind {
        EntryKind::File { .. } | EntryKind::Stream => '-',
        EntryKind::Folder => 'd',
        EntryKind::Symlink { .. } => 'l',
        EntryKind::HardLink { .. } => 'h',
        EntryKind::Fifo => 'p',
        EntryKind::CharDevice { .. } => 'c',
        EntryKind::BlockDevice { .. } => 'b',
    };
    let mode = item.entry.mode;
    let mut text = String::from(kind);
    for (shift, special, set, unset) in [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => set,
            (true, false) => unset,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// Seconds since 1970 as a date and time in UTC.
fn time(seconds: i64) -> String {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days since 1 March of a year 0, in eras of 400 years: leap days are at the end of a year.
    let shifted = days + 719_468;
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", rest / 3600, rest / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates_in_utc() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00"),
            (951_782_399, "2000-02-28 23:59"),
            (951_868_800, "2000-03-01 00:00"),
            (1_709_164_800, "2024-02-29 00:00"),
            (-1, "1969-12-31 23:59"),
            (4_102_444_800, "2100-01-01 00:00"),
        ] {
            assert_eq!(time(seconds), text);
        }
        time(i64::MIN);
        time(i64::MAX);
    }
}
