//! Scrubbing: every block of a file is decoded and compared.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use narrows::frame::{PREFACE_LEN, Sums};
use narrows::{Error, ErrorKind, Result};

use crate::file::File;
use crate::footer::{Tail, parse_preface};
use crate::index::{ENTRIES_MAX, IndexOrigin, Member};
use crate::read_at::ReadAt;
use crate::scan::scan;

/// Most damaged ranges that are told apart: 4 MiB of text.
const DAMAGED_MAX: usize = 1 << 16;

/// What a scrub found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Raw bytes that are whole.
    pub good_bytes: u64,
    /// Blocks that are whole.
    pub good_blocks: u64,
    /// Raw ranges that cannot be read, in order, with the error of the first block of each. Beyond 65,536
    /// of them some are joined across good bytes.
    pub damaged: Vec<(Range<u64>, String)>,
    /// What else is wrong.
    pub faults: Vec<String>,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_good(&self) -> bool {
        self.damaged.is_empty() && self.faults.is_empty()
    }
}

/// A run: stream, and its blocks.
struct Run {
    member: usize,
    blocks: Range<usize>,
}

/// Decodes and compares every block of `file`, by `threads` threads; with `sums` also the sums beside
/// the index, for which everything is decoded once more, in order.
///
/// # Errors
/// The source fails. Damage is no error; the report has it.
pub fn check<R: ReadAt>(file: &File<R>, threads: usize, sums: bool) -> Result<Report> {
    check_from(file, 0, threads, sums)
}

/// As [`check`], where the raw bytes before `decoded` were decoded already, and found whole.
///
/// # Errors
/// Those of [`check`].
pub fn check_from<R: ReadAt>(file: &File<R>, decoded: u64, threads: usize, sums: bool) -> Result<Report> {
    let runs = runs(file);
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Found::default()));
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, runs.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(run) = runs.get(i) else { break };
                    let result = check_run(file, run, decoded);
                    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                    match result {
                        Ok(part) => found.add(part),
                        Err(error) => {
                            found.error.get_or_insert(error);
                            next.store(runs.len(), Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let mut report = found.into_inner().unwrap_or_else(PoisonError::into_inner).report()?;
    if !prefaces_are_whole(file)? {
        report.faults.push("a preface is damaged".to_owned());
    }
    // A pack has two streams, and loses the indexes of both with its end.
    if file.members().iter().any(|member| member.origin == IndexOrigin::Rebuilt) {
        report.faults.push("the index or the end is damaged or missing".to_owned());
    }
    for (number, member) in file.members().iter().enumerate() {
        report.faults.extend(member.broken.clone());
        if member.origin == IndexOrigin::Stored && report.damaged.is_empty() {
            report.faults.extend(headers_fault(file, member)?);
        }
        if sums && report.damaged.is_empty() && !member.sums.1.is_empty() {
            compare_sums(file, number, &mut report)?;
        }
    }
    Ok(report)
}

/// What the runs have had, in any order.
#[derive(Default)]
struct Found {
    good_bytes: u64,
    good_blocks: u64,
    /// Damaged ranges by their beginning, none of which touch.
    damaged: BTreeMap<u64, (u64, String)>,
    error: Option<Error>,
}

impl Found {
    fn add(&mut self, part: RunReport) {
        self.good_bytes += part.good_bytes;
        self.good_blocks += part.good_blocks;
        let Some((range, mut why)) = part.damaged else { return };
        let (mut begin, mut end) = (range.start, range.end);
        if let Some((after_end, _)) = self.damaged.remove(&end) {
            end = after_end;
        }
        let before = self.damaged.range(..begin).next_back().map(|(at, (end, _))| (*at, *end));
        if let Some((at, before_end)) = before
            && before_end == begin
            && let Some((_, first)) = self.damaged.remove(&at)
        {
            (begin, why) = (at, first);
        }
        self.damaged.insert(begin, (end, why));
        // When there are too many, the good bytes between the first two are given up.
        if self.damaged.len() > DAMAGED_MAX
            && let Some((begin, (_, why))) = self.damaged.pop_first()
            && let Some((_, (end, _))) = self.damaged.pop_first()
        {
            self.damaged.insert(begin, (end, why));
        }
    }

    fn report(self) -> Result<Report> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(Report {
                good_bytes: self.good_bytes,
                good_blocks: self.good_blocks,
                damaged: self.damaged.into_iter().map(|(begin, (end, why))| (begin..end, why)).collect(),
                faults: Vec::new(),
            }),
        }
    }
}

/// Compares index and footer with the headers of all frames: no single block tells whether the digest
/// in the footer is that of all blocks. Returns what is wrong.
///
/// # Errors
/// The source fails.
pub fn headers_fault<R: ReadAt>(file: &File<R>, member: &Member) -> Result<Option<String>> {
    let nothing = Tail::new(file.wire_len(), Vec::new());
    let scanned = scan(file.source(), &nothing, member.wire_begin, member.wire_end(), ENTRIES_MAX)?;
    let differs = scanned.frames != member.frames || scanned.wire_end() != member.wire_end();
    Ok(scanned.broken.or_else(|| differs.then(|| "the index is not that of the frames".to_owned())))
}

