//! The remote end of a copy: carries out the request of a client.

use std::ffi::OsStr;
use std::io;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use narrows::entry::{Answer, RecordWriter};
use narrows::frame::REACH_MAX_HARD;
use narrows::policy::PolicySpec;
use narrows::stream::{self, Control, Notes, ReceiveOptions, SendOptions};
use narrows::transport::Link;
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;

use super::error::{Blame, Error, FORM, Result, cannot_partials, cannot_store, is_link_lost};
use super::filter::Filter;
use super::frames::{Form, FramesOptions, SUFFIX};
use super::hello::{Fsync, GetTask, PartialDir, StoreOptions, Task, Unmade};
use super::outlet::Outlet;
use super::remote_path;
use super::scan::{self, Root};
use super::scan::{Listed, Picks};
use super::served::Served;
use super::source::{EntrySource, Input, SourceOptions};
use super::special::{self, Special};
use super::store::{EntryStore, Observers, Permitted};
use super::tree::{Tree, found};
use super::{e_text, shown};
use narrows_host::calibration;

/// Longest block of `balance`, in bytes.
pub const BLOCK_MAX: usize = 512 << 10;

/// Where this end runs, seen from the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// In the same process: no data crosses a link, so nothing is compressed.
    Local,
    /// At the other end of a remote shell.
    Remote,
}

/// What a client may access on this host.
pub enum Reachable<'a> {
    /// Everything that its user may access.
    Everything,
    /// The served folder, for a client with this address.
    Within(&'a Served, IpAddr),
    /// Nothing, because there are too many copies.
    Busy,
}

impl Reachable<'_> {
    /// How far back copies of raw bytes may refer, if the client asks for them: it takes so much memory
    /// of its own user, but not of a server that others use too.
    fn reach(&self) -> usize {
        if matches!(self, Self::Everything) { REACH_MAX_HARD } else { 0 }
    }

    /// Time limit without progress. A copy has none, because the source of the client may be slow;
    /// a server that needs its place closes it (`direct/listener.rs`).
    fn patience(&self) -> Option<Duration> {
        matches!(self, Self::Busy).then_some(TOLD_MAX)
    }

    /// Whether paths are expanded as by a shell, which is done behind a remote shell only.
    fn is_shell(&self, manner: Manner) -> bool {
        matches!(self, Self::Everything) && manner == Manner::Remote
    }

    fn at_home(&self, path: PathBuf, manner: Manner) -> Result<PathBuf> {
        if !self.is_shell(manner) {
            return Ok(path);
        }
        remote_path::at_home(&path).blame_for(Error::Local, cannot_store(&path))
    }

    /// Expands paths to sources; also returns the errors of paths that name none.
    /// `of_stored`: the names are those of the originals of stored files.
    fn expand(&self, paths: Vec<PathBuf>, manner: Manner, of_stored: bool) -> (Vec<PathBuf>, Vec<String>) {
        if !self.is_shell(manner) {
            return (paths, Vec::new());
        }
        let (mut sources, mut failed) = (Vec::new(), Vec::new());
        for path in paths {
            match remote_path::at_home(&path).and_then(|path| remote_path::expand(&path)) {
                Ok(found) => {
                    let stored = stored_name(&path);
                    let is_pattern = of_stored && remote_path::has_pattern(&path);
                    let more =
                        is_pattern.then(|| remote_path::at_home(&stored).and_then(|path| remote_path::expand(&path)));
                    let more = more.and_then(Result::ok).unwrap_or_default();
                    // A pattern that matches nothing is itself the only path.
                    let nothing = |found: &[PathBuf], asked: &Path| found.len() == 1 && found[0].ends_with(asked);
                    let both = match (nothing(&found, &path), more.is_empty() || nothing(&more, &stored)) {
                        (true, false) => more,
                        (_, true) => found,
                        (false, false) => found.into_iter().chain(more).collect(),
                    };
                    sources.extend(both);
                }
                Err(e) => failed.push(format!("cannot copy {}: {}", shown(path.as_os_str().as_bytes()), e_text(&e))),
            }
        }
        (sources, failed)
    }

    fn target(&self, target: &Path, single: bool, store: &StoreOptions) -> Result<Opened> {
        let (dry_run, makes) = (store.dry_run, store.habits.make_parents);
        match self {
            Self::Everything => open_target(target, single, dry_run, makes),
            Self::Within(served, _) => served.target(target, single, dry_run, makes).map(Opened::from),
            Self::Busy => Err(Error::Local(BUSY.into())),
        }
    }

    /// Opens the folders of `--link-dest`, which are relative to `target`.
    fn beside(&self, target: &Path, store: &StoreOptions) -> Result<Vec<Tree>> {
        let open = |dir: &PathBuf| match self {
            Self::Everything => open_beside(target, dir),
            Self::Within(served, _) => served.beside(target, dir),
            Self::Busy => Err(Error::Local(BUSY.into())),
        };
        store.habits.link_dest.iter().filter_map(|dir| open(dir).transpose()).collect()
    }

    /// Opens the folder of `--partial-dir`, if it is one for all files.
    fn partials(&self, store: &StoreOptions) -> Result<Option<Tree>> {
        match self {
            Self::Everything => open_partials(store),
            Self::Within(served, _) => served.partials(store),
            Self::Busy => Err(Error::Local(BUSY.into())),
        }
    }

    fn roots(&self, sources: &[PathBuf], recursive: bool, of_stored: bool, follow: bool) -> (Vec<Root>, Vec<String>) {
        if matches!(self, Self::Within(..)) && sources.len() > SOURCES_MAX {
            return (
                Vec::new(),
                vec![format!("a server accepts at most {SOURCES_MAX} sources; copy the folder that contains them")],
            );
        }
        let open = |path: &Path| match self {
            Self::Everything if follow => Root::following(path, recursive),
            Self::Everything => Root::open(path, recursive),
            Self::Within(..) if follow => Err(io::Error::other(NOT_FOLLOWED)),
            Self::Within(served, _) => served.root(path, recursive),
            Self::Busy => Err(io::Error::other(BUSY)),
        };
        open_each(sources, |path| {
            // A stored file is named as its original.
            let stored = (of_stored && scan::top(path).is_some()).then(|| open(&stored_name(path)).ok()).flatten();
            stored.filter(|root| root.place().is_none()).map_or_else(|| open(path), Ok)
        })
    }
}

