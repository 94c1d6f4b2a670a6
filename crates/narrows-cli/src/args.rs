//! What can be typed.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use narrows::codec::Method;
use narrows::policy::PolicySpec;

use narrows_copy::carriers::CARRIERS;

pub(crate) mod agent;
pub(crate) mod oracle;
pub(crate) mod ping;
pub(crate) mod run;
pub(crate) mod status;
pub(crate) mod train;

const HELP: &str = "\
EXIT STATUS
  0  success; `send` succeeds only when the receiver has said that everything is stored
  1  input, output, network or peer failed
  2  wrong usage
  3  the stream is damaged, cut short, too new, or beyond the limits

After SIGINT or SIGTERM, or when the reader of the output goes away (SIGPIPE), the program dies of that signal, which a \
shell shows as 130, 143 and 141. A file named with -o appears only when it is complete and checked; until then the bytes \
are in a temporary file beside it, which every failure removes. Bytes on stdout are passed on as their blocks are \
verified: rely on the exit status before you use them.

EXAMPLES
  Pack a folder, look at the result, unpack it:
    tar c dir | narrows pipe -o dir.tar.nrw
    narrows inspect dir.tar.nrw
    narrows pipe -d dir.tar.nrw | tar x
  Adapt to a link that another program carries:
    tar c dir | narrows pipe | ssh host 'narrows pipe -d | tar x'
  Send a file over TCP (not encrypted: stay on hosts and networks that you trust):
    narrows recv --listen 127.0.0.1:7700 -o copy --fsync
    narrows send file tcp://127.0.0.1:7700 --retry-connect 10
  See what would be gained, and what each method does on your data:
    narrows demo
    narrows bench codecs --corpus DIR

METHODS AND POLICIES
A method is a codec (store, constant, lz4, zstd, zlib, bzip2, xz, snappy), perhaps with a setting (lz4:accel=1 to 64, \
lz4:hc=9, zstd:level=-7 to 19, zlib and bzip2:level=1 to 9, xz:level=0 to 9), and perhaps with `link` (lz4 and zstd), to refer back to earlier \
blocks. --methods takes several, separated by commas. A policy is `balance` or `fixed:METHOD`, such as \
fixed:zstd:level=3,link.

FILES
$XDG_CACHE_HOME/narrows/calibration (or ~/.cache/narrows/calibration): how fast this host runs each method. Made in the \
background by the first flow that lasts a second, or by `narrows calibrate`; it may be removed at any time.

ENVIRONMENT
NO_COLOR switches colours off. NARROWS_TOKEN is the token for narrows:// places.";

#[derive(Parser)]
#[command(
    name = "narrows",
    version,
    about = "Make data cross a narrow place faster",
    long_about = "Narrows chooses for every block whether and how to compress it, from the data, the link, the CPUs and \
                  the receiver as they are at that moment. Leave it on everywhere; there is no level to think about.",
    after_help = "Exit status: 0 success, 1 failure of input, output or peer, 2 wrong usage, 3 bad stream. More: --help",
    after_long_help = HELP
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Compress or decompress a stream, adapting to how fast the output drains
    Pipe(PipeArgs),
    /// Copy files and folders between hosts over ssh or directly, or on this one
    Cp(CpArgs),
    /// The other end of `cp`: started by it, or a server of its own
    Serve(ServeArgs),
    /// Run a program whose connections go through a supervisor
    Run(run::RunArgs),
    /// Answer for the programs of this host that run under `run`
    Agent(agent::AgentArgs),
    /// Show what runs under `run`, and what became of its connections
    Status(status::StatusArgs),
    /// Send a file or stdin to a `narrows recv`
    Send(SendArgs),
    /// Receive one stream from a `narrows send`
    Recv(RecvArgs),
    /// Show what a stream is made of and check it
    Inspect(InspectArgs),
    /// Show the gain on links of 10, 100, 1000 Mbit/s and unshaped, inside this process
    Demo(DemoArgs),
    /// Show how fast given data could be sent on a link at best, and how near each method and policy comes
    Oracle(oracle::OracleArgs),
    /// Send messages to and fro, by many methods over the same link, and show their times
    Ping(ping::PingArgs),
    /// Measure parts of the program on real data
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Make a dictionary out of messages, for those that are sent later
    Train(train::TrainArgs),
    /// Measure how fast this host runs each method, and remember it
    Calibrate(CalibrateArgs),
}

