//! Command-line definitions: the subcommands, their options and their help texts.

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use clap::{Args as ClapArgs, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use narrows::codec::{CODECS, Method};
use narrows::policy::PolicySpec;

use narrows_copy::carriers::CARRIERS;
use narrows_host::peers::{self, Peer};

use crate::version;

pub(crate) mod agent;
pub(crate) mod array;
pub(crate) mod copying;
pub(crate) mod doctor;
pub(crate) mod file;
mod habits;
pub(crate) mod hdf5;
pub(crate) mod hint;
mod levels;
pub(crate) mod measure;
mod misspelt;
mod named;
pub(crate) mod oracle;
pub(crate) mod pack;
pub(crate) mod ping;
pub(crate) mod pipe;
pub(crate) mod plan;
pub(crate) mod repack;
pub(crate) mod run;
pub(crate) mod shell;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod sync;
pub(crate) mod top;
pub(crate) mod train;
pub(crate) mod tunnel;
pub(crate) mod watch;

const STATUSES_HEADING: &str = "EXIT STATUS";
const STATUSES: &str = "\
EXIT STATUS
  0  success
  1  input, output, network or peer failed
  2  wrong usage
  3  a stream or a file is damaged";
const CP_STATUSES: &str = "\
EXIT STATUS
  0  everything is copied, and what is not in the source is removed
  1  this end or the other failed, no file could be stored, or the answer was no
  2  no file was copied for another reason, or wrong usage
  3  some entries could not be copied or removed, and each was reported; or nothing was removed, which was reported
  4  some files changed while they were read
  5  the other end could not be reached, or it or the link was lost; the same command goes on
After SIGINT or SIGTERM it ends by that signal, which a shell reports as 130 or 143; the same command goes on";

const HELP: &str = "\
EXIT STATUS
  0  success; `send` succeeds only after the receiver has confirmed that everything is stored
  1  input, output, network or peer failed
  2  wrong usage
  3  the stream is damaged, truncated, of a newer version, or beyond the limits
Of several files each has its turn, whatever becomes of the others, and the highest status counts.

After SIGINT or SIGTERM, or when the reader of the output closes it (SIGPIPE), the program terminates by that signal, which \
a shell reports as 130, 143 or 141. A file named with -o appears only when it is complete and verified. Until then the data \
is in a temporary file in the same folder, which is removed on every failure. Data on stdout is written as soon as each \
block is verified, before the whole stream is: check the exit status before you use it. Of zstd frames and files of other \
programs only their end tells whether they are whole.

EXAMPLES
  Pack a folder, look at the result, unpack it:
    tar c dir | narrows pipe -o dir.tar.nrw
    narrows inspect dir.tar.nrw
    narrows pipe -dc dir.tar.nrw | tar x
  Adapt to a link behind another program:
    tar c dir | narrows pipe | ssh host 'narrows pipe -d | tar x'
  Send a file over TCP (not encrypted: use it only on hosts and networks that you trust):
    narrows recv --listen 127.0.0.1:7700 -o copy --fsync
    narrows send file tcp://127.0.0.1:7700 --retry-connect 10
  Measure the gain, and each method on your data:
    narrows demo
    narrows bench codecs --corpus DIR

METHODS AND POLICIES
@METHODS@
FILES
$XDG_CACHE_HOME/narrows/calibration (or ~/.cache/narrows/calibration): how fast this host runs each method. It is written in \
the background by the first flow that lasts a second, or by `narrows calibrate`. It can be removed at any time.

$XDG_CACHE_HOME/narrows/peers (or ~/.cache/narrows/peers): what `send` and `cp` found about the hosts that they sent to in the last 30 days: how fast the link was, and how well data of each kind compressed. Hosts are in it as hashes, at most 64 of them. The next transfer to the same host starts from it. It can be removed at any time; --no-memory and NARROWS_NO_MEMORY switch it off.

$XDG_CONFIG_HOME/narrows/config.toml (or ~/.config/narrows/config.toml): options of `cp` and `sync`, see `narrows cp --help`. --no-config ignores it.

$XDG_STATE_HOME/narrows/serve.key and tunnel.key (or those in ~/.local/state/narrows): the keys of `serve` and of a listening `tunnel`, made at their first start and readable only by their owner. Where one is removed, a new one is made, and with it a new token.

ENVIRONMENT
NO_COLOR disables colours. NARROWS_TOKEN holds the token for narrows:// addresses. NARROWS_NO_MEMORY=1 is the same as --no-memory. \
NARROWS_LOG holds levels for the log of tunnel, serve and agent, as for --log-level. NARROWS_CONFIG names the file of options \
instead of config.toml; empty, it is ignored. NARROWS_PORT is the port on which `run` and `agent` negotiate, the same on all \
hosts, 7701 by default.";

/// The long help, with the lists of codecs and policies that this build has.
fn help() -> String {
    HELP.replace("@METHODS@", &methods_and_policies())
}

fn methods_and_policies() -> String {
    let mut text = String::from(
        "A method is a codec, optionally with a setting. --methods takes a list of methods, separated by commas, whose blocks \
         `balance` lets refer back to earlier ones where that pays; --policy fixed:METHOD takes one, with `link` if all its \
         blocks are to do so. Codecs and their settings:\n",
    );
    for codec in CODECS {
        let link = if codec.can_link() { "link (with fixed)" } else { "" };
        let settings = [codec.settings(), link.to_owned()].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>();
        text += format!("  {:<10}{}", codec.name(), settings.join("; ")).trim_end();
        text.push('\n');
    }
    text += "\nA policy is the rule that chooses:\n";
    for policy in narrows_classic::policies().iter() {
        text += &format!("  {}\n      {}\n", policy.usage, policy.about);
    }
    text
}

#[derive(Parser)]
#[command(
    name = "narrows",
    version = version::short(),
    long_version = version::long(),
    override_usage = "narrows [OPTIONS] FILE...\n       narrows COMMAND ...",
    about = "Adaptive compression for data that crosses a network",
    long_about = "Narrows decides for every block whether and how to compress it, from the current state of the data, the \
                  link, the CPUs and the receiver. It can stay on everywhere; there is no compression level to choose.",
    after_help = "Exit status: 0 success, 1 failure of input, output or peer, 2 wrong usage, 3 bad stream. More: --help",
    after_long_help = help()
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Compress or decompress a stream, adapting to how fast the output drains, or files, as `zstd` does
    Pipe(Box<pipe::PipeArgs>),
    /// Compress or decompress files; `file` may be left out: `narrows FILE`
    #[command(after_long_help = file::HELP, args_override_self = true)]
    File(Box<file::FileArgs>),
    /// Write the raw bytes of compressed files, or a range of them
    Cat(file::CatArgs),
    /// Show the members of a pack; of other compressed files sizes, ratio, blocks and index
    List(file::ListArgs),
    /// Decode and compare every block of files; list what is damaged; write a lost index anew
    Check(file::CheckArgs),
    /// Pack files and folders into one file, of which each member is read without the rest
    Pack(pack::PackArgs),
    /// Unpack a pack, or some paths of it
    Unpack(pack::UnpackArgs),
    /// Show a pack as a folder (FUSE)
    Mount(pack::MountArgs),

    /// Encode files anew with slower methods, in place: smaller, with the same bytes
    Repack(repack::RepackArgs),
    /// Copy files and folders between hosts (over ssh or directly) or within this host
    Cp(Box<CpArgs>),
    /// Make a folder the same as another one, and remove what that does not have
    Sync(Box<sync::SyncArgs>),
    /// Serve copies: the remote end that `cp` starts, or a server that listens
    Serve(ServeArgs),
    /// Run a program and compress its TCP connections, through a supervisor
    Run(run::RunArgs),
    /// Negotiate compression for the programs of this host that run under `run`
    Agent(agent::AgentArgs),
    /// List tunnels, servers, agents, copies and programs under `run`, and their connections
    Status(status::StatusArgs),
    /// Show live what they carry
    Top(top::TopArgs),
    /// Carry connections to another network, encrypted and compressed
    Tunnel(Box<tunnel::TunnelArgs>),
    /// Send a file or stdin to a `narrows recv`
    Send(SendArgs),
    /// Receive one stream from a `narrows send`
    Recv(RecvArgs),
    /// Show the structure of a compressed stream, or of several behind one another, and verify it
    Inspect(InspectArgs),
    /// Measure the gain on links of 10, 100, 1000 Mbit/s and unshaped, inside this process
    Demo(DemoArgs),
    /// Compute how fast given data could be sent over a link at best, and how near each method and
    /// policy comes
    Oracle(oracle::OracleArgs),
    /// Compute what compression would do for a site: links, memory, storage, archive, in time and
    /// money
    Plan(plan::PlanArgs),
    /// Encode arrays of numbers, exactly or within a stated error
    #[command(subcommand, after_help = array::ARRAY_HELP, after_long_help = array::ARRAY_HELP)]
    Array(array::ArrayCommand),
    /// Tell where the HDF5 filter is, and what its parameters are
    Hdf5(hdf5::Hdf5Args),
    /// Measure the link to a host and both ends, and predict how long a folder takes to copy there
    Measure(measure::MeasureArgs),
    /// Measure round-trip times of messages with many methods over the same link
    Ping(ping::PingArgs),
    /// Benchmark parts of the program on real data
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Train a dictionary on sample messages, for messages that are sent later
    Train(train::TrainArgs),
    /// Measure how fast this host runs each method, and store the result
    Calibrate(CalibrateArgs),
    /// Check what this host allows, and say what to do about the rest
    Doctor(doctor::DoctorArgs),
    /// Print the script that completes command lines in a shell
    Completions(shell::CompletionsArgs),
    /// Write the manual pages
    Man(shell::ManArgs),
}

