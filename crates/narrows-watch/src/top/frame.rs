//! A frame of `narrows top`: lines of styled text, without any terminal.

use narrows_host::words::{count, shown};

use super::graph;
use super::view::{Sort, View};
use super::world::{FlowRow, ProcessRow, World, short};

/// How a piece of text looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Style {
    #[default]
    Plain,
    Bold,
    Dim,
    /// The head of a table.
    Head,
    /// The column that the table is sorted by.
    Sorted,
    Graph,
    Alert,
}

/// A line: pieces of text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Line(pub Vec<(Style, String)>);

impl Line {
    fn push(&mut self, style: Style, text: impl Into<String>) -> &mut Self {
        self.0.push((style, text.into()));
        self
    }

    fn of(style: Style, text: impl Into<String>) -> Self {
        Self(vec![(style, text.into())])
    }

    fn width(&self) -> usize {
        self.0.iter().map(|(_, text)| text.chars().count()).sum()
    }

    /// Its text alone.
    pub(crate) fn text(&self) -> String {
        let text: String = self.0.iter().map(|(_, text)| text.as_str()).collect();
        text.trim_end().to_owned()
    }

    /// At most `width` characters of it.
    fn cut(self, width: usize) -> Self {
        let mut left = width;
        let mut cut = Self::default();
        for (style, text) in self.0 {
            let text: String = text.chars().take(left).collect();
            left -= text.chars().count();
            cut.push(style, text);
        }
        cut
    }
}

/// Size and form of a frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    pub(crate) width: usize,
    /// Lines; `None`: as many as there are.
    pub(crate) height: Option<usize>,
    pub(crate) ascii: bool,
}

/// Lines above the table, its head and the line below it.
const AROUND: usize = 9;

impl Form {
    /// Lines of the table that fit.
    pub(crate) fn page(&self) -> usize {
        self.height.map_or(usize::MAX, |height| height.saturating_sub(AROUND).max(1))
    }
}

/// Draws a frame. `clock`: the time of day.
pub(crate) fn draw(world: &World, view: &View, form: Form, clock: &str) -> Vec<Line> {
    let mut lines = vec![title(world, view, clock)];
    lines.extend(graphs(world, form));
    lines.push(methods(world));
    lines.push(Line::default());
    if view.help {
        lines.extend(HELP.iter().map(|line| Line::of(Style::Plain, *line)));
    } else if view.processes {
        let rows = view.process_rows(world);
        lines.push(process_head(view, form));
        lines.extend(part(&rows, view.top, form.page()).iter().map(|row| process_line(row, view, form)));
        lines.push(foot(rows.len(), view.top, form));
    } else {
        let rows = view.flows(world);
        lines.push(flow_head(view, form));
        lines.extend(part(&rows, view.top, form.page()).iter().map(|row| flow_line(row, view, form)));
        lines.push(foot(rows.len(), view.top, form));
    }
    lines.truncate(form.height.unwrap_or(usize::MAX));
    lines.into_iter().map(|line| line.cut(form.width)).collect()
}

const HELP: [&str; 10] = [
    "  q          quit",
    "  Tab        flows, or processes",
    "  g w r c    sort by goodput, bytes on the wire, ratio, CPU",
    "  a n        sort by age, name",
    "  R          reverse the order",
    "  /          filter: type, Enter keeps it, Escape drops it",
    "  space      pause",
    "  + -        shorter, longer interval",
    "  arrows     scroll; also PgUp, PgDn, Home, End",
    "Any key goes back. `narrows status --trace PID/ID` tells why a flow is sent as it is.",
];

/// The part of a table that is shown; the last lines stay when it is scrolled too far.
fn part<T>(rows: &[T], top: usize, page: usize) -> &[T] {
    let first = top.min(rows.len().saturating_sub(page));
    &rows[first..rows.len().min(first.saturating_add(page))]
}