/// How blocks are chosen and encoded.
#[derive(ClapArgs, Clone)]
pub(crate) struct FlowArgs {
    /// Rule that chooses the method of each block: `balance`, or `fixed:METHOD` such as `fixed:zstd:level=3,link`;
    /// `messages[:latency_us=US][,cpu_percent=PERCENT]` weighs each by time, for short messages to and fro; `storage` is for
    /// what is kept: zstd 3 in long blocks, nearly as small as what `zstd` makes. For
    /// experiments: `adoc` (the level of zlib by the FIFO),
    /// `datacomp[:table=FILE][,mode=train|read]` (averages of what each method did; FILE is kept), `stall[:min=LEVEL][,max=LEVEL]` (as `zstd --adapt`) and `replay:FILE` (a schedule or a trace again)
    /// [default: `balance`; where `pipe` writes a file, `storage`]
    #[arg(long, value_name = "SPEC")]
    pub(crate) policy: Option<PolicySpec>,
    /// Methods that `balance` may choose from, such as `store,lz4:accel=16,zstd:level=1,xz` [default: eleven of them]
    #[arg(long, value_name = "LIST", value_parser = parse_methods)]
    pub(crate) methods: Option<MethodList>,
    /// Worker threads [default: the cores that this process may use, less one from four on]
    #[arg(long, short = 'T', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: Option<u16>,
    /// Longest block, such as 64K or 2M [default: what the policy asks for at most, 128K for `fixed`]
    #[arg(long, value_name = "SIZE", value_parser = parse_block_max)]
    pub(crate) block_max: Option<usize>,
    /// Raw bytes that linked blocks may refer back to, at most 64K [default: 64K if the policy links]
    #[arg(long, value_name = "SIZE", value_parser = parse_history)]
    pub(crate) history: Option<usize>,
    /// What `balance` expects of methods before it has seen any, made by `narrows-lab prior` [default: built in]
    #[arg(long, value_name = "FILE")]
    pub(crate) prior: Option<PathBuf>,
    /// Write every decision with its reason to FILE, as JSON lines
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

/// How much is said.
#[derive(ClapArgs, Clone, Copy)]
pub(crate) struct TalkArgs {
    /// Say only what went wrong
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Say more
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Print the summary as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Values of `cp --fsync`.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum FsyncArg {
    /// Each file before it gets its name
    Each,
    /// Many files at once, before they get their names
    Batch,
    /// Left to the system
    None,
}

impl From<FsyncArg> for narrows_copy::hello::Fsync {
    fn from(arg: FsyncArg) -> Self {
        match arg {
            FsyncArg::Each => Self::Each,
            FsyncArg::Batch => Self::Batch,
            FsyncArg::None => Self::None,
        }
    }
}

#[derive(ClapArgs)]
#[command(after_long_help = CP_HELP, override_usage = "narrows cp [OPTIONS] SRC... DST")]
pub(crate) struct CpArgs {
    /// What to copy, and last where to: PATH, [USER@]HOST:PATH, ssh://[USER@]HOST[:PORT]/PATH, narrows://HOST[:PORT]/PATH,
    /// or - for stdin and stdout
    #[arg(value_name = "SRC... DST", required = true, num_args = 1..)]
    pub(crate) paths: Vec<OsString>,
    /// Copy folders with everything in them
    #[arg(short = 'r', short_alias = 'R', short_alias = 'a', long)]
    pub(crate) recursive: bool,
    /// Leave out what matches PATTERN, written as in a .gitignore file; may be given many times
    #[arg(long, value_name = "PATTERN")]
    pub(crate) exclude: Vec<String>,
    /// Copy what matches PATTERN although --exclude leaves it out
    #[arg(long, value_name = "PATTERN")]
    pub(crate) include: Vec<String>,
    /// Remove at the target what the sources do not have, in the folders that are copied, once all is copied
    #[arg(long, requires = "recursive")]
    pub(crate) delete: bool,
    /// Remove nothing if --delete would remove more than N files and folders
    #[arg(long, value_name = "N", requires = "delete")]
    pub(crate) max_delete: Option<u64>,
    /// Try to keep owners although this is not root at the storing end, and say where that fails
    #[arg(long, overrides_with = "no_owner")]
    pub(crate) owner: bool,
    /// Keep no owners and groups although this is root at the storing end
    #[arg(long, overrides_with = "owner")]
    pub(crate) no_owner: bool,
    /// Keep set-user-ID and set-group-ID bits and capabilities of files of another host, with which programs run as somebody else than who starts them
    #[arg(long)]
    pub(crate) set_id: bool,
    /// Change nothing; name the files that would be copied, and removed
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Remote shell, with flags
    #[arg(short = 'e', long = "rsh", value_name = "COMMAND", default_value = "ssh")]
    pub(crate) shell: OsString,
    /// Name or path of this program on the other host
    #[arg(long, value_name = "PROGRAM", default_value = "narrows")]
    pub(crate) remote_narrows: String,
    /// Fail when the other host has no narrows, instead of copying by tar
    #[arg(long)]
    pub(crate) no_fallback: bool,
    /// File with the token of a narrows:// server [default: the one in $NARROWS_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Reach a narrows:// server on this host without token and encryption
    #[arg(long, conflicts_with = "token_file")]
    pub(crate) insecure: bool,
    /// When data is brought to the disk
    #[arg(long, value_name = "WHEN", value_enum, default_value = "batch")]
    pub(crate) fsync: FsyncArg,
    /// Connections that a copy may have: more are opened while they make it faster
    #[arg(long, value_name = "N", default_value_t = CARRIERS, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub(crate) carriers: u8,
    /// Copy fifos and devices too
    #[arg(long)]
    pub(crate) devices: bool,
    /// Give up after so long without progress; 0 = never
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = parse_seconds)]
    pub(crate) timeout: f64,
    #[command(flatten)]
    pub(crate) flow: FlowArgs,
    #[command(flatten)]
    pub(crate) talk: TalkArgs,
}

