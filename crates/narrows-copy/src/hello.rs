//! The request of a client to a server, which precedes the wire format.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use serde_json::{Value, json};

use super::error::{Blame, Error, Reason, Result};
use super::frames::Form;
use super::measure::MeasureTask;

mod confirmed;
mod habits;
mod partial_dir;

pub use confirmed::{CONFIRMED_MAX, Confirmed, NameSet};
pub use habits::{Backup, LINK_DEST_MAX, SourceHabits, StoreHabits};
pub use partial_dir::PartialDir;

/// Magic bytes: not text, damaged by any conversion of line ends, and different from the beginning
/// of the wire format.
const MAGIC: [u8; 8] = *b"\x93NRSV\r\n\x1a";
/// Newest version of the request and of the entry stream that this program supports; it supports
/// all earlier ones too. A request names the oldest version that has everything it asks for, so
/// that an older server refuses it instead of doing only a part.
const VERSION: u64 = 7;
/// Oldest version.
const VERSION_FIRST: u64 = 1;
/// Maximum length of a request in bytes: a list of `--files-from` with about a hundred thousand paths.
const LEN_MAX: u32 = 8 << 20;
/// Limits on patterns, which take time and memory to compile; far more than anybody writes.
const PATTERNS_MAX: usize = 4096;
const PATTERNS_LEN_MAX: usize = 64 << 10;

/// A copy that a client requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// The client sends, the server stores.
    Put {
        /// The path on the server.
        target: PathBuf,
        /// The copy is a single file, so `target` may be its new name.
        single: bool,
        /// How the server stores.
        store: StoreOptions,
    },
    /// The server sends, the client stores.
    Get(GetTask),
}

/// What the server sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetTask {
    /// The paths on the server.
    pub sources: Vec<PathBuf>,
    /// Folders are copied.
    pub recursive: bool,
    /// The patterns of entries that are left out.
    pub exclude: Vec<String>,
    /// No content is sent.
    pub dry_run: bool,
    /// The server announces the totals of files and bytes. A server that does not know this field
    /// sends none.
    pub totals: bool,
    /// Nothing is compressed.
    pub stored: bool,
    /// The sources are stored files, and content goes as frames.
    pub frames: bool,
    /// The client decodes recompressed images. A server that does not know this field recompresses none.
    pub images: bool,
    /// The client knows refusals by number. A server that does not know this field refuses by text.
    pub codes: bool,
    /// Sockets come as entries. A server that does not know this field reports them as failures.
    pub sockets: bool,
    /// The client takes holes among chunks. A server that does not know this field sends files with holes whole.
    pub holes: bool,
    /// Which entries are picked, and what becomes of them.
    pub habits: SourceHabits,
}

/// Options of the storing end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// When files are flushed.
    pub fsync: Fsync,
    /// Fifos, devices and sockets are created.
    pub devices: bool,
    /// What becomes of them if not.
    pub unmade: Unmade,
    /// Nothing is changed; the answers are those of a real copy.
    pub dry_run: bool,
    /// Whether owners are set; `None`: if the storing end may set them.
    pub owner: Option<bool>,
    /// Entries that the sources do not have are removed.
    pub delete: Option<Delete>,
    /// The sender wants the names of the folders and links that are created. A server that does not
    /// know this field does not report them.
    pub names: bool,
    /// Files may keep set-id bits and capabilities.
    pub set_id: bool,
    /// How content comes and is stored.
    pub form: Form,
    /// The sender may recompress images, which takes memory to decode. A server that does not know this
    /// field says in its preface that it has no such codec.
    pub images: bool,
    /// The sender knows refusals by number. A server that does not know this field refuses by text.
    pub codes: bool,
    /// The sender may send holes among chunks. A server that does not know this field asks for no such chunks.
    pub holes: bool,
    /// What is done with files that are there already.
    pub habits: StoreHabits,
}

/// What becomes of fifos, devices and sockets that are not created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmade {
    /// They are failures, since the sender says nothing about them.
    Failed,
    /// They are passed over. A server that does not know this reports failures.
    Skipped,
    /// They are failures, since this end creates none for anybody.
    Refused,
}

