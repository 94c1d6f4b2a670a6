//! The command `link`: runs a command between two emulated hosts, and checks the emulation.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::Usage;
use crate::report::About;
use crate::stop::exit_code;
use anyhow::{Context, Result, anyhow, ensure};
use narrows_link::check::{Finding, free_cores_for};
use narrows_link::{
    Backend, Counters, Emulation, Profile, Side, end_group, leave_terminal_signals_to_children, read_text,
};
use serde_json::{Value, json};

/// Run a command across an emulated link
///
/// Creates two hosts, each in its own network namespace, connected by a link that this program
/// emulates: rate, delay, jitter, loss and queue for each direction, changes over time, recorded
/// traces. CMD runs on the client's side and finds the other side's address in NARROWS_LINK_SERVER
/// (and NARROWS_LINK_CLIENT, NARROWS_LINK_PROFILE); the exit status is that of CMD. Works as root,
/// and without root where user namespaces are allowed. However it ends, it leaves no processes or
/// devices behind.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, after_long_help = LINKS)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// The link: a name or KEY=VALUE,...
    #[arg(long, short, value_name = "LINK", default_value = "none")]
    profile: String,
    /// File with changes over time, one per line, such as "5s rate=10mbit"
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Shell command to run on the server's side, started first and ended after CMD
    #[arg(long, value_name = "CMD")]
    server: Option<String>,
    /// Time that the server gets before CMD starts
    #[arg(long, value_name = "MS", default_value_t = 100)]
    server_delay: u64,
    /// Mechanism that carries packets: auto, tun, packet, kernel (tbf and netem, where the kernel
    /// has them)
    #[arg(long, default_value = "auto")]
    backend: Backend,
    /// Congestion control of both hosts, such as cubic or bbr; the kernel's default if not given
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Print counts of delivered and dropped packets at the end
    #[arg(long, short)]
    verbose: bool,
    /// The command, which runs on the client's side
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Print the named links
    Profiles,
    /// Measure whether links have the configured rate, delay and loss
    ///
    /// Uses its own probes, and iperf3 if that is installed. Each figure is the median over the
    /// rounds; the exit status is 1 if one misses its bounds. Rounds in which a device of this
    /// machine dropped packets are void and do not count. A gigabit needs two free cores: each
    /// figure is reported with the number of free cores.
    Check(CheckArgs),
}

#[derive(clap::Args)]
struct CheckArgs {
    /// Mechanism that carries packets: auto, tun, packet
    #[arg(long, default_value = "auto")]
    backend: Backend,
    /// Rounds of every measurement
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Print all figures as JSON
    #[arg(long)]
    json: bool,
}

const LINKS: &str = "\
LINKS
  A link is a name, or KEY=VALUE,..., or a name with overrides, and may change over time:
    wifi
    wifi,loss=0%
    rate=100mbit,delay=20ms
    down.rate=20mbit,up.rate=6mbit,jitter=2ms,delay=25ms
    rate=100mbit;5s:rate=10mbit;10s:rate=100mbit;repeat=15s

KEYS
  Keys apply to both directions; all but those of the last line also to one, with up. or down.:
    rate        such as 512kbit, 100mbit or 1gbit; unlimited
    trace       instead of a rate: a FILE of mahimahi, lte-down or lte-up
    burst       bytes that pass at once after the link was idle
    delay       one-way delay
    jitter      each packet's delay is uniform between delay - jitter and delay + jitter
    reorder     yes lets jitter change the order of packets, no does not
    loss        share of packets such as 1%
    loss-burst  mean number of packets that are lost together
    gilbert     loss with two states: ENTER/LEAVE/LOSS-IN-BAD/LOSS-IN-GOOD
    queue       bytes or time; by default a round trip, at least 20 ms and 96 packets
    mtu, congestion";

/// Longest plan file: room for the most steps allowed, with comments.
const PLAN_FILE_MAX: u64 = 4 << 20;
/// Time for a server to end by itself after SIGTERM.
const SERVER_PATIENCE: Duration = Duration::from_secs(2);
/// Polling interval for the end of CMD and of a server.
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
        let plan = read_text(path, PLAN_FILE_MAX).map_err(|e| Usage(format!("cannot read {}: {e}", path.display())))?;
        text = format!("{text}\n{plan}");
    }
    Ok(text.parse().map_err(|e: narrows_link::Error| Usage(e.to_string()))?)
}