/// The command line of this process; a wrong one ends it. `with_defaults` puts the options of the user's
/// file into the words of a command.
pub(crate) fn of_process(with_defaults: impl FnOnce(Vec<OsString>) -> anyhow::Result<Vec<OsString>>) -> Args {
    let mut words: Vec<_> = std::env::args_os().collect();
    if let Some(text) = version::asked(&words) {
        habits::show(|| std::io::stdout().write_all(text.as_bytes()));
    }
    let is_about_files = is_about_files(words.get(1).map(OsString::as_os_str), || std::io::stdin().is_terminal());
    if is_about_files || words.get(1).is_some_and(|word| word == "pipe" || word == "file") {
        words = levels::spelled_out(words);
    }
    // Those with defaults have more words below.
    if !named::has_defaults(&words)
        && let Some(args) = named::args(&words)
    {
        return args;
    }
    if is_about_files {
        misspelt::refuse_first(words.get(1));
        let is_spelled_out = words.iter().any(|word| word == "--");
        let parser = file::FileArgs::augment_args(clap::Command::new("narrows").args_override_self(true));
        let parser = parser.override_usage("narrows [OPTIONS] [FILE]...\n       narrows COMMAND ...");
        // Without it the words of the last group of options would stand here.
        let parser = parser.about("Compress or decompress files").after_long_help(file::HELP);
        let found = parser.clone().try_get_matches_from(words).unwrap_or_else(|e| habits::refuse(e, parser));
        let args = file::FileArgs::from_arg_matches(&found).unwrap_or_else(|e| e.exit());
        if !is_spelled_out {
            misspelt::refuse_behind_options(&args.files);
        }
        return Args { command: Command::File(Box::new(args)) };
    }
    let words = match with_defaults(habits::without_readable(words)) {
        Ok(words) => words,
        Err(e) => {
            narrows_host::words::note(crate::report::one_line(&e));
            std::process::exit(2);
        }
    };
    if let Some(key) = habits::key_as_source(&words) {
        let key = narrows_host::words::shown(key.as_encoded_bytes());
        narrows_host::words::note(format_args!(
            "{key} is a private key, and -i is that of rsync, so it would be copied; for scp's -i: -e 'ssh -i {key}'"
        ));
        std::process::exit(2);
    }
    if let Some(option) = habits::ssh_option(&words) {
        let option = narrows_host::words::shown(option.as_bytes());
        narrows_host::words::note(format_args!(
            "-o is that of rsync, owners, and takes no option of ssh: give -e 'ssh -o {option}' (a port alone: -P PORT)"
        ));
        std::process::exit(2);
    }
    if let Some(args) = named::args(&words) {
        return args;
    }
    let found = command().try_get_matches_from(words).unwrap_or_else(|e| habits::refuse(e, command()));
    Args::from_arg_matches(&found).unwrap_or_else(|e| e.exit())
}

