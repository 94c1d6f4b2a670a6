//! `narrows top`: what runs, live in a terminal, or as text.

use anyhow::Result;
use narrows_watch::top::{self, Options};

use crate::args::top::TopArgs;

/// Runs `narrows top`.
pub(crate) fn run(args: &TopArgs) -> Result<()> {
    let options = Options {
        sort: args.sort.into(),
        filter: args.filter.clone(),
        processes: args.processes,
        interval_s: args.interval,
        ascii: args.ascii,
        frames: if args.once { Some(1) } else { args.frames },
        svg: args.svg,
        width: args.width.map(usize::from),
    };
    if args.once || args.batch || args.svg { top::print(&options) } else { top::watch(&options) }
}
