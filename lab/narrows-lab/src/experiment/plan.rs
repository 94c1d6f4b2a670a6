//! A plan: one figure or table as a TOML file. The format is described in docs/experiments/plans.md.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_64;

use super::kinds::{Axis, KindName};
use super::tables::Table;

/// Limit on cells: more would take too long and must be a mistake in the plan.
const CELLS_MAX: usize = 100_000;
const ROUNDS_MAX: u32 = 1000;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    /// Name of the file without its ending.
    #[serde(skip)]
    pub(crate) name: String,
    pub(crate) title: String,
    /// The publication that the figure is from, or `ours`.
    #[serde(rename = "seed")]
    pub(crate) publication: String,
    pub(crate) figure: String,
    /// What the figure should show the reader.
    pub(crate) shows: String,
    pub(crate) kind: KindName,
    #[serde(default = "one")]
    pub(crate) rounds: u32,
    #[serde(default = "one_long")]
    order_seed: u64,
    #[serde(default)]
    axes: BTreeMap<String, Axes>,
    #[serde(default)]
    settings: BTreeMap<String, Scalar>,
    #[serde(default)]
    quick: Quick,
    #[serde(default)]
    pub(crate) compare: Vec<Compare>,
    #[serde(default)]
    pub(crate) picture: Vec<Picture>,
    #[serde(default)]
    pub(crate) table: Vec<Table>,
    #[serde(default)]
    pub(crate) worst: Vec<Worst>,
    #[serde(default)]
    pub(crate) published: Vec<Published>,
    #[serde(default)]
    pub(crate) notes: Vec<String>,
}

fn one() -> u32 {
    1
}

fn one_long() -> u64 {
    1
}

/// Overrides of `--quick`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Quick {
    rounds: Option<u32>,
    #[serde(default)]
    axes: BTreeMap<String, Axes>,
    #[serde(default)]
    settings: BTreeMap<String, Scalar>,
}

/// Defines a new value of each cell: compares a value with the same value of the cell that differs
/// in only one axis, paired by round.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Compare {
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) axis: String,
    to: Scalar,
    pub(crate) form: Form,
}