const CP_HELP: &str = "\
PATHS
  A colon makes a path remote unless a slash comes before it: ./a:b is a file here. SRC/ means what \
is in the folder, SRC the folder itself. DST is a folder if it exists as one, ends in a slash, or takes more than one \
file; else it is the new name of a single file. A folder SRC is put into DST, which is made if it is missing: `cp -r SRC DST` makes \
DST/SRC, as rsync does, where cp and scp would make DST itself out of SRC, as `cp -r SRC/ DST` does here. Of DST only the last folder is made. A file is written into a DST that is \
a device or fifo; devices in folders stay unless --devices is given. What the copy makes is never a part of its sources.
  - as SRC is stdin, stored under the name that DST says, with what `cat > DST` would give it; - as DST is stdout, to which \
one file is written. Bytes on stdout are passed on as their blocks are verified: rely on the exit status before you use \
them. A file that is named so is ./-.
  In HOST:PATH ~ is a home folder there, and *, ? and [...] in a source are matched there, unless a file is named just so. \
ssh://HOST:PORT/PATH begins at the root of the host, ssh://HOST/~/PATH at a home folder; %XX in it is a byte.
  narrows://HOST[:PORT]/PATH is below the folder that a `narrows serve --listen` there serves (port 7700 if none is named); \
the path is taken as it stands, without %-escapes.

WHAT IS KEPT
  Modes, times to the nanosecond, symbolic and hard links, holes, extended attributes, access control lists, names of any \
bytes. Owner and group by number: the owner if this is root at the storing end or with --owner, the group where that is allowed; neither with --no-owner. What could not be kept is said. Set-id bits and capabilities of files are kept within a host; from another one only with --set-id.