/// The parser of all commands. What has no exit statuses of its own has those of most.
pub(crate) fn command() -> clap::Command {
    Args::command().mut_subcommands(|command| {
        let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        let statuses = match command.get_name() {
            "sync" => CP_STATUSES,
            "completions" | "man" | "run" => return command,
            _ => STATUSES,
        };
        if help.contains(STATUSES_HEADING) {
            return command;
        }
        let help = [help.trim_end(), statuses].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
        command.after_long_help(help.join("\n\n"))
    })
}

/// Whether the command line is `narrows [OPTIONS] [FILE...]`: its first word is no command and asks
/// for no help. Without a word it is a filter, as `tar -I narrows` starts it.
fn is_about_files(first: Option<&OsStr>, at_terminal: impl FnOnce() -> bool) -> bool {
    let Some(first) = first else { return !at_terminal() };
    if ["-h", "--help", "-V", "--version", "help"].iter().any(|word| first == *word) {
        return false;
    }
    first.to_str().is_none_or(|first| !named::is_command(first))
}

/// How blocks are cut and encoded.
#[derive(ClapArgs, Clone)]
pub(crate) struct FlowArgs {
    /// Rule that chooses the method of each block: `balance`, `fixed:METHOD`, ...; `narrows --help`
    /// lists all [default: `balance`; where `pipe` writes a file, `storage`]
    #[arg(long, value_name = "SPEC", value_parser = parse_policy)]
    pub(crate) policy: Option<PolicySpec>,
    /// Methods that `balance` may choose from, such as `store,lz4:accel=16,zstd:level=1,xz`
    /// [default: eleven methods]
    #[arg(long, value_name = "LIST", value_parser = parse_methods)]
    pub(crate) methods: Option<MethodList>,
    /// Worker threads [0 and default: the cores that this process may use; with four or more, one fewer]
    #[arg(long, short = 'T', value_name = "N", value_parser = clap::value_parser!(u16).range(0..=256))]
    pub(crate) threads: Option<u16>,
    /// Maximum block length, such as 64K or 2M [default: the maximum of the policy, 128K for
    /// `fixed`]
    #[arg(long, value_name = "SIZE", value_parser = parse_block_max)]
    pub(crate) block_max: Option<usize>,
    /// Raw bytes that linked blocks may refer back to, at most 2M [default: 2M if the policy
    /// links blocks]
    #[arg(long, value_name = "SIZE", value_parser = parse_history)]
    pub(crate) history: Option<usize>,
    /// Initial cost model of `balance`, written by `narrows-lab prior` [default: built in]
    #[arg(long, value_name = "FILE")]
    pub(crate) prior: Option<PathBuf>,
    /// Write every decision and its reason to FILE, as JSON lines
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

/// The memory of peers, for commands that send to another host.
#[derive(ClapArgs, Clone, Copy)]
pub(crate) struct MemoryArgs {
    /// Neither use nor keep what transfers to the same host found: the speed of the link, and how
    /// well data of each kind compressed (also: NARROWS_NO_MEMORY=1)
    #[arg(long)]
    no_memory: bool,
}

impl MemoryArgs {
    /// The peer, unless the memory is switched off.
    pub(crate) fn of(self, peer: impl FnOnce() -> Option<Peer>) -> Option<Peer> {
        if self.no_memory || peers::is_switched_off() { None } else { peer() }
    }
}

/// Verbosity and form of the messages.
#[derive(ClapArgs, Clone, Copy)]
pub(crate) struct VerbosityArgs {
    /// Print errors only
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Print more details
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

#[derive(ClapArgs, Clone)]
#[command(after_long_help = CP_HELP, override_usage = "narrows cp [OPTIONS] SRC... DST", args_override_self = true)]
pub(crate) struct CpArgs {
    /// Sources, then the target: PATH, [USER@]HOST:PATH, ssh://[USER@]HOST[:PORT]/PATH,
    /// narrows://HOST[:PORT]/PATH, s3://BUCKET/KEY (gs://, az://), or - for stdin or stdout
    #[arg(value_name = "SRC... DST", required = true, num_args = 1..)]
    pub(crate) paths: Vec<OsString>,
    /// Copy folders and everything in them
    #[arg(short = 'r', short_alias = 'R', long)]
    pub(crate) recursive: bool,
    /// Leave out paths that match PATTERN, with the syntax of .gitignore; may be repeated
    #[arg(long, value_name = "PATTERN")]
    pub(crate) exclude: Vec<String>,
    /// Copy paths that match PATTERN even if --exclude leaves them out; may be repeated
    #[arg(long, value_name = "PATTERN")]
    pub(crate) include: Vec<String>,
    /// When everything is copied, remove from the copied folders at the target what the sources do
    /// not have
    #[arg(long)]
    pub(crate) delete: bool,
    /// Remove nothing if --delete would remove more than N files and folders
    #[arg(long, value_name = "N")]
    pub(crate) max_delete: Option<u64>,
    /// Try to preserve owners even if the storing end does not run as root, and report where that
    /// fails
    #[arg(long, overrides_with = "no_owner")]
    pub(crate) owner: bool,
    /// Preserve neither owners nor groups even if the storing end runs as root
    #[arg(long, overrides_with = "owner")]
    pub(crate) no_owner: bool,
    /// Preserve set-user-ID and set-group-ID bits and capabilities of files from another host, with
    /// which programs run with other rights than those of the user who starts them
    #[arg(long)]
    pub(crate) set_id: bool,
    /// Change nothing; list the files that would be copied and removed
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Remote shell command, with its options
    #[arg(short = 'e', long = "rsh", value_name = "COMMAND", default_value = "ssh")]
    pub(crate) shell: OsString,
    /// Name or path of this program on the other host
    #[arg(long, value_name = "PROGRAM", default_value = "narrows")]
    pub(crate) remote_narrows: String,
    /// Fail if the other host has no narrows, instead of copying with tar
    #[arg(long)]
    pub(crate) no_fallback: bool,
    /// File with the token of a narrows:// server [default: the token in $NARROWS_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Connect to a narrows:// server on this host without token and encryption
    #[arg(long, conflicts_with = "token_file")]
    pub(crate) insecure: bool,
    /// Store every file at the other end compressed, as NAME.nrw, as it is encoded here; when copying back,
    /// give files that are stored so their names and contents again
    #[arg(long, conflicts_with = "long")]
    pub(crate) store_compressed: bool,
    /// When data is flushed to the disk (fsync)
    #[arg(long, value_name = "WHEN", value_enum, default_value = "batch")]
    pub(crate) fsync: FsyncArg,
    /// Maximum number of connections of a copy; more are opened while they make it faster
    #[arg(long, value_name = "N", default_value_t = CARRIERS, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub(crate) carriers: u8,
    /// Also copy fifos, devices and sockets
    #[arg(short = 'D', long)]
    pub(crate) devices: bool,
    /// Give up after this time without progress; 0 = never
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = parse_seconds)]
    pub(crate) timeout: f64,
    /// Replace what came before in the copy, up to 2^LOG bytes back, by copies, while that gains time
    /// on the link [without =LOG: 27]; both ends keep so much in memory. Only over a remote shell
    #[arg(long, value_name = "LOG", num_args = 0..=1, require_equals = true, default_missing_value = LONG, value_parser = long_range())]
    pub(crate) long: Option<u8>,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) flow: FlowArgs,
    #[command(flatten)]
    pub(crate) verbosity: VerbosityArgs,
    #[command(flatten)]
    pub(crate) store: store::StoreArgs,
    /// To a store: keep the bytes of files as they are, under their own names
    #[arg(long)]
    pub(crate) plain: bool,
    #[command(flatten)]
    pub(crate) hint: hint::HintArgs,
    #[command(flatten)]
    pub(crate) habits: copying::HabitArgs,
    /// To or from a store: files that are copied at a time
    #[arg(long, value_name = "N", default_value_t = TRANSFERS, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) transfers: u8,
}