/// Options of `--delete`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delete {
    /// The patterns of the copy; entries that they leave out are not removed.
    pub exclude: Vec<String>,
    /// Maximum number of entries; if there are more, nothing is removed.
    pub max: Option<u64>,
    /// The sender wants the names of the removed entries, not only their number.
    pub names: bool,
    /// The names that the user has agreed to. If others are to be removed, nothing is.
    pub confirmed: Option<Confirmed>,
}

/// Random identifier of a copy, with which further connections are added to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Session([u8; 16]);

impl Session {
    /// A new random identifier.
    pub fn random() -> io::Result<Self> {
        let mut id = [0; 16];
        let mut rest = &mut id[..];
        while !rest.is_empty() {
            let n = rustix::rand::getrandom(&mut *rest, rustix::rand::GetRandomFlags::empty())?;
            rest = &mut rest[n..];
        }
        Ok(Self(id))
    }

    fn parse(text: &str) -> Option<Self> {
        let bytes = HEXLOWER.decode(text.as_bytes()).ok()?;
        bytes.try_into().ok().map(Self)
    }
}

impl std::fmt::Display for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// A new copy. Everything after the request, in both directions, is in the segments of
    /// carriers.
    Copy(Box<Task>, Session),
    /// A further carrier for a running copy.
    Join(Session),
    /// A measurement; neither a copy nor carriers follow.
    Measure(MeasureTask),
}

/// When data is flushed to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// Flush each file before it gets its name.
    Each,
    /// Flush many files at once, before they get their names.
    Batch,
    /// Leave it to the system.
    None,
}

/// Writes a request.
pub fn write(request: &Request, mut to: impl Write) -> io::Result<()> {
    let words = match request {
        Request::Join(session) => json!({ "version": VERSION_FIRST, "task": "join", "session": session.to_string() }),
        Request::Measure(task) => {
            json!({ "version": 6, "task": "measure", "limit_ms": task.limit_ms, "host": format!("{:016x}", task.host) })
        }
        Request::Copy(task, session) => {
            let mut words = to_json(task);
            words["session"] = session.to_string().into();
            words
        }
    };
    let words = words.to_string();
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&(words.len() as u32).to_le_bytes());
    bytes.extend_from_slice(words.as_bytes());
    to.write_all(&bytes)
}

/// Reads exactly the request and no byte more, so that the wire format can be read from the same
/// source.
pub fn read(mut from: impl Read) -> Result<Request> {
    let mut head = [0; 12];
    from.read_exact(&mut head).blame_for(Error::Link, "the client disconnected before it sent a request")?;
    if head[..8] != MAGIC {
        return wrong("the input is not a request of `narrows cp`, which starts this command by itself");
    }
    let len = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
    if len > LEN_MAX {
        return wrong("the client's request is too long");
    }
    // Grows as the request arrives.
    let mut words = Vec::new();
    from.by_ref().take(len.into()).read_to_end(&mut words).blame(Error::Link)?;
    if words.len() < len as usize {
        return Err(Error::Link("the client disconnected within its request".into()));
    }
    let words = serde_json::from_slice(&words);
    let words: Value = words.blame_for(Error::Protocol, "the client's request is malformed")?;
    check_version(&words)?;
    if words["task"] == "measure" {
        return measurement(&words).map(Request::Measure);
    }
    let task = from_json(&words)?;
    let session = words["session"].as_str().and_then(Session::parse);
    let session = needed(session, "the client's request has no session")?;
    Ok(task.map_or(Request::Join(session), |task| Request::Copy(Box::new(task), session)))
}

fn wrong<T>(what: impl Into<Reason>) -> Result<T> {
    Err(Error::Protocol(what.into()))
}

fn needed<T>(field: Option<T>, otherwise: &str) -> Result<T> {
    field.map_or_else(|| wrong(otherwise), Ok)
}

