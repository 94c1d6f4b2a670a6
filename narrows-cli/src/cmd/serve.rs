//! `narrows serve`: the other end of `narrows cp`.

use anyhow::{Context, Result};
use narrows::transport::Link;

use crate::args::ServeArgs;
use crate::copy::hello;
use crate::copy::serve::{self, Manner};
use crate::files;

pub(crate) fn run(_: &ServeArgs) -> Result<()> {
    let (input, output) = (files::stdin()?, files::stdout()?);
    let task = hello::read(&input)?;
    // The client tells the person what went wrong; stderr is for what it could not be told.
    serve::run(task, Link::pipes(output, input), Manner::Remote).context("the copy failed")
}
