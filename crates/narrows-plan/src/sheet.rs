//! Tables of results, independent of how they are shown: as text, as CSV, or by the caller as JSON.

use std::fmt::Write;

use crate::interval::Interval;

/// Width of the text form: a terminal of 100 columns.
pub const WIDTH: usize = 100;
const GAP: usize = 2;
/// A column of words is not made narrower than this.
const WORDS_MIN: usize = 8;

/// One table.
#[derive(Debug, Clone)]
pub struct Sheet {
    /// Key in JSON and CSV: `thresholds`.
    pub key: &'static str,
    /// Heading.
    pub title: String,
    /// What the table says and how to read it.
    pub about: String,
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows.
    pub rows: Vec<Row>,
    /// Remarks below the table.
    pub notes: Vec<String>,
}

/// A column.
#[derive(Debug, Clone)]
pub struct Column {
    /// Key in JSON and CSV, with the unit last: `encode_mb_per_s`.
    pub key: String,
    /// Heading, with the unit where it is not that of the whole table; a column without one is left
    /// out of the text.
    pub head: String,
}

/// A row.
#[derive(Debug, Clone)]
pub struct Row {
    /// One cell for each column.
    pub cells: Vec<Cell>,
    /// Left out of the text unless everything is asked for.
    pub is_detail: bool,
}

/// A cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Words.
    Text(String),
    /// A number, perhaps with an interval.
    Number(Interval),
    /// A number whose interval the text leaves out, for want of room.
    Narrow(Interval),
    /// A number with all its digits, as it was printed somewhere.
    Printed(f64),
    /// A number that does not exist: the price of something that has none.
    Absent,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<f64> for Cell {
    fn from(value: f64) -> Self {
        Self::Number(value.into())
    }
}

impl From<Interval> for Cell {
    fn from(value: Interval) -> Self {
        Self::Number(value)
    }
}

impl From<Option<Interval>> for Cell {
    fn from(value: Option<Interval>) -> Self {
        value.map_or(Self::Absent, Self::Number)
    }
}

impl Sheet {
    /// A table without rows; columns as (key, heading).
    pub fn new(key: &'static str, title: impl Into<String>, columns: &[(&str, &str)]) -> Self {
        let column = |(key, head): &(&str, &str)| Column { key: (*key).into(), head: (*head).into() };
        let columns = columns.iter().map(column).collect();
        Self { key, title: title.into(), about: String::new(), columns, rows: Vec::new(), notes: Vec::new() }
    }

    /// Adds a row.
    pub fn push<const N: usize>(&mut self, cells: [Cell; N]) {
        self.rows.push(Row { cells: cells.into(), is_detail: false });
    }

    /// Adds a row that is left out of the short text.
    pub fn push_detail<const N: usize>(&mut self, cells: [Cell; N], is_detail: bool) {
        self.rows.push(Row { cells: cells.into(), is_detail });
    }