/// The path of a stored file.
fn stored_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(OsStr::from_bytes(SUFFIX));
    name.into()
}

/// Time limit for a client that is told that there are too many copies and does not respond.
const TOLD_MAX: Duration = Duration::from_secs(10);

/// Maximum number of sources of one client of a shared server; each keeps a folder open.
const SOURCES_MAX: usize = 256;
/// What a server answers that never leaves its folder.
/// What is said to those who want a copy to yield of which another program has the connection.
pub const NO_ROUND_TRIPS: &str = "--bwlimit auto has to see the round trips of the connection, which belongs to the \
    remote shell; give a rate, as in --bwlimit 2M, or copy with `narrows serve --listen` and a narrows:// address";
const NOT_FOLLOWED: &str = "a server does not follow symbolic links (-L); copy them as links";
pub(super) const BUSY: &str = "the server has too many copies; try again later";

/// What a server says that keeps files as they come to a client that does not send or take them so. Servers
/// that do not know the number of this reason are known by the sentence, so it stays as it is.
pub const AS_IT_COMES: &str = "this server keeps files as they come; copy with --store-compressed";

/// Carries out a task over a link.
///
/// `as_it_comes`: this end stores and sends files as frames only.
pub fn run(
    task: Task,
    link: Link,
    manner: Manner,
    reachable: &Reachable<'_>,
    as_it_comes: bool,
    control: &Arc<Control>,
) -> Result<()> {
    let refuses = as_it_comes
        && match &task {
            Task::Put { store, .. } => store.form == Form::Raw,
            Task::Get(what) => !what.frames,
        };
    match task {
        Task::Put { store, .. } if refuses => {
            put(Err(Error::Form(AS_IT_COMES.into())), store, link, manner, reachable, control)
        }
        Task::Get(what) if refuses && what.codes => {
            let mut refusal = Vec::new();
            let records = RecordWriter::default();
            records.refused(FORM, AS_IT_COMES, &mut refusal);
            records.finish(&mut refusal);
            let options = carrier_options().stall_timeout(reachable.patience()).control(control);
            stream::send(io::Cursor::new(refusal), link, options)?;
            Ok(())
        }
        Task::Get(what) if refuses => {
            get(&GetTask { sources: Vec::new(), ..what }, vec![AS_IT_COMES.into()], link, manner, reachable, control)
        }
        Task::Put { target, single, mut store } => {
            // A client of a served folder must not create devices on this host.
            if store.devices && matches!(reachable, Reachable::Within(..)) {
                (store.devices, store.unmade) = (false, Unmade::Refused);
            }
            // Nor programs that run with the rights of the server's user, unless --set-id allows
            // it.
            store.set_id &= !matches!(reachable, Reachable::Within(served, _) if !served.keeps_set_id());
            let target = reachable.at_home(target, manner);
            let opened = if single && store.delete.is_some() {
                Err(Error::Peer("--delete is for folders".into()))
            } else {
                target.and_then(|target| {
                    let opened = reachable.target(&target, single, &store)?;
                    let (beside, partials) = (reachable.beside(&target, &store)?, reachable.partials(&store)?);
                    Ok(Opened { beside, partials, ..opened })
                })
            };
            put(opened, store, link, manner, reachable, control)
        }
        Task::Get(mut what) => {
            let (sources, unopened) = reachable.expand(what.sources, manner, what.frames);
            what.sources = sources;
            get(&what, unopened, link, manner, reachable, control)
        }
    }
}

