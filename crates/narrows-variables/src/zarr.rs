//! Zarr stores, versions 2 and 3, in a folder or a .zip file.

mod keys;
mod metadata;
mod zip;

use std::collections::HashMap;
use std::path::Path;

use narrows::{Error, Result};
use serde_json::Value;

use crate::budget::Held;
use crate::bytes::Bytes;
use crate::filter::crc32c;
use crate::place::{Chunking, KeyForm, Place, Shard};
use crate::variable::{Chunk, Variable, product};

pub(crate) use keys::Keys;

/// Names of metadata, by which a folder is a store.
pub(crate) const METADATA: [&str; 4] = [".zarray", ".zgroup", "zarr.json", ".zmetadata"];

/// Bytes of an entry of a shard's index: offset and length.
const ENTRY: u64 = 16;

/// Keys that were not read and are listed: of an array, and beside them.
const UNSEEN_MAX: usize = 20;

/// A store, its arrays, and what was not looked at beside them.
type Opened = (Keys, Vec<Variable>, Vec<String>);

/// The store in a folder.
pub(crate) fn open_folder(root: &Path) -> Result<Opened> {
    let keys = Keys::of_folder(root)?;
    let mut variables = variables(&keys)?;
    let unseen = unseen(&keys, &mut variables);
    Ok((keys, variables, unseen))
}

/// The store in a .zip file.
pub(crate) fn open_zip(bytes: Bytes) -> Result<Opened> {
    let keys = Keys::of_zip(bytes)?;
    let mut variables = variables(&keys)?;
    if variables.is_empty() && !keys.all.keys().any(|k| METADATA.iter().any(|name| k.ends_with(name))) {
        return Err(Error::unsupported("the .zip file holds no Zarr store"));
    }
    let unseen = unseen(&keys, &mut variables);
    Ok((keys, variables, unseen))
}

/// What metadata say of an array, for tests with arbitrary bytes.
pub(crate) fn parse(path: &str, json: &Value) -> Result<Option<Variable>> {
    match json.get("zarr_format").and_then(Value::as_u64) {
        Some(2) => metadata::version_2(path, json).map(Some),
        Some(3) if json.get("node_type").and_then(Value::as_str) == Some("group") => Ok(None),
        Some(3) => metadata::version_3(path, json).map(Some),
        _ => Err(Error::unsupported("metadata of a version of Zarr that is neither 2 nor 3")),
    }
}

fn variables(keys: &Keys) -> Result<Vec<Variable>> {
    let mut out = Vec::new();
    for key in keys.all.keys() {
        let (folder, name) = key.rsplit_once('/').unwrap_or(("", key));
        if name != ".zarray" && name != "zarr.json" {
            continue;
        }
        match keys.metadata(key).and_then(|json| json.map_or(Ok(None), |json| parse(folder, &json))) {
            Ok(found) => out.extend(found.map(|variable| with_missing(keys, variable))),
            Err(error) => out.push(Variable::broken(folder.to_owned(), error)),
        }
    }
    out.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(out)
}

/// Adds what the attributes of an array of version 2 name, which are beside its metadata. Those that cannot be
/// read name nothing.
fn with_missing(keys: &Keys, mut variable: Variable) -> Variable {
    let key = if variable.path.is_empty() { ".zattrs".into() } else { format!("{}/.zattrs", variable.path) };
    if keys.all.contains_key(&key)
        && let Ok(Some(attributes)) = keys.metadata(&key)
    {
        metadata::add_missing(&attributes, &mut variable);
    }
    variable
}

/// Tells each array what may be its chunks and is not read; gives back what may hold others.
fn unseen(keys: &Keys, variables: &mut Vec<Variable>) -> Vec<String> {
    let mut out = Vec::new();
    let by_path: HashMap<String, usize> = variables.iter().enumerate().map(|(i, v)| (v.path.clone(), i)).collect();
    for found in &keys.unseen {
        let (folder, name) = found.key.rsplit_once('/').unwrap_or(("", &found.key));
        if !found.is_folder && matches!(name, ".zarray" | "zarr.json") {
            variables.push(Variable::broken(folder.to_owned(), Error::unsupported(found.why)));
            continue;
        }
        // The array whose folder this is below, if there is one.
        let mut above = std::iter::successors(Some(folder), |f| Some(f.rsplit_once('/').map_or("", |f| f.0)))
            .take(folder.matches('/').count() + 2);
        let owner = above.find_map(|folder| by_path.get(folder));
        let list = match owner.map(|i| &mut variables[*i]) {
            Some(variable) if found.is_folder || is_chunk(variable, &found.key) => &mut variable.unseen,
            None if found.is_folder => &mut out,
            _ => continue,
        };
        if list.len() < UNSEEN_MAX {
            list.push(format!("{}: {}", found.key, found.why));
        } else if list.len() == UNSEEN_MAX {
            list.push("and more".into());
        }
    }
    variables.sort_by(|a, b| a.path.cmp(&b.path));
    out
}