fn title(world: &World, view: &View, clock: &str) -> Line {
    let mut line = Line::of(Style::Bold, "narrows top");
    let (processes, flows) = (world.processes.len() as u64, world.connections());
    let counts = format!("{}, {}", count(processes, "process", "processes"), count(flows, "flow", "flows"));
    line.push(Style::Plain, format!("  {clock}  {counts}  every {} s", view.interval_s));
    if world.left_out() > 0 {
        line.push(Style::Alert, format!("  {} silent", world.left_out()));
    }
    if view.paused {
        line.push(Style::Alert, "  paused");
    }
    if view.typing {
        line.push(Style::Alert, format!("  /{}_", shown(view.filter.as_bytes())));
    } else if !view.filter.is_empty() {
        line.push(Style::Alert, format!("  /{}", shown(view.filter.as_bytes())));
    }
    line
}

/// Label and value before a graph.
const LABEL: usize = 22;

fn graphs(world: &World, form: Form) -> [Line; 4] {
    let (all, histories) = (&world.all, &world.histories);
    let width = form.width.saturating_sub(LABEL).min(60);
    let graph = |label: &str, value: String, history: &std::collections::VecDeque<f64>| {
        let mut line = Line::of(Style::Plain, format!("{label:<8}"));
        line.push(Style::Bold, format!("{value:>12}"));
        line.push(Style::Graph, format!("  {}", graph::draw(history.iter().copied(), width, form.ascii)));
        line
    };
    let rate = |bytes: f64| format!("{}/s", narrows_host::words::bytes(bytes));
    let ratio = if all.ratio() > 0.0 { format!("{:.2}", all.ratio()) } else { "-".into() };
    [
        graph("goodput", rate(all.goodput()), &histories.goodput),
        graph("wire", rate(all.wire()), &histories.wire),
        graph("ratio", ratio, &histories.ratio),
        graph("CPU", format!("{:.0} %", 100.0 * all.cpu), &histories.cpu),
    ]
}

/// Columns for methods, so that 80 have room for what sending is bound by.
const METHODS: usize = 52;

fn methods(world: &World) -> Line {
    let mut line = Line::of(Style::Plain, "methods ");
    let mut words = String::new();
    for (method, share) in world.methods.iter().filter(|(_, share)| *share >= 0.5) {
        let between = if words.is_empty() { "" } else { ", " };
        let word = format!("{between}{share:.0} % {}", shown(short(method).as_bytes()));
        if words.chars().count() + word.chars().count() > METHODS {
            break;
        }
        words += &word;
    }
    line.push(Style::Bold, if words.is_empty() { "-".into() } else { words });
    if !world.bound.is_empty() {
        line.push(Style::Plain, "  bound by ").push(Style::Bold, word_of(&world.bound));
    }
    line
}

fn word_of(bound: &str) -> String {
    match bound {
        "cpu" => "CPU".into(),
        "round_trips" => "trips".into(),
        other => shown(other.as_bytes()),
    }
}

