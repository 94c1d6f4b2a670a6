//! `samples.jsonl`: the first line describes machine and plan, then one sample per line. The file
//! stays usable if it is cut off anywhere.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::cells::Cell;
use super::plan::Plan;
use crate::report::About;

/// Results of one run of one cell.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Values {
    pub(crate) numbers: BTreeMap<String, f64>,
    /// Series within the run, such as the length of a queue over time.
    pub(crate) series: BTreeMap<String, Vec<f64>>,
    /// Texts, such as the mix of methods.
    pub(crate) words: BTreeMap<String, String>,
}

impl Values {
    pub(crate) fn of(numbers: &[(&str, f64)]) -> Self {
        Self { numbers: numbers.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect(), ..Self::default() }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sample {
    pub(crate) cell: Cell,
    pub(crate) round: u32,
    /// The values, or the error of the run.
    pub(crate) outcome: Result<Values, String>,
}

impl Sample {
    fn json(&self) -> Value {
        let cell: serde_json::Map<_, _> = self.cell.0.iter().map(|(a, v)| (a.clone(), v.clone().into())).collect();
        let mut line = json!({ "cell": cell, "round": self.round });
        match &self.outcome {
            Ok(values) => {
                line["values"] = json!(values.numbers);
                if !values.series.is_empty() {
                    line["series"] = json!(values.series);
                }
                if !values.words.is_empty() {
                    line["words"] = json!(values.words);
                }
            }
            Err(error) => line["error"] = json!(error),
        }
        line
    }

    fn parse(line: &Value, cells: &HashSet<&Cell>) -> Option<Self> {
        let axes = cells.iter().next()?.0.iter().map(|a| &a.0);
        let values = axes.map(|a| Some((a.clone(), line["cell"][a].as_str()?.to_owned())));
        let cell = Cell(values.collect::<Option<_>>()?);
        if !cells.contains(&cell) {
            return None;
        }
        let round = line["round"].as_u64()?.try_into().ok()?;
        if let Some(error) = line["error"].as_str() {
            return Some(Self { cell, round, outcome: Err(error.to_owned()) });
        }
        let numbers = line["values"].as_object()?.iter();
        let numbers = numbers.map(|(k, v)| (k.clone(), v.as_f64().unwrap_or(f64::NAN))).collect();
        let list = |v: &Value| v.as_array().map(|a| a.iter().map(|x| x.as_f64().unwrap_or(f64::NAN)).collect());
        let series = line["series"].as_object().into_iter().flatten();
        let series = series.filter_map(|(k, v)| Some((k.clone(), list(v)?))).collect();
        let words = line["words"].as_object().into_iter().flatten();
        let words = words.filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect();
        Some(Self { cell, round, outcome: Ok(Values { numbers, series, words }) })
    }
}

/// The samples of a folder and the line about their machine. `None`: there are none.
pub(crate) fn read(folder: &Path, cells: &[Cell]) -> Result<Option<(Vec<Sample>, Value)>> {
    let path = folder.join("samples.jsonl");
    if !path.exists() {
        return Ok(None);
    }
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let known: HashSet<&Cell> = cells.iter().collect();
    let mut lines = text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
    let Some(about) = lines.next() else { return Ok(None) };
    Ok(Some((lines.filter_map(|line| Sample::parse(&line, &known)).collect(), about)))
}

pub(crate) struct Samples {
    file: File,
    pub(crate) path: PathBuf,
    pub(crate) all: Vec<Sample>,
    /// Number of samples kept from earlier runs.
    pub(crate) kept: usize,
    /// Machine and plan, from the first line.
    pub(crate) about: Value,
}

impl Samples {
    /// Opens the file and keeps samples of the same plan on the same machine. Failed cells, and one
    /// whose line was cut off, are run again.
    pub(crate) fn open(folder: &Path, plan: &Plan, cells: &[Cell]) -> Result<Self> {
        let path = folder.join("samples.jsonl");
        let about = about(plan);
        let known: HashSet<&Cell> = cells.iter().collect();
        let (mut all, mut first) = (Vec::new(), about.clone());
        let before = fs::read_to_string(&path).unwrap_or_default();
        // A line without line end was cut off.
        let whole = &before[..before.rfind('\n').map_or(0, |end| end + 1)];
        let mut lines = whole.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
        let mut heads = Vec::new();
        if let Some(head) = lines.next()
            && ["plan_hash", "machine", "cores"].iter().all(|key| head[key] == about[key])
        {
            first = head;
            for line in lines {
                if line["resumed"].is_object() {
                    heads.push(line);
                } else if let Some(sample) = Sample::parse(&line, &known).filter(|s| s.outcome.is_ok()) {
                    all.push(sample);
                }
            }
            if first["commit"] != about["commit"] || first["command"] != about["command"] {
                heads.push(json!({ "resumed": about }));
            }
        }
        let mut text = format!("{first}\n");
        for line in heads.iter().cloned().chain(all.iter().map(Sample::json)) {
            text.push_str(&line.to_string());
            text.push('\n');
        }
        narrows_host::whole::write_whole(&path, text.as_bytes())?;
        let file =
            File::options().append(true).open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let kept = all.len();
        Ok(Self { file, path, all, kept, about: first })
    }

    pub(crate) fn known(&self) -> HashSet<(Cell, u32)> {
        self.all.iter().map(|s| (s.cell.clone(), s.round)).collect()
    }

    pub(crate) fn add(&mut self, sample: Sample) -> Result<()> {
        let line = format!("{}\n", sample.json());
        self.file.write_all(line.as_bytes()).with_context(|| format!("cannot write {}", self.path.display()))?;
        self.all.push(sample);
        Ok(())
    }
}

fn about(plan: &Plan) -> Value {
    let mut about = About::new().json();
    about["plan"] = json!(plan.name);
    about["plan_hash"] = json!(plan.hash());
    about["date"] = json!(date());
    about
}

/// Current date and time in UTC.
fn date() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    // Days to a date (Howard Hinnant's algorithm, years from March on).
    let (days, clock) = ((now / 86_400) as i64 + 719_468, now % 86_400);
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", clock / 3600, clock / 60 % 60, clock % 60)
}

/// Writes a file atomically: a reader sees the old content or the new one.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::cells::cells;
    use crate::experiment::plan::tests::SMALL;

