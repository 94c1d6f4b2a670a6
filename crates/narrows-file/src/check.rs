//! Scrubbing: every block of a file is decoded and compared.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use narrows::frame::{PREFACE_LEN, Sums};
use narrows::{Error, ErrorKind, Result};

use crate::file::File;
use crate::footer::parse_preface;
use crate::index::IndexOrigin;
use crate::read_at::ReadAt;

/// What a scrub found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Raw bytes that are whole.
    pub good_bytes: u64,
    /// Blocks that are whole.
    pub good_blocks: u64,
    /// Raw ranges that cannot be read, in order, with the error of the first block of each.
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
    let runs = runs(file);
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, runs.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(run) = runs.get(i) else { break };
                    let result = check_run(file, run);
                    let failed = result.is_err();
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((i, result));
                    if failed {
                        next.store(runs.len(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(i, _)| *i);
    let mut report = Report::default();
    for (_, result) in results {
        let part = result?;
        report.good_bytes += part.good_bytes;
        report.good_blocks += part.good_blocks;
        for (range, why) in part.damaged {
            match report.damaged.last_mut() {
                Some((last, _)) if last.end == range.start => last.end = range.end,
                _ => report.damaged.push((range, why)),
            }
        }
    }
    if !prefaces_are_whole(file)? {
        report.faults.push("a preface is damaged".to_owned());
    }
    for (number, member) in file.members().iter().enumerate() {
        if member.origin == IndexOrigin::Rebuilt {
            report.faults.push("the index or the end is damaged or missing".to_owned());
        }
        report.faults.extend(member.broken.clone());
        if sums && report.damaged.is_empty() && !member.sums.1.is_empty() {
            compare_sums(file, number, &mut report)?;
        }
    }
    Ok(report)
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

fn check_run<R: ReadAt>(file: &File<R>, run: &Run) -> Result<Report> {
    let mut report = Report::default();
    let member = &file.members()[run.member];
    for i in run.blocks.clone() {
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
                report.damaged.push((member.raw_begin + raw_begin..member.raw_begin + raw_end, e.to_string()));
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