/// A column: head, width, to the left, and what it is sorted by.
type Column = (&'static str, usize, bool, Option<Sort>);

/// The second column of a table takes what is left of the width.
const FLOWS: [Column; 8] = [
    ("PID/ID", 10, true, None),
    ("FLOW", 0, true, Some(Sort::Name)),
    ("GOODPUT", 7, false, Some(Sort::Goodput)),
    ("WIRE", 7, false, Some(Sort::Wire)),
    ("RATIO", 6, false, Some(Sort::Ratio)),
    ("METHOD", 9, true, None),
    ("BOUND", 8, true, None),
    ("AGE", 5, false, Some(Sort::Age)),
];
const PROCESSES: [Column; 9] = [
    ("PID", 7, false, None),
    ("PROCESS", 0, true, Some(Sort::Name)),
    ("FLOWS", 5, false, None),
    ("GOODPUT", 7, false, Some(Sort::Goodput)),
    ("WIRE", 7, false, Some(Sort::Wire)),
    ("RATIO", 6, false, Some(Sort::Ratio)),
    ("CPU %", 5, false, Some(Sort::Cpu)),
    ("MEMORY", 7, false, None),
    ("AGE", 5, false, Some(Sort::Age)),
];

fn flow_head(view: &View, form: Form) -> Line {
    head(&FLOWS, view, form)
}

fn process_head(view: &View, form: Form) -> Line {
    head(&PROCESSES, view, form)
}

fn head(columns: &[Column], view: &View, form: Form) -> Line {
    let mut line = cells(columns, &columns.iter().map(|c| c.0.to_owned()).collect::<Vec<_>>(), form);
    for (at, (_, _, _, sort)) in columns.iter().enumerate() {
        let is_sorted = *sort == Some(view.sort);
        line.0[at].0 = if is_sorted { Style::Sorted } else { Style::Head };
    }
    let rest = form.width.saturating_sub(line.width());
    line.push(Style::Head, " ".repeat(rest));
    line
}

fn flow_line(row: &FlowRow, view: &View, form: Form) -> Line {
    let moves = row.rates.wire() > 0.0;
    let name = match row.done {
        Some(done) => format!("{:.0} % {}", 100.0 * done, row.name),
        None => row.name.clone(),
    };
    let texts = [
        format!("{}/{}", row.pid, row.id),
        name,
        amount(row.rates.goodput()),
        amount(row.rates.wire()),
        if row.ratio > 0.0 { format!("{:.2}", row.ratio) } else { "-".into() },
        row.method.clone(),
        word_of(&row.bound),
        age(row.age_s),
    ];
    styled(&FLOWS, &texts, view, form, moves)
}

fn process_line(row: &ProcessRow, view: &View, form: Form) -> Line {
    let moves = row.rates.wire() > 0.0;
    let ratio = row.rates.ratio();
    let texts = [
        row.pid.to_string(),
        format!("{} {}", row.kind, row.program),
        row.open.to_string(),
        amount(row.rates.goodput()),
        amount(row.rates.wire()),
        if ratio > 0.0 { format!("{ratio:.2}") } else { "-".into() },
        format!("{:.0}", 100.0 * row.rates.cpu),
        amount(row.memory as f64),
        age(row.age_s),
    ];
    styled(&PROCESSES, &texts, view, form, moves)
}

/// A line of a table; one where nothing moves is dim.
fn styled(columns: &[Column], texts: &[String], view: &View, form: Form, moves: bool) -> Line {
    let mut line = cells(columns, texts, form);
    for ((style, _), (_, _, _, sort)) in line.0.iter_mut().zip(columns) {
        *style = match (moves, *sort == Some(view.sort)) {
            (false, _) => Style::Dim,
            (true, true) => Style::Bold,
            (true, false) => Style::Plain,
        };
    }
    line
}

/// Texts in columns, each with a space after it. Those of other programs steer no terminal.
fn cells(columns: &[Column], texts: &[String], form: Form) -> Line {
    let fixed: usize = columns.iter().map(|c| c.1 + 1).sum();
    let flexible = (form.width + 1).saturating_sub(fixed).max(6);
    let mut line = Line::default();
    for (at, ((_, width, left, _), text)) in columns.iter().zip(texts).enumerate() {
        let width = if *width == 0 { flexible } else { *width };
        let text = fit(&shown(text.as_bytes()), width, form.ascii);
        let space = if at + 1 < columns.len() { " " } else { "" };
        let cell = if *left { format!("{text:<width$}{space}") } else { format!("{text:>width$}{space}") };
        line.push(Style::Plain, cell);
    }
    line
}

/// At most `width` characters, of which the last tells that there are more.
fn fit(text: &str, width: usize, ascii: bool) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(width.saturating_sub(1)).collect();
    cut.push(if ascii { '~' } else { '…' });
    cut
}

fn foot(rows: usize, top: usize, form: Form) -> Line {
    let page = form.page();
    if rows <= page {
        return Line::default();
    }
    let first = top.min(rows - page);
    Line::of(Style::Dim, format!("{}-{} of {rows}", first + 1, first + page))
}

/// Bytes in at most six characters, such as `24.5M`.
fn amount(bytes: f64) -> String {
    let mut value = bytes.max(0.0);
    for unit in ["", "K", "M", "G", "T"] {
        if value < 999.5 || unit == "T" {
            let digits = usize::from(value < 99.95 && !unit.is_empty());
            return format!("{value:.digits$}{unit}");
        }
        value /= 1024.0;
    }
    String::new()
}