    /// The table as text of at most [`WIDTH`] columns; `all` includes the details.
    pub fn text(&self, all: bool) -> String {
        let mut out = format!("{}\n", self.title);
        wrap(&mut out, &self.about, "  ");
        let rows: Vec<&Row> = self.rows.iter().filter(|r| all || !r.is_detail).collect();
        let shown: Vec<usize> = (0..self.columns.len()).filter(|c| !self.columns[*c].head.is_empty()).collect();
        let of_row = |r: &&Row| shown.iter().map(|c| r.cells.get(*c).map_or(String::new(), Cell::text)).collect();
        let texts: Vec<Vec<String>> = rows.iter().map(of_row).collect();
        let heads: Vec<String> = shown.iter().map(|c| self.columns[*c].head.clone()).collect();
        let count = shown.len();
        let mut widths: Vec<usize> = (0..count)
            .map(|c| {
                let cells = texts.iter().map(|r| r.get(c).map_or(0, |t| t.chars().count())).max().unwrap_or(0);
                cells.max(heads[c].chars().count())
            })
            .collect();
        let is_text: Vec<bool> = (0..count)
            .map(|c| c == 0 || rows.iter().any(|r| matches!(r.cells.get(shown[c]), Some(Cell::Text(_)))))
            .collect();
        let words: Vec<usize> = (0..count)
            .map(|c| texts.iter().filter_map(|r| r.get(c)).map(|t| longest_word(t)).max().unwrap_or(0))
            .collect();
        // Columns of words give way, the widest first; between words, then between columns, and only
        // then within words.
        let mut gap = GAP;
        for (next_gap, within_words) in [(GAP, false), (1, false), (1, true)] {
            gap = next_gap;
            let least = |c: usize| if within_words { WORDS_MIN } else { words[c].max(WORDS_MIN) };
            while widths.iter().sum::<usize>() + gap * count > WIDTH {
                let can_give = |c: &usize| is_text[*c] && widths[*c] > least(*c);
                let Some(widest) = (0..count).filter(can_give).max_by_key(|c| widths[*c]) else { break };
                widths[widest] -= 1;
            }
            if widths.iter().sum::<usize>() + gap * count <= WIDTH {
                break;
            }
        }
        let lines = std::iter::once(&heads).filter(|_| !texts.is_empty()).chain(&texts);
        for cells in lines {
            let wrapped: Vec<Vec<String>> = (0..count).map(|c| folded(&cells[c], widths[c])).collect();
            for i in 0..wrapped.iter().map(Vec::len).max().unwrap_or(0) {
                let mut line = String::new();
                for (c, parts) in wrapped.iter().enumerate() {
                    let part = parts.get(i).map_or("", String::as_str);
                    let room = " ".repeat(widths[c].saturating_sub(part.chars().count()));
                    line.push_str(&" ".repeat(gap));
                    if is_text[c] {
                        line = line + part + &room;
                    } else {
                        line = line + &room + part;
                    }
                }
                out.push_str(line.trim_end());
                out.push('\n');
            }
        }
        let hidden = self.rows.len() - rows.len();
        for note in &self.notes {
            wrap(&mut out, note, "  ");
        }
        if hidden > 0 {
            let _ = writeln!(out, "  ({hidden} more rows with --verbose)");
        }
        out
    }

    /// The table as CSV lines `table,row,column,low,value,high`, without a heading line. `row` is
    /// the number of the row, from 0; words are values too.
    pub fn csv(&self) -> String {
        let mut out = String::new();
        for (r, row) in self.rows.iter().enumerate() {
            for (column, cell) in self.columns.iter().zip(&row.cells) {
                let values = match cell {
                    Cell::Text(text) => format!(",{},", quoted(text)),
                    Cell::Number(n) | Cell::Narrow(n) => {
                        format!("{},{},{}", plain(n.low), plain(n.value), plain(n.high))
                    }
                    Cell::Printed(n) => format!(",{},", plain(*n)),
                    Cell::Absent => ",,".into(),
                };
                let _ = writeln!(out, "{},{r},{},{values}", self.key, quoted(&column.key));
            }
        }
        out
    }
}

impl Cell {
    /// The cell for people: about three digits, and the half width of the interval where it is at
    /// least half a per cent.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Absent => "-".into(),
            Self::Narrow(n) => number(n.value),
            // Five digits tell every figure from its neighbours.
            Self::Printed(n) if n.abs() >= 1e6 => number(*n),
            Self::Printed(n) if n.abs() >= 1e3 => thousands(*n),
            Self::Printed(n) => {
                let text = format!("{n:.2}");
                text.trim_end_matches('0').trim_end_matches('.').to_owned()
            }
            Self::Number(n) => {
                let spread = n.spread() * 100.0;
                if spread >= 0.5 { format!("{} ±{spread:.0}%", number(n.value)) } else { number(n.value) }
            }
        }
    }
}

/// A number with three significant digits, whole above 100, its thousands apart: `0.0123`, `3.40`,
/// `21,946`.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return if value > 0.0 { "unlimited".into() } else { "-".into() };
    }
    // From a million on three digits are enough, with a letter for the rest of them.
    for (letter, unit) in [("T", 1e12), ("G", 1e9), ("M", 1e6)] {
        if size >= 0.9995 * unit {
            return if size >= 999.5 * 1e12 { format!("{value:.2e}") } else { short(value / unit) + letter };
        }
    }
    short(value)
}

