//! The tables of a plan.

use crate::archive::Archive;
use crate::interval::Interval;
use crate::memory::{capacity_gb, needed_gb};
use crate::method::Method;
use crate::published;
use crate::sensitivity::{Question, Rival};
use crate::sheet::{Cell, Sheet, number};
use crate::site::{FIELDS, MONTH_DAYS, Site};
use crate::storage::System;
use crate::threshold::{Cores, Model, full_rate, threshold};

mod grid;
mod network;

pub use grid::{Grid, RATIOS, Way, grid};

/// Reads per month for which the archive is compared, besides the site's own: from write-only to
/// everything once a day.
const READS: [f64; 7] = [0.0, 0.01, 0.1, 0.5, 1.0, 5.0, 30.0];
/// Flips of a question that the short text has.
const FLIPS_SHOWN: usize = 3;
/// A flip farther away than this factor is a detail.
const FLIP_NEAR: f64 = 10.0;

/// All tables about a site. `methods_from` says where its methods come from.
pub fn sheets(site: &Site, methods_from: &str) -> Vec<Sheet> {
    let methods = site.choices();
    vec![
        summary(site, &methods),
        inputs(site),
        of_methods(site, &methods, methods_from),
        thresholds(site, &methods),
        network::sheet(site, &methods),
        grid::sheet(site, &methods),
        grid::file_system(site, &methods),
        memory(site, &methods),
        storage(site, &methods),
        archive(site, &methods),
        archive_reads(site, &methods),
        sensitivity(site, &methods),
    ]
}

/// The figures of the text beside the recomputed ones.
pub fn published() -> Sheet {
    let columns = [
        ("place", "place"),
        ("what", "what"),
        ("printed", "printed"),
        ("recomputed", "recomputed"),
        ("unit", "unit"),
        ("verdict", "verdict"),
        ("reason", ""),
    ];
    let mut sheet = Sheet::new("published", "Figures of the text beside the recomputed ones", &columns);
    let claims = published::claims();
    let mut reasons = Vec::new();
    for claim in &claims {
        let verdict = match claim.marked {
            Some((point, _)) if claim.recomputed.is_none() => format!("NOT GIVEN, point {point}"),
            Some((point, _)) => format!("DIFFERS, point {point}"),
            None => "reproduces".into(),
        };
        let number = |v: Option<f64>| v.map_or(Cell::Absent, Cell::Printed);
        sheet.push([
            claim.place.into(),
            claim.what.into(),
            number(claim.printed),
            number(claim.recomputed),
            claim.unit.into(),
            verdict.into(),
            claim.marked.map_or("", |m| m.1).into(),
        ]);
        reasons.extend(claim.marked);
    }
    reasons.sort_unstable();
    reasons.dedup();
    sheet.notes = reasons.iter().map(|(point, why)| format!("point {point}: {why}")).collect();
    let points = claims.iter().filter_map(|c| c.marked).map(|m| m.0).max().unwrap_or(0);
    let good = claims.iter().filter(|c| c.marked.is_none()).count();
    sheet.about = format!(
        "Kuhn, Kunkel and Ludwig, Data Compression for Climate Data (2016), section 2, conclusion and the zram \
         example of 1.2. {good} figures reproduce within 1 %; {points} points do not, or their inputs are not given."
    );
    sheet
}

