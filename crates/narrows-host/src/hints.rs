//! Hints about files: the attribute of a file, and rules for a tree (docs/hints.md).

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, anyhow};
use globset::{GlobBuilder, GlobMatcher};
use narrows::Error;
use narrows::hint::{HINT_MAX, Hint};
use toml::de::{DeTable, DeValue};

use crate::follow;

/// Attribute of a file that has its hint.
pub const ATTRIBUTE: &str = "user.narrows.hint";
/// File of rules, for the folder that it is in and those below.
pub const RULES: &str = ".narrows.toml";
/// Longest file of rules in bytes: some hundred rules with their reasons.
const RULES_LEN_MAX: u64 = 64 << 10;
/// Most rules in a file: each is tried on every file below.
const RULES_MAX: usize = 1000;
/// Most patterns of a rule.
const PATTERNS_MAX: usize = 1000;
/// Most folders that are looked at from a file upwards.
const DEPTH_MAX: usize = 64;
/// Folders whose rules are remembered.
const FOLDERS_MAX: usize = 4096;

/// Finds the hints of files, and remembers the rules of folders.
#[derive(Default)]
pub struct Hints {
    folders: HashMap<PathBuf, Option<Arc<Rules>>>,
    /// The folder of the last file, as it was named and by its own path: the next is often there too.
    last: Option<(PathBuf, PathBuf)>,
}

impl Hints {
    /// What attribute and rules say of a file, in this order. Neither is an empty hint.
    ///
    /// # Errors
    /// The attribute or a file of rules is no hint; the error names it, and the line.
    pub fn of(&mut self, path: &Path) -> Result<Hint> {
        let own = attribute(path)?.unwrap_or_default();
        if own.is_never() {
            return Ok(own);
        }
        Ok(own.or(self.by_rules(path)?.unwrap_or_default()))
    }

    /// The hint of the nearest file of rules that has one for `path`.
    ///
    /// # Errors
    /// A file of rules is none; the error names it, and the line.
    pub fn by_rules(&mut self, path: &Path) -> Result<Option<Hint>> {
        let Some(name) = path.file_name() else { return Ok(None) };
        let folder = crate::whole::folder_of(path);
        let folder = match &self.last {
            Some((named, own)) if named == folder => own.clone(),
            _ => {
                let own = folder.canonicalize().or_else(|_| std::path::absolute(folder))?;
                self.last = Some((folder.to_owned(), own.clone()));
                own
            }
        };
        let full = folder.join(name);
        for folder in folder.ancestors().take(DEPTH_MAX) {
            let Some(rules) = self.rules(folder) else { continue };
            // A file that will be written has no owner yet.
            let owner = path.metadata().ok().map(|data| data.uid());
            if !rules.counts_for(owner) {
                continue;
            }
            let below = full.strip_prefix(folder).unwrap_or(&full);
            if let Some(hint) = rules.find(below)? {
                return Ok(Some(hint.clone()));
            }
        }
        Ok(None)
    }

    fn rules(&mut self, folder: &Path) -> Option<Arc<Rules>> {
        if let Some(known) = self.folders.get(folder) {
            return known.clone();
        }
        let rules = Rules::load(&folder.join(RULES)).map(Arc::new);
        if self.folders.len() >= FOLDERS_MAX {
            self.folders.clear();
        }
        self.folders.insert(folder.to_owned(), rules.clone());
        rules
    }
}

/// The hint in the attribute of a file.
///
/// # Errors
/// The attribute is no hint.
pub fn attribute(path: &Path) -> Result<Option<Hint>> {
    let mut value = [0; HINT_MAX];
    // Not every file system has attributes.
    let Ok(len) = rustix::fs::getxattr(path, ATTRIBUTE, &mut value[..]) else { return Ok(None) };
    let text = std::str::from_utf8(&value[..len]).unwrap_or("\u{fffd}");
    let hint = text.parse().map_err(|e: Error| Error::misuse(format!("{}: {ATTRIBUTE}: {e}", path.display())))?;
    Ok(Some(hint))
}

