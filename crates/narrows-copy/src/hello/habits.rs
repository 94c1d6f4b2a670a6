//! The part of a request that asks for habits of `rsync`: which files the sending end picks, and how the
//! storing end treats what is there already.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::partial_dir::PartialDir;
use super::{escaped, needed, path, wrong};
use crate::error::Result;
use crate::filter;

/// Most paths of `--files-from` in one request; the length of the request limits them too.
pub(super) const FILES_MAX: usize = 1 << 20;
/// Most folders of `--link-dest`: as many as rsync takes.
pub const LINK_DEST_MAX: usize = 20;

/// What the storing end does with files that are there already.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreHabits {
    /// Files that are newer at the target stay.
    pub update: bool,
    /// Files are the same if their contents are, whatever their times. Entries have digests then.
    pub checksum: bool,
    /// Missing folders above the target are created.
    pub make_parents: bool,
    /// What is replaced or removed is kept under another name.
    pub backup: Option<Backup>,
    /// Folders beside the target, whose files become hard links if they are the same.
    pub link_dest: Vec<PathBuf>,
    /// Each change is reported as `rsync -i` does.
    pub itemize: bool,
    /// Folders in which another file system is mounted come without what is in them.
    pub one_file_system: bool,
    /// Where files that are not whole yet live, if not beside their targets.
    pub partial_dir: Option<PartialDir>,
}

/// Where `--backup` keeps what is replaced or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backup {
    /// Added to the name; may be empty only with a folder.
    pub suffix: String,
    /// A folder below the target, which gets the same paths.
    pub dir: Option<PathBuf>,
}

/// Which entries the sending end picks, and what it does with them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceHabits {
    /// Symbolic links are replaced by what they point to.
    pub follow: bool,
    /// Other file systems that are mounted in a source are left out.
    pub one_file_system: bool,
    /// Entries get the digests of their contents.
    pub checksum: bool,
    /// Files are removed once they are stored.
    pub remove_sources: bool,
    /// Only these paths below the source, as `--files-from` names them; a slash after a folder means
    /// what is in it.
    pub files: Option<Vec<PathBuf>>,
    /// Most bytes per second on the link; 0 is no limit.
    pub rate: u64,
    /// The copy yields to all other traffic on the link.
    pub yields: bool,
}

impl StoreHabits {
    /// Whether anything is asked for that an older storing end does not know.
    pub(super) fn is_asked(&self) -> bool {
        *self != Self::default()
    }

    pub(super) fn to_json(&self) -> Value {
        if !self.is_asked() {
            return Value::Null;
        }
        let mut words = json!({
            "update": self.update,
            "checksum": self.checksum,
            "make_parents": self.make_parents,
            "backup": self.backup.as_ref().map(|b| json!({ "suffix": b.suffix, "dir": b.dir.as_ref().map(|d| escaped(d)) })),
            "link_dest": self.link_dest.iter().map(|p| escaped(p)).collect::<Vec<_>>(),
            "itemize": self.itemize,
            "one_file_system": self.one_file_system,
        });
        // A server that does not know a member refuses it, so what is not asked for is not named.
        if let Some(dir) = &self.partial_dir {
            words["partial_dir"] = escaped(dir.path()).into();
        }
        words
    }

    pub(super) fn from_json(words: &Value) -> Result<Self> {
        let Some(words) = members(
            words,
            &["update", "checksum", "make_parents", "backup", "link_dest", "itemize", "one_file_system", "partial_dir"],
        )?
        else {
            return Ok(Self::default());
        };
        let flag = |name: &str| words.get(name).and_then(Value::as_bool).unwrap_or(false);
        let link_dest = match words.get("link_dest") {
            None => Vec::new(),
            Some(all) => paths(all, LINK_DEST_MAX)?,
        };
        let backup = match words.get("backup") {
            None | Some(Value::Null) => None,
            Some(words) => Some(Backup::from_json(words)?),
        };
        let partial_dir = match words.get("partial_dir") {
            None | Some(Value::Null) => None,
            Some(dir) => PartialDir::new(&path(dir)?).or_else(wrong)?,
        };
        Ok(Self {
            update: flag("update"),
            checksum: flag("checksum"),
            make_parents: flag("make_parents"),
            backup,
            link_dest,
            itemize: flag("itemize"),
            one_file_system: flag("one_file_system"),
            partial_dir,
        })
    }
}