/// Whether all streams begin with the preface of which the index has a copy.
///
/// # Errors
/// The source fails.
pub fn prefaces_are_whole<R: ReadAt>(file: &File<R>) -> Result<bool> {
    for member in file.members() {
        let mut bytes = [0; PREFACE_LEN];
        file.source().read_exact_at(&mut bytes, member.wire_begin)?;
        if parse_preface(&bytes).ok() != Some(member.preface) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn runs<R: ReadAt>(file: &File<R>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (member, m) in file.members().iter().enumerate() {
        for i in 0..m.blocks() {
            match runs.last_mut() {
                Some(run) if run.member == member && !m.entry(i).is_some_and(|e| e.begins_run) => {
                    run.blocks.end = i + 1
                }
                _ => runs.push(Run { member, blocks: i..i + 1 }),
            }
        }
    }
    runs
}

/// What a run had; the first damaged block ends it.
#[derive(Default)]
struct RunReport {
    good_bytes: u64,
    good_blocks: u64,
    damaged: Option<(Range<u64>, String)>,
}

fn check_run<R: ReadAt>(file: &File<R>, run: &Run, decoded: u64) -> Result<RunReport> {
    let mut report = RunReport::default();
    let member = &file.members()[run.member];
    for i in run.blocks.clone() {
        if let Some(entry) = member.entry(i).filter(|entry| member.raw_begin + entry.raw_end <= decoded) {
            report.good_bytes += entry.raw_end - entry.raw_begin;
            report.good_blocks += 1;
            continue;
        }
        match file.block(run.member, i) {
            Ok(block) => {
                report.good_bytes += block.len() as u64;
                report.good_blocks += 1;
            }
            // A limit of this reader is no damage.
            Err(e) if e.source.is_some() || e.kind == ErrorKind::Limit => return Err(e),
            Err(e) => {
                // What follows in the run refers to this block.
                let raw_end =
                    run.blocks.end.checked_sub(1).and_then(|last| member.entry(last)).map_or(0, |e| e.raw_end);
                let raw_begin = member.entry(i).map_or(0, |e| e.raw_begin);
                report.damaged = Some((member.raw_begin + raw_begin..member.raw_begin + raw_end, e.to_string()));
                break;
            }
        }
    }
    Ok(report)
}

fn compare_sums<R: ReadAt>(file: &File<R>, number: usize, report: &mut Report) -> Result<()> {
    let member = &file.members()[number];
    let mut sums = Sums::new(member.sums.0);
    for i in 0..member.blocks() {
        sums.push(&file.block(number, i)?);
    }
    let sums = sums.finish();
    if let Some(i) = sums.iter().zip(&member.sums.1).position(|(a, b)| a != b) {
        let begin = member.raw_begin + ((i as u64) << member.sums.0);
        report.faults.push(format!("the bytes from {begin} on are not those that the sums were made of"));
    }
    Ok(())
}

/// Passes all raw bytes on that can be read, in order, and returns the ranges that cannot.
///
/// # Errors
/// The source or `pass` fails.
pub fn read_whole<R: ReadAt>(
    file: &File<R>,
    range: Range<u64>,
    mut pass: impl FnMut(&[u8]) -> Result<()>,
) -> Result<Vec<(Range<u64>, Error)>> {
    let mut missing: Vec<(Range<u64>, Error)> = Vec::new();
    for run in runs(file) {
        let member = &file.members()[run.member];
        for i in run.blocks.clone() {
            let Some(entry) = member.entry(i) else { continue };
            let (begin, end) = (member.raw_begin + entry.raw_begin, member.raw_begin + entry.raw_end);
            if end <= range.start || begin >= range.end {
                continue;
            }
            match file.block(run.member, i) {
                Ok(block) => {
                    let from = range.start.saturating_sub(begin) as usize;
                    let to = (range.end.min(end) - begin) as usize;
                    pass(&block[from..to])?;
                }
                Err(e) if e.source.is_some() => return Err(e),
                Err(e) => {
                    let last = run.blocks.end.checked_sub(1).and_then(|last| member.entry(last)).unwrap_or(entry);
                    let lost = begin.max(range.start)..(member.raw_begin + last.raw_end).min(range.end);
                    match missing.last_mut() {
                        Some((before, _)) if before.end == lost.start => before.end = lost.end,
                        _ => missing.push((lost, e)),
                    }
                    break;
                }
            }
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
        let mut found = Found::default();
        for range in ranges {
            let why = range.start.to_string();
            found.add(RunReport { good_bytes: 1, good_blocks: 1, damaged: Some((range, why)) });
        }
        let report = found.report().unwrap();
        for (range, why) in &report.damaged {
            assert_eq!(*why, range.start.to_string(), "the error of the first block of a range");
        }
        report.damaged.into_iter().map(|(range, _)| range).collect()
    }

    #[test]
    fn ranges_that_touch_are_joined_in_any_order() {
        assert_eq!(found([4..6, 0..2, 2..4, 8..9]), [0..6, 8..9]);
        assert_eq!(found([2..4, 8..9, 4..6, 0..2, 6..8, 10..11]), [0..9, 10..11]);
    }

    #[test]
    fn the_ranges_that_are_told_apart_are_bounded_and_cover_all_damage() {
        let ranges = found((0..2 * DAMAGED_MAX as u64).map(|i| 3 * i..3 * i + 1));
        assert_eq!(ranges.len(), DAMAGED_MAX);
        assert_eq!((ranges[0].start, ranges.last().map(|r| r.end)), (0, Some(6 * DAMAGED_MAX as u64 - 2)));
    }
}