/// Each with its patterns.
type List = Vec<(Vec<GlobMatcher>, Hint)>;

/// The rules of one file, or what is wrong with it.
struct Rules {
    /// Of the file, and of the links that lead to it.
    owners: Vec<u32>,
    rules: std::result::Result<List, String>,
}

impl Rules {
    fn load(path: &Path) -> Option<Self> {
        let wrong = |why: String| format!("{}: {why}", path.display());
        match follow::open_with_owners(path) {
            Ok((file, owners)) => Some(Self { owners, rules: Self::read(file).map_err(wrong) }),
            // Everyone who works below opens it: a pipe or a device is none, and whose it is says the file system.
            Err(e) => {
                let data = path.metadata().ok().filter(fs::Metadata::is_file)?;
                let link = path.symlink_metadata().ok()?;
                Some(Self { owners: vec![link.uid(), data.uid()], rules: Err(wrong(e.to_string())) })
            }
        }
    }

    fn read(file: File) -> std::result::Result<List, String> {
        let mut text = String::new();
        file.take(RULES_LEN_MAX + 1).read_to_string(&mut text).map_err(|e| e.to_string())?;
        if text.len() as u64 > RULES_LEN_MAX {
            return Err(format!("it has more than {RULES_LEN_MAX} bytes"));
        }
        parse(&text).map_err(|(at, why)| {
            let line = text.bytes().take(at).filter(|b| *b == b'\n').count() + 1;
            format!("line {line}: {why}")
        })
    }

    /// The rules of others are not followed: they could make a user's files large, or his processors
    /// busy. The owner of a file may say how it is stored. A link of others to a file of the user is theirs:
    /// what it says was not meant for this folder.
    fn counts_for(&self, owner: Option<u32>) -> bool {
        let own = rustix::process::geteuid().as_raw();
        self.owners.iter().all(|by| [Some(0), Some(own), owner].contains(&Some(*by)))
    }

    /// The last rule that has the file counts.
    fn find(&self, below: &Path) -> Result<Option<&Hint>> {
        let rules = self.rules.as_ref().map_err(|why| Error::misuse(why.clone()))?;
        let found = rules.iter().rev().find(|(patterns, _)| patterns.iter().any(|p| p.is_match(below)));
        Ok(found.map(|(_, hint)| hint))
    }
}

/// An error, and the byte that it is about.
type At = (usize, String);

fn parse(text: &str) -> std::result::Result<List, At> {
    let table = DeTable::parse(text).map_err(|e| (e.span().map_or(0, |span| span.start), e.message().to_owned()))?;
    let mut rules = Vec::new();
    for (key, value) in table.get_ref() {
        let at = key.span().start;
        if key.get_ref() != "hint" {
            return Err((at, format!("`{}` is not known here; rules begin with [[hint]]", key.get_ref())));
        }
        let list = value.get_ref().as_array().ok_or((at, "rules begin with [[hint]]".to_owned()))?;
        if list.len() > RULES_MAX {
            return Err((at, format!("more than {RULES_MAX} rules")));
        }
        for rule in list.iter() {
            let table = rule.get_ref().as_table().ok_or((rule.span().start, "rules begin with [[hint]]".to_owned()))?;
            rules.push(parse_rule(table, rule.span().start)?);
        }
    }
    Ok(rules)
}

fn parse_rule(table: &DeTable<'_>, at: usize) -> std::result::Result<(Vec<GlobMatcher>, Hint), At> {
    let (mut patterns, mut hint) = (Vec::new(), Hint::default());
    for (key, value) in table {
        let at = value.span().start;
        let values = words(value.get_ref()).ok_or((at, "a text, a number, true, false or a list of texts".to_owned()));
        let values = values.map_err(|(at, what)| (at, format!("{} must be {what}", key.get_ref())))?;
        if key.get_ref() == "files" {
            if values.len() > PATTERNS_MAX {
                return Err((at, format!("more than {PATTERNS_MAX} patterns in a rule")));
            }
            patterns = values.iter().map(|text| pattern(text)).collect::<Result<_, _>>().map_err(|why| (at, why))?;
        } else {
            hint.set(key.get_ref(), &values.join("+")).map_err(|e| (at, e.to_string()))?;
        }
    }
    if patterns.is_empty() {
        return Err((at, "the rule has no files = \"PATTERN\"".to_owned()));
    }
    if hint.is_empty() {
        return Err((at, "the rule has no hint, such as never = true or mode = \"archive\"".to_owned()));
    }
    Ok((patterns, hint))
}

