//! What can be typed after `train`.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use narrows::message::{DICTIONARY_MAX, DICTIONARY_TRAINED_MIN};

use super::parse_size;

#[derive(ClapArgs)]
#[command(after_long_help = HELP)]
pub(crate) struct TrainArgs {
    /// Messages to learn from, the oldest first: files of messages (.msgs, .jsonl), other files, each of them one message, and folders
    /// of both
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Where the dictionary goes; the file appears only when it is complete
    #[arg(short = 'o', long, value_name = "DICT")]
    pub(crate) output: PathBuf,
    /// Each line of a file is one message, without its end: text, JSON lines
    #[arg(long)]
    pub(crate) lines: bool,
    /// Longest dictionary, 256 bytes to 64K [default: 16K]
    #[arg(long, value_name = "SIZE", value_parser = parse_dictionary_len)]
    pub(crate) size: Option<usize>,
    /// Write the dictionary even if it does not pay
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Say only what went wrong
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const HELP: &str = "\
A dictionary holds what messages of one kind have in common, so that already the first one of a flow is short, and each one where \
messages are lost, reordered or read by many. One dictionary for each kind: one that was made of several kinds is worse than \
one's own, and one of another kind is worse than none.

FILES
  A file whose name ends in .msgs holds messages one behind the other, each after its length in 4 bytes, little endian. One that ends \
in .jsonl or .ndjson, and any other with --lines, holds one message in each line; empty lines are none. Any \
other file is one message, as for `zstd --train`; of one longer than 65535 bytes the beginning is used. Folders are looked through with all \
that is in them; links, devices and empty files in them are left out. Messages that came before are left out too. 100000 files and 64 MiB \
are read at most, and it is said if there is more.

WHAT IS SAID
  The last fifth of the messages, in the order in which they are given, is kept back: the dictionary is made without them, and judged by them, since it will meet \
messages that are later than those it was made of. It gets a quarter of the bytes of the others at most. Said is what zstd, level 1, leaves of those messages, each \
encoded alone, without and with the dictionary (ratio: bytes as they are by bytes that are left). A dictionary pays if it leaves at most 95 % of what \
is left without it; one that does not is not written, unless --force says so.

WHAT IS IN IT
  DICT is a dictionary in the format of zstd, which the zstd program takes too. It contains pieces of the messages it was made of, in plain: give it only to those who may read \
them.

EXIT STATUS
  0  the dictionary is written
  1  too few messages, no dictionary that pays, or files that cannot be read or written
  2  wrong usage
  3  a file of messages is damaged

EXAMPLES
  narrows train captures/ -o sip.dict
  narrows train --size 32K --json monday.msgs tuesday.msgs -o orders.dict
  jq -c '.[]' events.json | narrows train --lines /dev/stdin -o events.dict";

fn parse_dictionary_len(text: &str) -> Result<usize, String> {
    parse_size(text).and_then(|n| {
        let takes = (DICTIONARY_TRAINED_MIN..=DICTIONARY_MAX).contains(&n);
        takes.then_some(n).ok_or_else(|| "a dictionary has 256 bytes to 64K".into())
    })
}
