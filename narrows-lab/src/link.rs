//! `narrows-lab link`: a command between two emulated hosts, and the link's check of itself.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::Usage;
use crate::report::About;
use anyhow::{Context, Result, bail, ensure};
use narrows_link::check::{Finding, free_cores_for};
use narrows_link::{Backend, Counters, Emulation, Profile, Side, end_group, leave_terminal_signals_to_children};
use serde_json::{Value, json};

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
    /// Measure whether links have the rate, delay and loss that they were told
    ///
    /// By probes of its own, and by iperf3 where that is installed. Each figure is the median of some rounds; the status
    /// is 1 if one misses its bounds. A gigabit needs two free cores: what was free is said with each figure.
    #[command(verbatim_doc_comment)]
    Check(CheckArgs),
}

#[derive(clap::Args)]
struct CheckArgs {
    /// What carries packets: auto, tun, packet
    #[arg(long, default_value = "auto")]
    backend: Backend,
    /// Rounds of every measurement
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Print all figures as JSON
    #[arg(long)]
    json: bool,
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
        Some(Action::Check(args)) => check(args),
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

fn check(args: &CheckArgs) -> Result<()> {
    if !(1..=100).contains(&args.rounds) {
        return Err(Usage(format!("--rounds {} is impossible: from 1 to 100", args.rounds)).into());
    }
    if args.backend == Backend::Kernel {
        return Err(Usage("only this program's own links are checked: auto, tun or packet".into()).into());
    }
    let probe = Emulation::start_with(&"none".parse()?, args.backend)?;
    let (backend, rootless) = (probe.backend(), probe.is_rootless());
    drop(probe);
    let tell = |f: &Finding| {
        let verdict = match (f.passes(), f.lacked_cores()) {
            (true, _) => "ok  ",
            (false, false) => "MISS",
            (false, true) => "MISS (fewer than 2 cores were free)",
        };
        eprintln!("{verdict} {}: {:.3} {} ({:.3} to {:.3})", f.what, f.median(), f.unit, f.low, f.high);
    };
    let mut findings = narrows_link::check::run(backend, args.rounds, tell)?;
    let iperf3 = Command::new("iperf3").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if iperf3.is_ok_and(|s| s.success()) {
        for mbit in [10, 100, 1000] {
            findings.push(iperf(backend, args.rounds, mbit)?);
            tell(&findings[findings.len() - 1]);
        }
    } else {
        eprintln!("iperf3 is not installed: own probes only");
    }
    let missed = findings.iter().filter(|f| !f.passes()).count();
    if args.json {
        let rows: Vec<Value> = findings.iter().map(row).collect();
        let (backend, missed) = (backend.to_string(), missed);
        let text = json!({ "about": About::new().json(), "backend": backend, "rootless": rootless, "missed": missed, "findings": rows });
        println!("{}", serde_json::to_string_pretty(&text)?);
    }
    ensure!(missed == 0, "{missed} of {} figures missed their bounds", findings.len());
    Ok(())
}

fn row(f: &Finding) -> Value {
    let round = |values: &[f64]| values.iter().map(|v| (v * 1e4).round() / 1e4).collect::<Vec<_>>();
    json!({
        "what": f.what, "unit": f.unit, "low": f.low, "high": f.high, "median": f.median(), "passes": f.passes(),
        "samples": round(&f.samples), "free_cores": round(&f.free_cores),
    })
}

/// The rate that iperf3 sees by UDP, headers added: more is offered than the link carries.
fn iperf(backend: Backend, rounds: usize, mbit: u32) -> Result<Finding> {
    /// A second of what it takes to begin and to end.
    const PATIENCE: Duration = Duration::from_secs(30);
    let rate = f64::from(mbit);
    let mut finding = Finding::new(format!("iperf3 by UDP at {mbit} Mbit/s"), "Mbit/s", rate * 0.98, rate * 1.02);
    let link = Emulation::start_with(&format!("rate={mbit}mbit,delay=1ms,queue=100ms").parse()?, backend)?;
    for _ in 0..rounds {
        let free = free_cores_for(mbit);
        let mut server = link.command(Side::Server, "iperf3");
        server
            .args(["-s", "-1", "-J"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        let mut server = server.spawn().context("cannot run iperf3")?;
        std::thread::sleep(Duration::from_millis(300));
        let offered = format!("{}M", rate * 1.1);
        let mut client = link.command(Side::Client, "iperf3");
        let address = link.address(Side::Server).to_string();
        client.args(["-u", "-b", &offered, "-l", "1472", "-t", "2", "-c", &address]);
        let client = client.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        let begun = std::time::Instant::now();
        let mut text = Vec::new();
        if let Some(stdout) = server.stdout.as_mut().filter(|_| client.is_ok_and(|s| s.success())) {
            stdout.read_to_end(&mut text)?;
        }
        while server.try_wait()?.is_none() && begun.elapsed() < PATIENCE && !text.is_empty() {
            std::thread::sleep(LOOK_EVERY);
        }
        end_group(&mut server, Duration::ZERO);
        let report: Value = serde_json::from_slice(&text).unwrap_or_default();
        finding.add(received(&report).unwrap_or(0.0) * 1500.0 / 1472.0, free);
    }
    Ok(finding)
}

/// Mbit/s of the server's whole intervals: the first and the last hold the beginning and the end.
fn received(report: &Value) -> Option<f64> {
    let intervals = report["intervals"].as_array()?;
    let rates: Vec<f64> = intervals.iter().filter_map(|i| i["sum"]["bits_per_second"].as_f64()).collect();
    rates.get(1).map(|bits| bits / 1e6)
}