/// Stores the received entries in an opened target, or reports to the client why it could not be
/// opened.
pub fn put(
    opened: Result<Opened>,
    options: StoreOptions,
    link: Link,
    manner: Manner,
    reachable: &Reachable<'_>,
    control: &Arc<Control>,
) -> Result<()> {
    let notes = Notes::default();
    let receive = ReceiveOptions::default()
        .reach_max(reachable.reach())
        .images(options.images)
        .notes(&notes)
        .stall_timeout(reachable.patience())
        .control(control);
    // Failures are sent to the client as answers, and it shows them.
    let codes = options.codes;
    let store = match opened {
        Ok(Opened { into: Into::Special(special), name, .. }) => {
            let patience = (manner == Manner::Remote).then_some(READER_PATIENCE);
            let file = special.open(patience).blame_for(Error::Local, cannot_store(&name));
            return match file {
                Ok(file) => write_into(file, &name, &options, link, notes, receive),
                Err(e) => refuse(e, options.codes, &notes, link, receive),
            };
        }
        Ok(Opened { into: Into::Tree(tree, rename), sources, beside, partials, .. }) => {
            let answers = notes.clone();
            let store = EntryStore::new(tree, rename, Permitted::Anything, options, answers, Observers::none());
            store.and_then(|store| {
                store.protect(sources);
                let store = store.beside(beside).partials(partials)?;
                Ok(match reachable {
                    Reachable::Within(served, client) => store.sharing(served.memory_of(*client)),
                    Reachable::Everything | Reachable::Busy => store,
                })
            })
        }
        Err(e) => Err(e),
    };
    match store {
        Ok(store) => {
            let (end, all) = (store.clone(), store.clone());
            let received = stream::receive_then(store, link, receive, move || end.finish());
            received.inspect_err(|_| all.abandon())?;
            Ok(())
        }
        Err(e) => refuse(e, codes, &notes, link, receive),
    }
}

/// Whether the client was told about a failure of [`run`], which the end of the flow does unless
/// the link is lost.
pub fn was_told(e: &Error) -> bool {
    match e {
        Error::Refused(_) => true,
        Error::Flow { .. } => !is_link_lost(e),
        _ => false,
    }
}