/// Default of --transfers: short files wait for their requests, so there are more than cores.
const TRANSFERS: u8 = 8;

const CP_HELP: &str = "\
PATHS
  A path with a colon is remote, unless a slash comes before the colon: ./a:b is a local file. SRC/ means the contents of \
the folder, SRC the folder itself. DST is a folder if it exists as one, if it ends in a slash, or if several files are \
copied; otherwise it is the new name of a single file. A folder SRC is copied into DST, which is created if it is missing: \
`cp -r SRC DST` makes DST/SRC, as rsync does. cp and scp would create DST itself from SRC, which is `cp -r SRC/ DST` here. \
Only the last folder of DST is created; the folders above it must exist. If DST is a device or fifo, a file is written into \
it; fifos, devices and sockets in folders are skipped unless --devices is given. Files that the copy itself creates are never copied as sources.
  - as SRC is stdin. It is stored under the name DST, with the attributes that `cat > DST` would give it. - as DST is stdout, \
to which one file is written. Data on stdout is written as soon as each block is verified, before the whole file is: check \
the exit status before you use it. For a file that is named -, write ./-.
  In HOST:PATH, ~ is a home folder on that host, and *, ? and [...] in a source are expanded there, unless a file has exactly \
that name. ssh://HOST:PORT/PATH is absolute on the host, ssh://HOST/~/PATH is relative to a home folder; %XX in it is a byte.
  narrows://HOST[:PORT]/PATH is relative to the folder that `narrows serve --listen` serves on that host (default port: \
