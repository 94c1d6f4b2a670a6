//! Command-line definition of `narrows oracle`.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use narrows::policy::PolicySpec;
use narrows_forecast::Rate;

use super::{MethodList, parse_methods, parse_policy, parse_seconds, parse_size};

/// Upper limit of `--cores` and `--receiver-cores`; more than any host has that sends one flow.
const CORES_MAX: i64 = 256;
/// Lowest rate of `--link`, in bits per second: beyond these limits times and bytes mean nothing.
const RATE_MIN: f64 = 1e3;
/// Highest rate of `--link`, in bits per second.
const RATE_MAX: f64 = 1e12;

#[derive(ClapArgs)]
#[command(after_long_help = HELP)]
pub(crate) struct OracleArgs {
    /// Data: a file, a folder (its files concatenated in the order of their names), or - for stdin
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
    /// Link rates in bits per second, such as 6mbit, 100M or 2.5gbit; units are powers of 1000
    #[arg(long, value_name = "RATE,..", value_delimiter = ',', default_value = "10mbit,100mbit,1gbit", value_parser = parse_rate)]
    pub(crate) link: Vec<Rate>,
    /// Encoding cores [default: as many as `narrows` would use on this host]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=CORES_MAX))]
    pub(crate) cores: Option<u16>,
    /// Decoding cores, as fast as those of this host [default: as many as --cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=CORES_MAX))]
    pub(crate) receiver_cores: Option<u16>,
    /// Methods to measure and choose from [default: those of `balance`]
    #[arg(long, value_name = "LIST", value_parser = parse_methods)]
    pub(crate) methods: Option<MethodList>,
    /// Policy to compare with the best schedule: `balance`, or any other policy
    /// blocks; may be repeated
    #[arg(long, value_name = "SPEC", default_value = "balance", value_parser = parse_policy)]
    pub(crate) policy: Vec<PolicySpec>,
    /// Bytes to analyse; of longer data, only the beginning
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_max_len)]
    pub(crate) max_len: usize,
    /// Stop to measure after this time, with parts from all over the data; 0 = measure all of it. With --replay all is
    /// measured
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = parse_seconds, conflicts_with = "replay")]
    pub(crate) time: f64,
    /// Write the best schedule to FILE, for --policy replay:FILE; needs exactly one --link rate
    #[arg(long, value_name = "FILE")]
    pub(crate) replay: Option<PathBuf>,
    /// Write an HTML page with charts to FILE: methods, choices along the data, goodput by rate
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Do not use the cache: measure again and store nothing
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print errors only
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

const HELP: &str = "\
OPERATION
  Every method encodes and decodes every aligned block of 8, 32, 128 and 512 KiB of the data, on all cores of this host. Of up \
to three runs, the one with the least CPU time counts. Of more than 1 MiB, a first estimate from 128 KiB comes before that. What is not measured within --time is taken to be like the rest. From these costs the following are computed in virtual time:
  lower bound      no schedule is better, in each column by itself: the linear program for the time, the smallest block for the bytes
  T*               the best schedule that a beam search found, with full knowledge of the data
  best fixed       the best single method, chosen in hindsight, in blocks of 128 KiB
  plain            no compression
  balance          the choices of `narrows`, which knows only what it has sent so far
Times run until the receiver has decoded the last byte. CPU is the CPU time of encoding, over all cores. Nothing is sent.

ENERGY
  Energy in joules is power times time. The power of each method is read from the counters of the CPU packages (RAPL) while one \
core encodes the first 512 KiB, minus the power of the idle host before and after. The time is that of all cores in virtual \
time. The result is thus the energy that encoding adds, assuming that other data and other cores take the same power; it \
includes neither the receiver nor the rest of the host. It is unavailable without such counters, without permission to read \
/sys/class/powercap (on many hosts only root has it), and if a method cannot be distinguished from the power that other \
programs take meanwhile.

FILES
  $XDG_CACHE_HOME/narrows/oracle (or ~/.cache/narrows/oracle): cache of measurements, including energy, keyed by the hash of \
the data, the methods, the version and the CPU, of data that was measured as a whole. It is limited to 64 MiB, the oldest entries are removed first. It can be \
removed at any time.

EXAMPLES
  narrows oracle --link 6mbit,100mbit --cores 4 backup.tar
  narrows oracle --link 100mbit --replay best.txt --html page.html folder/
  narrows pipe --policy replay:best.txt backup.tar -o backup.nrw";

pub(super) fn parse_rate(text: &str) -> Result<Rate, String> {
    parse_rate_from(text, RATE_MIN)
}

/// Parses a rate of `min` (bits per second, at least 1 kbit/s) or more.
pub(super) fn parse_rate_from(text: &str, min: f64) -> Result<Rate, String> {
    let bad = || format!("'{text}' is not a rate such as 6mbit, 100M or 2.5gbit");
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let (number, unit) = text.split_at(digits);
    let unit = unit.to_ascii_lowercase();
    let factor = match unit.as_str() {
        "" | "bit" | "bit/s" => 1.0,
        "k" | "kbit" | "kbit/s" => 1e3,
        "m" | "mbit" | "mbit/s" => 1e6,
        "g" | "gbit" | "gbit/s" => 1e9,
        "bps" | "kbps" | "mbps" | "gbps" => {
            return Err(format!(
                "'{unit}' in '{text}' means bits to some and bytes to others: write bit, kbit, mbit or gbit"
            ));
        }
        _ => return Err(bad()),
    };
    let bits = number.parse::<f64>().map_err(|_| bad())? * factor;
    if (min..=RATE_MAX).contains(&bits) {
        Ok(Rate(bits / 8.0))
    } else {
        let least = if min < 1e6 { format!("{}kbit", min / 1e3) } else { format!("{}mbit", min / 1e6) };
        Err(format!("'{text}' is not between {least} and 1000gbit"))
    }
}

/// Parses `--max-len`. The limit of 1 GiB is there because data from a folder or stdin must fit
/// into memory several times over.
fn parse_max_len(text: &str) -> Result<usize, String> {
    parse_size(text).and_then(|n| match n {
        1..=0x4000_0000 => Ok(n),
        _ => Err("the length is 1 byte to 1G".into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_bits_and_powers_of_1000() {
        for (text, mbit) in [("6mbit", 6.0), ("100M", 100.0), ("2.5gbit", 2500.0), ("64kbit", 0.064), ("1G", 1000.0)] {
            assert!((parse_rate(text).unwrap().mbit() - mbit).abs() < 1e-9, "{text}");
        }
        assert_eq!(parse_rate("10mbit/s"), parse_rate("10000000"));
        for bad in [
            "", "mbit", "6mbyte", "6MB", "0", "-1mbit", "1e3", "1.2.3M", "nan", "5000gbit", "1", "6 parsec", "6mbitbit",
        ] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
        for unclear in ["100mbps", "1Gbps", "8000bps"] {
            let error = parse_rate(unclear).unwrap_err();
            assert!(error.contains("means bits to some and bytes to others: write bit, kbit, mbit or gbit"), "{error}");
        }
    }
}