/// The answers in short.
fn summary(site: &Site, methods: &[Method]) -> Sheet {
    let columns =
        [("question", "question"), ("answer", "answer"), ("gain", "what it gives"), ("rivals", "perhaps also")];
    let mut sheet = Sheet::new("summary", "In short", &columns);
    sheet.about = if site.draws.is_empty() {
        "`perhaps also` are methods that are as good, or whose intervals meet that of the answer."
    } else {
        "`perhaps also` are methods that are as good, or the answer in that share of resamples of the data."
    }
    .into();
    let none = Method::none();
    let less = |price: Interval, plain: Interval, words: &str| {
        let share = 100.0 * (1.0 - price.value / plain.value);
        let share = if share.is_finite() { format!(", {share:.0} % less") } else { String::new() };
        format!("{} {} instead of {}{share}{words}", Cell::from(price).text(), site.currency, Cell::from(plain).text())
    };
    for question in Question::all(site) {
        let best = question.answer(site, methods);
        let rivals: Vec<String> = question.rivals(site, methods).iter().map(Rival::words).collect();
        let gain = match &question {
            Question::Link(i) => {
                let rate = site.links[*i].mb_per_s();
                let (fast, limit) = crate::network::goodput(rate, best, site.cores());
                format!("{} times plain, limited by {}", Cell::from(fast / rate).text(), limit.name())
            }
            Question::StorageS1 => {
                less(site.storage.fewest_units(best).price, site.storage.fewest_units(&none).price, "")
            }
            Question::StorageS2 => {
                less(site.storage.fewest_disks(best).price, site.storage.fewest_disks(&none).price, "")
            }
            Question::Archive => {
                let archive = site.archive();
                let months = archive.payback_months(best, &none).filter(|_| !best.is_none());
                let words = months.map_or(String::new(), |m| format!("; pays after {} months", number(m)));
                less(archive.bill(best).total_price, archive.bill(&none).total_price, &words)
            }
        };
        sheet.push([question.words(site).into(), best.name.as_str().into(), gain.into(), rivals.join(", ").into()]);
    }
    sheet
}

fn inputs(site: &Site) -> Sheet {
    let columns = [("input", "input"), ("value", "value"), ("from", "from"), ("about", "about")];
    let mut sheet = Sheet::new("inputs", "Inputs", &columns);
    let mut defaults = 0;
    for field in FIELDS {
        let value = (field.get)(site);
        let is_default = value == field.default;
        defaults += usize::from(is_default);
        let from = if is_default { "default" } else { "given" };
        sheet.push_detail([field.name().into(), value.into(), from.into(), field.about.into()], is_default);
    }
    for link in &site.links {
        let name = format!("link '{}'", link.name);
        let about = "wire Mbit/s".to_owned();
        sheet.push_detail([name.into(), link.rate_mbit_per_s.into(), "".into(), about.into()], true);
    }
    sheet.about = format!(
        "{defaults} of {} numbers are defaults: round figures to replace by your own, no quotes. \
         `narrows plan --init` writes a file with all of them. Prices are in {}.",
        FIELDS.len(),
        site.currency
    );
    sheet
}

fn of_methods(site: &Site, methods: &[Method], from: &str) -> Sheet {
    let columns = [
        ("method", "method"),
        ("class", "class"),
        ("ratio", "ratio"),
        ("encode_mb_per_s", "encode MB/s"),
        ("decode_mb_per_s", "decode MB/s"),
    ];
    let mut sheet = Sheet::new("methods", "Methods, on one core", &columns);
    let mut row = |m: &Method, class: &str, is_detail| {
        let cells =
            [m.name.as_str().into(), class.into(), m.ratio.into(), m.encode_mb_per_s.into(), m.decode_mb_per_s.into()];
        sheet.push_detail(cells, is_detail);
    };
    methods.iter().filter(|m| !m.is_none()).for_each(|m| row(m, "all", false));
    let has_classes = site.methods.iter().any(|m| !m.class.is_empty());
    site.methods.iter().filter(|m| has_classes && !m.class.is_empty()).for_each(|m| row(m, &m.class, true));
    sheet.about = format!("{from}. ± is half of the interval, which every table carries on.");
    let (_, left_out) = crate::method::over_classes(&site.methods, &site.shares);
    if !left_out.is_empty() {
        sheet.notes.push(format!("left out, as a class of data has no figures of them: {}", left_out.join(", ")));
    }
    sheet
}