/// The oldest version that supports everything in the task.
fn version(task: &Task) -> u64 {
    match task {
        Task::Put { store: StoreOptions { delete: Some(Delete { confirmed: Some(_), .. }), .. }, .. } => 7,
        Task::Get(what) if what.habits.is_asked() => 5,
        Task::Put { store, .. } if store.habits.is_asked() => 5,
        Task::Get(GetTask { frames: true, .. }) => 4,
        Task::Put { store, .. } if store.form == Form::AsTheyCame => 4,
        Task::Get(GetTask { stored: true, .. }) => 3,
        Task::Put { store, .. } if store.delete.is_some() || store.owner.is_some() => 2,
        Task::Put { .. } | Task::Get(_) => VERSION_FIRST,
    }
}

fn to_json(task: &Task) -> Value {
    match task {
        Task::Put { target, single, store } => json!({
            "version": version(task),
            "task": "put",
            "target": escaped(target),
            "single": single,
            "fsync": match store.fsync { Fsync::Each => "each", Fsync::Batch => "batch", Fsync::None => "none" },
            "devices": store.devices,
            "skips": store.unmade == Unmade::Skipped,
            "dry_run": store.dry_run,
            "owner": store.owner,
            "names": store.names,
            "set_id": store.set_id,
            "frames": store.form == Form::AsTheyCame,
            "images": store.images,
            "codes": store.codes,
            "holes": store.holes,
            "habits": store.habits.to_json(),
            "delete": store.delete.as_ref().map(|d| json!({
                "exclude": d.exclude,
                "max": d.max,
                "names": d.names,
                "confirmed": d.confirmed.map(|c| HEXLOWER.encode(&c.0)),
            })),
        }),
        Task::Get(GetTask {
            sources,
            recursive,
            exclude,
            dry_run,
            totals,
            stored,
            frames,
            images,
            codes,
            sockets,
            holes,
            habits,
        }) => json!({
            "version": version(task),
            "task": "get",
            "sources": sources.iter().map(|p| escaped(p)).collect::<Vec<_>>(),
            "recursive": recursive,
            "exclude": exclude,
            "dry_run": dry_run,
            "totals": totals,
            "stored": stored,
            "frames": frames,
            "images": images,
            "codes": codes,
            "sockets": sockets,
            "holes": holes,
            "habits": habits.to_json(),
        }),
    }
}

fn check_version(words: &Value) -> Result<()> {
    let version = needed(words["version"].as_u64(), "the client's request has no version")?;
    if !(VERSION_FIRST..=VERSION).contains(&version) {
        return wrong(format!("the client speaks version {version} and this program {VERSION}; upgrade the older one"));
    }
    Ok(())
}

fn measurement(words: &Value) -> Result<MeasureTask> {
    let host = words["host"].as_str().and_then(|text| u64::from_str_radix(text, 16).ok());
    let limit_ms = needed(words["limit_ms"].as_u64(), "the client does not say how long it measures")?;
    Ok(MeasureTask { limit_ms, host: needed(host, "the client's request to measure is malformed")? })
}

/// Parses a request for a copy; `None` for a further carrier of a running one.
fn from_json(words: &Value) -> Result<Option<Task>> {
    let flag = |name: &str| words[name].as_bool().unwrap_or(false);
    match words["task"].as_str() {
        Some("join") => Ok(None),
        Some("put") => Ok(Some(Task::Put {
            target: path(&words["target"])?,
            single: flag("single"),
            store: StoreOptions {
                fsync: match words["fsync"].as_str() {
                    Some("each") => Fsync::Each,
                    Some("none") => Fsync::None,
                    _ => Fsync::Batch,
                },
                devices: flag("devices"),
                unmade: if flag("skips") { Unmade::Skipped } else { Unmade::Failed },
                dry_run: flag("dry_run"),
                owner: match &words["owner"] {
                    Value::Null => None,
                    Value::Bool(owner) => Some(*owner),
                    _ => return wrong("the field for owners in the client's request is malformed"),
                },
                delete: delete(&words["delete"])?,
                names: flag("names"),
                set_id: flag("set_id"),
                form: if flag("frames") { Form::AsTheyCame } else { Form::Raw },
                images: flag("images"),
                codes: flag("codes"),
                holes: flag("holes"),
                habits: StoreHabits::from_json(&words["habits"])?,
            },
        })),
        Some("get") => {
            let sources = needed(words["sources"].as_array(), "the client names no source")?;
            Ok(Some(Task::Get(GetTask {
                sources: sources.iter().map(path).collect::<Result<_>>()?,
                recursive: flag("recursive"),
                exclude: patterns(&words["exclude"])?,
                dry_run: flag("dry_run"),
                totals: flag("totals"),
                stored: flag("stored"),
                frames: flag("frames"),
                images: flag("images"),
                codes: flag("codes"),
                sockets: flag("sockets"),
                holes: flag("holes"),
                habits: SourceHabits::from_json(&words["habits"])?,
            })))
        }
        _ => wrong("the client requests a task that this program does not know; upgrade it"),
    }
}

