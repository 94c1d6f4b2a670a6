//! Command-line definition of `narrows train`.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use narrows::message::{DICTIONARY_MAX, DICTIONARY_TRAINED_MIN};

use super::parse_size;

#[derive(ClapArgs)]
#[command(after_long_help = HELP)]
pub(crate) struct TrainArgs {
    /// Messages to train on, oldest first: files of messages (.msgs, .jsonl), other files, which
    /// are one message each, and folders of both
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Output file for the dictionary; it appears only when it is complete
    #[arg(short = 'o', long, value_name = "DICT")]
    pub(crate) output: PathBuf,
    /// Treat each line of a file as one message, without the line end (text, JSON lines)
    #[arg(long)]
    pub(crate) lines: bool,
    /// Maximum length of the dictionary, 256 bytes to 64K [default: 16K]
    #[arg(long, value_name = "SIZE", value_parser = parse_dictionary_len)]
    pub(crate) size: Option<usize>,
    /// Write the dictionary even if it does not pay off
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Print errors only
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const HELP: &str = "\
A dictionary holds the parts that messages of one kind have in common. With it even the first message of a flow is short, and \
so is every message where messages are lost, reordered or read by many. Train one dictionary for each kind: a dictionary \
trained on several kinds is worse than a specific one, and a dictionary of another kind is worse than none.

FILES
  A file whose name ends in .msgs is a sequence of messages, each preceded by its length in 4 bytes, little endian. A file \
whose name ends in .jsonl or .ndjson, and with --lines any other file, holds one message in each line; empty lines are \
skipped. Any other file is one message, as for `zstd --train`; of a file longer than 65535 bytes only the beginning is used. \
Folders are searched recursively; links, devices and empty files in them are skipped. Repeated messages are skipped too. At \
most 100000 files and 64 MiB are read; a message reports if there is more.

EVALUATION
  The last fifth of the messages, in the given order, is held back. The dictionary is trained without them and evaluated on \
them, because it will be used on messages later than those it was trained on. Its length is at most a quarter of the bytes of \
the other messages. The output is the ratio (raw bytes / compressed bytes) of zstd, level 1, on the held-back messages, each \
encoded alone, without and with the dictionary. A dictionary pays off if the compressed messages take at most 95 % of their \
length without it. Otherwise it is not written, unless --force is given.

CONTENT
  DICT is a dictionary in the format of zstd, which the zstd program accepts too. It contains pieces of the training messages \
in clear: give it only to those who may read them.

EXIT STATUS
  0  the dictionary is written
  1  too few messages, no dictionary that pays off, or files that cannot be read or written
  2  wrong usage
  3  a file of messages is damaged

EXAMPLES
  narrows train captures/ -o sip.dict
  narrows train --size 32K --json monday.msgs tuesday.msgs -o orders.dict
  jq -c '.[]' events.json | narrows train --lines /dev/stdin -o events.dict";

fn parse_dictionary_len(text: &str) -> Result<usize, String> {
    parse_size(text).and_then(|n| {
        let takes = (DICTIONARY_TRAINED_MIN..=DICTIONARY_MAX).contains(&n);
        takes.then_some(n).ok_or_else(|| "the length of a dictionary is 256 bytes to 64K".into())
    })
}
