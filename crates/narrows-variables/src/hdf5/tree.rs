//! B-trees of version 2: records in the order of their keys.

use narrows::{Error, Result};

use super::{Hdf5, sum};
use crate::budget::Visits;
use crate::fields::Fields;

/// Levels, above what 2^64 records need.
const DEPTH_MAX: usize = 64;
/// Bytes of a node beside records: signature, version, type, check sum.
const NODE_HEAD: u64 = 10;

/// Bytes that numbers up to `max` take.
fn enc_len(max: u64) -> u64 {
    u64::from(max.max(1).ilog2()) / 8 + 1
}

/// Hands on each record, and returns the length of one. The tree's shape follows from its header.
pub(super) fn records(file: &Hdf5, at: u64, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let head = file.bytes.structure_up_to(at, 64)?;
    let mut fields = Fields(&head);
    fields.expect(b"BTHD")?;
    fields.skip(2)?;
    let (node_len, record_len) = (u64::from(fields.u32()?), u64::from(fields.u16()?));
    let depth = usize::from(fields.u16()?);
    fields.skip(2)?;
    let root = file.offset(&mut fields)?;
    let root_records = u64::from(fields.u16()?);
    file.length(&mut fields)?;
    sum::verify(&head, head.len() - fields.0.len(), at)?;
    let Some(root) = root else { return Ok(()) };
    if record_len == 0 || node_len < NODE_HEAD + record_len || depth > DEPTH_MAX {
        return Err(Error::corrupt("an index has nodes without records"));
    }
    // Bytes of a count of records in a child, and in all below it by level.
    let leaf_max = (node_len - NODE_HEAD) / record_len;
    let count_len = enc_len(leaf_max);
    let mut total_lens = vec![0];
    let mut total = leaf_max;
    for _ in 1..=depth {
        let pointer = file.offset_len() as u64 + count_len + total_lens.last().copied().unwrap_or(0);
        let max = node_len.saturating_sub(NODE_HEAD + pointer) / (record_len + pointer);
        total = max.saturating_add(1).saturating_mul(total).saturating_add(max);
        total_lens.push(enc_len(total));
    }
    let mut seen = Visits::new(file.bytes.budget());
    seen.is_first(root)?;
    let mut waiting = vec![(root, root_records, depth)];
    while let Some((at, count, level)) = waiting.pop() {
        let node = file.bytes.structure_up_to(at, node_len)?;
        let mut fields = Fields(&node);
        fields.expect(if level == 0 { b"BTLF" } else { b"BTIN" })?;
        fields.skip(2)?;
        let records = fields.take(count.saturating_mul(record_len).try_into().unwrap_or(usize::MAX))?;
        for record in records.chunks_exact(record_len as usize) {
            sink(record)?;
        }
        if level > 0 {
            for _ in 0..=count {
                let child = file.offset(&mut fields)?;
                let records = fields.uint(count_len as usize)?;
                fields.skip(total_lens[level - 1] as usize)?;
                let child = child.ok_or_else(|| Error::corrupt("an index has a node without children"))?;
                if !seen.is_first(child)? {
                    return Err(Error::corrupt("an index leads in circles"));
                }
                waiting.push((child, records, level - 1));
            }
        }
        sum::verify(&node, node.len() - fields.0.len(), at)?;
    }
    Ok(())
}