WITHOUT NARROWS THERE
  When the other host of a copy by ssh has no narrows, files are copied by tar, with zstd if the other host has it, and that is \
said. Everything is sent anew and gets its name when all has come: a copy that fails leaves what was there as it was, and the \
next one begins from the start (without zstd there, a lost link may leave a part of the files). GNU tar and bsdtar keep what is named above, others less; what is not kept is said. It needs tar \
at both ends, knows no wildcards, and can do none of - (stdin, stdout), --dry-run, --delete, --owner, and --exclude of what is there. Set-id bits of \
files are kept only with --set-id and their owners. --no-fallback forbids it.

AGAIN
  A file of the same length and time is not sent again. Every file is stored under a temporary name (.narrows-*.partial) and gets its \
own when it is whole and checked. After a copy that was cut off, run the same command again.

REMOVING
  --delete acts in the folders that are copied: with SRC/ in DST, with SRC in DST/SRC, never beside them. It begins when everything is stored; if anything failed, is missing or was left out without being excluded, nothing is removed. What --exclude leaves out stays there too, and the folders that it is in. Symbolic links are removed, not followed; what is mounted in the target is left. What is of another kind than the source of its name makes way: a folder with the \
rest, a file or link at once. -n names what would go.

SECRETS
  Encryption hides what is copied and not how long it is. Where somebody who sees the link also chooses a part of what is copied, lengths of compressed blocks tell him about the rest, bit by bit. --policy fixed:store compresses nothing, in either direction.

EXIT STATUS
  0  everything is copied
  1  this end, or the other, could not do its part
  2  no file was copied, or wrong usage
  3  some entries could not be copied, or removed; each was named; or --delete removed nothing, which was said
  4  some files changed while they were read
  5  the other end was not reached, or it or the link was lost; the same command goes on (with -, anew)

EXAMPLES
  narrows cp -r photos me@host:backup/
  narrows cp -r me@host:project/ .
  narrows cp -rn --delete --exclude '*.o' project/ me@host:project
  pg_dump base | narrows cp - me@host:base.sql
  narrows cp me@host:base.sql - | psql base
  narrows cp -e 'ssh -p 2222' file host:
  narrows cp --token-file token file narrows://host/";

#[derive(ClapArgs)]
#[command(after_long_help = SERVE_HELP)]
pub(crate) struct ServeArgs {
    /// Talk over standard input and output: so `cp` starts it through a remote shell
    #[arg(long, required_unless_present = "listen", conflicts_with_all = ["listen", "dir", "read_only", "key_file", "insecure", "token_out", "set_id"])]
    pub(crate) stdio: bool,
    /// Serve clients that connect here, such as 0.0.0.0:7700; port 0 takes a free one and prints it
    #[arg(long, value_name = "HOST:PORT", requires = "dir", value_parser = parse_address)]
    pub(crate) listen: Option<String>,
    /// The folder to serve; nothing beside it is reached
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Give files and take none
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Where this server's keys are kept; made at its first start [default: see FILES]
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Write the token to FILE, which only its owner may read, in place of stdout
    #[arg(long, value_name = "FILE", conflicts_with_all = ["stdio", "insecure"])]
    pub(crate) token_out: Option<PathBuf>,
    /// Clients may store files with set-id bits and capabilities, by `cp --set-id`
    #[arg(long, conflicts_with_all = ["stdio", "read_only"])]
    pub(crate) set_id: bool,
    /// No encryption and no token, for this host only
    #[arg(long, conflicts_with = "key_file")]
    pub(crate) insecure: bool,
    #[command(flatten)]
    pub(crate) talk: TalkArgs,
}

const SERVE_HELP: &str = "\
With --listen one line is printed, the token: whoever has it may read the folder, and write to it and remove from it unless --read-only is given. \
It holds a secret and the fingerprint of the server's key, so that both ends are proved; all that crosses the link is \
encrypted (TLS 1.3). Give it to clients by a safe way, in a file (--token-file) or the environment (NARROWS_TOKEN). With --token-out it is written to a file that only \
its owner may read, as `cp` wants it; a shell's `> token` makes one that all may read. With --quiet it is not \
printed, so that it gets into no journal. A new token is made by removing the key file.