7700). The path is taken literally, without %-escapes.

PRESERVED ATTRIBUTES
  Modes, times to the nanosecond, symbolic and hard links, holes, extended attributes, access control lists, and names of any \
bytes. Owners and groups are preserved by number: the owner if the storing end runs as root or with --owner, the group where \
the system allows it, neither with --no-owner. Attributes that could not be preserved are reported. Set-id bits and \
capabilities of files are preserved within a host; from another host only with --set-id.

IMAGES
  With --images, JPEG images of one scan (as cameras write them) of 8 KiB to 1 MiB are recompressed on the way, where the \
link is so slow that this pays, and are stored as they were. It is not for stdin, and not with --policy.

OBJECT STORES
  To s3://BUCKET/PREFIX, gs:// or az:// every file becomes one object: a .nrw file, so that it is small and read at any byte \
(narrows cat s3://... --range), with the methods of --mode or of the file's own hint. Its key is the path with .nrw added to it, also if the name has that already; length, time and mode (with --owner the owner) are \
in its metadata. --plain stores the bytes as they are. From a store, files get their names, times and modes back; objects of \
other programs come as they are. A second copy sends what has another length or time. Links, extended attributes, devices \
and empty folders are not kept, which is said; `narrows pack` keeps everything in one object. Credentials and settings are \
those of the AWS, Google and Azure tools.

FALLBACK TO TAR
  If the other host of a copy over ssh has no narrows, files are copied with tar, and with zstd if the other host has it; a \
message says so. Every file is sent again, and files get their names only after all have arrived: a copy that fails leaves \
the existing files as they were, and the next copy starts from the beginning (without zstd on the other host, a lost link may \
leave some of the files). GNU tar and bsdtar preserve the attributes listed above, other versions of tar fewer; lost \
attributes are reported. The fallback needs tar at both ends. It supports neither wildcards nor - (stdin, stdout), --dry-run, \
--delete, --owner, or --exclude when copying from the other host. Set-id bits of files are preserved only with --set-id and \
together with their owners. --no-fallback disables it.

REPEATED COPIES
  A file whose length and time are the same at the target is not sent again. Every file is stored under a temporary name \
(.narrows-*.partial) and gets its final name when it is complete and verified. After an interrupted copy, run the same \
command again.

NAMES
  Where the file system of the target takes names for one that differ only in case, or in the form of their characters, \
the second of two such entries is reported and not stored: its source stays, and the exit status is 3. --delete and sync \
remove nothing that is stored, in whatever spelling.

DELETION
  --delete acts only within the copied folders: with SRC/ in DST, with SRC in DST/SRC, never beside them. It starts after \
everything is stored. If anything failed, is missing or was left out without being excluded, nothing is removed. Paths that \
--exclude leaves out are not removed, nor are the folders that contain them. Symbolic links are removed, not followed; file \
systems mounted in the target are left alone. A target of another type than the source of the same name is removed to make \
room for it: a folder together with the rest, a file or link immediately. -n lists what would be removed.

STORED COMPRESSED
  With --store-compressed this end encodes each file into blocks that stand alone, as fast as the link needs them, and the other end stores them as they come, without decoding them: FILE becomes FILE.nrw, a file that `narrows cat`, `narrows check` and `narrows -d` read. Every file gets this suffix, those that have it already too. On a link that is faster than any compression, files are stored as they are; --mode or another hint, which then is that of all files, compresses them whatever the link is. The other end compares all lengths, checks and indexes with one another, but only who decodes a block knows that its content is right: `cp --store-compressed` back, `cat`, and `check` compare every block. Copying back takes one suffix away, and SRC is named without it. A server that was started with `serve --store-as-is` makes all copies such ones. Works neither within a host, nor with - as DST, --long and tar.

DEFAULT OPTIONS
  $XDG_CONFIG_HOME/narrows/config.toml (or ~/.config/narrows/config.toml, or the file that $NARROWS_CONFIG names) has options \
of cp and sync: [cp] with options = [\"--exclude\", \"*.o\"] for all copies, [hosts.NAME] for those with a host. The command \
line counts more. --no-config ignores the file.

SECURITY
  Encryption hides the content of a copy, but not its length. If somebody who observes the link can also choose a part of the \
copied data, the lengths of compressed blocks reveal the rest to them, bit by bit. --policy fixed:store disables compression \
in both directions.

EXIT STATUS
  0  everything is copied
  1  this end or the other failed, or no file could be stored
  2  no file was copied for another reason, or wrong usage
  3  some entries could not be copied or removed, or an object is damaged, and each was reported; or --delete removed nothing, \
which was reported
  4  some files changed while they were read
  5  the other end could not be reached, or it or the link was lost; the same command resumes the copy (with -, it starts again)
After SIGINT or SIGTERM it ends by that signal, which a shell reports as 130 or 143; the same command goes on.

EXAMPLES
  narrows cp -r photos me@host:backup/
  narrows cp -r me@host:project/ .
  narrows cp -rn --delete --exclude '*.o' project/ me@host:project
  pg_dump base | narrows cp - me@host:base.sql
  narrows cp me@host:base.sql - | psql base
  narrows cp -P 2222 file host:
  narrows cp -a --link-dest=../monday home/ host:backup/tuesday
  narrows cp -r --store-compressed results host:archive/
  narrows cp -r --store-compressed host:archive/results .
  narrows cp --token-file token file narrows://host/";

#[derive(ClapArgs)]
#[command(after_long_help = SERVE_HELP)]
pub(crate) struct ServeArgs {
    /// Communicate over stdin and stdout; `cp` starts it like this through a remote shell
    #[arg(long, conflicts_with_all = ["listen", "dir", "read_only", "key_file", "insecure", "token_out", "set_id"])]
    pub(crate) stdio: bool,
    /// Address to listen on, such as 0.0.0.0:7700; port 0 selects a free port and prints it
    #[arg(long, value_name = "HOST:PORT", requires = "dir", value_parser = parse_address)]
    pub(crate) listen: Option<String>,
    /// Folder to serve; clients can reach nothing outside it
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Send files, but store none
    #[arg(long)]
    pub(crate) read_only: bool,
    /// File with the keys of this server; created at the first start [default: see FILES]
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Write the token to FILE, readable only by its owner, instead of stdout
    #[arg(long, value_name = "FILE", conflicts_with_all = ["stdio", "insecure"])]
    pub(crate) token_out: Option<PathBuf>,
    /// Allow clients to store files with set-id bits and capabilities (`cp --set-id`)
    #[arg(long, conflicts_with_all = ["stdio", "read_only"])]
    pub(crate) set_id: bool,
    /// Store and send files as they come, in compressed blocks that clients encode and decode
    /// (`cp --store-compressed`, which clients use by themselves then)
    #[arg(long)]
    pub(crate) store_as_is: bool,
    /// Use neither encryption nor a token; serves this host only
    #[arg(long, conflicts_with = "key_file")]
    pub(crate) insecure: bool,
    #[command(flatten)]
    pub(crate) watch: watch::WatchArgs,
    #[command(flatten)]
    pub(crate) verbosity: VerbosityArgs,
}

const SERVE_HELP: &str = "\
With --listen, one line is printed: the token. Whoever has it may read the folder, and unless --read-only is given also write \
and remove files in it. It contains a secret and the fingerprint of the server's key, so that each end authenticates the \
other. All traffic is encrypted (TLS 1.3). Pass the token to clients over a secure channel, in a file (--token-file) or in \
the environment (NARROWS_TOKEN). --token-out writes it to a file that only its owner may read, as `cp` requires; a shell's \
`> token` creates one that everybody may read. With --quiet the token is not printed, so that it does not end up in a log. To \
create a new token, remove the key file.

Symbolic links in the folder are copied as links and never followed. The server acts with the rights of the user who runs it. \
Without --set-id, the set-id bits and capabilities of files that clients store are dropped.

One client host gets at most half of the concurrent copies, and half of the memory for their state. A copy that made no \
progress for a minute is closed when another copy needs its place.

FILES
  $XDG_STATE_HOME/narrows/serve.key (or ~/.local/state/narrows/serve.key): the keys of the server, readable only by its owner.

EXAMPLES
  On the server:   narrows serve --listen 0.0.0.0:7700 --dir /srv/data --token-out token
  On a client:     narrows cp -r --token-file token narrows://server:7700/photos .
  Within a host:   narrows serve --listen 127.0.0.1:7700 --dir . --insecure
  Through ssh, as the command of a key in authorized_keys:
    command=\"narrows serve --stdio --store-as-is\" ssh-ed25519 AAAA... client";

#[derive(ClapArgs)]
pub(crate) struct SendArgs {
    /// File to send, or - for stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Address of a listening `narrows recv`: tcp://HOST:PORT
    #[arg(value_name = "tcp://HOST:PORT")]
    pub(crate) to: String,
    /// Retry to connect for this time
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = parse_seconds)]
    pub(crate) retry_connect: f64,
    /// Give up after this time without progress; 0 = never
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = parse_seconds)]
    pub(crate) timeout: f64,
    /// Omit the checks of blocks
    #[arg(long)]
    pub(crate) no_check: bool,
    /// Replace what came before, up to 2^LOG bytes back, by copies, while that gains time on the link
    /// [without =LOG: 27]; both ends keep so much in memory, except of a file
    #[arg(long, value_name = "LOG", num_args = 0..=1, require_equals = true, default_missing_value = LONG, value_parser = long_range())]
    pub(crate) long: Option<u8>,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) flow: FlowArgs,
    #[command(flatten)]
    pub(crate) verbosity: VerbosityArgs,
}

