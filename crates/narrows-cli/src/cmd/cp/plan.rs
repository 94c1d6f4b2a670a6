//! The plan of a copy: the options of the command line, read once, with what follows from them.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use narrows::hint::Hint;
use narrows::policy::PolicySpec;
use narrows_copy::direct::Trust;
use narrows_copy::frames::Form;
use narrows_copy::hello::{
    Backup, Confirmed, Delete, Fsync, LINK_DEST_MAX, PartialDir, SourceHabits, StoreHabits, StoreOptions, Unmade,
};
use narrows_copy::place::Place;
use narrows_copy::scan::{self, Picks};
use narrows_host::peers::Peer;
use narrows_host::words::shown;

use super::removals::Removals;
use super::{is_inside, misuse};
use crate::args::copying::{HabitArgs, Rate};
use crate::args::store::StoreArgs;
use crate::args::{CpArgs, FlowArgs, MemoryArgs, VerbosityArgs, reach};
use crate::flow;

/// Longest list of --files-from, in bytes: what fits into one request with its escapes.
const LIST_MAX: u64 = 4 << 20;
/// What --backup adds to names unless --suffix or --backup-dir says otherwise, as in rsync and cp.
const SUFFIX: &str = "~";

/// A copy as it was asked for.
#[derive(Clone)]
pub(super) struct Plan {
    /// Sources, then the target, as they were typed.
    pub(super) paths: Vec<OsString>,
    /// It is a mirror of `narrows sync`, for messages.
    pub(super) mirrors: bool,
    /// Nothing is changed.
    pub(super) dry_run: bool,
    /// Seconds without progress after which it gives up; 0 is never.
    pub(super) timeout: f64,
    /// The first of its options that only narrows at both ends can follow.
    pub(super) habit: Option<&'static str>,
    pub(super) pick: Pick,
    pub(super) keep: Keep,
    /// What is removed at the target, if anything may be.
    pub(super) delete: Option<Deletion>,
    pub(super) way: Way,
    pub(super) coding: Coding,
    pub(super) objects: Objects,
    pub(super) told: Told,
}

/// What of the sources is copied.
#[derive(Clone)]
pub(super) struct Pick {
    pub(super) recursive: bool,
    /// The patterns of --exclude, then those of --include as negations, which therefore take precedence.
    pub(super) patterns: Vec<String>,
    /// The pattern of folders with files that are not whole, which are not copied.
    partials: Option<String>,
    /// Links are followed.
    pub(super) follow: bool,
    one_file_system: bool,
    checksum: bool,
    /// Fifos, devices and sockets are copied too.
    pub(super) devices: bool,
    /// Source files are removed when everything is stored.
    pub(super) removes: bool,
    /// The list of --files-from, and whether a zero byte ends each of its paths.
    list: Option<(PathBuf, bool)>,
}

/// How the storing end keeps what it gets.
#[derive(Clone)]
pub(super) struct Keep {
    /// Whether owners are preserved; `None` leaves it to who stores them.
    owner: Option<bool>,
    pub(super) set_id: bool,
    pub(super) fsync: Fsync,
    pub(super) habits: StoreHabits,
}

/// What --delete may do.
#[derive(Clone)]
pub(super) struct Deletion {
    /// With more to remove, nothing is.
    pub(super) max: Option<u64>,
    /// The names that were shown, and that may be removed.
    pub(super) confirmed: Option<Confirmed>,
}

/// How the other end is reached.
#[derive(Clone)]
pub(super) struct Way {
    pub(super) shell: OsString,
    /// Name of the program there.
    pub(super) program: String,
    pub(super) port: Option<u16>,
    token_file: Option<PathBuf>,
    insecure: bool,
    /// Without narrows there, tar copies.
    pub(super) falls_back: bool,
    pub(super) carriers: u8,
    /// Most bytes per second; 0 is no limit.
    pub(super) rate: u64,
    /// It yields to all other traffic.
    pub(super) yields: bool,
    memory: MemoryArgs,
}

/// How bytes cross.
#[derive(Clone)]
pub(super) struct Coding {
    pub(super) flow: FlowArgs,
    pub(super) hint: Hint,
    /// The other end keeps files as they come.
    pub(super) store_compressed: bool,
    /// How far back repeats are found, as a power of two.
    pub(super) long: Option<u8>,
}

/// How objects of a store are copied.
#[derive(Clone)]
pub(super) struct Objects {
    pub(super) access: StoreArgs,
    /// Objects have the bytes of files as they are.
    pub(super) plain: bool,
    /// Files at a time.
    pub(super) transfers: u8,
}