impl Backup {
    fn from_json(words: &Value) -> Result<Self> {
        let suffix = needed(words["suffix"].as_str(), "the suffix of backups in the client's request is malformed")?;
        let dir = match &words["dir"] {
            Value::Null => None,
            dir => Some(path(dir)?),
        };
        let backup = Self { suffix: suffix.to_owned(), dir };
        backup.check().map_or_else(wrong, |()| Ok(backup))
    }

    /// Checks that backups stay below the target and do not replace what they are backups of.
    ///
    /// # Errors
    /// The reason, for the user.
    pub fn check(&self) -> std::result::Result<(), String> {
        if self.suffix.contains(['/', '\0']) {
            return Err("the suffix of backups is part of a name, so it has no slash".into());
        }
        match &self.dir {
            None if self.suffix.is_empty() => Err("backups need a suffix or a folder of their own".into()),
            None => Ok(()),
            Some(dir) => self.dir_path(dir).map(drop),
        }
    }

    /// The path of the folder below the target.
    fn dir_path(&self, dir: &std::path::Path) -> std::result::Result<Vec<u8>, String> {
        let bad = || "--backup-dir is a folder below the target: give a relative path without ..".to_owned();
        let parts = dir.components().filter(|part| *part != std::path::Component::CurDir);
        let parts: Option<Vec<_>> = parts
            .map(|part| match part {
                std::path::Component::Normal(name) => Some(std::os::unix::ffi::OsStrExt::as_bytes(name)),
                _ => None,
            })
            .collect();
        let path = parts.ok_or_else(bad)?.join(&b'/');
        if path.is_empty() || narrows::entry::check_path(&path).is_err() { Err(bad()) } else { Ok(path) }
    }

    /// The path of the backup of `path`, below the target.
    pub(crate) fn path_of(&self, path: &[u8]) -> Vec<u8> {
        let dir = self.dir.as_ref().and_then(|dir| self.dir_path(dir).ok());
        let mut own = dir.map_or_else(Vec::new, |mut dir| {
            dir.push(b'/');
            dir
        });
        own.extend_from_slice(path);
        own.extend_from_slice(self.suffix.as_bytes());
        own
    }

    /// The pattern, as of `.gitignore`, of backups beside what they are backups of, which `--delete` leaves
    /// alone unless the patterns of the copy say otherwise.
    pub(crate) fn pattern_beside(&self) -> Option<String> {
        self.dir.is_none().then(|| format!("*{}", filter::escaped(&self.suffix)))
    }

    /// Path of the folder of backups below the target, if they have one.
    pub(crate) fn folder(&self) -> Option<Vec<u8>> {
        self.dir_path(self.dir.as_ref()?).ok()
    }

    /// Whether a file that is to be removed is a backup of an earlier copy: there are no backups of backups,
    /// which would get a longer name with every copy.
    pub(crate) fn is_one(&self, path: &[u8]) -> bool {
        let name = crate::tree::split(path).1;
        self.dir.is_none() && name.len() > self.suffix.len() && name.ends_with(self.suffix.as_bytes())
    }
}

impl SourceHabits {
    /// Whether anything is asked for that an older sending end does not know.
    pub(super) fn is_asked(&self) -> bool {
        *self != Self::default()
    }

    pub(super) fn to_json(&self) -> Value {
        if !self.is_asked() {
            return Value::Null;
        }
        let mut words = json!({
            "follow": self.follow,
            "one_file_system": self.one_file_system,
            "checksum": self.checksum,
            "remove_sources": self.remove_sources,
            "files": self.files.as_ref().map(|files| files.iter().map(|p| escaped(p)).collect::<Vec<_>>()),
            "rate": self.rate,
        });
        if self.yields {
            words["yields"] = true.into();
        }
        words
    }

    pub(super) fn from_json(words: &Value) -> Result<Self> {
        let known = ["follow", "one_file_system", "checksum", "remove_sources", "files", "rate", "yields"];
        let Some(words) = members(words, &known)? else { return Ok(Self::default()) };
        let flag = |name: &str| words.get(name).and_then(Value::as_bool).unwrap_or(false);
        let files = match words.get("files") {
            None | Some(Value::Null) => None,
            Some(all) => Some(paths(all, FILES_MAX)?),
        };
        Ok(Self {
            follow: flag("follow"),
            one_file_system: flag("one_file_system"),
            checksum: flag("checksum"),
            remove_sources: flag("remove_sources"),
            files,
            rate: words.get("rate").and_then(Value::as_u64).unwrap_or(0),
            yields: flag("yields"),
        })
    }
}

