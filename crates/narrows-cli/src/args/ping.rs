//! Command-line definition of `narrows ping`.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use narrows::message::{HISTORY_MAX, HISTORY_MIN, MESSAGE_MAX};
use narrows::policy::PolicySpec;

use super::oracle::parse_rate_from;
use super::{parse_policy, parse_size};
use narrows_ping::socket::Place;
use narrows_ping::wire::Wire;

#[derive(ClapArgs)]
#[command(after_long_help = HELP)]
pub(crate) struct PingArgs {
    /// Address of a `narrows ping --serve`: HOST:PORT or unix:PATH
    #[arg(value_name = "HOST:PORT | unix:PATH", value_parser = Place::parse, required_unless_present = "serve", conflicts_with = "serve")]
    pub(crate) to: Option<Place>,
    /// Be the server, and listen on this address [default: 127.0.0.1:7702]; port 0 selects a free
    /// port and prints it
    #[arg(long, value_name = "ADDR:PORT | unix:PATH", value_parser = Place::parse, num_args = 0..=1, default_missing_value = "127.0.0.1:7702")]
    pub(crate) serve: Option<Place>,
    /// With --serve: exit when the first client disconnects
    #[arg(long, requires = "serve")]
    pub(crate) once: bool,
    /// Number of messages of each size
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) count: u32,
    /// Message sizes in bytes; the messages are concatenated and cut to each size
    /// [default: 500,700,1000,1400; with --messages the original sizes]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_message_size)]
    pub(crate) sizes: Vec<usize>,
    /// File of messages to send: each is preceded by its length in 4 bytes, little endian, or is a
    /// line (.jsonl, --lines) [default: generated]
    #[arg(long, value_name = "FILE")]
    pub(crate) messages: Option<PathBuf>,
    /// Treat each line of the --messages file as one message, without the line end (text, JSON
    /// lines)
    #[arg(long, requires = "messages")]
    pub(crate) lines: bool,
    /// Methods to compare, see METHODS [default: plain,lz4,lz4:link,zstd:level=1,messages]
    #[arg(long, value_name = "LIST", default_value = "", hide_default_value = true)]
    pub(crate) methods: String,
    /// Dictionary for the methods that use one; it is sent to the server
    #[arg(long, value_name = "FILE")]
    pub(crate) dict: Option<PathBuf>,
    /// Bytes of earlier messages that linked messages may refer to, 1K to 64K, or 0; the published
    /// figures use 64K
    #[arg(long, value_name = "W", default_value = "16K", value_parser = parse_window)]
    pub(crate) history: usize,
    /// Number of times that all messages are sent; the median of each message counts
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,
    /// Policy of the method `messages`: `messages[:latency_us=US][,cpu_percent=PERCENT]`, or
    /// `fixed:METHOD`
    #[arg(long, value_name = "SPEC", default_value = "messages", value_parser = parse_policy)]
    pub(crate) policy: PolicySpec,
    /// Emulate a link of this rate in bits per second, 1mbit to 1000gbit; both ends wait before
    /// they write
    #[arg(long, value_name = "RATE", value_parser = parse_link_rate)]
    pub(crate) link_rate: Option<u64>,
    /// Number of store-and-forward switches on the emulated link
    #[arg(long, value_name = "N", default_value_t = 0, requires = "link_rate", value_parser = clap::value_parser!(u8).range(0..=i64::from(Wire::HOPS_MAX)))]
    pub(crate) hops: u8,
    /// Let both ends poll for data instead of sleeping: this occupies one core at each end, and
    /// excludes wake-up time from the measurement
    #[arg(long)]
    pub(crate) poll: bool,
    /// Write every choice of `messages` and its reason to FILE, as JSON lines; the writing adds to
    /// the measured times
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Run only on this core
    #[arg(long, value_name = "CORE", value_parser = clap::value_parser!(u16).range(0..1024))]
    pub(crate) core: Option<u16>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print errors only
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

const HELP: &str = "\
OPERATION
  One message at a time goes to the server and back, encoded with the same method both ways, and the reply is compared with the \
message. Each method has its own connection. Methods take turns of 32 messages, so that all see the same state of link and \
host. Every round uses new connections, so that no history contains the messages. Each turn begins with an empty message that \
does not count: in the first turn both ends announce with it what they support, later it wakes the other end.

METHODS
  plain              a length of 2 bytes and the message; the reference for the others, always measured
  store              message mode without compression
  lz4, zstd:level=N  each message by itself
  lz4:dict, zstd:level=N,dict
                     with the dictionary of --dict
  lz4:link           with the last W bytes of the connection (--history) as dictionary
  lz4:link,seeded    the same, with a history that begins with the dictionary
  messages           a policy chooses among these for each message (seeded if there is a dictionary)
  lzma, bzip2, zlib, snappy
                     each message by itself, after 2 bytes of length and 1 byte that says whether it is encoded; settings as \
for `narrows bench codecs`: zlib:level=1
  all                all of these

FIGURES
  They follow the paper that introduced the experiment (Lossless Message Compression, Malardalen 2013). D is the length of a \
message before compression, Dc after it, t the time to transfer it, including compression and decompression: half a round trip.
    equation 3       throughput        B = Dc / t
    equation 4       goodput           Be = D / t, printed as Mbit/s
    equation 5       quotient          Q = t(plain) / t, printed as / plain
    equation 6       goodput again     Be = Q B(plain)
  ratio is raw bytes / bytes written to the socket, in both directions. p50, p90 and p99 are percentiles of all round trips. t is \
the mean over all messages of the median of each message over the rounds.

EMULATED LINK
  With --link-rate, each end busy-waits for (bytes + 90 for each packet of 1448) * 8 / RATE * (1 + hops) before it writes. With \
one message in flight this is exact. Without --link-rate, the link is the real one between the hosts. The table says which.

SERVER
  It serves anybody who connects, without encryption or authentication, on at most 256 connections. A client can cause CPU load \
on it, but nothing else.

EXAMPLES
  narrows ping --serve 127.0.0.1:7702 &
  narrows ping 127.0.0.1:7702
  narrows ping 127.0.0.1:7702 --link-rate 100mbit --sizes 500,1400 --methods all
  narrows ping 127.0.0.1:7702 --messages calls.msgs --dict calls.dict --json
  narrows ping 127.0.0.1:7702 --messages access.log --lines
  narrows ping --serve unix:ping.sock --once --core 0 &
  narrows ping unix:ping.sock --core 1";

fn parse_message_size(text: &str) -> Result<usize, String> {
    parse_size(text).and_then(|n| match n {
        0..=MESSAGE_MAX => Ok(n),
        _ => Err(format!("a message has at most {MESSAGE_MAX} bytes")),
    })
}

fn parse_window(text: &str) -> Result<usize, String> {
    parse_size(text).and_then(|n| match n {
        0 | HISTORY_MIN..=HISTORY_MAX => Ok(n),
        _ => Err("the history is 1K to 64K, or 0".into()),
    })
}

fn parse_link_rate(text: &str) -> Result<u64, String> {
    Ok((parse_rate_from(text, Wire::BITS_MIN as f64)?.mbit() * 1e6).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_cannot_be_emulated_is_refused_by_its_own_limits() {
        for rate in ["1mbit", "1000gbit"] {
            assert!(Wire { bits_per_s: parse_link_rate(rate).unwrap(), hops: 0 }.is_sound(), "{rate}");
        }
        for rate in ["1", "1kbit", "999kbit", "1001gbit", "5000gbit"] {
            assert_eq!(parse_link_rate(rate), Err(format!("'{rate}' is not between 1mbit and 1000gbit")));
        }
    }
}
