//! Command-line definitions of the commands for packs: `pack`, `unpack`, `mount`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
use narrows::policy::PolicySpec;

use super::hint::HintArgs;
use super::store::StoreArgs;
use super::{FsyncArg, VerbosityArgs, parse_policy};

#[derive(ClapArgs)]
#[command(after_long_help = PACK_HELP)]
pub(crate) struct PackArgs {
    /// Files and folders; DIR/ is what is in DIR, without DIR itself
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// The pack: a file, or s3://BUCKET/KEY, gs://, az://; `-` is stdout
    #[arg(short = 'o', long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) hint: HintArgs,
    /// Rule that chooses the method of each block, instead of the mode's
    #[arg(long, value_name = "SPEC", value_parser = parse_policy, conflicts_with_all = ["mode", "encode_rate", "decode_rate", "images", "hint"])]
    pub(crate) policy: Option<PolicySpec>,
    /// Leave out paths that match PATTERN, with the syntax of .gitignore; may be repeated
    #[arg(long, value_name = "PATTERN")]
    pub(crate) exclude: Vec<String>,
    /// Pack paths that match PATTERN even if --exclude leaves them out; may be repeated
    #[arg(long, value_name = "PATTERN")]
    pub(crate) include: Vec<String>,
    /// Overwrite the pack, or write it to a terminal
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Order of the contents: files of one suffix together, or all by their paths
    #[arg(long, value_enum, value_name = "ORDER", default_value = "suffix")]
    pub(crate) order: OrderArg,
    /// Store content that repeats each time that it comes
    #[arg(long)]
    pub(crate) no_repeats: bool,
    /// Worker threads [0 and default: the cores that this process may use]
    #[arg(long, short = 'T', value_name = "N", value_parser = clap::value_parser!(u16).range(0..=256))]
    pub(crate) threads: Option<u16>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) verbosity: VerbosityArgs,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub(crate) enum OrderArg {
    /// By suffix, then by path
    Suffix,
    /// By path
    Path,
}

const PACK_HELP: &str = "\
A pack has one entry for each PATH under its last name, as `narrows cp` would make it at its target, and everything in it: \
modes, owners and groups by number, times to the nanosecond, symbolic and hard links, holes, extended attributes, access \
control lists, fifos and devices. Content that repeats is stored once, also parts of files. A directory at the end leads to \
each member; it is a file of narrows, so `check`, `inspect` and `repack` take it too.

The pack appears when it is complete. Entries that cannot be read are reported, and the status is 1; a file that changes while \
it is read is packed as it was read, reported, and the status is 1, as with tar. Sockets are left out with a warning. A pack has one hint: that of the command line, else that of the rules for \
its own name; hints of the files in it do not count.

MODES
  fast      zstd 1
  balanced  zstd 3
  archive   zstd 19, whose blocks refer to those before; a member is then found by decoding up to 16 MiB

With --images, JPEG images of one scan (as cameras write them) of 8 KiB to 1 MiB are recompressed without loss, whatever the mode. A program without this method refuses to read them.

EXAMPLES
  narrows pack project -o project.nrw
  narrows pack --mode archive --exclude '*.o' project -o project.nrw
  narrows pack project -o - | ssh host narrows unpack - -C /srv
  narrows pack project -o s3://bucket/project.nrw

EXIT STATUS
  0  everything is packed but sockets
  1  some entries could not be read, or changed while they were read; or the pack could not be written
  2  wrong usage";

#[derive(ClapArgs)]
#[command(after_long_help = UNPACK_HELP)]
pub(crate) struct UnpackArgs {
    /// The pack: a file, or s3://BUCKET/KEY, gs://, az://; `-` is stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Entries to unpack, with everything in them; * ? [...] stand for any characters, slashes too
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Folder to unpack into
    #[arg(short = 'C', long = "directory", value_name = "DIR", default_value = ".")]
    pub(crate) directory: PathBuf,
    /// Replace entries that are there and differ
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Write nothing; list the files that would be unpacked
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Try to set owners even if this is not root, and report where that fails
    #[arg(long, overrides_with = "no_owner")]
    pub(crate) owner: bool,
    /// Set neither owners nor groups, even as root
    #[arg(long, overrides_with = "owner")]
    pub(crate) no_owner: bool,
    /// Keep set-user-ID and set-group-ID bits and capabilities of files, and trusted attributes
    #[arg(long)]
    pub(crate) set_id: bool,
    /// Also make fifos and devices, which are skipped with a note otherwise
    #[arg(long)]
    pub(crate) devices: bool,
    /// When data is flushed to the disk (fsync)
    #[arg(long, value_name = "WHEN", value_enum, default_value = "none")]
    pub(crate) fsync: FsyncArg,
    /// Decoding threads [0 and default: the cores that this process may use]
    #[arg(long, short = 'T', value_name = "N", value_parser = clap::value_parser!(u16).range(0..=256))]
    pub(crate) threads: Option<u16>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) verbosity: VerbosityArgs,
}

const UNPACK_HELP: &str = "\
Files get their names when they are complete and compared with their digests. What is there already and is the same, by \
length and time, is left alone, so the same command goes on where an interrupted one was. What differs is only replaced with \
-f. Nothing is written outside of DIR: links in it are not followed. Set-id bits and capabilities are kept only with --set-id, \
fifos and devices are made only with --devices.

With PATHs, only the directory and their content are read. Of a damaged pack everything that is whole is unpacked, and the rest \
is named; one whose end is missing, or that comes through a pipe, is unpacked as far as it goes. The status is 3.

EXAMPLES
  narrows unpack project.nrw -C /tmp
  narrows unpack project.nrw project/README.md 'project/src/*.rs'
  narrows unpack s3://bucket/project.nrw project/README.md

EXIT STATUS
  0  everything is unpacked
  1  some entries could not be stored, or are not in the pack; each was reported
  2  wrong usage
  3  the pack is damaged or breaks off, is none, or something follows it; what is whole is there";

#[derive(ClapArgs)]
#[command(after_long_help = MOUNT_HELP)]
pub(crate) struct MountArgs {
    /// The pack: a file, or s3://BUCKET/KEY, gs://, az://
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// An empty folder
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Mount also on a folder that is not empty, whose content is hidden meanwhile
    #[arg(long)]
    pub(crate) nonempty: bool,
    /// Stay in the foreground; SIGINT and SIGTERM unmount it
    #[arg(short = 'f', long)]
    pub(crate) foreground: bool,
    /// Let other users see it; who is not root needs user_allow_other in /etc/fuse.conf
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// Memory for decoded blocks
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = super::parse_size)]
    pub(crate) cache: usize,
    /// The process in the background: tells on stdout when it is mounted
    #[arg(long, hide = true)]
    pub(crate) tells: bool,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

const MOUNT_HELP: &str = "\
Shows a pack as a folder that can be read and not written. The program goes on in the background; `umount DIR` or \
`fusermount3 -u DIR` end it, and so does SIGTERM. It needs /dev/fuse, and fusermount3 if it does not run as root. Programs \
in the pack do not get set-id rights, and its devices are not usable. A read of a damaged place fails with an I/O error, and \
the others work.

If the program was killed by SIGKILL, DIR says `Transport endpoint is not connected`: `fusermount3 -u DIR`, or as root \
`umount -l DIR`, ends the mount. Where several mounts lie on one another, each command takes the topmost away.";