fn short(value: f64) -> String {
    match value.abs() {
        size if size.fract() == 0.0 => thousands(value),
        size if size >= 99.95 => thousands(value),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.9995 => format!("{value:.2}"),
        size if size < 1e-4 => format!("{value:.1e}"),
        size => format!("{value:.0$}", ((-size.log10()).ceil().clamp(0.0, 4.0) as usize + 2).min(5)),
    }
}

fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::from(if value < 0.0 { "-" } else { "" });
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// A number for programs; nothing where there is none.
fn plain(value: f64) -> String {
    if value.is_finite() { value.to_string() } else { String::new() }
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

/// Appends words in lines of at most [`WIDTH`] columns.
pub fn wrap(out: &mut String, words: &str, indent: &str) {
    if words.is_empty() {
        return;
    }
    for line in folded(words, WIDTH - indent.len()) {
        let _ = writeln!(out, "{indent}{line}");
    }
}

fn longest_word(words: &str) -> usize {
    words.split_whitespace().map(|word| word.chars().count()).max().unwrap_or(0)
}

/// Words in lines of at most `width`; a longer word is cut.
fn folded(words: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in words.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        let used = lines[lines.len() - 1].chars().count();
        if used > 0 && used + 1 + word.len() > width {
            lines.push(String::new());
        }
        let line = lines.len() - 1;
        if !lines[line].is_empty() {
            lines[line].push(' ');
        }
        while word.len() > width {
            let rest = word.split_off(width);
            let line = lines.len() - 1;
            lines[line].extend(word);
            lines.push(String::new());
            word = rest;
        }
        let line = lines.len() - 1;
        lines[line].extend(word);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let all =
            [0.0, 4.0, 0.012_34, 0.5, 3.4, 12.94, 914.4, 21_946.3, 6_100_000.0, 2e12, -70_680.0, f64::INFINITY, 1e-7];
        let words = all.map(number);
        let expected = [
            "0",
            "4",
            "0.0123",
            "0.500",
            "3.40",
            "12.9",
            "914",
            "21,946",
            "6.10M",
            "2T",
            "-70,680",
            "unlimited",
            "1.0e-7",
        ];
        assert_eq!(words, expected);
        assert_eq!(Cell::from(Interval::new(90.0, 100.0, 105.0)).text(), "100 ±10%");
        assert_eq!(Cell::from(Interval::new(99.9, 100.0, 100.1)).text(), "100");
        assert_eq!(Cell::from(Interval::exact(0.0)).text(), "0");
    }

    #[test]
    fn no_line_is_wider_than_a_terminal() {
        let mut sheet = Sheet::new("t", "Title", &[("name", "name"), ("value_mb", "MB"), ("why", "why")]);
        sheet.about = "words ".repeat(60);
        sheet.push(["a".into(), 12.0.into(), "reason ".repeat(40).trim().into()]);
        sheet.push_detail(["b".into(), Cell::Absent, "x".repeat(250).into()], true);
        for all in [false, true] {
            let text = sheet.text(all);
            assert!(text.lines().all(|l| l.chars().count() <= WIDTH), "{text}");
        }
        assert!(sheet.text(false).contains("(1 more rows"));
        assert_eq!(sheet.text(true).matches('x').count(), 250, "nothing is lost");
    }

    #[test]
    fn columns_move_closer_before_a_name_is_cut() {
        let heads = [("name", "name"), ("a", "a"), ("b", "b")];
        let mut sheet = Sheet::new("t", "Title", &heads);
        let (name, number) = ("zstd:level=15", "1".repeat(41));
        sheet.push([name.into(), number.as_str().into(), number.as_str().into()]);
        let text = sheet.text(true);
        assert!(text.contains(&format!("{name} {number} {number}")), "{text}");
    }

    #[test]
    fn csv_has_a_line_for_each_cell() {
        let mut sheet = Sheet::new("t", "Title", &[("name", "name"), ("n", "n")]);
        sheet.push(["a,\"b\"".into(), Interval::new(1.0, 2.0, f64::INFINITY).into()]);
        assert_eq!(sheet.csv(), "t,0,name,,\"a,\"\"b\"\"\",\nt,0,n,1,2,\n");
    }
}