/// What the user hears.
#[derive(Clone)]
pub(super) struct Told {
    pub(super) verbosity: VerbosityArgs,
    itemizes: bool,
    /// Collects what would be removed instead.
    pub(super) removals: Option<Removals>,
}

impl Plan {
    /// The plan of `narrows cp`, or with `mirrors` of `narrows sync`.
    ///
    /// # Errors
    /// Options that do not go together.
    pub(super) fn new(args: &CpArgs, mirrors: bool) -> Result<Self> {
        let habits = &args.habits;
        let (partial_dir, backup) = check(habits)?;
        // As with rsync, -a does not make a list recursive.
        let recursive = args.recursive || habits.archive && habits.files_from.is_none();
        if args.delete && !recursive {
            return misuse("--delete is for folders: give --recursive (-r) too");
        }
        if args.max_delete.is_some() && !args.delete {
            return misuse("--max-delete limits --delete: give that too");
        }
        if habits.files_from.is_some() && args.delete {
            return misuse(match mirrors {
                true => "sync would remove what the list of --files-from does not name; use narrows cp",
                false => "--delete would remove what the list of --files-from does not name; copy without one of them",
            });
        }
        if habits.files_from.is_some() && args.paths.len() != 2 {
            return misuse("--files-from lists paths below one source: narrows cp --files-from FILE SRC DST");
        }
        let include = args.include.iter().map(|p| format!("!{p}"));
        let plan = Self {
            paths: args.paths.clone(),
            mirrors,
            dry_run: args.dry_run,
            timeout: args.timeout,
            habit: asked(habits),
            pick: Pick {
                recursive,
                patterns: args.exclude.iter().cloned().chain(include).collect(),
                partials: partial_dir.as_ref().and_then(PartialDir::pattern),
                follow: habits.copy_links,
                one_file_system: habits.one_file_system,
                checksum: habits.checksum,
                devices: args.devices,
                removes: habits.remove_source_files,
                list: habits.files_from.clone().map(|list| (list, habits.from0)),
            },
            keep: Keep {
                owner: (args.owner || args.no_owner).then_some(args.owner),
                set_id: args.set_id,
                fsync: args.fsync.into(),
                habits: StoreHabits {
                    update: habits.update,
                    checksum: habits.checksum,
                    make_parents: habits.mkpath,
                    backup,
                    link_dest: habits.link_dest.clone(),
                    itemize: false,
                    one_file_system: habits.one_file_system,
                    partial_dir,
                },
            },
            delete: args.delete.then_some(Deletion { max: args.max_delete, confirmed: None }),
            way: Way {
                shell: args.shell.clone(),
                program: args.remote_narrows.clone(),
                port: habits.port,
                token_file: args.token_file.clone(),
                insecure: args.insecure,
                falls_back: !args.no_fallback,
                carriers: args.carriers,
                rate: if let Some(Rate::Most(rate)) = habits.bwlimit { rate } else { 0 },
                yields: habits.bwlimit == Some(Rate::Auto),
                memory: args.memory,
            },
            coding: Coding {
                flow: args.flow.clone(),
                hint: args.hint.hint(),
                store_compressed: args.store_compressed,
                long: args.long,
            },
            objects: Objects { access: args.store.clone(), plain: args.plain, transfers: args.transfers },
            told: Told { verbosity: args.verbosity, itemizes: habits.itemize_changes, removals: None },
        };
        if plan.coding.store_compressed {
            plan.refuse_habits("with --store-compressed")?;
        }
        Ok(plan)
    }

    /// Refuses options that only copies of plain files can follow.
    pub(super) fn refuse_habits(&self, place: &str) -> Result<()> {
        let asked = self.habit.filter(|asked| !["--bwlimit", "--mkpath"].contains(asked));
        asked.map_or(Ok(()), |asked| misuse(format!("{asked} does not work {place}")))
    }

    /// Whether the name of every file is printed.
    pub(super) fn names_wanted(&self) -> bool {
        (self.told.verbosity.verbose || self.dry_run) && !self.told.verbosity.json
    }

    /// A time limit for waiting; `None` is no limit.
    pub(super) fn patience(&self) -> Option<std::time::Duration> {
        flow::seconds(self.timeout)
    }