fn is_chunk(variable: &Variable, key: &str) -> bool {
    matches!(&variable.place, Place::Zarr(chunking) if chunking.place(key).is_some())
}

/// Chunks that are listed, and their memory.
struct List {
    chunks: Vec<Chunk>,
    held: Held,
}

impl List {
    fn push(&mut self, chunk: Chunk) -> Result<()> {
        self.held.add(Chunk::memory(chunk.origin.len()))?;
        self.chunks.push(chunk);
        Ok(())
    }
}

impl Chunking {
    fn new(path: &str, form: KeyForm, separator: char, outer: Vec<u64>) -> Self {
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        Self { prefix, form, separator, outer, shard: None }
    }

    /// The place of a key in the grid, or `None` if it is no chunk.
    fn place(&self, key: &str) -> Option<Vec<u64>> {
        let mut rest = key.strip_prefix(&self.prefix)?;
        let rank = self.outer.len();
        if self.form == KeyForm::Three {
            rest = rest.strip_prefix('c')?;
            if rank > 0 {
                rest = rest.strip_prefix(self.separator)?;
            }
        }
        if rank == 0 {
            let expected = if self.form == KeyForm::Three { "" } else { "0" };
            return (rest == expected).then(Vec::new);
        }
        let numbers = rest.split(self.separator).map(|n| {
            let is_plain = n.bytes().all(|b| b.is_ascii_digit()) && (n == "0" || !n.starts_with('0'));
            n.parse::<u64>().ok().filter(|_| is_plain)
        });
        numbers.collect::<Option<Vec<_>>>().filter(|place| place.len() == rank)
    }

    /// All chunks that are stored and within the array.
    pub(crate) fn chunks(&self, keys: &Keys, variable: &Variable) -> Result<Vec<Chunk>> {
        let mut out = List { chunks: Vec::new(), held: keys.budget.held() };
        for (key, len) in keys.all.range(self.prefix.clone()..) {
            if !key.starts_with(&self.prefix) {
                break;
            }
            let Some(place) = self.place(key) else { continue };
            let origin: Vec<u64> = place.iter().zip(&self.outer).map(|(p, n)| p.saturating_mul(*n)).collect();
            if origin.iter().zip(&variable.shape).any(|(o, n)| o >= n) {
                continue;
            }
            let whole = Chunk { origin, len: *len, skipped: 0, at: 0, key: Some(key.as_str().into()) };
            match &self.shard {
                None => out.push(whole)?,
                Some(shard) => shard.chunks(keys, key, whole, &self.outer, variable, &mut out)?,
            }
        }
        let mut out = out.chunks;
        out.sort_by(|a, b| a.origin.cmp(&b.origin));
        Ok(out)
    }
}

impl Shard {
    fn chunks(
        &self,
        keys: &Keys,
        key: &str,
        whole: Chunk,
        outer: &[u64],
        variable: &Variable,
        out: &mut List,
    ) -> Result<()> {
        let counts: Vec<u64> = outer.iter().zip(&self.inner).map(|(o, i)| o / i).collect();
        let bad = |what: &str| Error::corrupt(format!("{key}: the index of the shard {what}"));
        let sum = if self.has_sum { 4 } else { 0 };
        let len = product(&counts).checked_mul(ENTRY).and_then(|len| len.checked_add(sum));
        let len = len.filter(|len| *len <= whole.len).ok_or_else(|| bad("is longer than the shard"))?;
        let at = if self.at_start { 0 } else { whole.len - len };
        out.held.add(len)?;
        let index = keys.read(key, at, len)?;
        let (entries, stated) = index.split_at((len - sum) as usize);
        if self.has_sum && crc32c(entries).to_le_bytes() != stated {
            return Err(bad("is damaged: its check sum differs"));
        }
        for (number, entry) in entries.chunks_exact(ENTRY as usize).enumerate() {
            let field = |i: usize| u64::from_le_bytes(entry[i..i + 8].try_into().expect("8 bytes"));
            let (at, len) = (field(0), field(8));
            if (at, len) == (u64::MAX, u64::MAX) {
                continue;
            }
            let mut rest = number as u64;
            let mut origin = whole.origin.clone();
            for axis in (0..origin.len()).rev() {
                origin[axis] = origin[axis].saturating_add(rest % counts[axis] * self.inner[axis]);
                rest /= counts[axis];
            }
            if origin.iter().zip(&variable.shape).all(|(o, n)| o < n) {
                out.push(Chunk { origin, len, skipped: 0, at, key: whole.key.clone() })?;
            }
        }
        Ok(())
    }
}

/// Reads a stored chunk.
pub(crate) fn read(keys: &Keys, chunk: &Chunk) -> Result<Vec<u8>> {
    let key = chunk.key.as_deref().ok_or_else(|| Error::misuse("the chunk is of another store"))?;
    keys.read(key, chunk.at, chunk.len)
}
