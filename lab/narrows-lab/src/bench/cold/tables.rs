//! Cost tables of the bytes that `cold` sends. Measuring one takes longer than the transfers, so they
//! can be kept in a folder.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use narrows::block::Block;
use narrows::codec::DEFAULT_METHODS;
use narrows::stream;
use narrows_sim::measure::{linkable, measurable, measure};
use narrows_sim::table::Table;

/// Costs of every default method on these bytes, from `folder` if they were measured before.
pub(super) fn costs(name: &str, bytes: &[u8], folder: Option<&Path>) -> Result<Table> {
    let block = Block::from_vec(bytes.to_vec());
    let path = folder.map(|f| f.join(format!("{name}-{}.table", bytes.len())));
    // The hash in the table tells whether it is of these bytes.
    if let Some(text) = path.as_ref().and_then(|p| fs::read_to_string(p).ok())
        && let Ok(table) = Table::from_text(&text, block.clone())
    {
        return Ok(table);
    }
    let methods = measurable(DEFAULT_METHODS);
    let measured = measure(name, &block, (&methods, &linkable(&methods)), stream::cores(), &|_| (), &|| false)
        .context("measured")?;
    let text = measured.to_text();
    if let Some(path) = path {
        fs::write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    // As text and back, which is how stored tables are read.
    Table::from_text(&text, block)
}