Symbolic links in the folder are copied as links and never followed. Everything is done as the user who runs this. Set-id bits \
and capabilities of what clients store are dropped without --set-id.

One host may have half of the copies that there may be, and half of the memory for what they keep; a copy in which nothing has moved for a minute goes when another one wants its place.

FILES
  $XDG_STATE_HOME/narrows/serve.key (or ~/.local/state/narrows/serve.key): the server's keys; only its owner may read it.

EXAMPLES
  Here, once:      narrows serve --listen 0.0.0.0:7700 --dir /srv/data --token-out token
  There:           narrows cp -r --token-file token narrows://here:7700/photos .
  Within a host:   narrows serve --listen 127.0.0.1:7700 --dir . --insecure";

#[derive(ClapArgs)]
pub(crate) struct PipeArgs {
    /// Compress (this is the default)
    #[arg(short = 'c', long, conflicts_with_all = ["decompress", "test"])]
    pub(crate) compress: bool,
    /// Decompress
    #[arg(short = 'd', long, visible_alias = "uncompress")]
    pub(crate) decompress: bool,
    /// Check a compressed stream and write nothing
    #[arg(short = 't', long, conflicts_with_all = ["decompress", "output"])]
    pub(crate) test: bool,
    /// Write compressed bytes even to a terminal
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Input [default: stdin]
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Output [default: stdout]; a file appears only when it is complete
    #[arg(short = 'o', long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print a summary to stderr
    #[arg(long)]
    pub(crate) stats: bool,
    /// Leave the checks of blocks out
    #[arg(long)]
    pub(crate) no_check: bool,
    /// Append an index, so that the stream serves as a seekable file
    #[arg(long)]
    pub(crate) index: bool,
    #[command(flatten)]
    pub(crate) flow: FlowArgs,
    #[command(flatten)]
    pub(crate) talk: TalkArgs,
}

#[derive(ClapArgs)]
pub(crate) struct SendArgs {
    /// File to send, or - for stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Where a `narrows recv` listens: tcp://HOST:PORT
    #[arg(value_name = "tcp://HOST:PORT")]
    pub(crate) to: String,
    /// Try to connect for so long
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = parse_seconds)]
    pub(crate) retry_connect: f64,
    /// Give up after so long without progress; 0 = never
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = parse_seconds)]
    pub(crate) timeout: f64,
    /// Leave the checks of blocks out
    #[arg(long)]
    pub(crate) no_check: bool,
    #[command(flatten)]
    pub(crate) flow: FlowArgs,
    #[command(flatten)]
    pub(crate) talk: TalkArgs,
}

#[derive(ClapArgs)]
pub(crate) struct RecvArgs {
    /// Address to listen on, such as 127.0.0.1:7700; port 0 takes a free one and prints it
    #[arg(long, value_name = "HOST:PORT", value_parser = |text: &str| parse_address(text.strip_prefix("tcp://").unwrap_or(text)))]
    pub(crate) listen: String,
    /// Output [default: stdout, or -]; a file appears only when it is complete
    #[arg(short = 'o', long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Bring the file to the disk before saying that it is stored
    #[arg(long)]
    pub(crate) fsync: bool,
    /// Give up after so long without progress, once connected; 0 = never
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = parse_seconds)]
    pub(crate) timeout: f64,
    /// Threads that decode [default: the cores that this process may use]
    #[arg(long, short = 'T', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: Option<u16>,
    #[command(flatten)]
    pub(crate) talk: TalkArgs,
}

#[derive(ClapArgs)]
pub(crate) struct InspectArgs {
    /// Stream to look at, or - for stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// List every frame
    #[arg(long)]
    pub(crate) frames: bool,
    /// Do not decode: look at the headers only
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(ClapArgs)]
pub(crate) struct DemoArgs {
    /// Files to send [default: some that are found on this machine]
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Seconds that plain takes on each shaped link, about
    #[arg(long, value_name = "SECONDS", default_value = "4", value_parser = parse_seconds)]
    pub(crate) seconds: f64,
}

