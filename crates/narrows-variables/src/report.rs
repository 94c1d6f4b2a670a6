//! What a check of a file with arrays found, as a table, JSON and a page: behind `narrows check`.

mod page;
mod show;

use std::num::NonZero;
use std::path::Path;

use anyhow::{Context, Result};
use narrows::{Error, ErrorKind};
use narrows_file::foreign::{self, Format};
use narrows_host::{files, output};

use crate::check as check_variable;
use crate::{Errors, Found, Side, Store, Variable, compare};

/// Ends of names of HDF5 files, NetCDF included.
const HDF5_NAMES: [&str; 5] = ["h5", "hdf5", "he5", "nc", "nc4"];

/// What is known of a variable or a file in the end, the worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// All was looked at, and is whole and within what is stated.
    Good,
    /// Something was not looked at.
    Unseen,
    /// Something is damaged or beyond its bound.
    Bad,
}

/// One variable with all that was found.
struct Row<'a> {
    variable: &'a Variable,
    found: Found,
    against: Option<Against<'a>>,
}

/// What a comparison said.
enum Against<'a> {
    /// The original has no such variable.
    Missing,
    Found {
        original: Side<'a>,
        errors: Result<Errors, Error>,
    },
}

impl<'a> Against<'a> {
    fn original(&self) -> Option<Side<'a>> {
        match self {
            Self::Missing => None,
            Self::Found { original, .. } => Some(*original),
        }
    }

    fn errors(&self) -> Option<&Errors> {
        match self {
            Self::Found { errors: Ok(errors), .. } => Some(errors),
            _ => None,
        }
    }

    fn verdict(&self) -> Verdict {
        match self {
            Self::Missing => Verdict::Unseen,
            Self::Found { errors: Ok(errors), .. } => match errors.failed.is_empty() {
                _ if errors.broken.unwrap_or(0) > 0 || errors.is_damaged => Verdict::Bad,
                true => Verdict::Good,
                false => Verdict::Unseen,
            },
            Self::Found { errors: Err(error), .. } => match error.kind {
                ErrorKind::Corrupt | ErrorKind::Truncated => Verdict::Bad,
                _ => Verdict::Unseen,
            },
        }
    }
}

impl Row<'_> {
    fn verdict(&self) -> Verdict {
        if self.found.damaged_count > 0 {
            return Verdict::Bad;
        }
        let is_seen = self.found.unseen.is_none() && self.variable.unseen().next().is_none();
        let seen = if is_seen { Verdict::Good } else { Verdict::Unseen };
        self.against.as_ref().map_or(seen, |against| against.verdict().max(seen))
    }
}

/// All that was found.
struct Findings<'a> {
    file: &'a str,
    store: &'a Store,
    rows: Vec<Row<'a>>,
    /// What belongs to no variable of the file and was not looked at.
    unseen: Vec<String>,
}

impl Findings<'_> {
    fn verdict(&self) -> Verdict {
        let seen = if self.unseen.is_empty() { Verdict::Good } else { Verdict::Unseen };
        self.rows.iter().map(Row::verdict).fold(seen, Verdict::max)
    }
}

/// What is looked at, and how it is told.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Paths of variables; without any, all are looked at.
    pub variables: &'a [String],
    /// The file that they were made from.
    pub against: Option<&'a Path>,
    /// Where a page with pictures goes.
    pub html: Option<&'a Path>,
    /// Threads that decode.
    pub threads: NonZero<usize>,
    /// Less, or more, is told.
    pub quiet: bool,
    /// See `quiet`.
    pub verbose: bool,
    /// It is told as JSON.
    pub json: bool,
}