fn thresholds(site: &Site, methods: &[Method]) -> Sheet {
    let n = site.node.cores_free;
    let all = |model: &str| format!("{model} {n}");
    let heads = [all("seq."), all("pipe."), all("overl."), all("full")];
    let columns = [
        ("method", "method"),
        ("sequential_mb_per_s", "seq. 1"),
        ("pipelined_mb_per_s", "pipe. 1"),
        ("overlapped_mb_per_s", "overl. 1"),
        ("sequential_all_cores_mb_per_s", heads[0].as_str()),
        ("pipelined_all_cores_mb_per_s", heads[1].as_str()),
        ("overlapped_all_cores_mb_per_s", heads[2].as_str()),
        ("full_ratio_all_cores_mb_per_s", heads[3].as_str()),
    ];
    let mut sheet =
        Sheet::new("thresholds", "Thresholds: compression pays on links slower than this, in MB/s", &columns);
    for m in methods.iter().filter(|m| !m.is_none()) {
        let [one, many] = [1.0, n].map(Cores::both);
        let at = |model, cores| Cell::from(threshold(model, m, cores));
        sheet.push([
            m.name.as_str().into(),
            at(Model::Sequential, one),
            at(Model::Pipelined, one),
            at(Model::Overlapped, one),
            at(Model::Sequential, many),
            at(Model::Pipelined, many),
            at(Model::Overlapped, many),
            full_rate(m, many).into(),
        ]);
    }
    sheet.about = format!(
        "With 1 core and with {n} at each end: one step after the other, with the two ends at the same time, and with \
         everything overlapped, as Narrows works. Up to the rate `full` the link becomes faster by the whole ratio."
    );
    sheet
}

fn memory(site: &Site, methods: &[Method]) -> Sheet {
    let sizes = &site.memory_installed_gb;
    let mut keys = vec![("method".to_owned(), "method".to_owned())];
    for size in sizes {
        keys.push((format!("offered_of_{size}_gb"), format!("{size} GB offer")));
        keys.push((format!("compressed_of_{size}_gb"), "compress".into()));
    }
    keys.push(("encode_gb_per_s".into(), "encode GB/s".into()));
    let columns: Vec<(&str, &str)> = keys.iter().map(|(k, h)| (k.as_str(), h.as_str())).collect();
    let mut sheet = Sheet::new("memory", "Memory of a node, in GB", &columns);
    let memory = site.memory();
    for m in methods {
        let mut cells: Vec<Cell> = vec![m.name.as_str().into()];
        for size in sizes {
            cells.push(capacity_gb(memory, *size, m).into());
            let needed = needed_gb(memory, *size, m).filter(|n| !m.is_none() || n.value == 0.0);
            cells.push(needed.into());
        }
        let all = m.encode_mb_per_s * site.node.cores_free / 1e3;
        cells.push(if m.is_none() { Cell::Absent } else { all.into() });
        sheet.rows.push(crate::sheet::Row { cells, is_detail: false });
    }
    let prices: Vec<String> = sizes
        .iter()
        .map(|gb| format!("{gb} GB {}", number(site.node.count * gb * site.node.memory_price_per_gb)))
        .collect();
    sheet.about = format!(
        "What installed memory offers to programs if as much of it is compressed as would hold {} GB (the rule of the \
         text), and how much has to be compressed at least to offer that; - if it is not enough. {} GB stay as they are.",
        site.node.memory_wanted_gb, site.node.memory_kept_gb
    );
    sheet.notes.push(format!(
        "memory of all {} nodes costs, in {}: {}",
        number(site.node.count),
        site.currency,
        prices.join(", ")
    ));
    sheet
}

