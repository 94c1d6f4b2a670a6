//! `narrows check` for files with arrays: HDF5, NetCDF-4, Zarr, files of chunks.

mod page;
mod show;

use std::num::NonZero;
use std::path::Path;

use anyhow::{Context, Result};
use narrows::Error;
use narrows_variables::{Errors, Found, Side, Store, Variable, check as check_variable, compare};

use crate::args::file::CheckArgs;
use crate::{files, flow, report};

/// One variable with all that was found.
struct Row<'a> {
    variable: &'a Variable,
    found: Found,
    against: Option<Against<'a>>,
}

/// What a comparison said.
struct Against<'a> {
    original: Side<'a>,
    errors: Result<Errors, Error>,
}

impl Row<'_> {
    fn is_good(&self) -> bool {
        let holds = |against: &Against<'_>| match &against.errors {
            Ok(errors) => errors.broken.unwrap_or(0) == 0 && errors.failed.is_empty(),
            // Text and records have no errors that could be beyond a bound.
            Err(_) => !self.variable.element.is_numeric(),
        };
        self.found.damaged_count == 0 && self.against.as_ref().is_none_or(holds)
    }
}

/// Checks a file, if it has arrays; whether all is good.
pub(crate) fn check(args: &CheckArgs, path: &Path) -> Result<Option<bool>> {
    let name = path.display().to_string();
    let named = |e: Error| anyhow::Error::from(e).context(name.clone());
    let Some(store) = Store::open(path).map_err(named)? else { return Ok(None) };
    let threads = NonZero::new(flow::threads(args.threads)).unwrap_or(NonZero::<usize>::MIN);
    let chosen: Vec<&Variable> = choose(args, &store).map_err(named)?;
    if let Some(html) = &args.html {
        files::refuse_same(path, [Some(html.as_path())])?;
    }
    let original = args.against.as_deref().map(|path| original(path, &chosen)).transpose()?;
    let mut rows = Vec::new();
    for variable in chosen {
        let found = check_variable(&store, variable, threads);
        let against = match &original {
            Some(original) => partner(original, &store, variable).map(|theirs| {
                let original = Side { store: original, variable: theirs };
                let errors = compare(Side { store: &store, variable }, original, threads);
                Against { original, errors }
            }),
            None => None,
        };
        rows.push(Row { variable, found, against });
    }
    if original.is_some() && rows.iter().all(|row| row.against.is_none()) {
        return Err(Error::misuse("the original has no variable of these paths; see --variable").into());
    }
    let is_good = rows.iter().all(Row::is_good);
    if let Some(html) = &args.html {
        let text = page::html(&name, &store, &rows);
        files::write_whole(html, text.as_bytes())?;
    }
    if args.verbosity.json {
        report::out(show::json(&name, &store, &rows))?;
    } else {
        for line in show::lines(&name, &store, &rows, args.verbosity.quiet, args.verbosity.verbose) {
            report::out(line)?;
        }
    }
    Ok(Some(is_good))
}

fn choose<'a>(args: &CheckArgs, store: &'a Store) -> Result<Vec<&'a Variable>, Error> {
    if args.variable.is_empty() {
        return Ok(store.variables.iter().filter(|v| !v.is_bare_dimension()).collect());
    }
    let find = |path: &String| {
        let wanted = path.trim_matches('/');
        let found = store.variables.iter().find(|v| v.path == wanted);
        found.ok_or_else(|| Error::misuse(format!("there is no variable {wanted}")))
    };
    args.variable.iter().map(find).collect()
}

/// Opens the original. What has no format is raw elements, of the type and shape of the only variable.
fn original(path: &Path, chosen: &[&Variable]) -> Result<Store> {
    let cannot = || format!("the original {}", path.display());
    if let Some(store) = Store::open(path).with_context(cannot)? {
        return Ok(store);
    }
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
    let alone = same.or_else(alone)?;
    // Text and the like are not compared, and neither is what cannot be read on both sides.
    (variable.element.is_numeric() || alone.path == variable.path && variable.is_narrows()).then_some(alone)
}
