//! The folder: how much it is, and a table of what the methods do to a part of it.

use std::path::Path;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use narrows::block::Block;
use narrows::codec::{DEFAULT_METHODS, Method};
use narrows::stream;
use narrows_host::signals;
use narrows_sim::measure::measurable;
use narrows_sim::sketch::{Sketch, sketch};

use crate::plan::sample::Sample;

/// Most bytes that are read: 32 pieces tell a folder from its mean, and playing them takes no second.
const SAMPLE_LEN: usize = 16 << 20;
/// A method that all cores together run at less than this share of the link's rate is not measured: it
/// would be chosen for a twentieth of the bytes at most.
const HOPELESS: f64 = 0.05;

/// What is known of the folder.
pub struct Folder {
    pub name: String,
    pub files: u64,
    pub len: u64,
    /// Files and folders that could not be read.
    pub unreadable: usize,
    /// There is more than was looked at.
    pub is_cut: bool,
    /// The pieces that were read; `None` without data.
    pub sketch: Option<Sketch>,
}

/// Reads a sample beside the measurement of the link, for at most `within`.
///
/// # Errors
/// The system gives no thread.
pub fn reading(path: &Path, within: Duration) -> Result<JoinHandle<Result<Sample>>> {
    let path = path.to_owned();
    let thread = Builder::new().name("narrows-sample".into());
    Ok(thread.spawn(move || Sample::within(&path, SAMPLE_LEN, Some(within)))?)
}

/// Measures the methods on the sample until `until`, for a link of this rate.
///
/// # Errors
/// A signal came.
pub fn measured(path: &Path, sample: Sample, bytes_per_s: f64, until: Instant) -> Result<Folder> {
    let Sample { pieces, total_len, files, unreadable, is_cut } = sample;
    // Pieces are joined, since those around what cannot be read are shorter.
    let bytes = Block::from_vec(pieces.concat());
    let methods = worth_measuring(bytes_per_s);
    let over = || Instant::now() >= until || signals::received().is_some();
    let sketch = sketch("measure", &bytes, &methods, stream::cores(), &over);
    if signals::received().is_some() {
        None::<()>.context("interrupted")?;
    }
    Ok(Folder { name: path.display().to_string(), files, len: total_len, unreadable, is_cut, sketch })
}

/// The methods of `balance` that a link of this rate leaves time for.
fn worth_measuring(bytes_per_s: f64) -> Vec<Method> {
    let cores = stream::encoders() as f64;
    let is_worth = |m: &Method| {
        let ns_per_byte = f64::from(m.info().nominal_ns_per_byte(m.level).0).max(1e-3);
        cores * 1e9 / ns_per_byte > HOPELESS * bytes_per_s
    };
    measurable(DEFAULT_METHODS).into_iter().filter(is_worth).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_methods_are_measured_where_the_link_waits_for_them() {
        let slow = worth_measuring(1e5);
        assert_eq!(slow, measurable(DEFAULT_METHODS));
        let quick = worth_measuring(3e9 * stream::encoders() as f64);
        assert!(quick.len() < slow.len() && quick.contains(&Method::lz4_accel(16)), "{quick:?}");
    }
}
