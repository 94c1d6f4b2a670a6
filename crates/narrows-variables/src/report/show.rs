//! Variables as a table and as JSON.

use std::io::{self, IsTerminal};

use narrows_host::words;
use serde_json::{Value, json};

use super::{Against, Findings, Row, Verdict};
use crate::{Range, Variable};

/// Pipelines shown for a variable without --verbose.
const MIX_MAX: usize = 3;
/// Titles of the columns, and whether they are aligned to the right.
const TITLES: [(&str, bool); 11] = [
    ("variable", false),
    ("type", false),
    ("shape", false),
    ("chunk", false),
    ("chunks", true),
    ("filters", false),
    ("stored", true),
    ("ratio", true),
    ("bound", false),
    ("worst", true),
    ("exceptions", true),
];

/// The name of a variable; a file that is one has none.
pub(super) fn name(variable: &Variable) -> &str {
    if variable.path.is_empty() { "(array)" } else { &variable.path }
}

fn shape(lengths: &[u64]) -> String {
    if lengths.is_empty() {
        return "scalar".into();
    }
    lengths.iter().map(u64::to_string).collect::<Vec<_>>().join("x")
}

/// A number with as many digits as errors need.
pub(super) fn number(v: f64) -> String {
    match v.abs() {
        0.0 => "0".into(),
        size if (1e-3..1e5).contains(&size) => {
            let digits = (3 - size.log10().floor() as i32).clamp(0, 6) as usize;
            let text = format!("{v:.digits$}");
            if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
        }
        _ => format!("{v:.3e}"),
    }
}

fn range(range: Range) -> String {
    if range.low == range.high {
        return number(range.low);
    }
    format!("{}..{}", number(range.low), number(range.high))
}

/// `abs 0.01, rel 0.001, floor 1e-6`, `exact`, or `-` where Narrows wrote nothing.
pub(super) fn bound(row: &Row<'_>) -> String {
    let found = &row.found;
    if !row.variable.is_narrows() || found.chunks == 0 {
        return "-".into();
    }
    let parts = [("abs", found.abs), ("rel", found.rel), ("floor", found.floor)];
    let words: Vec<String> = parts.iter().filter_map(|(name, v)| Some(format!("{name} {}", range((*v)?)))).collect();
    if words.is_empty() { "exact".into() } else { words.join(", ") }
}

fn cells(row: &Row<'_>) -> [String; 11] {
    let (variable, found) = (row.variable, &row.found);
    let filters: Vec<&str> = variable.filters.iter().map(|f| f.name.as_str()).collect();
    let chunks = match variable.chunks_max() {
        max if max == found.chunks => max.to_string(),
        max => format!("{} of {max}", found.chunks),
    };
    let is_bounded = found.bounded > 0;
    // Where a floor allows any share of small values, the share says nothing.
    let worst = match found.worst_rel.filter(|_| found.abs.is_none() && found.floor.is_none()) {
        Some(rel) => format!("rel {}", number(rel)),
        None => number(found.worst_abs),
    };
    let dash = || "-".to_owned();
    [
        name(variable).to_owned(),
        variable.element.name.clone(),
        shape(&variable.shape),
        variable.chunk.as_deref().map_or_else(dash, shape),
        if variable.chunk.is_some() { chunks } else { dash() },
        if filters.is_empty() { dash() } else { filters.join("+") },
        words::bytes(found.wire_bytes as f64),
        if found.wire_bytes > 0 { format!("{:.2}", found.ratio()) } else { dash() },
        bound(row),
        if is_bounded { worst } else { dash() },
        if is_bounded { found.exceptions.to_string() } else { dash() },
    ]
}

/// `75 % linear + lorenzo 1 + pco 8, 25 % left out`
pub(super) fn mix(row: &Row<'_>, most: usize) -> String {
    let all: u64 = row.found.mix.values().map(|m| m.0).sum();
    let mut mix: Vec<_> = row.found.mix.iter().map(|(name, m)| (m.0, name)).collect();
    mix.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
    let share = |n: u64| format!("{:.0} %", 100.0 * n as f64 / all.max(1) as f64);
    let mut words: Vec<String> = mix.iter().take(most).map(|(n, name)| format!("{} {name}", share(*n))).collect();
    if mix.len() > most {
        let rest: u64 = mix[most..].iter().map(|m| m.0).sum();
        words.push(format!("{} {} others", share(rest), mix.len() - most));
    }
    words.join(", ")
}