#[derive(ClapArgs)]
pub(crate) struct RecvArgs {
    /// Address to listen on, such as 127.0.0.1:7700; port 0 selects a free port and prints it
    #[arg(long, value_name = "HOST:PORT", value_parser = |text: &str| parse_address(text.strip_prefix("tcp://").unwrap_or(text)))]
    pub(crate) listen: String,
    /// Output file, or - for stdout [default: stdout]; a file appears only when it is complete
    #[arg(short = 'o', long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Flush the file to the disk (fsync) before confirming that it is stored
    #[arg(long)]
    pub(crate) fsync: bool,
    /// Once connected, give up after this time without progress; 0 = never
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = parse_seconds)]
    pub(crate) timeout: f64,
    /// Decoding threads [default: the cores that this process may use]
    #[arg(long, short = 'T', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: Option<u16>,
    /// Let copies, if the sender makes any (`send --long`), refer at most 2^LOG bytes back; so much is
    /// kept in memory, except of a file [default: 27, with -o FILE 30]
    #[arg(long, value_name = "LOG", require_equals = true, value_parser = long_range())]
    pub(crate) long: Option<u8>,
    #[command(flatten)]
    pub(crate) verbosity: VerbosityArgs,
}

#[derive(ClapArgs)]
pub(crate) struct InspectArgs {
    /// Stream to inspect, or - for stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// List every frame
    #[arg(long)]
    pub(crate) frames: bool,
    /// Read the headers only; do not decode the blocks
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(ClapArgs)]
pub(crate) struct DemoArgs {
    /// Files to send [default: a sample of files found on this host]
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Approximate duration of the uncompressed transfer on each shaped link
    #[arg(long, value_name = "SECONDS", default_value = "4", value_parser = parse_seconds)]
    pub(crate) seconds: f64,
}

