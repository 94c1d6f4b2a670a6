//! Output of the tables as text, CSV and JSON.

use narrows_plan::interval::Interval;
use narrows_plan::sheet::{Cell, Sheet};
use serde_json::{Map, Value, json};

/// Heading of the CSV form.
const CSV_HEAD: &str = "table,row,column,low,value,high\n";

/// All tables for a terminal.
pub fn text(headline: &str, sheets: &[Sheet], all: bool) -> String {
    let mut out = String::new();
    narrows_plan::sheet::wrap(&mut out, headline, "");
    // Tables of which nothing is shown but their heading say nothing.
    for sheet in sheets.iter().filter(|s| all || !s.about.is_empty() || s.rows.iter().any(|r| !r.is_detail)) {
        out.push('\n');
        out.push_str(&sheet.text(all));
    }
    out
}

/// All cells as CSV.
pub fn csv(sheets: &[Sheet]) -> String {
    CSV_HEAD.to_owned() + sheets.iter().map(Sheet::csv).collect::<String>().trim_end_matches('\n')
}

/// The JSON document: numbers are {low, value, high}, without what is unlimited.
pub fn json(headline: &str, currency: &str, sheets: &[Sheet]) -> Value {
    let tables: Map<String, Value> = sheets.iter().map(|s| (s.key.to_owned(), table(s))).collect();
    json!({ "about": headline, "currency": currency, "tables": tables })
}

fn table(sheet: &Sheet) -> Value {
    let row = |row: &narrows_plan::sheet::Row| {
        let cells = sheet.columns.iter().zip(&row.cells).map(|(c, cell)| (c.key.clone(), value(cell)));
        Value::Object(cells.collect())
    };
    json!({
        "title": sheet.title,
        "about": sheet.about,
        "notes": sheet.notes,
        "rows": sheet.rows.iter().map(row).collect::<Vec<_>>(),
    })
}

fn value(cell: &Cell) -> Value {
    match cell {
        Cell::Text(text) => json!(text),
        Cell::Number(Interval { low, value, high }) | Cell::Narrow(Interval { low, value, high }) => {
            json!({ "low": low, "value": value, "high": high })
        }
        Cell::Printed(number) => json!(number),
        Cell::Absent => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_ends_in_json_and_what_is_unlimited_has_none() {
        let mut sheet = Sheet::new("t", "T", &[("a", "a"), ("b", "b"), ("c", "c")]);
        sheet.push([Interval::new(1.0, 2.0, f64::INFINITY).into(), Cell::Absent, "x".into()]);
        let row = &json("", "EUR", &[sheet])["tables"]["t"]["rows"][0];
        assert_eq!(row["a"], json!({ "low": 1.0, "value": 2.0, "high": null }));
        assert_eq!((&row["b"], &row["c"]), (&Value::Null, &json!("x")));
    }
}
