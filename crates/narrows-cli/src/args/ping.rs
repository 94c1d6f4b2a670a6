//! What can be typed behind `narrows ping`.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use narrows::message::{HISTORY_MAX, HISTORY_MIN, MESSAGE_MAX};
use narrows::policy::PolicySpec;

use super::oracle::parse_rate_from;
use super::parse_size;
use crate::ping::line::Place;
use crate::ping::wire::Wire;

#[derive(ClapArgs)]
#[command(after_long_help = HELP)]
pub(crate) struct PingArgs {
    /// Where a `narrows ping --serve` is: HOST:PORT or unix:PATH
    #[arg(value_name = "HOST:PORT | unix:PATH", value_parser = Place::parse, required_unless_present = "serve", conflicts_with = "serve")]
    pub(crate) to: Option<Place>,
    /// Answer clients, here [default: 127.0.0.1:7702]; port 0 takes a free one and prints it
    #[arg(long, value_name = "ADDR:PORT | unix:PATH", value_parser = Place::parse, num_args = 0..=1, default_missing_value = "127.0.0.1:7702")]
    pub(crate) serve: Option<Place>,
    /// With --serve: end when the first client has gone
    #[arg(long, requires = "serve")]
    pub(crate) once: bool,
    /// Messages of each size
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) count: u32,
    /// Sizes of messages: all messages are laid end to end and cut [default: 500,700,1000,1400; with --messages their own]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_message_size)]
    pub(crate) sizes: Vec<usize>,
    /// Messages to send: each begins with its length, 4 bytes, little endian, or is a line (.jsonl, --lines) [default: made up]
    #[arg(long, value_name = "FILE")]
    pub(crate) messages: Option<PathBuf>,
    /// Each line of the file of --messages is one message, without its end: text, JSON lines
    #[arg(long, requires = "messages")]
    pub(crate) lines: bool,
    /// How messages are encoded, see METHODS [default: plain,lz4,lz4:linked,zstd-1,messages]
    #[arg(long, value_name = "LIST", default_value = "", hide_default_value = true)]
    pub(crate) methods: String,
    /// Dictionary for the methods that take one; it is sent to the server
    #[arg(long, value_name = "FILE")]
    pub(crate) dict: Option<PathBuf>,
    /// Bytes of earlier messages that linked ones may refer to, 1K to 64K; the published figures have 64K
    #[arg(long, value_name = "W", default_value = "16K", value_parser = parse_window)]
    pub(crate) history: usize,
    /// Times that everything is sent; of each message the median counts
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,
    /// What `messages` chooses by: `messages[:latency_us=US][,cpu_percent=PERCENT]`, or `fixed:METHOD`
    #[arg(long, value_name = "SPEC", default_value = "messages")]
    pub(crate) policy: PolicySpec,
    /// Emulate a link of so many bits per second, 1mbit to 1000gbit: both ends wait before they write
    #[arg(long, value_name = "RATE", value_parser = parse_link_rate)]
    pub(crate) link_rate: Option<u64>,
    /// Switches on the emulated link, each of which stores and forwards
    #[arg(long, value_name = "N", default_value_t = 0, requires = "link_rate", value_parser = clap::value_parser!(u8).range(0..=i64::from(Wire::HOPS_MAX)))]
    pub(crate) hops: u8,
    /// Let both ends look for what comes instead of sleeping: takes a core at each, and leaves out the time that waking takes
    #[arg(long)]
    pub(crate) poll: bool,
    /// Write every choice of `messages` with its reason to FILE, as JSON lines; writing them down takes time, too
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Run on this core only
    #[arg(long, value_name = "CORE", value_parser = clap::value_parser!(u16).range(0..1024))]
    pub(crate) core: Option<u16>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Say only what went wrong
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

const HELP: &str = "\
WHAT IT DOES
  One message at a time goes to the server and back, encoded by the same method both ways; what comes back is compared with what was sent. \
Each method has a connection of its own; methods take turns of 32 messages, so that all see the same link and host. Every round \
has new connections: no history has seen the messages. Each turn begins with an empty message, which does not count: in the first one both ends tell \
what they take, later ones wake the other end.

METHODS
  plain              a length of 2 bytes and the message: what the others are compared with, always there
  store              message mode without compression
  lz4, zstd-LEVEL    each message by itself
  lz4:dict, zstd-1:dict, zstd-3:dict
                     with the dictionary of --dict
  lz4:linked         with the last W bytes of the connection
  lz4:linked,seeded  the same, beginning with the dictionary
  messages           a policy chooses for each message among these (seeded if there is a dictionary)
  lzo, lzf, lzw, lzma, bzip2, zlib, snappy
                     each message by itself, behind 2 bytes of length and 1 that says whether it was encoded; settings as for \
`narrows bench codecs`: zlib:level=1
  all                all of these

FIGURES
  By the text that made the experiment first (Lossless Message Compression, Malardalen 2013). D is the length of a \
message before, Dc after compression, t the time to bring it to the other end, compression and decompression included: half a round trip.
    equation 3       throughput        B = Dc / t
    equation 4       goodput           Be = D / t, printed as Mbit/s
    equation 5       quotient          Q = t(plain) / t, printed as / plain
    equation 6       goodput again     Be = Q B(plain)
  ratio is raw bytes / bytes written to the socket, both ways. p50, p90 and p99 are of all round trips. t is the mean over messages of each \
message's median over rounds.

EMULATED LINK
  With --link-rate each end works idly for (bytes + 90 for each packet of 1448) * 8 / RATE * (1 + hops) before it writes. For one message under \
way this is exact. Without it the link is what lies between the hosts. The table says which.

SERVER
  It serves anybody who connects, neither encrypted nor authenticated, at most 256 connections. A client may make it work, and nothing else.

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
        _ => Err(format!("a message has {MESSAGE_MAX} bytes at most")),
    })
}

fn parse_window(text: &str) -> Result<usize, String> {
    parse_size(text).and_then(|n| match n {
        0 | HISTORY_MIN..=HISTORY_MAX => Ok(n),
        _ => Err("a history has 1K to 64K, or 0".into()),
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