    /// The options of the storing end. `within_host`: the files stay on this host, under the same user.
    pub(super) fn store_options(&self, within_host: bool) -> StoreOptions {
        let (names, itemize) = (self.names_wanted(), self.told.itemizes());
        StoreOptions {
            fsync: self.keep.fsync,
            devices: self.pick.devices,
            unmade: Unmade::Skipped,
            dry_run: self.dry_run,
            owner: self.keep.owner,
            delete: self.delete.as_ref().map(|delete| Delete {
                exclude: self.pick.patterns.clone(),
                max: delete.max,
                names: names || itemize || self.told.removals.is_some(),
                confirmed: delete.confirmed,
            }),
            names,
            set_id: self.keep.set_id || within_host,
            form: if self.coding.store_compressed { Form::AsTheyCame } else { Form::Raw },
            images: self.coding.recompresses() && !within_host,
            codes: true,
            holes: true,
            habits: StoreHabits { itemize, ..self.keep.habits.clone() },
        }
    }

    /// What the sending end on another host does. `files`: those of the list.
    pub(super) fn source_habits(&self, files: Option<Vec<PathBuf>>) -> SourceHabits {
        SourceHabits {
            follow: self.pick.follow,
            one_file_system: self.pick.one_file_system,
            checksum: self.pick.checksum,
            remove_sources: self.pick.removes,
            files,
            rate: self.way.rate,
            yields: self.way.yields,
        }
    }

    /// Refuses uses of --delete that are seen to be wrong before the copy begins.
    pub(super) fn check_delete(&self, sources: &[PathBuf], target: &Place) -> Result<()> {
        let what = if self.mirrors { "sync" } else { "--delete" };
        if !sources.iter().any(|path| scan::top(path).is_none() || path.symlink_metadata().is_ok_and(|s| s.is_dir())) {
            return misuse(format!("{what} is for folders, and no source is a folder"));
        }
        let Place::Local(target) = target else { return Ok(()) };
        for path in sources {
            let covered = scan::top(path).map_or_else(|| target.clone(), |top| target.join(OsStr::from_bytes(&top)));
            let Ok(covered) = covered.canonicalize() else { continue };
            if let Some(path) = sources.iter().find(|path| is_inside(path, &covered)) {
                let path = shown(path.as_os_str().as_bytes());
                return misuse(format!("{path} is in the target, where {what} would remove it"));
            }
        }
        Ok(())
    }
}

impl Pick {
    /// All patterns of what the sending end leaves out.
    pub(super) fn patterns_of_source(&self) -> Vec<String> {
        self.patterns.iter().cloned().chain(self.partials.clone()).collect()
    }

    /// What the scan on this host picks, apart from a list.
    pub(super) fn picks(&self) -> Picks {
        let (follow, one_file_system, checksum) = (self.follow, self.one_file_system, self.checksum);
        Picks { follow, one_file_system, checksum, sockets: true, ..Picks::default() }
    }

    /// The paths of --files-from, without comments and empty lines.
    pub(super) fn files(&self) -> Result<Option<Vec<PathBuf>>> {
        let Some((list, from0)) = &self.list else { return Ok(None) };
        let mut bytes = Vec::new();
        let read = match list.as_os_str() == "-" {
            true => std::io::stdin().take(LIST_MAX + 1).read_to_end(&mut bytes),
            false => std::fs::File::open(list).and_then(|file| file.take(LIST_MAX + 1).read_to_end(&mut bytes)),
        };
        read.with_context(|| format!("cannot read the list {}", list.display()))?;
        if bytes.len() as u64 > LIST_MAX {
            return misuse(format!("the list {} is longer than 4 MiB; copy it in parts", list.display()));
        }
        Ok(Some(lines(&bytes, *from0)))
    }
}

impl Keep {
    /// Whether owners are to be preserved in any case.
    pub(super) fn wants_owner(&self) -> bool {
        self.owner == Some(true)
    }

    /// Whether neither owners nor groups are to be preserved.
    pub(super) fn forbids_owner(&self) -> bool {
        self.owner == Some(false)
    }
}

impl Way {
    /// How the two ends of a direct connection authenticate each other; `None` for others.
    pub(super) fn trust(&self, place: &Place) -> Result<Option<Trust>> {
        Ok(Trust::of(place, self.token_file.as_deref(), self.insecure)?)
    }

    /// The host that a copy is sent to, if what is found of it is kept; `None` within this one.
    pub(super) fn peer(&self, target: &Place) -> Option<Peer> {
        self.memory.of(|| match target {
            Place::Local(_) => None,
            Place::Ssh { host, port, .. } => {
                Some(Peer::shell(&host.to_string_lossy(), *port, &self.shell.to_string_lossy()))
            }
            Place::Direct { host, port, .. } => Some(Peer::tcp(host, *port)),
        })
    }
}

