//! The libraries that people use now, on the user's array, in a Python that has them.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use narrows_array::{Bound, npy};
use serde_json::Value;
use tempfile::NamedTempFile;

use super::Elements;
use crate::report;

/// Encodes, decodes and compares; prints a line of JSON for each library.
const SCRIPT: &str = include_str!("peers.py");

/// Rounds, the fastest of which counts.
const ROUNDS: &str = "3";

/// The array as a .npy file, which Python can read whatever the user's file is.
pub(super) struct ForPython(NamedTempFile);

impl ForPython {
    pub(super) fn new(elements: &Elements) -> Result<Self> {
        let mut file = tempfile::Builder::new().suffix(".npy").tempfile()?;
        file.write_all(&npy::header(elements.dtype, elements.order, elements.layout, &elements.shape))?;
        Ok(Self(file))
    }

    pub(super) fn add(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.write_all(bytes).context("cannot copy the array for Python")
    }

    /// Prints a row for each library. Only absolute bounds are something that all of them know.
    pub(super) fn measure(mut self, python: &Path, chunk_len: usize, bound: &Bound) -> Result<()> {
        let others = Bound { abs: None, fills: Vec::new(), range: None, ..bound.clone() };
        if others != Bound::default() {
            report::note(format_args!("other libraries are compared without a bound or with --abs"));
            return Ok(());
        }
        self.0.flush()?;
        let mut command = Command::new(python);
        command.arg("-c").arg(SCRIPT).arg(self.0.path()).arg(chunk_len.to_string()).arg(ROUNDS);
        if let Some(abs) = bound.abs.filter(|_| !bound.is_lossless()) {
            command.arg("--abs").arg(format!("{abs:e}"));
        }
        if !bound.fills.is_empty() {
            let fills: Vec<_> = bound.fills.iter().map(|f| format!("{f:e}")).collect();
            command.arg("--fill").arg(fills.join(","));
        }
        let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
        let output = output.with_context(|| format!("cannot run {}", python.display()))?;
        ensure!(output.status.success(), "{} could not measure other libraries", python.display());
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            print(&serde_json::from_str(line)?)?;
        }
        Ok(())
    }
}

fn print(row: &Value) -> Result<()> {
    let name = row["peer"].as_str().unwrap_or_default();
    if let Some(error) = row["error"].as_str() {
        report::out(format_args!("{:>9} {:>10} {:>10}  {name}: {error}", "-", "-", "-"))?;
        return Ok(());
    }
    let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
    let rate = |key: &str| {
        let fastest = |rounds: &Value| {
            rounds.as_array().into_iter().flatten().filter_map(Value::as_f64).fold(f64::INFINITY, f64::min)
        };
        number("raw") / row[key].as_array().into_iter().flatten().map(fastest).sum::<f64>() / 1e6
    };
    let broken = match row["violations"].as_u64() {
        Some(count) if count > 0 => format!("; {count} values outside the bound"),
        _ => String::new(),
    };
    let ratio = number("raw") / number("wire");
    let (encode, decode) = (rate("encode_s"), rate("decode_s"));
    report::out(format_args!("{ratio:>9.3} {encode:>10.0} {decode:>10.0}  {name} (other library){broken}"))
}