#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure every method on every folder of a corpus: encoding and decoding speed, ratio
    Codecs(BenchCodecsArgs),
}

#[derive(ClapArgs)]
pub(crate) struct BenchCodecsArgs {
    /// Folder that contains one folder of files for each kind of data
    #[arg(long, value_name = "DIR")]
    pub(crate) corpus: PathBuf,
    /// Methods to measure [default: those of `balance`]
    #[arg(long, value_name = "LIST", value_parser = parse_methods)]
    pub(crate) methods: Option<MethodList>,
    /// Block length
    #[arg(long, value_name = "SIZE", default_value = "128K", value_parser = parse_block_max)]
    pub(crate) block: usize,
    /// Bytes to measure of each kind of data
    #[arg(long, value_name = "SIZE", default_value = "2M", value_parser = parse_size)]
    pub(crate) sample: usize,
    /// Also write the figures to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(ClapArgs)]
pub(crate) struct CalibrateArgs {
    /// Print the stored result instead of measuring
    #[arg(long)]
    pub(crate) show: bool,
}

/// Value of `--methods`.
#[derive(Clone, Debug)]
pub(crate) struct MethodList(pub(crate) Vec<Method>);

/// Logarithm of the usual reach of copies in bytes: what `zstd --long` takes, and `zstd -d` allows.
const LONG: &str = "27";

/// That of copies which are read back from a file: the longest of the format, since it takes no
/// memory.
const LONG_OF_FILE: u8 = 30;

/// From 1 MiB, which is hardly further than a block, to the longest of the format.
pub(crate) fn long_range() -> clap::builder::RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(20..=30)
}

