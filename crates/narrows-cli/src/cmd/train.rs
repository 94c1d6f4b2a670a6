//! `narrows train`: trains a dictionary on messages, and evaluates it on messages that were held
//! back.

use anyhow::{Result, bail};
use narrows::message::{Adoption, Training};
use narrows_ping::samples::Samples;
use serde_json::json;

use crate::args::train::TrainArgs;
use crate::files::write_whole;
use crate::report;

/// With fewer messages, the last fifth is too little to evaluate the dictionary.
const MESSAGES_MIN: usize = 20;
/// Expected number of messages: so many that the length of the dictionary does not count, since it
/// reaches peers in another way than over the link.
const EXPECTED: u64 = 1 << 40;

/// Runs `narrows train`.
pub(crate) fn run(args: &TrainArgs) -> Result<()> {
    let samples = Samples::read(&args.files, args.lines)?;
    if samples.has_read(&args.output) {
        let text = format!("{} is one of the samples; write to another file", args.output.display());
        return Err(narrows::Error::misuse(text).into());
    }
    let Samples { messages, repeated, is_cut, .. } = &samples;
    let count = messages.len();
    if count < MESSAGES_MIN {
        bail!(
            "{} too few to train a dictionary: give {MESSAGES_MIN} or more, better 200{}",
            report::count(count, "different message is", "different messages are"),
            if args.lines { "" } else { " (--lines: each line of a file is one)" }
        );
    }
    if *is_cut && !args.quiet {
        report::note(format_args!("the input exceeds the limit: only the first {count} messages are used"));
    }
    let mut training = Training::of(messages, EXPECTED);
    if let Some(size) = args.size {
        training = training.with_len(size);
    }
    let Some(trained) = training.train() else {
        bail!("these messages have nothing in common that a dictionary could hold");
    };
    let pays = training.pays(&trained);
    let (without, with) = ratios(&trained);
    if !pays && !args.force {
        bail!(
            "no dictionary pays off: ratio {without:.2} without one, {with:.2} with the best (--force writes it anyway)"
        );
    }
    write_whole(&args.output, trained.dictionary.content())?;
    if args.json {
        return report::out(json!({
            "dictionary_bytes": trained.dictionary.content().len(),
            "digest": format!("{:016x}", trained.dictionary.digest()),
            "messages": count,
            "repeated_messages": repeated,
            "raw_bytes": messages.iter().map(Vec::len).sum::<usize>(),
            "is_cut": is_cut,
            "held_back_messages": trained.messages,
            "held_back_raw_bytes": trained.raw_len,
            "wire_bytes_without": trained.before_len,
            "wire_bytes_with": trained.after_len,
            "ratio_without": without,
            "ratio_with": with,
            "pays": pays,
        }));
    }
    if !args.quiet {
        let (len, held) = (trained.dictionary.content().len(), trained.messages);
        let doubt = if pays { "" } else { "; it does not pay off" };
        report::note(format_args!(
            "{len} bytes of dictionary from {count} messages; the last {held} held back: ratio {with:.2} with it, {without:.2} without{doubt}"
        ));
    }
    Ok(())
}

fn ratios(trained: &Adoption) -> (f64, f64) {
    let ratio = |len: usize| trained.raw_len as f64 / len.max(1) as f64;
    (ratio(trained.before_len), ratio(trained.after_len))
}