    #[test]
    fn a_cut_file_loses_its_last_line_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let plan = Plan::parse("p", SMALL, false).unwrap();
        let cells = cells(&plan);
        let mut samples = Samples::open(folder.path(), &plan, &cells).unwrap();
        for (round, cell) in [(0, &cells[0]), (0, &cells[1]), (1, &cells[0])] {
            let outcome = Ok(Values::of(&[("seconds", 1.5)]));
            samples.add(Sample { cell: cell.clone(), round, outcome }).unwrap();
        }
        let failed = Sample { cell: cells[2].clone(), round: 0, outcome: Err("it rained".into()) };
        samples.add(failed).unwrap();
        let path = samples.path.clone();
        drop(samples);
        let again = Samples::open(folder.path(), &plan, &cells).unwrap();
        assert_eq!(again.kept, 3, "the one that failed runs again");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() - 9]).unwrap();
        let cut = Samples::open(folder.path(), &plan, &cells).unwrap();
        assert!(cut.kept == 2 && cut.known().contains(&(cells[1].clone(), 0)));
        assert_eq!(cut.all[..], again.all[..2]);
        let other = Plan::parse("p", &SMALL.replace("[1, 24]", "[1, 2]"), false).unwrap();
        assert_eq!(Samples::open(folder.path(), &other, &super::super::cells::cells(&other)).unwrap().kept, 0);
    }

    #[test]
    fn the_first_line_says_what_it_is_of() {
        let about = about(&Plan::parse("p", SMALL, false).unwrap());
        for key in ["machine", "kernel", "cores", "commit", "command", "plan", "plan_hash", "date"] {
            assert!(about[key].is_string(), "{key}");
        }
        assert!(date().starts_with("20") && date().len() == 20);
    }
}