/// What a comparison found, in words.
pub(super) fn errors(row: &Row<'_>) -> Option<String> {
    let Some(e) = row.against.as_ref()?.errors() else { return not_compared(row) };
    let is_whole = row.found.damaged_count == 0 && e.failed.is_empty();
    let holds = match (e.broken, row.found.bounded > 0) {
        (None | Some(0), _) if !is_whole => "; that is without what cannot be read, see below".into(),
        (None, _) => String::new(),
        (Some(0), true) => "; the bound holds".into(),
        (Some(0), false) => "; exact as stated".into(),
        (Some(n), _) => {
            let at = e.broken_at.as_deref().unwrap_or_default();
            let lost = match e.missing_changed {
                0 => String::new(),
                lost => format!("; {lost} mark what is missing in the original, by _FillValue or missing_value"),
            };
            format!(
                "; BROKEN: {n} of {} numbers are beyond what is stated, first in the chunk at {at:?}{lost}",
                e.count
            )
        }
    };
    if e.different == 0 {
        return Some(format!("same as the original{holds}"));
    }
    if row.variable.element.is_text() {
        return Some(format!("{} of {} of text differ{holds}", e.different, words::count(e.count, "byte", "bytes")));
    }
    let (abs, rel, rmse) = (number(e.worst_abs), number(e.worst_rel), number(e.rmse()));
    Some(format!("worst error {abs}, {rel} of the value; RMSE {rmse}, PSNR {:.1} dB{holds}", e.psnr_db()))
}

/// Why a variable was not compared as a whole, if it was not.
fn not_compared(row: &Row<'_>) -> Option<String> {
    match row.against.as_ref()? {
        Against::Missing => Some("not compared: the original has no such variable".into()),
        Against::Found { errors: Ok(_), .. } => None,
        Against::Found { errors: Err(error), .. } => Some(format!("not compared: {error}")),
    }
}

/// Damage and trouble, a line each.
fn faults(row: &Row<'_>) -> Vec<String> {
    let mut out = Vec::new();
    for damage in &row.found.damaged {
        out.push(match &damage.origin {
            Some(origin) => format!("chunk at {origin:?} is damaged: {}", damage.why),
            None => format!("damaged: {}", damage.why),
        });
    }
    let more = row.found.damaged_count - row.found.damaged.len() as u64;
    if more > 0 {
        out.push(format!("{more} more chunks are damaged"));
    }
    out.extend(unseen(row));
    out
}

/// What was not looked at, but for a comparison as a whole.
fn unseen(row: &Row<'_>) -> Vec<String> {
    let mut out: Vec<String> = row.variable.unseen().collect();
    out.extend(row.found.unseen.iter().map(|why| format!("not checked: {why}")));
    let failed = row.against.as_ref().and_then(Against::errors).map_or(&[][..], |e| &e.failed);
    out.extend(failed.iter().map(|why| format!("not compared: {why}")));
    out
}

/// Escapes of terminals, or nothing.
struct Style {
    is_on: bool,
}

impl Style {
    fn new() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        Self { is_on: !refused && io::stdout().is_terminal() }
    }

    fn put(&self, code: &str, text: &str) -> String {
        if self.is_on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Control characters of names would steer a terminal, and others turn the direction of text.
fn clean(text: &str) -> String {
    let turns = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if c.is_control() || turns(c) { '?' } else { c }).collect()
}

/// The table for stdout, with what else is known of a variable below it. Quiet: only what is wrong.
pub(super) fn lines(all: &Findings<'_>, is_quiet: bool, is_verbose: bool) -> Vec<String> {
    styled(&Style::new(), all, is_quiet, is_verbose)
}

/// The table without escapes of terminals, with all that is known.
pub(super) fn plain(all: &Findings<'_>) -> String {
    styled(&Style { is_on: false }, all, false, true).join("\n")
}

