//! `narrows hdf5`: where the HDF5 filter is, and the parameters that other programs give it.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use narrows::Error;
use narrows_array::Bound;
use narrows_array::hdf5::{FILTER_ID, Params};

use crate::args::hdf5::Hdf5Args;
use crate::report;

/// The plug-in. It has a folder of its own, since HDF5 loads every library of one.
const LIBRARY: &str = "libnarrows_hdf5.so";

/// HDF5 stores what an optional filter does not take, such as strings, without it.
const OPTIONAL: u32 = 1;

/// Runs `narrows hdf5`.
pub(crate) fn run(args: &Hdf5Args) -> Result<()> {
    if args.path {
        let folder = folder()?;
        // The variable's value is a list.
        if folder.as_os_str().as_encoded_bytes().contains(&b':') {
            let text = format!("HDF5 cannot find plug-ins in '{}': its name has a colon", folder.display());
            return Err(Error::misuse(text).into());
        }
        return report::out(folder.display());
    }
    let bound = Bound { rewritable: !args.whole_chunks, ..args.hints.bound() };
    let words = Params { options: args.hints.options(), bound, elements: None }.words()?;
    let list = words.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    if args.repack {
        report::out(format_args!("UD={FILTER_ID},{OPTIONAL},{},{list}", words.len()))
    } else {
        report::out(format_args!("{FILTER_ID},{list}"))
    }
}

/// The folder of the plug-in.
///
/// # Errors
/// It is in none of its places.
pub(crate) fn folder() -> Result<PathBuf> {
    let program = env::current_exe().context("cannot find the folder of this program")?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    // In order: where `make` puts it, as installed below a prefix.
    let places = [beside.join("hdf5"), beside.join("../lib/narrows/hdf5")];
    match places.iter().find(|p| p.join(LIBRARY).is_file()) {
        Some(found) => found.canonicalize().with_context(|| found.display().to_string()),
        None => bail!(
            "there is no {LIBRARY} in {0}/hdf5 or {0}/../lib/narrows/hdf5: `make` or `make install` puts it there",
            beside.display()
        ),
    }
}