/// The reach that `--long` asks for, in bytes.
pub(crate) fn reach(long: Option<u8>) -> usize {
    long.map_or(0, |log| 1 << log)
}

/// The most that a stream may need, in bytes.
pub(crate) fn reach_max(long: Option<u8>) -> usize {
    1 << long.or_else(|| LONG.parse().ok()).unwrap_or_default()
}

/// The window that zstd frames may have, as a power of two: it is always in memory.
pub(crate) fn window_log(long: Option<u8>) -> u32 {
    reach_max(long).ilog2()
}

/// As [`reach_max`], of an output that copies are read back from.
pub(crate) fn reach_max_of_file(long: Option<u8>) -> usize {
    1 << long.unwrap_or(LONG_OF_FILE)
}

fn parse_methods(text: &str) -> Result<MethodList, narrows::Error> {
    Method::parse_list(text).map(MethodList)
}

/// Parses a policy of the engine or of older systems.
pub(crate) fn parse_policy(text: &str) -> Result<PolicySpec, narrows::Error> {
    narrows_classic::policies().parse(text)
}

/// Parses a size in bytes, or with the suffix K, M or G (powers of 1024), optionally with `iB`.
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

/// Parses a number of seconds from 0 to 1e8, about three years: longer than anybody waits.
fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|s| (0.0..=1e8).contains(s));
    seconds.ok_or_else(|| format!("'{text}' is not a number of seconds"))
}

/// Checks that `text` is `HOST:PORT` as the system resolves it; an IPv6 address is in brackets.
pub(crate) fn parse_address(text: &str) -> Result<String, String> {
    let is_host = |host: &str| match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => !inner.is_empty(),
        None => !host.is_empty() && !host.contains([':', '/', '[', ']']),
    };
    match text.rsplit_once(':') {
        Some((host, port)) if is_host(host) && port.parse::<u16>().is_ok() => Ok(text.to_owned()),
        _ => Err(format!(
            "'{text}' is not HOST:PORT, such as 127.0.0.1:7700; 0.0.0.0:7700 is every IPv4 address of this host"
        )),
    }
}

fn parse_block_max(text: &str) -> Result<usize, String> {
    let most = narrows::frame::BASELINE_BLOCK_MAX;
    parse_size(text).and_then(|n| if (1..=most).contains(&n) { Ok(n) } else { Err("a block has 1 byte to 2M".into()) })
}

fn parse_history(text: &str) -> Result<usize, String> {
    let most = narrows::frame::HISTORY_DEFAULT;
    parse_size(text).and_then(|n| if n <= most { Ok(n) } else { Err("the history is at most 2M".into()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_long_help_has_all_that_the_short_one_has() {
        for command in command().get_subcommands() {
            let short = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let long = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            assert!(long.contains(short.trim_end()), "{}: {long}", command.get_name());
        }
    }

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
        command().debug_assert();
    }
}