/// Parses the options of `--delete`. Every field is required, since ignoring one could remove
/// entries that the client wants to keep.
fn delete(words: &Value) -> Result<Option<Delete>> {
    if words.is_null() {
        return Ok(None);
    }
    let max = match &words["max"] {
        Value::Null => None,
        max => Some(needed(max.as_u64(), "the limit of removals in the client's request is malformed")?),
    };
    let names = needed(words["names"].as_bool(), "the options for removals in the client's request are malformed")?;
    let confirmed = match &words["confirmed"] {
        Value::Null => None,
        hash => {
            let bytes = hash.as_str().and_then(|text| HEXLOWER.decode(text.as_bytes()).ok());
            let hash = bytes.and_then(|bytes| bytes.try_into().ok());
            Some(Confirmed(needed(hash, "what the client agreed to remove is malformed")?))
        }
    };
    Ok(Some(Delete { exclude: patterns(&words["exclude"])?, max, names, confirmed }))
}

fn patterns(words: &Value) -> Result<Vec<String>> {
    let patterns = needed(words.as_array(), "the client's request has no patterns")?;
    let len: usize = patterns.iter().filter_map(Value::as_str).map(str::len).sum();
    if patterns.len() > PATTERNS_MAX || len > PATTERNS_LEN_MAX {
        return wrong(format!(
            "the patterns exceed the limit of {PATTERNS_MAX} patterns or {PATTERNS_LEN_MAX} bytes in all"
        ));
    }
    patterns.iter().map(|p| needed(p.as_str().map(str::to_owned), "a pattern is not text")).collect()
}

/// Escapes a path, which may contain any bytes, for JSON, which is text: `%` and all bytes that are
/// not printable ASCII become `%XX`.
fn escaped(path: &Path) -> String {
    let mut text = String::new();
    for &byte in path.as_os_str().as_bytes() {
        if byte == b'%' || !(byte.is_ascii_graphic() || byte == b' ') {
            text += &format!("%{byte:02X}");
        } else {
            text.push(char::from(byte));
        }
    }
    text
}

