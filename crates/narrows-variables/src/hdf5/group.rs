//! Links of groups: symbol tables of older files, link messages and heaps of newer ones.

use narrows::{Error, Result};

use super::heap::Heap;
use super::object::{Message, kind};
use super::{Hdf5, tree};
use crate::budget::{Budget, Visits};
use crate::fields::Fields;

/// Longest name. HDF5 has no limit; file systems stop at 255.
const NAME_MAX: u64 = 4096;
/// Levels of a B-tree of version 1, above what 2^64 children need.
const LEVELS_MAX: u8 = 32;

/// Names and addresses of the objects that a group holds. Soft and external links lead elsewhere.
pub(super) fn links(file: &Hdf5, messages: &[Message]) -> Result<Vec<(String, u64)>> {
    let mut out = Vec::new();
    for message in messages {
        let mut fields = Fields(&message.data);
        match message.kind {
            kind::SYMBOL_TABLE => {
                if let (Some(at), Some(heap)) = (file.offset(&mut fields)?, file.offset(&mut fields)?) {
                    symbols(file, at, heap, &mut out)?;
                }
            }
            kind::LINK => push(file.bytes.budget(), link(file, &message.data)?, &mut out)?,
            kind::LINK_INFO => dense(file, &mut fields, &mut out)?,
            _ => {}
        }
    }
    Ok(out)
}

/// Adds a link, whose name stays in memory until its object was visited.
fn push(budget: &Budget, link: Option<(String, u64)>, out: &mut Vec<(String, u64)>) -> Result<()> {
    let Some((name, at)) = link else { return Ok(()) };
    budget.keep((size_of::<(String, u64)>() + name.len()) as u64)?;
    out.push((name, at));
    Ok(())
}

fn link(file: &Hdf5, data: &[u8]) -> Result<Option<(String, u64)>> {
    let mut fields = Fields(data);
    let (version, flags) = (fields.u8()?, fields.u8()?);
    if version != 1 {
        return Err(Error::unsupported(format!("links of version {version}")));
    }
    let kind = if flags & 8 != 0 { fields.u8()? } else { 0 };
    fields.skip(if flags & 4 != 0 { 8 } else { 0 } + usize::from(flags & 0x10 != 0))?;
    let len = fields.uint(1 << (flags & 3))?;
    if len > NAME_MAX {
        return Err(Error::limit(format!("a name of {len} bytes")));
    }
    let name = String::from_utf8_lossy(fields.take(len as usize)?).into_owned();
    if kind != 0 {
        return Ok(None);
    }
    Ok(file.offset(&mut fields)?.map(|at| (name, at)))
}

/// Links in a heap, found by their index of names.
fn dense(file: &Hdf5, fields: &mut Fields<'_>, out: &mut Vec<(String, u64)>) -> Result<()> {
    let (_version, flags) = (fields.u8()?, fields.u8()?);
    fields.skip(if flags & 1 != 0 { 8 } else { 0 })?;
    let (Some(heap), Some(names)) = (file.offset(fields)?, file.offset(fields)?) else { return Ok(()) };
    let heap = Heap::open(file, heap)?;
    tree::records(file, names, &mut |record| {
        // A hash, then the place in the heap.
        let id = record.get(4..).unwrap_or_default();
        push(file.bytes.budget(), link(file, &heap.object(file, id)?)?, out)
    })?;
    Ok(())
}

fn symbols(file: &Hdf5, tree: u64, heap: u64, out: &mut Vec<(String, u64)>) -> Result<()> {
    let head = file.bytes.structure(heap, 8 + 2 * file.length_len() as u64 + file.offset_len() as u64)?;
    let mut fields = Fields(&head);
    fields.expect(b"HEAP")?;
    fields.skip(4)?;
    let len = file.length(&mut fields)?;
    file.length(&mut fields)?;
    let Some(at) = file.offset(&mut fields)? else { return Ok(()) };
    let names = file.bytes.structure(at, len)?;
    let mut seen = Visits::new(file.bytes.budget());
    seen.is_first(tree)?;
    let mut waiting = vec![(tree, LEVELS_MAX)];
    while let Some((at, above)) = waiting.pop() {
        let head = file.bytes.structure(at, 8)?;
        if head.starts_with(b"SNOD") {
            let count = u16::from_le_bytes([head[6], head[7]]);
            let entry = 2 * file.offset_len() + 24;
            let node = file.bytes.structure(at + 8, u64::from(count) * entry as u64)?;
            for entry in node.chunks_exact(entry) {
                let mut fields = Fields(entry);
                let name_at = fields.uint(file.offset_len())?;
                let object = file.offset(&mut fields)?;
                // 2 is a soft link.
                let is_hard = fields.u32()? != 2;
                let name = usize::try_from(name_at).ok().and_then(|at| names.get(at..));
                let name = name.ok_or_else(|| Error::corrupt("a name is outside its heap"))?;
                let name = Fields(name).text()?;
                if name.len() as u64 > NAME_MAX {
                    return Err(Error::limit(format!("a name of {} bytes", name.len())));
                }
                if let (true, Some(object)) = (is_hard, object) {
                    let name = String::from_utf8_lossy(name).into_owned();
                    push(file.bytes.budget(), Some((name, object)), out)?;
                }
            }
            continue;
        }
        let mut fields = Fields(&head);
        fields.expect(b"TREE")?;
        let (kind, level, count) = (fields.u8()?, fields.u8()?, fields.u16()?);
        if kind != 0 || level >= above {
            return Err(Error::corrupt("an index of names has nodes that do not belong to it"));
        }
        let step = file.length_len() + file.offset_len();
        let node = file.bytes.structure(at + 8 + 2 * file.offset_len() as u64, u64::from(count) * step as u64)?;
        for pair in node.chunks_exact(step) {
            let child = file.offset(&mut Fields(&pair[file.length_len()..]))?;
            let Some(child) = child else { continue };
            if !seen.is_first(child)? {
                return Err(Error::corrupt("an index of names leads in circles"));
            }
            waiting.push((child, level.max(1)));
        }
    }
    Ok(())
}