impl Compare {
    pub(crate) fn to(&self) -> String {
        self.to.text()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Form {
    /// other / this: for times, the speedup of this cell.
    OtherOverThis,
    ThisOverOther,
    /// this / other - 1.
    Change,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Picture {
    pub(crate) form: Shape,
    pub(crate) x: String,
    /// A value; in a `heat` it is the colour.
    pub(crate) value: String,
    /// An axis: one line or group of bars for each of its values; in a `heat` the rows.
    pub(crate) series: Option<String>,
    /// An axis: one picture for each of its values.
    pub(crate) panel: Option<String>,
    /// Only these cells.
    #[serde(default, rename = "where")]
    only: BTreeMap<String, Axes>,
    /// How cells that differ in other axes are combined.
    #[serde(default)]
    pub(crate) take: Take,
    #[serde(default)]
    pub(crate) log_x: bool,
    #[serde(default)]
    pub(crate) log_y: bool,
    pub(crate) x_label: Option<String>,
    pub(crate) y_label: String,
    pub(crate) caption: String,
    /// A horizontal line, such as 1 for "as fast as".
    pub(crate) level: Option<f64>,
}

impl Picture {
    pub(crate) fn only(&self) -> BTreeMap<String, Vec<String>> {
        self.only.iter().map(|(axis, values)| (axis.clone(), values.list())).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Shape {
    Lines,
    Bars,
    Heat,
    /// Series over time within one run: `value` and `x` name series of the samples.
    Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Take {
    #[default]
    Mean,
    Geometric,
    Least,
    Greatest,
}

impl Take {
    pub(crate) fn of(self, values: &[f64]) -> Option<f64> {
        let values: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
        if values.is_empty() {
            return None;
        }
        let n = values.len() as f64;
        Some(match self {
            Self::Mean => values.iter().sum::<f64>() / n,
            Self::Geometric => (values.iter().map(|v| v.ln()).sum::<f64>() / n).exp(),
            Self::Least => values.iter().copied().fold(f64::INFINITY, f64::min),
            Self::Greatest => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Geometric => "geometric mean",
            Self::Least => "least",
            Self::Greatest => "greatest",
        }
    }
}

/// A list of the cells in which a value is least (or greatest).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Worst {
    pub(crate) value: String,
    #[serde(default = "ten")]
    pub(crate) count: usize,
    #[serde(default)]
    pub(crate) greatest: bool,
    #[serde(default, rename = "where")]
    only: BTreeMap<String, Axes>,
}

impl Worst {
    pub(crate) fn only(&self) -> BTreeMap<String, Vec<String>> {
        self.only.iter().map(|(axis, values)| (axis.clone(), values.list())).collect()
    }
}

fn ten() -> usize {
    10
}

/// A number that the publication prints, or a claim that it makes.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Published {
    /// Description of the number for a reader.
    pub(crate) what: String,
    pub(crate) value: String,
    #[serde(default)]
    at: BTreeMap<String, Axes>,
    #[serde(default)]
    pub(crate) take: Take,
    pub(crate) says: Option<f64>,
    pub(crate) at_least: Option<f64>,
    pub(crate) at_most: Option<f64>,
    /// Relative deviation from `says` that still agrees.
    #[serde(default = "tenth")]
    pub(crate) tolerance: f64,
    /// Absolute deviation that still agrees, instead of `tolerance`: for values that may be 0.
    pub(crate) within: Option<f64>,
    /// Why ours differs, if it does.
    #[serde(default)]
    pub(crate) why: String,
}

impl Published {
    pub(crate) fn at(&self) -> BTreeMap<String, Vec<String>> {
        self.at.iter().map(|(axis, values)| (axis.clone(), values.list())).collect()
    }
}

fn tenth() -> f64 {
    0.1
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Scalar {
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(String),
}

impl Scalar {
    fn text(&self) -> String {
        match self {
            Self::Int(n) => n.to_string(),
            Self::Float(x) => x.to_string(),
            Self::Bool(b) => b.to_string(),
            Self::Text(t) => t.clone(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Axes {
    Many(Vec<Scalar>),
    One(Scalar),
}

impl Axes {
    pub(crate) fn list(&self) -> Vec<String> {
        match self {
            Self::Many(values) => values.iter().map(Scalar::text).collect(),
            Self::One(value) => vec![value.text()],
        }
    }
}

impl Plan {
    pub(crate) fn read(path: &Path, quick: bool) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read the plan {}", path.display()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Self::parse(&name, &text, quick).with_context(|| format!("{} is not a valid plan", path.display()))
    }

    pub(crate) fn parse(name: &str, text: &str, quick: bool) -> Result<Self> {
        let mut plan: Self = toml::from_str(text).map_err(|e| {
            let line = e.span().map(|s| 1 + text[..s.start.min(text.len())].matches('\n').count());
            let place = line.map_or(String::new(), |l| format!("line {l}: "));
            anyhow::anyhow!("{place}{}", e.message().replace('\n', " "))
        })?;
        plan.name = name.to_owned();
        let here = std::mem::take(&mut plan.quick);
        plan.check_names(&here.axes, &here.settings).context("in [quick]")?;
        if quick {
            plan.rounds = here.rounds.unwrap_or(plan.rounds);
            plan.axes.extend(here.axes);
            plan.settings.extend(here.settings);
        }
        plan.check()?;
        Ok(plan)
    }

    fn check_names(&self, axes: &BTreeMap<String, Axes>, settings: &BTreeMap<String, Scalar>) -> Result<()> {
        let kind = self.kind.kind();
        let known = |names: Vec<&str>| names.join(", ");
        for axis in axes.keys() {
            let names: Vec<_> = kind.axes().iter().map(|a| a.name).collect();
            ensure!(
                names.contains(&axis.as_str()),
                "there is no axis '{axis}' in plans of the kind '{}'; there are {}",
                self.kind,
                known(names)
            );
        }
        for setting in settings.keys() {
            let names: Vec<_> = kind.settings().iter().map(|a| a.name).collect();
            ensure!(
                names.contains(&setting.as_str()),
                "there is no setting '{setting}' in plans of the kind '{}'; there are {}",
                self.kind,
                known(names)
            );
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        self.check_names(&self.axes, &self.settings)?;
        ensure!((1..=ROUNDS_MAX).contains(&self.rounds), "rounds must be 1 to {ROUNDS_MAX}");
        let kind = self.kind.kind();
        let mut cells = 1usize;
        for axis in kind.axes() {
            let values = self.axis(axis.name);
            ensure!(!values.is_empty(), "the axis '{}' has no values", axis.name);
            for (i, value) in values.iter().enumerate() {
                (axis.check)(value).map_err(|e| anyhow::anyhow!("{} = {value}: {e}", axis.name))?;
                ensure!(!values[..i].contains(value), "the axis '{}' has '{value}' twice", axis.name);
            }
            cells = cells.saturating_mul(values.len());
        }
        ensure!(cells <= CELLS_MAX, "{cells} cells are more than {CELLS_MAX}");
        for setting in kind.settings() {
            let value = self.setting(setting.name);
            (setting.check)(&value).map_err(|e| anyhow::anyhow!("{} = {value}: {e}", setting.name))?;
        }
        for compare in &self.compare {
            let axis = &compare.axis;
            let values = kind.axes().iter().find(|a| a.name == axis).map(|a| self.axis(a.name));
            let values = values.with_context(|| format!("compare '{}': there is no axis '{axis}'", compare.name))?;
            ensure!(
                values.contains(&compare.to()),
                "compare '{}': '{}' is not on the axis",
                compare.name,
                compare.to()
            );
        }
        for picture in &self.picture {
            let named = picture.series.iter().chain(&picture.panel).chain(picture.only.keys());
            let x = (picture.form != Shape::Time).then_some(&picture.x);
            self.check_axes(named.chain(x)).context("in [[picture]]")?;
        }
        for table in &self.table {
            self.check_axes(table.axes()).context("in [[table]]")?;
        }
        for worst in &self.worst {
            self.check_axes(worst.only.keys()).context("in [[worst]]")?;
        }
        for point in &self.published {
            self.check_axes(point.at.keys()).with_context(|| format!("published '{}'", point.what))?;
            let given = [point.says, point.at_least, point.at_most].iter().flatten().count();
            ensure!(given > 0, "published '{}' needs says, at_least or at_most", point.what);
            ensure!(point.tolerance >= 0.0, "published '{}': the tolerance is below 0", point.what);
        }
        Ok(())
    }

    fn check_axes<'a>(&self, names: impl Iterator<Item = &'a String>) -> Result<()> {
        for name in names {
            if !self.kind.kind().axes().iter().any(|a| a.name == name) {
                bail!("there is no axis '{name}' in plans of the kind '{}'", self.kind);
            }
        }
        Ok(())
    }

    /// The values of an axis of the kind.
    pub(crate) fn axis(&self, name: &str) -> Vec<String> {
        let known: Option<&Axis> = self.kind.kind().axes().iter().find(|a| a.name == name);
        match (self.axes.get(name), known) {
            (Some(values), _) => values.list(),
            (None, Some(axis)) => vec![axis.default.to_owned()],
            (None, None) => Vec::new(),
        }
    }

    pub(crate) fn setting(&self, name: &str) -> String {
        let known = self.kind.kind().settings().iter().find(|a| a.name == name);
        match (self.settings.get(name), known) {
            (Some(value), _) => value.text(),
            (None, Some(setting)) => setting.default.to_owned(),
            (None, None) => String::new(),
        }
    }

    pub(crate) fn order_seed(&self) -> u64 {
        self.order_seed
    }

    /// Hash of everything that samples depend on. Texts, pictures and rounds may change without
    /// losing samples.
    pub(crate) fn hash(&self) -> String {
        self.hash_by(&self.kind.kind().recipe())
    }

    fn hash_by(&self, recipe: &str) -> String {
        let kind = self.kind.kind();
        let axes: Vec<_> = kind.axes().iter().map(|a| (a.name, self.axis(a.name))).collect();
        let settings: Vec<_> = kind.settings().iter().map(|s| (s.name, self.setting(s.name))).collect();
        format!("{:016x}", xxh3_64(format!("{} {axes:?} {settings:?}{recipe}", self.kind).as_bytes()))
    }
}

/// Finds the wanted plans: `all`, a file, or names (with `*`) in the folder of plans.
pub(crate) fn find(wanted: &[String], folder: Option<&Path>) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for word in wanted {
        let file = Path::new(word);
        if word.ends_with(".toml") && file.is_file() {
            found.push(file.to_owned());
            continue;
        }
        let folder = match folder {
            Some(folder) => folder.to_owned(),
            None => {
                default_folder().context("there is no folder lab/narrows-lab/plans here; name it with --plans-dir")?
            }
        };
        let pattern = if word == "all" { "*" } else { word };
        let list = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
        let mut plans: Vec<PathBuf> = list.filter_map(|e| e.ok().map(|e| e.path())).collect();
        plans.retain(|p| p.extension().is_some_and(|e| e == "toml"));
        plans.retain(|p| matches(pattern, &p.file_stem().unwrap_or_default().to_string_lossy()));
        plans.sort();
        ensure!(!plans.is_empty(), "there is no plan '{word}' in {}; --list names them", folder.display());
        found.extend(plans);
    }
    found.dedup();
    Ok(found)
}

/// The folder of plans, below the current folder or where this program was built.
fn default_folder() -> Option<PathBuf> {
    let relative = Path::new("lab/narrows-lab/plans");
    let built = std::env::current_exe().ok();
    let above = built.iter().flat_map(|exe| exe.ancestors().skip(1).map(Path::to_path_buf));
    std::iter::once(PathBuf::new()).chain(above).map(|d| d.join(relative)).find(|d| d.is_dir())
}

/// Whether a name matches a pattern, in which `*` matches anything.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, rest)) => name.strip_prefix(head).is_some_and(|tail| {
            (0..=tail.len()).filter(|i| tail.is_char_boundary(*i)).any(|i| matches(rest, &tail[i..]))
        }),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A plan that needs only arithmetic.
    pub(crate) const SMALL: &str = r#"
        title = "Small"
        seed = "ours"
        figure = "none"
        shows = "that a plan is read"
        kind = "model"
        rounds = 2
        [axes]
        speeds = "published"
        method = ["lz4fast", "zstd"]
        cores = [1, 24]
        [settings]
        formula = "threshold"
        [quick]
        rounds = 1
        axes.cores = 1
    "#;

    fn refused(text: &str) -> String {
        format!("{:#}", Plan::parse("p", text, false).unwrap_err())
    }

    #[test]
    fn quick_is_another_plan_and_words_are_not() {
        let plan = Plan::parse("p", SMALL, false).unwrap();
        assert_eq!((plan.rounds, plan.axis("cores")), (2, vec!["1".to_owned(), "24".to_owned()]));
        let quick = Plan::parse("p", SMALL, true).unwrap();
        assert_eq!((quick.rounds, quick.axis("cores")), (1, vec!["1".to_owned()]));
        assert_ne!(plan.hash(), quick.hash());
        let said_otherwise = SMALL.replace("that a plan is read", "something else").replace("rounds = 2", "rounds = 5");
        assert_eq!(plan.hash(), Plan::parse("p", &said_otherwise, false).unwrap().hash());
        assert_ne!(
            plan.hash_by(" pools 2"),
            plan.hash_by(" pools 3"),
            "data that is drawn otherwise has other samples"
        );
        assert_eq!(plan.hash(), plan.hash_by(&plan.kind.kind().recipe()));
    }

    #[test]
    fn what_is_unknown_or_impossible_is_named() {
        for (from, to, named) in [
            ("rounds = 2", "runds = 2", "unknown field `runds`"),
            ("rounds = 2", "rounds = 0", "rounds must be"),
            ("method = [", "metod = [", "no axis 'metod'"),
            ("[1, 24]", "[]", "'cores' has no values"),
            ("[1, 24]", "[1, 0]", "cores = 0"),
            ("[1, 24]", "[1, 1]", "twice"),
            ("formula =", "formel =", "no setting 'formel'"),
            ("\"threshold\"", "\"thresh\"", "formula = thresh"),
            ("kind = \"model\"", "kind = \"modle\"", "modle"),
            ("axes.cores = 1", "axes.kores = 1", "[quick]"),
        ] {
            let said = refused(&SMALL.replace(from, to));
            assert!(said.contains(named), "{to}: {said}");
        }
        let line = refused(&SMALL.replace("rounds = 2", "runds = 2"));
        assert!(line.contains("line 7"), "{line}");
        let bad = format!("{SMALL}\n[[published]]\nwhat = \"x\"\nvalue = \"y\"\n");
        assert!(refused(&bad).contains("needs says"));
    }

    /// Otherwise a plan that a change of the format breaks would only be noticed in the next long
    /// run.
    #[test]
    fn every_plan_of_this_folder_is_one() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans");
        let plans = find(&["all".into()], Some(&folder)).unwrap();
        assert!(plans.len() >= 6);
        for (path, quick) in plans.iter().flat_map(|p| [(p, false), (p, true)]) {
            Plan::read(path, quick).unwrap_or_else(|e| panic!("{e:#}"));
        }
    }

    #[test]
    fn stars_stand_for_anything() {
        assert!(matches("*", "adoc-2002-table-1") && matches("adoc*table*", "adoc-2002-table-1"));
        assert!(!matches("adoc", "adoc-2002") && !matches("*2", "adoc-2002-table-1"));
    }
}