/// Checks a file and prints what was found; `None` if it has no arrays, and nothing was printed.
///
/// # Errors
/// The file or the original cannot be read, or has not what is wanted; or the output cannot be written.
pub fn check(path: &Path, wanted: &Wanted<'_>) -> Result<Option<Verdict>> {
    let name = path.display().to_string();
    let named = |e: Error| anyhow::Error::from(e).context(name.clone());
    let Some(store) = Store::open(path).map_err(named)? else { return Ok(None) };
    let threads = wanted.threads;
    let chosen: Vec<&Variable> = choose(wanted, &store).map_err(named)?;
    if let Some(html) = wanted.html {
        files::refuse_same(path, [Some(html)])?;
    }
    let original = wanted.against.map(|path| original(path, &chosen)).transpose()?;
    let mut rows = Vec::new();
    for variable in chosen {
        let found = check_variable(&store, variable, threads);
        let against = original.as_ref().map(|original| match partner(original, &store, variable) {
            Some(theirs) => {
                let original = Side { store: original, variable: theirs };
                let errors = compare(Side { store: &store, variable }, original, threads);
                Against::Found { original, errors }
            }
            None => Against::Missing,
        });
        rows.push(Row { variable, found, against });
    }
    let mut unseen: Vec<String> = Vec::new();
    if let Some(original) = &original {
        let compared: Vec<&str> =
            rows.iter().filter_map(|row| Some(row.against.as_ref()?.original()?.variable.path.as_str())).collect();
        if rows.is_empty() && original.variables.iter().any(|v| !v.is_bare_dimension()) {
            let text =
                format!("{name}: there are no variables, and the original has some: it is damaged or another file");
            return Err(Error::corrupt(text).into());
        }
        if compared.is_empty() && !rows.is_empty() && rows.iter().all(|row| row.found.damaged_count == 0) {
            let text =
                format!("{name}: the original has none of the variables, so that nothing is compared; see --variable");
            return Err(Error::misuse(text).into());
        }
        if wanted.variables.is_empty() {
            let left = original.variables.iter().filter(|v| !v.is_bare_dimension());
            let left = left.filter(|v| !compared.contains(&v.path.as_str()));
            unseen.extend(left.map(|v| format!("not compared: only the original has {}", show::name(v))));
        }
    }
    if wanted.variables.is_empty() {
        unseen.extend(store.unseen.iter().map(|what| format!("not read: {what}")));
    }
    let all = Findings { file: &name, store: &store, rows, unseen };
    if let Some(html) = wanted.html {
        files::write_whole(html, page::html(&all).as_bytes())?;
    }
    if wanted.json {
        output::out(show::json(&all))?;
    } else {
        for line in show::lines(&all, wanted.quiet, wanted.verbose) {
            output::out(line)?;
        }
    }
    Ok(Some(all.verdict()))
}

/// Refuses a file that has the name of an HDF5 file and the contents of none.
///
/// # Errors
/// It is such a file, or cannot be read.
pub fn refuse_by_name(path: &Path) -> Result<()> {
    if !path.extension().is_some_and(|end| HDF5_NAMES.iter().any(|name| end.eq_ignore_ascii_case(name))) {
        return Ok(());
    }
    let begin = foreign::peek(&mut files::open_regular(path)?).with_context(|| path.display().to_string())?;
    if Format::of(&begin).is_some() {
        return Ok(());
    }
    let what = if begin.is_empty() { "empty, and so not" } else { "not" };
    Err(Error::corrupt(format!("{}: {what} an HDF5 file, or damaged at its beginning", path.display())).into())
}

fn choose<'a>(wanted: &Wanted<'_>, store: &'a Store) -> Result<Vec<&'a Variable>, Error> {
    if wanted.variables.is_empty() {
        return Ok(store.variables.iter().filter(|v| !v.is_bare_dimension()).collect());
    }
    let find = |path: &String| {
        let named = path.trim_matches('/');
        let found = store.variables.iter().find(|v| v.path == named);
        found.ok_or_else(|| Error::misuse(format!("there is no variable {named}")))
    };
    wanted.variables.iter().map(find).collect()
}

/// Opens the original. What has no format is raw elements, of the type and shape of the only variable.
fn original(path: &Path, chosen: &[&Variable]) -> Result<Store> {
    let cannot = || format!("the original {}", path.display());
    if let Some(store) = Store::open(path).with_context(cannot)? {
        return Ok(store);
    }
    refuse_by_name(path)?;
    let [variable] = chosen else {
        let text = "raw elements are compared with one variable; name it with --variable";
        return Err(anyhow::Error::from(Error::misuse(text)).context(cannot()));
    };
    Store::raw(path, variable).with_context(cannot)
}

/// The variable of the original: that of the same path, or the only one.
fn partner<'a>(original: &'a Store, checked: &Store, variable: &Variable) -> Option<&'a Variable> {
    let same = original.variables.iter().find(|v| v.path == variable.path);
    let alone = || match original.variables.as_slice() {
        [only] if only.path.is_empty() || checked.variables.len() == 1 => {
            Some(only).filter(|only| only.shape == variable.shape && variable.element.is_numeric())
        }
        _ => None,
    };
    same.or_else(alone)
}