fn storage(site: &Site, methods: &[Method]) -> Sheet {
    let columns = [
        ("method", "method"),
        ("units_needed", "needed"),
        ("s1_units", "S1 units"),
        ("s1_price", "S1 price"),
        ("s1_gb_per_s", "S1 GB/s"),
        ("s2_price", "S2 price"),
        ("s2_gb_per_s", "S2 GB/s"),
        ("verdict", "verdict"),
    ];
    let s = &site.storage;
    let title = format!("Storage of {} TB, in {}", number(s.target_tb), site.currency);
    let mut sheet = Sheet::new("storage", title, &columns);
    let best = [Question::StorageS1, Question::StorageS2].map(|q| q.answer(site, methods).name.clone());
    for m in methods {
        let (s1, s2) = (s.fewest_units(m), s.fewest_disks(m));
        let won = [("S1", &best[0]), ("S2", &best[1])].into_iter().filter(|b| *b.1 == m.name).map(|b| b.0);
        let won: Vec<&str> = won.collect();
        let plain = System { rate_gb_per_s: s2.units * s.unit_rate_gb_per_s, ..s2 };
        let verdict = match (won.is_empty(), s.is_fast_enough(&s2, &plain)) {
            (false, _) => format!("best {}", won.join(", ")),
            (true, false) => "too slow".into(),
            (true, true) => String::new(),
        };
        sheet.push([
            m.name.as_str().into(),
            s1.needed.into(),
            s1.units.into(),
            s1.price.into(),
            s1.rate_gb_per_s.into(),
            s2.price.into(),
            s2.rate_gb_per_s.into(),
            verdict.into(),
        ]);
    }
    sheet.about = format!(
        "S1: as few units as hold the data. S2: the disks that hold the data, in the {} units there are. The best is the \
         cheapest that keeps {:.0} % of its units' rate.",
        number(s.units_now),
        100.0 * s.rate_wanted_share
    );
    let at_rest = site.work.written_tb_per_day * MONTH_DAYS * site.work.retention_months;
    sheet.notes.push(format!(
        "work.written_tb_per_day over work.retention_months are {} TB of the {} that are to be stored",
        number(at_rest),
        number(s.target_tb)
    ));
    sheet
}

fn archive(site: &Site, methods: &[Method]) -> Sheet {
    let columns = [
        ("method", "method"),
        ("encode_core_h", ""),
        ("encode_price", "encode"),
        ("stored_tb", "stored TB"),
        ("price_per_month", "a month"),
        ("payback_months", "months"),
        ("against", ""),
        ("against_months", "over next"),
        ("total_price", "total"),
    ];
    let archive = site.archive();
    let title = format!("Archive: {} TB of a month's work, in {}", number(archive.raw_tb), site.currency);
    let mut sheet = Sheet::new("archive", title, &columns);
    let none = Method::none();
    for m in methods {
        let bill = archive.bill(m);
        let against = next_cheaper(&archive, m, methods);
        sheet.push([
            m.name.as_str().into(),
            bill.encode_core_h.into(),
            bill.encode_price.into(),
            bill.stored_tb.into(),
            bill.price_per_month.into(),
            if m.is_none() { Cell::Absent } else { months(archive.payback_months(m, &none)) },
            against.map_or(Cell::Absent, |a| a.name.as_str().into()),
            against.map_or(Cell::Absent, |a| months(archive.payback_months(m, a))),
            bill.total_price.into(),
        ]);
    }
    sheet.about = format!(
        "Encoded once, kept for {} months and read {} times a month. `months` are until the encoding has paid for itself \
         against no compression, `over next` against the best method that is cheaper to encode. A core costs {} an hour.",
        number(archive.months_kept),
        number(archive.reads_per_month),
        number(archive.core_price_per_hour)
    );
    sheet
}

fn months(months: Option<f64>) -> Cell {
    months.map_or("never".into(), Cell::from)
}

/// Of the methods that cost less to encode, the one with the lowest total.
fn next_cheaper<'a>(archive: &Archive, method: &Method, methods: &'a [Method]) -> Option<&'a Method> {
    let encode = |m: &Method| archive.bill(m).encode_price.value;
    let cheaper = methods.iter().filter(|m| !m.is_none() && encode(m) < encode(method));
    let total = |m: &Method| archive.bill(m).total_price.value;
    cheaper.min_by(|a, b| total(a).total_cmp(&total(b)))
}