/// A pattern without a slash is one for names in any folder; another one is for paths from the folder of
/// the rules on.
fn pattern(text: &str) -> std::result::Result<GlobMatcher, String> {
    let path = match text.strip_prefix('/') {
        Some(path) => path.to_owned(),
        None if text.contains('/') => text.to_owned(),
        None => format!("**/{text}"),
    };
    let glob = GlobBuilder::new(&path).literal_separator(true).build();
    glob.map(|glob| glob.compile_matcher()).map_err(|e| e.to_string())
}

fn words(value: &DeValue<'_>) -> Option<Vec<String>> {
    match value {
        DeValue::String(text) => Some(vec![text.to_string()]),
        DeValue::Integer(number) => Some(vec![number.as_str().to_owned()]),
        DeValue::Boolean(is) => Some(vec![is.to_string()]),
        DeValue::Array(list) => list.iter().map(|v| v.get_ref().as_str().map(str::to_owned)).collect(),
        _ => None,
    }
}

/// Sets the attribute of a file.
///
/// # Errors
/// The file system has none, or refuses it.
pub fn set_attribute(path: &Path, hint: &Hint) -> Result<()> {
    let flags = rustix::fs::XattrFlags::empty();
    let set = rustix::fs::setxattr(path, ATTRIBUTE, hint.to_string().as_bytes(), flags);
    set.map_err(|e| anyhow!("cannot set {ATTRIBUTE} of {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
[[hint]]
files = '*'
mode = 'fast'

[[hint]]
files = ['*.jpg', 'raw/**']
never = true

[[hint]]
files = '/top.log'
mode = 'archive'
encode_rate = '200MB/s'
decode_rate = 500000000
methods = ['lz4', 'zstd:level=4']
";

    fn tree() -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir_all(tree.path().join("raw/deep")).unwrap();
        fs::write(tree.path().join(RULES), TEXT).unwrap();
        tree
    }

    #[test]
    fn the_last_rule_of_the_nearest_file_counts() {
        let tree = tree();
        let mut hints = Hints::default();
        let mut at = |path: &str| hints.of(&tree.path().join(path)).unwrap().to_string();
        assert_eq!(at("a"), "mode=fast");
        assert_eq!(at("raw/deep/b"), "never");
        assert_eq!(at("deep.jpg"), "never");
        let all = "mode=archive,encode_rate=200000000,decode_rate=500000000,methods=lz4+zstd:level=4";
        assert_eq!(at("top.log"), all);
        assert_eq!(at("raw/top.log"), "never");
        fs::write(tree.path().join("raw").join(RULES), "[[hint]]\nfiles = 'b'\nmode = 'balanced'\n").unwrap();
        let mut hints = Hints::default();
        let mut at = |path: &str| hints.of(&tree.path().join(path)).unwrap().to_string();
        assert_eq!(at("raw/deep/b"), "mode=balanced");
        assert_eq!(at("raw/deep/c"), "never", "it has no rule in the nearest file");
    }

    #[test]
    fn the_attribute_is_stronger_than_the_rules() {
        let tree = tree();
        let path = tree.path().join("raw/kept");
        fs::write(&path, "x").unwrap();
        if set_attribute(&path, &"encode_rate=5".parse().unwrap()).is_err() {
            narrows_test::skip("attributes of hints: this file system has none");
            return;
        }
        assert!(Hints::default().of(&path).unwrap().is_never());
        set_attribute(&path, &"mode=archive".parse().unwrap()).unwrap();
        assert_eq!(Hints::default().of(&path).unwrap().to_string(), "mode=archive");
        rustix::fs::setxattr(&path, ATTRIBUTE, b"loud", rustix::fs::XattrFlags::empty()).unwrap();
        let error = Hints::default().of(&path).unwrap_err().to_string();
        assert!(error.contains("kept: user.narrows.hint: `loud` is no hint"), "{error}");
    }

    #[test]
    fn a_bad_file_of_rules_is_named_with_its_line() {
        for (text, line, why) in [
            ("[[hint]]\nfiles = '*'\nmode = 'slow'\n", 3, "`slow` is no mode"),
            ("\n[[hint]]\nfiles = '*'\n", 2, "the rule has no hint"),
            ("[[hint]]\nmode = 'fast'\n", 1, "the rule has no files"),
            ("[[hint]]\nfiles = '*'\n\nspeed = 5\n", 4, "`speed` is no hint"),
            ("[[hint]]\nfiles = 5.5\nnever = true\n", 2, "files must be a text"),
            ("[[hint]]\nfiles = '['\nnever = true\n", 2, "unclosed character class"),
            ("# nothing\nhint = 5\n", 2, "rules begin with [[hint]]"),
            ("# nothing\n[hints]\n", 2, "`hints` is not known here"),
            ("[[hint]]\nfiles = '*\n", 2, ""),
            ("[[hint]]\nfiles = '*'\nnever = 'yes'\n", 3, "`yes` is not true or false"),
        ] {
            let tree = tempfile::tempdir().unwrap();
            fs::write(tree.path().join(RULES), text).unwrap();
            let error = Hints::default().of(&tree.path().join("x")).unwrap_err().to_string();
            assert!(error.contains(&format!("{RULES}: line {line}: ")) && error.contains(why), "{text}: {error}");
        }
        let tree = tempfile::tempdir().unwrap();
        fs::write(tree.path().join(RULES), "#".repeat(RULES_LEN_MAX as usize + 1)).unwrap();
        assert!(Hints::default().of(&tree.path().join("x")).is_err());
        let many = "[[hint]]\nfiles='*'\nnever=true\n".repeat(RULES_MAX + 1);
        assert!(parse(&many).is_err());
    }

    #[test]
    fn the_rules_of_others_do_not_count() {
        let own = rustix::process::geteuid().as_raw();
        let by = |owner| Rules { owners: vec![own, owner], rules: Ok(Vec::new()) };
        assert!(by(own).counts_for(None) && by(0).counts_for(None) && by(own + 1).counts_for(Some(own + 1)));
        assert!(!by(own + 1).counts_for(Some(own)));
    }

    #[test]
    fn a_link_of_others_to_rules_of_ones_own_does_not_count() {
        if !rustix::process::geteuid().is_root() {
            return narrows_test::skip("needs root, to make a link of somebody else");
        }
        let (tree, own) = (tree(), tempfile::tempdir().unwrap());
        let link = own.path().join(RULES);
        std::os::unix::fs::symlink(tree.path().join(RULES), &link).unwrap();
        let hint = || Hints::default().of(&own.path().join("a")).unwrap().to_string();
        assert_eq!(hint(), "mode=fast");
        std::os::unix::fs::lchown(&link, Some(65_534), None).unwrap();
        assert_eq!(hint(), "");
        // Nor is anything said of what is in it.
        fs::write(tree.path().join(RULES), "secret").unwrap();
        assert_eq!(hint(), "");
    }

    #[test]
    fn a_pipe_is_no_file_of_rules() {
        let tree = tempfile::tempdir().unwrap();
        let (path, kind) = (tree.path().join(RULES), rustix::fs::FileType::Fifo);
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, rustix::fs::Mode::RWXU, 0).unwrap();
        assert!(Hints::default().of(&tree.path().join("a")).unwrap().is_empty());
    }
}