/// The members of an object, `None` without one. One that this program does not know is refused, since a
/// client relies on it.
fn members<'a>(words: &'a Value, known: &[&str]) -> Result<Option<&'a Map<String, Value>>> {
    if words.is_null() {
        return Ok(None);
    }
    let words = needed(words.as_object(), "the habits in the client's request are malformed")?;
    match words.keys().find(|name| !known.contains(&name.as_str())) {
        Some(name) => {
            let name = crate::shown(name.as_bytes());
            wrong(format!("the client asks for '{name}', which this program does not know; upgrade it"))
        }
        None => Ok(Some(words)),
    }
}

fn paths(words: &Value, most: usize) -> Result<Vec<PathBuf>> {
    let all = needed(words.as_array(), "a list of paths in the client's request is malformed")?;
    if all.len() > most {
        return wrong(format!("a list in the client's request has more than {most} paths"));
    }
    all.iter().map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backup(suffix: &str, dir: Option<&str>) -> Backup {
        Backup { suffix: suffix.into(), dir: dir.map(Into::into) }
    }

    #[test]
    fn backups_stay_below_the_target() {
        for bad in [
            ("", None),
            ("a/b", None),
            ("~", Some("/etc")),
            ("", Some("../up")),
            ("", Some("a/../../b")),
            ("", Some(".")),
        ] {
            let bad = backup(bad.0, bad.1);
            assert!(bad.check().is_err(), "{bad:?}");
            let asked = StoreHabits { backup: Some(bad), ..StoreHabits::default() };
            assert!(StoreHabits::from_json(&asked.to_json()).is_err(), "{asked:?}");
        }
        assert_eq!(backup("~", None).path_of(b"a/b"), b"a/b~");
        assert_eq!(backup("", Some("./old/")).path_of(b"a/b"), b"old/a/b");
        let places = |b: &Backup| (b.pattern_beside(), b.folder());
        assert_eq!(places(&backup(".x", Some("./old/"))), (None, Some(b"old".to_vec())));
        assert_eq!(places(&backup(".*", None)), (Some("*.\\*".into()), None));
        for (path, is_one) in [("a/b~", true), ("b~", true), ("a~/b", false), ("a/~", false)] {
            assert_eq!(backup("~", None).is_one(path.as_bytes()), is_one, "{path}");
            assert!(!backup("~", Some("old")).is_one(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn habits_come_back_and_unknown_ones_are_refused() {
        let store = StoreHabits {
            update: true,
            checksum: true,
            make_parents: true,
            backup: Some(backup("~", Some("old"))),
            link_dest: vec!["../yesterday".into(), "/abs".into()],
            itemize: true,
            one_file_system: true,
            partial_dir: Some(PartialDir::Beside("a b/%".into())),
        };
        assert_eq!(StoreHabits::from_json(&store.to_json()).unwrap(), store);
        let older = StoreHabits { partial_dir: None, ..store };
        assert!(older.to_json().get("partial_dir").is_none(), "an older server would refuse it");
        let source = SourceHabits {
            follow: true,
            one_file_system: true,
            checksum: true,
            remove_sources: true,
            files: Some(vec!["a b/%".into(), "c/".into()]),
            rate: 1 << 40,
            yields: true,
        };
        assert_eq!(SourceHabits::from_json(&source.to_json()).unwrap(), source);
        let older = SourceHabits { yields: false, ..source };
        assert!(older.to_json().get("yields").is_none(), "an older server would refuse it");
        assert_eq!(StoreHabits::from_json(&Value::Null).unwrap(), StoreHabits::default());
        for bad in [
            json!({ "later": true }),
            json!([]),
            json!({ "link_dest": vec!["x"; 21] }),
            json!({ "backup": true }),
            json!({ "partial_dir": "../x" }),
            json!({ "partial_dir": true }),
        ] {
            assert!(StoreHabits::from_json(&bad).is_err(), "{bad}");
        }
        for bad in [json!({ "later": true }), json!(7), json!({ "files": [""] }), json!({ "files": [7] })] {
            assert!(SourceHabits::from_json(&bad).is_err(), "{bad}");
        }
    }
}