fn between(args: &Args) -> Result<()> {
    let profile = profile(args)?;
    let Some((program, rest)) = args.command.split_first() else {
        return Err(Usage("no command: give one after --, as in 'narrows-lab link --profile wifi -- sh'".into()).into());
    };
    let link = Emulation::start_with(&profile, args.backend)?;
    let mut server = args.server.as_ref().map(|line| server(&link, line)).transpose()?;
    if server.is_some() {
        std::thread::sleep(Duration::from_millis(args.server_delay));
    }
    let mut command = link.command(Side::Client, program);
    let mut child = command.args(rest).spawn().with_context(|| format!("cannot run {program}"))?;
    leave_terminal_signals_to_children();
    let ended = loop {
        if let Some(status) = child.try_wait()? {
            break Ok(status);
        }
        if let Some(ended) = server.as_mut().map(Child::try_wait).transpose()?.flatten() {
            eprintln!("narrows-lab: the server ended before the command: {ended}");
            server = None;
        }
        if !link.is_alive() {
            let _ = child.kill();
            break Err(anyhow!("the link broke down: one of its processes was killed from outside"));
        }
        std::thread::sleep(LOOK_EVERY);
    };
    if let Some(mut server) = server {
        end_group(&mut server, SERVER_PATIENCE);
    }
    let status = ended?;
    if args.verbose {
        let counters = link.counters();
        eprintln!("up:   {}", line(&counters.up));
        eprintln!("down: {}", line(&counters.down));
        eprintln!("cpu:  {:.3} s by {}", counters.cpu.as_secs_f64(), link.backend());
    }
    drop(link);
    std::process::exit(exit_code(status))
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
        return Err(Usage("only links emulated by this program can be checked: auto, tun or packet".into()).into());
    }
    let probe = Emulation::start_with(&"none".parse()?, args.backend)?;
    let (backend, rootless) = (probe.backend(), probe.is_rootless());
    drop(probe);
    let tell = |f: &Finding| {
        let verdict = match f {
            f if f.passes() => "ok  ",
            f if f.is_void() => "VOID (devices of this machine dropped packets)",
            f if f.lacked_cores() => "MISS (fewer than 2 cores were free)",
            _ => "MISS",
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
        eprintln!("iperf3 is not installed: using only the built-in probes");
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
        "samples": round(&f.samples), "free_cores": round(&f.free_cores), "device_dropped": f.device_dropped,
    })
}

/// The rate that iperf3 measures by UDP with headers added. The load is higher than the link's
/// rate.
fn iperf(backend: Backend, rounds: usize, mbit: u32) -> Result<Finding> {
    /// Timeout of iperf3, which normally needs a second to start and end.
    const PATIENCE: Duration = Duration::from_secs(240);
    let rate = f64::from(mbit);
    let mut finding = Finding::new(format!("iperf3 by UDP at {mbit} Mbit/s"), "Mbit/s", rate * 0.98, rate * 1.02);
    let link = Emulation::start_with(&format!("rate={mbit}mbit,delay=1ms,queue=100ms").parse()?, backend)?;
    for _ in 0..rounds {
        let (free, dropped_before) = (free_cores_for(mbit), device_dropped(&link));
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
        let seen = received(&report).unwrap_or(0.0) * 1500.0 / 1472.0;
        finding.add(seen, free, device_dropped(&link) - dropped_before);
    }
    Ok(finding)
}

fn device_dropped(link: &Emulation) -> u64 {
    let counters = link.counters();
    counters.up.device_dropped + counters.down.device_dropped
}

/// Mbit/s of a whole interval of the server: the first and the last one contain the start and the
/// end.
fn received(report: &Value) -> Option<f64> {
    let intervals = report["intervals"].as_array()?;
    let rates: Vec<f64> = intervals.iter().filter_map(|i| i["sum"]["bits_per_second"].as_f64()).collect();
    rates.get(1).map(|bits| bits / 1e6)
}