/// Refuses the copy; the flow carries the reason back to the client, and an answer its number. `codes`: the
/// client knows such answers.
fn refuse(e: Error, codes: bool, notes: &Notes, link: Link, receive: ReceiveOptions) -> Result<()> {
    let text = e.to_string();
    let code = e.code().filter(|_| codes);
    stream::receive(Refusing { text: text.clone(), code, notes: notes.clone() }, link, receive).ok();
    Err(Error::Refused(text.into()))
}

/// Writes one file into an existing device or fifo.
fn write_into(
    file: std::fs::File,
    name: &Path,
    options: &StoreOptions,
    link: Link,
    notes: Notes,
    receive: ReceiveOptions,
) -> Result<()> {
    let outlet = Outlet::new(file.try_clone().blame(Error::Local)?, notes, |_| ())
        .named(&shown(name.as_os_str().as_bytes()))
        .for_sender();
    let (end, sync) = (outlet.clone(), options.fsync != Fsync::None);
    let written = move || {
        end.finish()?;
        if sync { special::sync(&file) } else { Ok(()) }
    };
    stream::receive_then(outlet, link, receive, written)?;
    Ok(())
}

/// How long a remote copy into a fifo waits for a reader.
const READER_PATIENCE: Duration = Duration::from_secs(10);

/// The opened target of a copy.
pub struct Opened {
    /// Where the entries go.
    pub into: Into,
    /// The path as it was given.
    name: PathBuf,
    /// The folder was created for this copy.
    pub is_new: bool,
    /// Source folders on this host, by device and inode.
    pub sources: Vec<(u64, u64)>,
    /// Earlier copies, whose files become hard links.
    pub beside: Vec<Tree>,
    /// The folder in which files live until they are whole, if it is one for all.
    pub partials: Option<Tree>,
}

/// Kind of a target.
pub enum Into {
    /// A folder, and the name for a single file in it.
    Tree(Tree, Option<Vec<u8>>),
    /// An existing device or fifo.
    Special(Special),
}

impl From<(Tree, Option<Vec<u8>>)> for Opened {
    fn from((tree, rename): (Tree, Option<Vec<u8>>)) -> Self {
        let (sources, beside, partials) = (Vec::new(), Vec::new(), None);
        Self { into: Into::Tree(tree, rename), name: PathBuf::new(), is_new: false, sources, beside, partials }
    }
}

/// Opens the folder to store in, with the name for a single file if `target` is not a folder.
/// Creates the folder if needed, unless this is a dry run. `makes_parents`: the folders above it too.
pub fn open_target(target: &Path, single: bool, dry_run: bool, makes_parents: bool) -> Result<Opened> {
    let cannot = cannot_store(target);
    let there = target.metadata();
    let is_folder = there.as_ref().is_ok_and(std::fs::Metadata::is_dir);
    // A mount whose program was killed, of which nothing else can be told.
    if let Err(e) = there
        && e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error())
    {
        return Err(e).blame_for(Error::Local, &cannot);
    }
    let wants_folder = !single || target.as_os_str().as_bytes().ends_with(b"/");
    if is_folder || wants_folder {
        // Without the trailing slash, which would hide a file of that name.
        let there = target.components().as_path();
        if !is_folder && there.symlink_metadata().is_ok() {
            let what = if there.is_file() { "it is a file, not a folder" } else { "it is not a folder" };
            return Err(Error::of_target(target, what));
        }
        if !is_folder && !dry_run {
            // Only the last folder, so that a misspelt path creates no tree.
            let made = if makes_parents { std::fs::create_dir_all(target) } else { std::fs::create_dir(target) };
            made.blame_for(Error::Local, &cannot)?;
        }
        // In a dry run, a folder that would be created counts as empty.
        let tree = if is_folder || !dry_run { Tree::open(target) } else { Tree::empty() };
        let tree = tree.blame_for(Error::Local, &cannot)?;
        return Ok(Opened { is_new: !is_folder, ..Opened::from((tree, None)) });
    }
    let name = target.file_name().ok_or_else(|| Error::of_target(target, "it has no name"))?;
    let name = name.as_bytes().to_vec();
    match Special::at(target).blame_for(Error::Local, &cannot)? {
        Some(_) if dry_run => return Ok(Opened::from((Tree::empty().blame(Error::Local)?, Some(name)))),
        Some(special) => {
            let into = Into::Special(special);
            let (sources, beside, partials) = (Vec::new(), Vec::new(), None);
            return Ok(Opened { into, name: target.to_path_buf(), is_new: false, sources, beside, partials });
        }
        None => {}
    }
    let parent = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if makes_parents && !parent.exists() {
        if dry_run {
            return Ok(Opened::from((Tree::empty().blame(Error::Local)?, Some(name))));
        }
        std::fs::create_dir_all(parent).blame_for(Error::Local, &cannot)?;
    }
    let tree = Tree::open(parent).blame_for(Error::Local, &cannot)?;
    Ok(Opened::from((tree, Some(name))))
}

