//! The line on a terminal for each file that is done, and the total, as `zstd` prints them.

use std::io::{self, IsTerminal};
use std::path::Path;

use super::Done;
use crate::args::VerbosityArgs;
use crate::report::{self, bytes};

/// Tells of one file, or of the sum of several.
pub(super) struct Tally {
    tells: bool,
    /// Only one file is asked for.
    is_one: bool,
    files: u64,
    raw_bytes: u64,
    wire_bytes: u64,
    /// Files of which `wire_bytes` are.
    compressed: u64,
}

impl Tally {
    pub(super) fn new(verbosity: VerbosityArgs, is_one: bool) -> Self {
        // With -v and --json there are more words already.
        let said = verbosity.quiet || verbosity.verbose || verbosity.json;
        let tells = !said && io::stderr().is_terminal();
        Self { tells, is_one, files: 0, raw_bytes: 0, wire_bytes: 0, compressed: 0 }
    }

    pub(super) fn add(&mut self, input: &Path, done: &Done) {
        self.files += 1;
        self.raw_bytes += done.raw_bytes;
        self.wire_bytes += done.wire_bytes.unwrap_or(0);
        self.compressed += u64::from(done.wire_bytes.is_some());
        if self.tells && self.is_one {
            report::note(line(input, done));
        }
    }

    pub(super) fn end(&self) {
        if self.tells && !self.is_one && self.files > 0 {
            report::note(self.words());
        }
    }

    fn words(&self) -> String {
        let files = if self.files == 1 { "file" } else { "files" };
        match self.compressed {
            0 => format!("{} {files}: {}", self.files, bytes(self.raw_bytes as f64)),
            _ => format!("{} {files} compressed: {}", self.files, share(self.raw_bytes, self.wire_bytes)),
        }
    }
}

fn line(input: &Path, done: &Done) -> String {
    let to = done.output.iter().map(|output| format!(", {output}")).collect::<String>();
    match done.wire_bytes {
        Some(wire) => format!("{}: {}{to}", input.display(), share(done.raw_bytes, wire)),
        None => format!("{}: {}{to}", input.display(), bytes(done.raw_bytes as f64)),
    }
}

/// `12.34 % (64.0 MiB => 7.9 MiB)`
fn share(raw: u64, wire: u64) -> String {
    let lengths = format!("({} => {})", bytes(raw as f64), bytes(wire as f64));
    if raw == 0 {
        return lengths;
    }
    format!("{:.2} % {lengths}", 100.0 * wire as f64 / raw as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_what_became_of_a_file() {
        let done = |raw_bytes, wire_bytes, output: Option<&str>| Done {
            raw_bytes,
            wire_bytes,
            output: output.map(str::to_owned),
        };
        let path = Path::new("log");
        let said = line(path, &done(4 << 20, Some(1 << 20), Some("log.nrw")));
        assert!(said.starts_with("log: 25.00 % (4.0") && said.ends_with("), log.nrw"), "{said}");
        assert_eq!(line(path, &done(0, Some(48), Some("log.nrw"))), "log: (0 B => 48 B), log.nrw");
        let said = line(path, &done(4 << 20, None, None));
        assert!(said.starts_with("log: 4.0") && !said.contains(','), "{said}");
    }
}
