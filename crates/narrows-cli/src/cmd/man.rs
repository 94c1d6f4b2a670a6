//! `narrows man`: the manual pages.

use std::env;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use chrono::DateTime;
use narrows_host::whole;

use crate::args::shell::ManArgs;
use crate::{args, manual, report};

/// Runs `narrows man`.
pub(crate) fn run(args: &ManArgs) -> Result<()> {
    let pages = manual::pages(args::command(), &date()?)?;
    let Some(folder) = &args.folder else {
        let page = pages.first().context("there is no page")?;
        return report::out(page.text.trim_end());
    };
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    pages.iter().try_for_each(|page| whole::write_whole(&folder.join(&page.name), page.text.as_bytes()))
}

/// The date of the pages, YYYY-MM-DD: that of SOURCE_DATE_EPOCH, or today.
fn date() -> Result<String> {
    const NAME: &str = "SOURCE_DATE_EPOCH";
    let seconds = match env::var_os(NAME).filter(|value| !value.is_empty()) {
        Some(value) => value.to_str().and_then(|text| text.parse().ok()),
        None => SystemTime::now().duration_since(UNIX_EPOCH).ok().and_then(|now| i64::try_from(now.as_secs()).ok()),
    };
    let time = seconds.and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    let time = time.with_context(|| format!("{NAME} is no time in seconds since 1970, such as 1764000000"))?;
    Ok(time.date_naive().to_string())
}
