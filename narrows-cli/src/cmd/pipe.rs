//! `narrows pipe`: a filter, as `zstd` is one.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use narrows::receiver::ReceiverConfig;
use narrows::stream::{self, Control, ReceiveOptions};
use narrows::transport::Link;

use crate::args::PipeArgs;
use crate::flow::{self, Source, Target};
use crate::host::{self, Background};
use crate::report;

pub(crate) fn run(args: PipeArgs) -> Result<()> {
    let control = Arc::new(Control::default());
    flow::stop_on_signals(&control)?;
    if args.decompress || args.test { decompress(&args, &control) } else { compress(&args, &control) }
}

fn compress(args: &PipeArgs, control: &Arc<Control>) -> Result<()> {
    let source = Source::open(args.file.as_deref())?;
    let target = Target::open(args.output.as_deref())?;
    if matches!(target, Target::Stdout) && io::stdout().is_terminal() && !args.force {
        return Err(anyhow!("compressed bytes are not for a terminal; redirect stdout, use -o FILE, or -f to force"));
    }
    let calibration = host::load(args.talk.verbose);
    let mut options = flow::send_options(&args.flow, calibration.as_ref(), 0.0)?;
    options.sender.check = !args.no_check;
    options.sender.index = args.index;
    options.sender.raw_len = source.len();
    let background = Background::start(calibration.is_none());
    let begun = Instant::now();
    let sent = stream::send(source, Link::file_writer(target.file()?), options, control);
    background.end();
    let (summary, policy) = sent.map_err(anyhow::Error::from)?;
    target.commit(false).with_context(|| cannot_store(args))?;
    host::refresh(calibration, &policy.learned(), args.talk.verbose);
    if args.talk.json {
        eprintln!("{}", report::send_json(&summary, begun.elapsed()));
    } else if args.stats || args.talk.verbose {
        eprintln!("narrows: {}", report::line(&summary, begun.elapsed()));
    }
    Ok(())
}

fn decompress(args: &PipeArgs, control: &Arc<Control>) -> Result<()> {
    let source = Source::open(args.file.as_deref())?;
    let options = ReceiveOptions {
        receiver: ReceiverConfig::default(),
        threads: flow::threads(args.flow.threads),
        stall_timeout: None,
    };
    let begun = Instant::now();
    let link = Link::file_reader(source.into_file());
    let summary = if args.test {
        stream::receive(io::sink(), link, options, || Ok(()), control)
    } else {
        let target = Target::open(args.output.as_deref())?;
        stream::receive(target.file()?, link, options, || target.commit(false), control)
    }
    .map_err(|e| name_input(args, e))?;
    if args.talk.json {
        eprintln!("{}", report::receive_json(&summary, begun.elapsed()));
    } else if args.stats || args.talk.verbose {
        eprintln!("narrows: {}", report::receive_line(&summary, begun.elapsed()));
    }
    Ok(())
}

/// A damaged input is named; a failed output names itself.
fn name_input(args: &PipeArgs, e: narrows::Error) -> anyhow::Error {
    match &args.file {
        Some(file) if e.kind != narrows::ErrorKind::Io => anyhow::Error::from(e).context(file.display().to_string()),
        _ => e.into(),
    }
}

fn cannot_store(args: &PipeArgs) -> String {
    format!("cannot write {}", args.output.as_ref().map_or("stdout".into(), |p| p.display().to_string()))
}