/// Opens a folder of `--link-dest`, which is relative to the target folder; `None` if there is none, as
/// before the first copy.
pub fn open_beside(target: &Path, dir: &Path) -> Result<Option<Tree>> {
    let dir = target.join(dir);
    let cannot = format!("cannot open {} (--link-dest)", shown(dir.as_os_str().as_bytes()));
    found(Tree::open(&dir)).blame_for(Error::Local, cannot)
}

/// Opens the folder of `--partial-dir`, if it is one for all files. If only the folder itself is missing, it is
/// made; in a dry run there is none then.
pub fn open_partials(store: &StoreOptions) -> Result<Option<Tree>> {
    let Some(PartialDir::At(dir)) = &store.habits.partial_dir else { return Ok(None) };
    let cannot = cannot_partials(dir);
    if !store.dry_run {
        match rustix::fs::mkdir(dir, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(io::Error::from(e)).blame_for(Error::Local, cannot),
        }
    }
    // Somebody else's link could lead to another folder of this user, whose files would go. Who may change
    // folders above could do so in any case.
    let link = rustix::fs::lstat(dir).ok().filter(|s| FileType::from_raw_mode(s.st_mode) == FileType::Symlink);
    let own = [rustix::process::geteuid().as_raw(), 0];
    if link.is_some_and(|s| !own.contains(&s.st_uid)) {
        return Err(Error::Local(format!("{cannot}: it is a link of another user").into()));
    }
    found(Tree::open(dir)).blame_for(Error::Local, cannot)
}

/// Whether the source decides if the target becomes a file or a folder: no folder exists there, and
/// the path does not end in a slash.
pub fn is_undecided(target: &Path) -> bool {
    let takes_file = match target.metadata() {
        Ok(there) => there.is_file(),
        Err(e) => e.kind() == std::io::ErrorKind::NotFound,
    };
    takes_file && target.file_name().is_some() && !target.as_os_str().as_bytes().ends_with(b"/")
}