/// A time in at most five characters.
fn age(seconds: f64) -> String {
    let s = seconds.max(0.0) as u64;
    match s {
        0..100 => format!("{s}s"),
        100..6000 => format!("{}m", s / 60),
        6000..360_000 => format!("{}h", s / 3600),
        _ => format!("{}d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::view::tests::view;
    use crate::top::world::Rates;

    fn world(flows: usize) -> World {
        let rates = Rates { out_raw: 25e6, out_wire: 8e6, cpu: 0.85, ..Rates::default() };
        let flow = |id| FlowRow {
            kind: "tunnel".into(),
            pid: 4711,
            id,
            name: format!("db.example:5432 < 127.0.0.1:{}\u{1b}[2J", 40_000 + id),
            rates: Rates { out_raw: 1e6 * id as f64, out_wire: 3e5 * id as f64, ..Rates::default() },
            ratio: 3.33,
            method: "zstd:3+link".into(),
            bound: "receiver".into(),
            age_s: 60.0 * id as f64,
            done: None,
        };
        let process = ProcessRow {
            kind: "tunnel".into(),
            pid: 4711,
            program: "-L 5432:db:5432 narrows://x".into(),
            memory: 64 << 20,
            open: flows as u64,
            rates,
            bound: "link".into(),
            age_s: 7200.0,
        };
        let mut world = World {
            all: rates,
            processes: vec![process],
            flows: (0..flows as u64).map(flow).collect(),
            methods: vec![("zstd:level=3".into(), 62.0), ("store".into(), 38.0)],
            bound: "link".into(),
            ..World::default()
        };
        world.histories.goodput.extend((0..60).map(f64::from));
        world
    }

    #[test]
    fn a_frame_fits_and_steers_no_terminal() {
        for (width, height, ascii) in [(80, 24, false), (40, 10, true), (200, 60, false), (1, 1, true), (80, 3, true)] {
            for (processes, help) in [(false, false), (true, false), (false, true)] {
                let view = View { processes, help, ..view() };
                let form = Form { width, height: Some(height), ascii };
                let lines = draw(&world(100), &view, form, "12:00:00");
                assert!(lines.len() <= height, "{width}x{height}");
                for line in &lines {
                    assert!(line.width() <= width, "{width}: {}", line.text());
                    assert!(!line.text().contains(|c: char| c.is_control()));
                    assert!(!ascii || line.text().is_ascii(), "{}", line.text());
                }
            }
        }
    }

    #[test]
    fn eighty_columns_have_everything() {
        let form = Form { width: 80, height: Some(24), ascii: false };
        let lines: Vec<_> = draw(&world(3), &view(), form, "12:00:00").iter().map(Line::text).collect();
        assert_eq!(lines[0], "narrows top  12:00:00  1 process, 3 flows  every 1 s");
        assert!(lines[1].starts_with("goodput   23.8 MiB/s") && lines[1].ends_with('█'), "{}", lines[1]);
        assert_eq!(lines[5], "methods 62 % zstd:3, 38 % store  bound by link");
        assert_eq!(lines[7], "PID/ID     FLOW                  GOODPUT    WIRE  RATIO METHOD    BOUND      AGE");
        assert_eq!(lines[8], "4711/2     db.example:5432 < 12…    1.9M    586K   3.33 zstd:3+l… receiver    2m");
        let view = View { processes: true, ..view() };
        let lines: Vec<_> = draw(&world(3), &view, form, "12:00:00").iter().map(Line::text).collect();
        assert_eq!(lines[8], "   4711 tunnel -L 5432:db:5432…     3   23.8M    7.6M   3.12    85   64.0M    2h");
    }

    #[test]
    fn a_long_table_is_scrolled_to_its_end_and_not_beyond() {
        let form = Form { width: 80, height: Some(24), ascii: true };
        let lines = draw(&world(100), &View { top: usize::MAX, ..view() }, form, "");
        assert_eq!(lines.len(), 24);
        assert!(lines[22].text().starts_with("4711/0 "));
        assert_eq!(lines[23].text(), "86-100 of 100");
    }

    #[test]
    fn amounts_and_ages_are_short() {
        let amounts = [0.0, 999.0, 1000.0, 1023.0 * 1024.0, 25e6, 5e12, 1e18].map(amount);
        assert_eq!(amounts, ["0", "999", "1.0K", "1.0M", "23.8M", "4.5T", "909495T"]);
        assert_eq!([0.0, 99.0, 100.0, 7200.0, 1e6].map(age), ["0s", "99s", "1m", "2h", "11d"]);
    }
}