fn styled(style: &Style, all: &Findings<'_>, is_quiet: bool, is_verbose: bool) -> Vec<String> {
    let Findings { file, store, rows, .. } = all;
    let mut out = Vec::new();
    if !is_quiet {
        let ours = rows.iter().filter(|r| r.variable.is_narrows()).count();
        let variables = words::count(rows.len(), "variable", "variables");
        out.push(format!("{}: {}, {variables}, {ours} of Narrows", clean(file), store.format));
    }
    let table: Vec<[String; 11]> = rows.iter().map(|row| cells(row).map(|cell| clean(&cell))).collect();
    let widths: [usize; 11] = std::array::from_fn(|i| {
        table.iter().map(|cells| cells[i].chars().count()).chain([TITLES[i].0.len()]).max().unwrap_or(0)
    });
    let line = |cells: [&str; 11]| {
        let parts = cells.iter().enumerate().map(|(i, cell)| match TITLES[i].1 {
            true => format!("{cell:>0$}", widths[i]),
            false => format!("{cell:<0$}", widths[i]),
        });
        parts.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    if !is_quiet && !rows.is_empty() {
        out.push(style.put("1", &line(TITLES.map(|t| t.0))));
    }
    for (row, cells) in rows.iter().zip(&table) {
        let faults = faults(row);
        if !is_quiet {
            out.push(line(cells.each_ref().map(String::as_str)));
            let mix = mix(row, if is_verbose { usize::MAX } else { MIX_MAX });
            if !mix.is_empty() {
                out.push(format!("  {}", style.put("2", &mix)));
            }
        }
        let verdict = row.verdict();
        let is_shown = !is_quiet || verdict != Verdict::Good;
        let compared = errors(row).filter(|_| is_shown).map(|text| clean(&text));
        let prefix = if is_quiet { format!("{}: {}: ", clean(file), cells[0]) } else { "  ".into() };
        let code = match verdict {
            Verdict::Good => "0",
            Verdict::Unseen => "33",
            Verdict::Bad => "31",
        };
        out.extend(compared.map(|text| format!("{prefix}{}", style.put(code, &text))));
        for fault in faults.iter().filter(|_| is_shown) {
            out.push(format!("{prefix}{}", style.put(code, &clean(fault))));
        }
    }
    let prefix = if is_quiet { format!("{}: ", clean(file)) } else { String::new() };
    out.extend(all.unseen.iter().map(|what| format!("{prefix}{}", style.put("33", &clean(what)))));
    if !is_quiet {
        out.extend(summary(style, all));
    }
    out
}

/// The last lines: what is wrong, what was not looked at, or that all is good.
fn summary(style: &Style, all: &Findings<'_>) -> Vec<String> {
    let count = |verdict| all.rows.iter().filter(|row| row.verdict() == verdict).count();
    let (bad, unseen, rows) = (count(Verdict::Bad), count(Verdict::Unseen), all.rows.len());
    let of = |rows| words::count(rows, "variable", "variables");
    let mut out = Vec::new();
    if bad > 0 {
        out.push(style.put("31", &format!("damaged or beyond the bound: {bad} of {}", of(rows))));
    }
    if unseen > 0 {
        let text = format!("not checked or compared as a whole: {unseen} of {}; see their lines", of(rows));
        out.push(style.put("33", &text));
    } else if bad == 0 && !all.unseen.is_empty() {
        out.push(style.put("33", "what is there is good, but not all was looked at"));
    }
    if out.is_empty() && rows == 0 {
        out.push("there are no variables, so that nothing was checked".into());
    } else if out.is_empty() {
        let ours = all.rows.iter().filter(|r| r.variable.is_narrows());
        let chunks: u64 = ours.map(|r| r.found.chunks).sum();
        out.push(format!("good: {} of Narrows decoded", words::count(chunks, "chunk", "chunks")));
    }
    out
}

/// Everything as JSON. Numbers that are not finite are null.
pub(super) fn json(all: &Findings<'_>) -> Value {
    let variables: Vec<Value> = all.rows.iter().map(variable_json).collect();
    json!({
        "file": all.file,
        "format": all.store.format,
        "good": all.verdict() == Verdict::Good,
        "damaged": all.verdict() == Verdict::Bad,
        "unseen": all.unseen,
        "variables": variables,
    })
}

fn variable_json(row: &Row<'_>) -> Value {
    let (variable, found) = (row.variable, &row.found);
    let range = |r: Option<Range>| r.map(|r| json!([r.low, r.high]));
    let mix = found.mix.iter().map(|(name, m)| json!({"pipeline": name, "chunks": m.0, "raw_bytes": m.1}));
    let damaged = found.damaged.iter().map(|d| json!({"origin": d.origin, "why": d.why}));
    json!({
        "path": variable.path,
        "type": variable.element.name,
        "shape": variable.shape,
        "chunk": variable.chunk,
        "filters": variable.filters.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(),
        "narrows": variable.is_narrows(),
        "good": row.verdict() == Verdict::Good,
        "unseen": unseen(row).into_iter().chain(not_compared(row)).collect::<Vec<_>>(),
        "chunks": found.chunks,
        "chunks_max": variable.chunks_max(),
        "raw_bytes": found.raw_bytes,
        "wire_bytes": found.wire_bytes,
        "ratio": found.ratio(),
        "mix": mix.collect::<Vec<_>>(),
        "bound": {"abs": range(found.abs), "rel": range(found.rel), "floor": range(found.floor), "keeps": found.keeps},
        "bounded_chunks": found.bounded,
        "worst_abs": found.worst_abs,
        "worst_rel": found.worst_rel,
        "exceptions": found.exceptions,
        "damaged_chunks": found.damaged_count,
        "damaged": damaged.collect::<Vec<_>>(),
        "trouble": variable.trouble,
        "against": row.against.as_ref().map(|against| match against {
            Against::Found { original, errors: Ok(e) } => json!({
                "path": original.variable.path,
                "count": e.count,
                "different": e.different,
                "worst_abs": e.worst_abs,
                "worst_rel": e.worst_rel,
                "rmse": e.rmse(),
                "psnr_db": e.psnr_db(),
                "range": e.range(),
                "broken": e.broken,
                "broken_at": e.broken_at,
                "missing_changed": e.missing_changed,
                "failed": e.failed,
            }),
            Against::Found { errors: Err(error), .. } => json!({"error": error.to_string()}),
            Against::Missing => json!({"error": "the original has no such variable"}),
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_four_digits() {
        let words = [0.0, 0.5, 0.49951, 123.456, 99_999.0, 1.5e-7, 3e20, -2.25].map(number);
        assert_eq!(words, ["0", "0.5", "0.4995", "123.5", "99999", "1.500e-7", "3.000e20", "-2.25"]);
    }
}