impl Coding {
    /// How far back copies may refer. They are compression too, for those who forbid it.
    pub(super) fn reach(&self) -> usize {
        if self.is_stored() { 0 } else { reach(self.long) }
    }

    /// Whether images are recompressed on the way where that pays. Frames that are stored as they come have a
    /// hint of their own.
    pub(super) fn recompresses(&self) -> bool {
        self.hint.wants_images() && !self.store_compressed && self.flow.policy.is_none()
    }

    /// Whether compression is disabled in both directions.
    pub(super) fn is_stored(&self) -> bool {
        self.flow.policy == Some(PolicySpec::store())
    }
}

impl Told {
    /// Whether each change is printed.
    pub(super) fn itemizes(&self) -> bool {
        self.itemizes && !self.verbosity.json
    }

    /// Nothing but what would be removed, which `removals` collects.
    pub(super) fn only(&self, removals: &Removals) -> Self {
        let verbosity = VerbosityArgs { quiet: true, verbose: false, json: false };
        Self { verbosity, itemizes: self.itemizes, removals: Some(removals.clone()) }
    }
}

/// Checks what clap cannot; what of it files are kept in until they are whole, and what is kept of replaced ones.
fn check(habits: &HabitArgs) -> Result<(Option<PartialDir>, Option<Backup>)> {
    if habits.copy_links && habits.remove_source_files {
        return misuse("--remove-source-files removes no links, and what they lead to may be elsewhere: leave out -L");
    }
    if habits.link_dest.len() > LINK_DEST_MAX {
        return misuse(format!("--link-dest may be given at most {LINK_DEST_MAX} times"));
    }
    let keeps = habits.backup || habits.backup_dir.is_some();
    if habits.suffix.is_some() && !keeps {
        return misuse("--suffix is what --backup adds to names: give that too");
    }
    let partials = habits.partial_dir.as_deref().map_or(Ok(None), PartialDir::new).or_else(misuse)?;
    let suffix = habits.suffix.clone().or_else(|| habits.backup_dir.is_none().then(|| SUFFIX.to_owned()));
    let kept = keeps.then(|| Backup { suffix: suffix.unwrap_or_default(), dir: habits.backup_dir.clone() });
    kept.as_ref().map_or(Ok(()), |backup| backup.check().or_else(misuse))?;
    Ok((partials, kept))
}

/// The first option that this copy was given and that only narrows at both ends can follow.
fn asked(habits: &HabitArgs) -> Option<&'static str> {
    let options = [
        (habits.checksum, "--checksum"),
        (habits.update, "--update"),
        (habits.copy_links, "--copy-links"),
        (habits.one_file_system, "--one-file-system"),
        (habits.files_from.is_some(), "--files-from"),
        (habits.mkpath, "--mkpath"),
        (habits.backup || habits.backup_dir.is_some(), "--backup"),
        (habits.partial_dir.is_some(), "--partial-dir"),
        (!habits.link_dest.is_empty(), "--link-dest"),
        (habits.remove_source_files, "--remove-source-files"),
        (habits.itemize_changes, "--itemize-changes"),
        (habits.bwlimit.is_some_and(|rate| rate != Rate::Most(0)), "--bwlimit"),
    ];
    options.into_iter().find(|(asked, _)| *asked).map(|(_, name)| name)
}

/// The paths of a list; as for rsync, # and ; begin comments where lines are read.
fn lines(bytes: &[u8], from0: bool) -> Vec<PathBuf> {
    let end = |b: &u8| if from0 { *b == 0 } else { matches!(*b, b'\n' | b'\r') };
    let words = bytes.split(end).filter(|line| !line.is_empty() && (from0 || !matches!(line[0], b'#' | b';')));
    words.map(|line| PathBuf::from(OsString::from_vec(line.to_vec()))).collect()
}

/// The folder whose listed paths are copied, as its contents.
pub(super) fn contents_of(source: &Path) -> PathBuf {
    source.join("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_comments_only_where_lines_are_read() {
        let paths = |text: &str, from0| lines(text.as_bytes(), from0);
        assert_eq!(paths("a\n# no\n\n; no\r\nb c\n", false), [Path::new("a"), Path::new("b c")]);
        assert_eq!(paths("a\n\0#yes\0\0", true), [Path::new("a\n"), Path::new("#yes")]);
    }
}