fn path(value: &Value) -> Result<PathBuf> {
    let text = needed(value.as_str(), "a path in the client's request is malformed")?;
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = rest.get(..2).and_then(|d| std::str::from_utf8(d).ok());
        let value = digits.and_then(|d| u8::from_str_radix(d, 16).ok());
        bytes.push(needed(value, "a path in the client's request is malformed")?);
        rest = &rest[2..];
    }
    if bytes.is_empty() || bytes.contains(&0) {
        return wrong("a path in the client's request is empty or has a zero byte");
    }
    Ok(OsString::from_vec(bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_back_and_nothing_behind_them_is_read() {
        let plain = StoreOptions {
            fsync: Fsync::Each,
            devices: true,
            unmade: Unmade::Skipped,
            dry_run: false,
            owner: None,
            delete: None,
            names: false,
            set_id: true,
            form: Form::AsTheyCame,
            images: true,
            codes: true,
            holes: true,
            habits: StoreHabits::default(),
        };
        let exclude = || vec!["*.o".into(), "!a.o".into()];
        let delete = |max: Option<u64>| {
            let confirmed = max.map(|_| NameSet::default().confirmed());
            Some(Delete { exclude: exclude(), max, names: true, confirmed })
        };
        let odd = PathBuf::from(OsString::from_vec(b"a %/\n\xff\xc3\xa9".to_vec()));
        let session = Session([0xa7; 16]);
        for task in [
            Task::Put { target: odd.clone(), single: true, store: plain.clone() },
            Task::Put {
                target: odd.clone(),
                single: false,
                store: StoreOptions { delete: delete(None), ..plain.clone() },
            },
            Task::Put {
                target: odd.clone(),
                single: false,
                store: StoreOptions { owner: Some(false), delete: delete(Some(u64::MAX)), ..plain },
            },
            Task::Get(GetTask {
                sources: vec![odd, "b/".into()],
                recursive: true,
                exclude: vec!["*.o".into()],
                dry_run: true,
                totals: true,
                stored: true,
                frames: true,
                images: true,
                codes: true,
                sockets: true,
                holes: true,
                habits: SourceHabits { rate: 7, ..SourceHabits::default() },
            }),
        ] {
            let request = Request::Copy(Box::new(task), session);
            let mut bytes = Vec::new();
            write(&request, &mut bytes).unwrap();
            let len = bytes.len();
            bytes.extend_from_slice(b"behind");
            let mut rest = &bytes[..];
            assert_eq!(read(&mut rest).unwrap(), request);
            assert_eq!(rest, b"behind");
            for cut in 0..len {
                assert!(read(&bytes[..cut]).is_err());
            }
        }
        let mut bytes = Vec::new();
        write(&Request::Join(session), &mut bytes).unwrap();
        assert_eq!(read(&bytes[..]).unwrap(), Request::Join(session));
        assert!(Session::random().unwrap() != Session::random().unwrap());
        assert!(read(&b"GET / HTTP/1.1\r\n\r\n"[..]).is_err());
        assert!(read(&[&MAGIC[..], &[255; 4]].concat()[..]).unwrap_err().to_string().contains("too long"));
    }

    #[test]
    fn what_an_older_program_would_pass_over_it_refuses() {
        let plain = StoreOptions {
            fsync: Fsync::Batch,
            devices: false,
            unmade: Unmade::Failed,
            dry_run: false,
            owner: None,
            delete: None,
            names: false,
            set_id: false,
            form: Form::Raw,
            images: false,
            codes: false,
            holes: false,
            habits: StoreHabits::default(),
        };
        let delete = Some(Delete { exclude: Vec::new(), max: None, names: false, confirmed: None });
        let confirmed = Some(NameSet::default().confirmed());
        let put = |store| to_json(&Task::Put { target: "t".into(), single: false, store });
        assert_eq!(put(plain.clone())["version"], 1, "older programs still do what they know");
        assert_eq!(put(StoreOptions { form: Form::AsTheyCame, ..plain.clone() })["version"], 4);
        assert_eq!(put(StoreOptions { owner: Some(true), ..plain.clone() })["version"], 2);
        let habits = StoreHabits { update: true, ..StoreHabits::default() };
        assert_eq!(put(StoreOptions { habits, ..plain.clone() })["version"], 5);
        let agreed = delete.clone().map(|delete| Delete { confirmed, ..delete });
        assert_eq!(put(StoreOptions { delete: agreed, ..plain.clone() })["version"], 7);
        let words = put(StoreOptions { delete, ..plain });
        assert_eq!(words["version"], 2);
        let refused = |name: &str, value: Value| {
            let mut words = words.clone();
            words[name] = value;
            check_version(&words).and_then(|()| from_json(&words)).unwrap_err().to_string()
        };
        assert!(refused("version", json!(VERSION + 1)).contains("upgrade the older one"));
        assert!(refused("version", json!(0)).contains("upgrade the older one"));
        // No field that protects entries may be lost.
        for bad in [
            json!(true),
            json!({}),
            json!({ "max": null, "names": true }),
            json!({ "exclude": [1], "max": null, "names": true }),
            json!({ "exclude": [], "max": -1, "names": true }),
            json!({ "exclude": [], "max": "5", "names": true }),
            json!({ "exclude": [], "max": null, "names": true, "confirmed": "7f" }),
            json!({ "exclude": [], "max": null, "names": true, "confirmed": 7 }),
        ] {
            refused("delete", bad);
        }
        refused("owner", json!("yes"));
    }
}