fn get(
    what: &GetTask,
    mut unopened: Vec<String>,
    link: Link,
    manner: Manner,
    reachable: &Reachable<'_>,
    control: &Arc<Control>,
) -> Result<()> {
    let habits = &what.habits;
    if let (true, Reachable::Within(served, _)) = (habits.remove_sources, reachable)
        && served.is_read_only()
    {
        unopened.push("this server removes nothing; it was started with --read-only".into());
    }
    let may_read = unopened.is_empty() || !habits.remove_sources;
    let sources = if may_read { &what.sources[..] } else { &[] };
    let (mut roots, failed) =
        reachable.roots(sources, what.recursive || habits.files.is_some(), what.frames, habits.follow);
    let listed = habits.files.as_ref().map(|files| Listed::new(files, what.recursive)).transpose();
    let listed = listed.map_err(|text| Error::Protocol(text.into()))?;
    if let Some(listed) = &listed {
        // A server follows no link.
        let follows = !matches!(reachable, Reachable::Within(..));
        roots.iter_mut().for_each(|root| root.list(listed, follows));
    }
    let link = match reachable {
        Reachable::Within(..) if habits.yields => link.yielding(),
        _ if habits.yields => return Err(Error::Usage(NO_ROUND_TRIPS.into())),
        _ if habits.rate > 0 => link.limited(habits.rate),
        _ => link,
    };
    unopened.extend(failed);
    let filter = Filter::new(&what.exclude)?.of_stored(what.frames);
    let quiet = SourceOptions {
        dry_run: what.dry_run,
        on_failure: Box::new(|_| ()),
        on_skipped: None,
        on_file: Box::new(|_| ()),
        names: false,
        totals: what.totals,
        on_removed: None,
        answers_within: reachable.patience(),
        frames: what.frames.then(|| {
            let manner = if what.stored { Manner::Local } else { manner };
            FramesOptions::new(send_options(manner, false), control, true)
        }),
        picks: Picks {
            follow: habits.follow,
            one_file_system: habits.one_file_system,
            checksum: habits.checksum,
            listed,
            sockets: what.sockets,
            ..Picks::default()
        },
        itemized: false,
        removes: habits.remove_sources,
        images: what.images,
        holes: what.holes,
    };
    let mut source = EntrySource::start(Input::Paths { roots, unopened, filter }, quiet).blame(Error::Local)?;
    // If the client disabled compression, blocks are stored as within a process.
    let manner = if what.stored { Manner::Local } else { manner };
    if what.frames {
        let options = carrier_options().stall_timeout(reachable.patience()).on_note(source.on_note()).control(control);
        let sent = stream::send(source.reader(), link, options);
        source.stop();
        sent?;
        source.remove_sources(None, &|text| narrows_host::words::note(text));
        return Ok(());
    }
    let reach = if manner == Manner::Local { 0 } else { reachable.reach() };
    let options = send_options(manner, what.images).reach(reach).search_if_asked(true);
    let options = options.stall_timeout(reachable.patience()).on_note(source.on_note()).control(control);
    let sent = stream::send(source.reader(), link, options);
    source.stop();
    sent?;
    source.remove_sources(None, &|text| narrows_host::words::note(text));
    Ok(())
}

/// Opens the sources; also returns the errors of those that could not be opened. `follow`: symbolic links
/// are followed everywhere.
pub fn open_roots(sources: &[PathBuf], recursive: bool, follow: bool) -> (Vec<Root>, Vec<String>) {
    let open = if follow { Root::following } else { Root::open };
    open_each(sources, |path| open(path, recursive))
}

fn open_each(sources: &[PathBuf], open: impl Fn(&Path) -> io::Result<Root>) -> (Vec<Root>, Vec<String>) {
    let (mut roots, mut unopened) = (Vec::new(), Vec::new());
    for path in sources {
        match open(path) {
            Ok(root) => roots.push(root),
            Err(e) => unopened.push(format!("cannot copy {}: {}", shown(path.as_os_str().as_bytes()), e_text(&e))),
        }
    }
    (roots, unopened)
}

/// Options of a flow that carries frames, which are encoded already. It holds little, since what waits
/// in it hides from their encoder how fast the link is.
pub fn carrier_options() -> SendOptions {
    SendOptions::new(PolicySpec::store()).block_max(CARRIER_BLOCK).memory_max(CARRIER_MEMORY).threads(1)
}

/// Block of a flow that carries frames: as long as a write of a fast link.
const CARRIER_BLOCK: usize = 64 << 10;
/// Memory of such a flow.
const CARRIER_MEMORY: usize = 1 << 20;

fn send_options(manner: Manner, images: bool) -> SendOptions {
    let policy = match manner {
        Manner::Local => PolicySpec::store(),
        Manner::Remote => PolicySpec::balance(),
    };
    let options = SendOptions::new(policy).calibration(calibration::load(false).as_ref());
    if images { options.images(true) } else { options.block_max(BLOCK_MAX) }
}

/// A sink for a copy that cannot be stored: its first byte fails with the reason.
struct Refusing {
    text: String,
    /// The number of the reason, for a client that knows it.
    code: Option<u64>,
    notes: Notes,
}

impl io::Write for Refusing {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        if let Some(code) = self.code.take() {
            let mut note = Vec::new();
            Answer::Refused { code, text: self.text.clone() }.put(&mut note);
            self.notes.send(&note);
        }
        Err(io::Error::other(self.text.clone()))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
