//! HDF5 files, NetCDF-4 included: superblock, groups, datasets, chunk indexes. Only what is needed to find
//! every stored chunk, and of attributes what says which values mark something missing.

mod array;
mod attribute;
mod group;
mod heap;
pub(crate) mod index;
mod object;
mod sum;
mod tree;

use std::collections::HashSet;

use narrows::{Error, Result};

use crate::bytes::Bytes;
use crate::fields::Fields;
use crate::variable::Variable;

pub(crate) use object::integer;

/// First bytes of the superblock, which is at 0, 512, 1024 and so on.
pub(crate) const MAGIC: &[u8; 8] = b"\x89HDF\r\n\x1a\n";

/// The highest version of superblocks, which HDF5 has written since 1.10.
const VERSION_MAX: u8 = 3;
/// Groups within groups.
const DEPTH_MAX: usize = 64;
/// Datasets and groups of a file. Each takes a few hundred bytes of memory.
const OBJECTS_MAX: usize = 1 << 20;
/// Offsets at which a superblock is looked for: user blocks are rarely longer than 512 bytes.
const PLACES: u32 = 16;

/// An open file.
pub(crate) struct Hdf5 {
    pub(crate) bytes: Bytes,
    /// Added to all addresses: the length of the user's block.
    base: u64,
    offset_len: usize,
    length_len: usize,
}

impl Hdf5 {
    /// Reads the superblock and every group.
    pub(crate) fn open(bytes: Bytes) -> Result<(Self, Vec<Variable>)> {
        let at = (0..PLACES).map(|i| if i == 0 { 0 } else { 256u64 << i });
        let mut here = at.take_while(|at| *at < bytes.len).filter_map(|at| {
            bytes.structure_up_to(at, 128).ok().filter(|head| head.starts_with(MAGIC)).map(|head| (at, head.to_vec()))
        });
        let (at, head) = here.next().ok_or_else(|| Error::corrupt("not an HDF5 file, or damaged at its beginning"))?;
        drop(here);
        let mut fields = Fields(&head[8..]);
        let version = fields.u8()?;
        // Versions of other structures, all 0, around a byte that is reserved.
        let others = if version < 2 { fields.uint(4)? & 0xff00_ffff } else { 0 };
        let (offset_len, length_len) = (usize::from(fields.u8()?), usize::from(fields.u8()?));
        if version > VERSION_MAX {
            return Err(Error::corrupt(format!(
                "not an HDF5 file, or damaged at its beginning: its superblock says version {version}, and \
                 {VERSION_MAX} is the highest that is known here"
            )));
        }
        if others != 0 {
            return Err(Error::corrupt("the superblock says versions of other structures that there are not"));
        }
        if ![2, 4, 8].contains(&offset_len) || ![2, 4, 8].contains(&length_len) {
            return Err(Error::corrupt(format!(
                "not an HDF5 file, or damaged at its beginning: its superblock says addresses of {offset_len} bytes \
                 and lengths of {length_len}, and they have 2, 4 or 8"
            )));
        }
        fields.skip(match version {
            0 => 9,
            1 => 13,
            _ => 1,
        })?;
        let mut file = Self { bytes, base: 0, offset_len, length_len };
        let base = fields.uint(offset_len)?;
        // A file with a block of the user that was added later still says 0.
        file.base = if base == 0 { at } else { base };
        if version >= 2 {
            sum::verify(&head, 12 + 4 * offset_len, at)?;
        }
        // Before the end: free space or an extension. Before the root: driver and name in old versions.
        fields.skip(offset_len)?;
        let end = fields.uint(offset_len)?;
        if end > file.bytes.len && end != u64::MAX >> (64 - 8 * offset_len) {
            let len = file.bytes.len;
            return Err(Error::truncated(format!("the file ends at byte {len} of {end}: it is cut short or damaged")));
        }
        fields.skip(offset_len * if version < 2 { 2 } else { 0 })?;
        let root = file.offset(&mut fields)?.ok_or_else(|| Error::corrupt("the file has no root group"))?;
        let variables = file.walk(root)?;
        Ok((file, variables))
    }

    /// An address, or `None` if it is not defined.
    pub(crate) fn offset(&self, fields: &mut Fields<'_>) -> Result<Option<u64>> {
        let at = fields.uint(self.offset_len)?;
        if at == u64::MAX >> (64 - 8 * self.offset_len) {
            return Ok(None);
        }
        at.checked_add(self.base).map(Some).ok_or_else(|| Error::corrupt("an address is beyond the file"))
    }

    pub(crate) fn length(&self, fields: &mut Fields<'_>) -> Result<u64> {
        fields.uint(self.length_len)
    }

    /// The most that an axis may have.
    pub(crate) fn axis_max(&self, fields: &mut Fields<'_>) -> Result<u64> {
        let max = fields.uint(self.length_len)?;
        Ok(if max == u64::MAX >> (64 - 8 * self.length_len) { u64::MAX } else { max })
    }

    pub(crate) fn offset_len(&self) -> usize {
        self.offset_len
    }

    pub(crate) fn length_len(&self) -> usize {
        self.length_len
    }

    /// Visits all groups; an object with several names has its first one.
    fn walk(&self, root: u64) -> Result<Vec<Variable>> {
        let mut seen = HashSet::from([root]);
        let mut out = Vec::new();
        let mut waiting = vec![(String::new(), root, 0)];
        while let Some((path, at, depth)) = waiting.pop() {
            // What a list of variables and groups takes for each.
            let budget = self.bytes.budget();
            budget.keep((size_of::<Variable>() + path.len()) as u64)?;
            let messages = match object::messages(self, at) {
                Ok(messages) => messages,
                Err(error) if depth > 0 => {
                    out.push(Variable::broken(path, error));
                    continue;
                }
                Err(error) => return Err(error),
            };
            match object::dataset(self, &path, &messages) {
                Ok(Some(mut variable)) => {
                    budget.keep(variable.memory())?;
                    match attribute::missing(self, &messages) {
                        Ok(missing) => variable.missing = missing,
                        Err(error) if variable.trouble.is_none() => variable.trouble(error),
                        Err(_) => {}
                    }
                    out.push(variable);
                    continue;
                }
                Ok(None) => {}
                Err(error) => {
                    out.push(Variable::broken(path, error));
                    continue;
                }
            }
            let links = match group::links(self, &messages) {
                Ok(links) => links,
                Err(error) if depth > 0 => {
                    out.push(Variable::broken(path, error));
                    continue;
                }
                Err(error) => return Err(error),
            };
            if depth == DEPTH_MAX {
                return Err(Error::limit(format!("groups of the file are more than {DEPTH_MAX} deep")));
            }
            for (name, at) in links {
                if seen.insert(at) {
                    let path = if path.is_empty() { name } else { format!("{path}/{name}") };
                    waiting.push((path, at, depth + 1));
                }
            }
            if seen.len() > OBJECTS_MAX {
                return Err(Error::limit(format!("the file has more than {OBJECTS_MAX} objects")));
            }
        }
        out.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(out)
    }
}