#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// Every method on every folder of a corpus: speed both ways, ratio
    Codecs(BenchCodecsArgs),
}

#[derive(ClapArgs)]
pub(crate) struct BenchCodecsArgs {
    /// Folder with one folder of files for each kind of data
    #[arg(long, value_name = "DIR")]
    pub(crate) corpus: PathBuf,
    /// Methods to measure [default: those of `balance`]
    #[arg(long, value_name = "LIST", value_parser = parse_methods)]
    pub(crate) methods: Option<MethodList>,
    /// Block length
    #[arg(long, value_name = "SIZE", default_value = "128K", value_parser = parse_block_max)]
    pub(crate) block: usize,
    /// Bytes of each kind
    #[arg(long, value_name = "SIZE", default_value = "2M", value_parser = parse_size)]
    pub(crate) sample: usize,
    /// Also write the figures to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(ClapArgs)]
pub(crate) struct CalibrateArgs {
    /// Print what is stored and measure nothing
    #[arg(long)]
    pub(crate) show: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct MethodList(pub(crate) Vec<Method>);

fn parse_methods(text: &str) -> Result<MethodList, narrows::Error> {
    Method::parse_list(text).map(MethodList)
}

/// `64K`, `2M`, `1G`, plain bytes; powers of 1024, `iB` may follow.
pub(crate) fn parse_size(text: &str) -> Result<usize, String> {
    let bad = || format!("'{text}' is not a size such as 4096, 64K or 2M");
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim_end_matches("iB").to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err(bad()),
    };
    let number: usize = number.parse().map_err(|_| bad())?;
    number.checked_mul(1 << shift).ok_or_else(bad)
}

/// Not negative, and no longer than anybody waits.
fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|s| (0.0..=1e8).contains(s));
    seconds.ok_or_else(|| format!("'{text}' is not a number of seconds"))
}

/// `HOST:PORT` as the system looks it up; an address with colons is in brackets.
pub(crate) fn parse_address(text: &str) -> Result<String, String> {
    let is_host = |host: &str| match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => !inner.is_empty(),
        None => !host.is_empty() && !host.contains([':', '/', '[', ']']),
    };
    match text.rsplit_once(':') {
        Some((host, port)) if is_host(host) && port.parse::<u16>().is_ok() => Ok(text.to_owned()),
        _ => Err(format!(
            "'{text}' is no HOST:PORT such as 127.0.0.1:7700; 0.0.0.0:7700 is every IPv4 address of this host"
        )),
    }
}

fn parse_block_max(text: &str) -> Result<usize, String> {
    let most = narrows::frame::BASELINE_BLOCK_MAX;
    parse_size(text).and_then(|n| if (1..=most).contains(&n) { Ok(n) } else { Err("a block has 1 byte to 2M".into()) })
}

fn parse_history(text: &str) -> Result<usize, String> {
    let most = narrows::frame::BASELINE_HISTORY;
    parse_size(text).and_then(|n| if n <= most { Ok(n) } else { Err("history is at most 64K".into()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!(parse_size("64K"), Ok(65_536));
        assert_eq!(parse_size("2MiB"), Ok(2 << 20));
        assert_eq!(parse_size("17"), Ok(17));
        for bad in ["", "K", "1X", "-1", "1.5M", "99999999999999999999", "18446744073709551615G"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_have_a_host_and_a_port() {
        for good in ["127.0.0.1:7700", "localhost:0", "[::1]:80", "[fe80::1%eth0]:80"] {
            assert_eq!(parse_address(good).as_deref(), Ok(good));
        }
        for bad in ["", "21742", ":21742", "localhost", "bogus", "h:", "h:70000", "::1", "[]:1", "tcp://h:1", "h:1/x"] {
            assert!(parse_address(bad).unwrap_err().contains("HOST:PORT"), "{bad}");
        }
    }

    #[test]
    fn the_flags_are_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }
}
