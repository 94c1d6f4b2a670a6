//! `narrows-lab link`: a command between two emulated hosts, and the link's check of itself.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::Usage;
use anyhow::{Context, Result, bail};
use narrows_link::{Backend, Counters, Emulation, Profile, Side, end_group, leave_terminal_signals_to_children};

/// Run a command across an emulated link
///
/// Makes two hosts, each a network namespace of its own, joined by a link that this program carries: rate, delay, jitter,
/// loss and queue for each direction, changes over time, recorded traces. CMD runs at the client's side and finds the
/// other side's address in NARROWS_LINK_SERVER (and NARROWS_LINK_CLIENT, NARROWS_LINK_PROFILE); the exit status is CMD's.
/// Works as root, and without where user namespaces are allowed. Whatever ends it, nothing is left behind.
///
/// A link is a name, or KEY=VALUE,..., or a name and what differs from it:
///
///   wifi    wifi,loss=0%    rate=100mbit,delay=20ms    down.rate=20mbit,up.rate=6mbit,jitter=2ms,delay=25ms
///   rate=100mbit;5s:rate=10mbit;10s:rate=100mbit;repeat=15s
///
/// Keys, all but the last two with up. or down. for one direction: rate (unlimited), trace (FILE of mahimahi, lte-down,
/// lte-up), burst, delay, jitter, reorder (yes, no), loss, loss-burst (mean packets), gilbert (ENTER/LEAVE/BAD/GOOD),
/// queue (bytes or time; by default a round trip, at least 20 ms and 96 packets), mtu, congestion.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, verbatim_doc_comment)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// The link: a name or KEY=VALUE,...
    #[arg(long, short, value_name = "LINK", default_value = "none")]
    profile: String,
    /// File with changes over time: a line such as "5s rate=10mbit" for each
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Command of a shell to run at the server's side, started first and ended after CMD
    #[arg(long, value_name = "CMD")]
    server: Option<String>,
    /// Time that the server gets before CMD starts
    #[arg(long, value_name = "MS", default_value_t = 100)]
    server_delay: u64,
    /// What carries packets: auto, tun, packet, kernel (tbf and netem, where the kernel has them)
    #[arg(long, default_value = "auto")]
    backend: Backend,
    /// Congestion control of both hosts, such as cubic or bbr; the kernel's default without
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Print at the end what was delivered and dropped
    #[arg(long, short)]
    verbose: bool,
    /// The command, which runs at the client's side
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Print the named links
    Profiles,
}

/// What a server gets to end by itself.
const SERVER_PATIENCE: Duration = Duration::from_secs(2);
/// How soon the end of CMD and of a server is seen.
const LOOK_EVERY: Duration = Duration::from_millis(2);

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.action {
        Some(Action::Profiles) => {
            for (name, keys, origin) in Profile::table() {
                println!("{name:<12} {keys:<60} {origin}");
            }
            Ok(())
        }
        None => between(args),
    }
}

fn profile(args: &Args) -> Result<Profile> {
    let mut text = args.profile.clone();
    if let Some(congestion) = &args.congestion {
        text = match text.split_once(';') {
            Some((base, steps)) => format!("{base},congestion={congestion};{steps}"),
            None => format!("{text},congestion={congestion}"),
        };
    }
    if let Some(path) = &args.plan {
        let plan = std::fs::read_to_string(path).map_err(|e| Usage(format!("cannot read {}: {e}", path.display())))?;
        text = format!("{text}\n{plan}");
    }
    Ok(text.parse().map_err(|e: narrows_link::Error| Usage(e.to_string()))?)
}

fn between(args: &Args) -> Result<()> {
    let profile = profile(args)?;
    let Some((program, rest)) = args.command.split_first() else {
        return Err(
            Usage("no command: give one behind --, as in 'narrows-lab link --profile wifi -- sh'".into()).into()
        );
    };
    let link = Emulation::start_with(&profile, args.backend)?;
    let mut server = args.server.as_ref().map(|line| server(&link, line)).transpose()?;
    if server.is_some() {
        std::thread::sleep(Duration::from_millis(args.server_delay));
    }
    let mut command = link.command(Side::Client, program);
    let mut child = command.args(rest).spawn().with_context(|| format!("cannot run {program}"))?;
    leave_terminal_signals_to_children();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if let Some(ended) = server.as_mut().map(Child::try_wait).transpose()?.flatten() {
            eprintln!("narrows-lab: the server ended before the command: {ended}");
            server = None;
        }
        if !link.is_alive() {
            let _ = child.kill();
            bail!("the link broke down: a process of it was killed from outside");
        }
        std::thread::sleep(LOOK_EVERY);
    };
    if let Some(mut server) = server {
        end_group(&mut server, SERVER_PATIENCE);
    }
    if args.verbose {
        let counters = link.counters();
        eprintln!("up:   {}", line(&counters.up));
        eprintln!("down: {}", line(&counters.down));
        eprintln!("cpu:  {:.3} s by {}", counters.cpu.as_secs_f64(), link.backend());
    }
    drop(link);
    std::process::exit(status.code().or_else(|| status.signal().map(|s| 128 + s)).unwrap_or(1))
}

fn server(link: &Emulation, line: &str) -> Result<Child> {
    let mut command = link.command(Side::Server, "sh");
    command.args(["-c", line]).process_group(0).stdin(Stdio::null());
    command.spawn().context("cannot run sh for the server")
}

fn line(c: &Counters) -> String {
    format!(
        "{} packets, {} bytes; dropped: {} by the queue, {} by loss, {} by devices",
        c.packets, c.bytes, c.queue_dropped, c.lost, c.device_dropped
    )
}