fn archive_reads(site: &Site, methods: &[Method]) -> Sheet {
    let columns = [
        ("reads_per_month", "reads a month"),
        ("winner", "cheapest"),
        ("total_price", "total"),
        ("none_price", "none"),
        ("saved_percent", "saved %"),
        ("payback_months", "months"),
    ];
    let title = format!("Archive, by how often it is read, in {}", site.currency);
    let mut sheet = Sheet::new("archive_reads", title, &columns);
    let mut reads = READS.to_vec();
    reads.push(site.archive.reads_per_month);
    reads.sort_by(f64::total_cmp);
    reads.dedup();
    for reads_per_month in reads {
        let archive = Archive { reads_per_month, ..site.archive() };
        let Some(winner) = archive.winner(methods) else { continue };
        let (total, none) = (archive.bill(winner).total_price, archive.bill(&Method::none()).total_price);
        let saved = (none.value > 0.0).then(|| (Interval::exact(1.0) - total / none.value) * 100.0);
        sheet.push([
            reads_per_month.into(),
            winner.name.as_str().into(),
            total.into(),
            none.into(),
            saved.into(),
            months(archive.payback_months(winner, &Method::none())),
        ]);
    }
    sheet
}

fn sensitivity(site: &Site, methods: &[Method]) -> Sheet {
    let columns = [
        ("question", "question"),
        ("answer", "answer"),
        ("input", "input"),
        ("now", "now"),
        ("at", "flips at"),
        ("then", "then"),
    ];
    let mut sheet =
        Sheet::new("sensitivity", "Sensitivity: which inputs change an answer, and at what value", &columns);
    for question in Question::all(site) {
        let answer = question.answer(site, methods).name.clone();
        let flips = question.flips(site);
        if flips.is_empty() {
            let cells = [
                question.words(site).into(),
                answer.as_str().into(),
                "no input".into(),
                Cell::Absent,
                Cell::Absent,
                "".into(),
            ];
            sheet.push(cells);
        }
        for (i, flip) in flips.iter().enumerate() {
            let is_detail = i >= FLIPS_SHOWN || (i > 0 && flip.distance() > FLIP_NEAR.ln());
            let first = |text: String| if i == 0 { Cell::from(text) } else { "".into() };
            let cells = [
                first(question.words(site)),
                first(answer.clone()),
                flip.input.as_str().into(),
                flip.now.into(),
                flip.at.into(),
                flip.then.as_str().into(),
            ];
            sheet.push_detail(cells, is_detail);
        }
    }
    sheet.about =
        "Each input is changed alone, by up to a factor of 1000; the nearest change of the answer is shown.".into();
    sheet
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::climate_2016;
    use crate::sheet::WIDTH;
    use crate::site::default_methods;

    fn sites() -> [Site; 2] {
        [climate_2016(), Site { methods: default_methods(), ..Site::default() }]
    }

    #[test]
    fn every_table_fits_a_terminal() {
        for site in sites() {
            for sheet in sheets(&site, "words").into_iter().chain([published()]) {
                for all in [false, true] {
                    let text = sheet.text(all);
                    let wide = text.lines().find(|l| l.chars().count() > WIDTH);
                    assert!(wide.is_none(), "{}: {wide:?}", sheet.key);
                    assert!(!text.contains("NaN") && !text.contains("inf "), "{text}");
                }
                assert!(sheet.rows.iter().all(|r| r.cells.len() == sheet.columns.len()), "{}", sheet.key);
            }
        }
    }

    #[test]
    fn intervals_reach_every_table() {
        let [_, site] = sites();
        for sheet in sheets(&site, "words") {
            let has = sheet
                .rows
                .iter()
                .flat_map(|r| &r.cells)
                .any(|c| matches!(c, Cell::Number(n) | Cell::Narrow(n) if n.low < n.high));
            // The summary has them in its words, and inputs are exact.
            assert!(has || ["summary", "inputs", "sensitivity"].contains(&sheet.key), "{}", sheet.key);
        }
    }

    #[test]
    fn a_site_without_methods_has_tables_too() {
        for sheet in sheets(&Site::default(), "none") {
            assert!(!sheet.text(true).is_empty(), "{}", sheet.key);
        }
    }
}
