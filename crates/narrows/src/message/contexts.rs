//! Per-thread state to encode and decode messages of any number of flows: tables, codec contexts,
//! buffers.

use super::MESSAGE_MAX;
use crate::codec::{DictionaryContexts, LinkedTable};

/// Number of tables over histories. Each takes 16 KiB: together they stay in the second-level
/// cache. If more flows take turns, they would miss the cache even with tables of their own.
const TABLES: usize = 32;

/// Contexts of one thread, shared by all flows that it encodes or decodes.
pub struct Contexts {
    tables: Vec<Owned>,
    clock: u64,
    pub(super) codecs: DictionaryContexts,
    /// Buffer for any body.
    pub(super) encoded: Vec<u8>,
    /// Buffer for any message.
    pub(super) decoded: Vec<u8>,
}

struct Owned {
    /// The flow that used the table last.
    flow: u64,
    used: u64,
    table: LinkedTable,
}

impl Default for Contexts {
    fn default() -> Self {
        Self {
            tables: Vec::new(),
            clock: 0,
            codecs: DictionaryContexts::default(),
            encoded: vec![0; LinkedTable::bound(MESSAGE_MAX)],
            decoded: vec![0; MESSAGE_MAX],
        }
    }
}

impl Contexts {
    /// The flow's table, or else the least recently used one, and a buffer for a body. `hint`
    /// remembers the index.
    pub(super) fn table(&mut self, flow: u64, hint: &mut u8) -> (&mut LinkedTable, &mut [u8]) {
        self.clock += 1;
        let mine = self.tables.get(usize::from(*hint)).is_some_and(|t| t.flow == flow);
        if !mine {
            let of_flow = self.tables.iter().position(|t| t.flow == flow);
            let at = of_flow.unwrap_or_else(|| {
                if self.tables.len() < TABLES {
                    self.tables.push(Owned { flow, used: 0, table: LinkedTable::default() });
                    return self.tables.len() - 1;
                }
                (0..TABLES).min_by_key(|i| self.tables[*i].used).unwrap_or(0)
            });
            *hint = at as u8;
        }
        let owned = &mut self.tables[usize::from(*hint)];
        if owned.flow != flow {
            // The bytes it refers to may be gone, and others may be in their place.
            owned.table.forget();
        }
        (owned.flow, owned.used) = (flow, self.clock);
        (&mut owned.table, &mut self.encoded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_bounded_and_the_least_used_goes() {
        let mut contexts = Contexts::default();
        let mut hints = [0; 100];
        for flow in 0..100 {
            contexts.table(flow, &mut hints[flow as usize]);
            contexts.table(3, &mut hints[3]);
        }
        assert_eq!(contexts.tables.len(), TABLES);
        assert!(contexts.tables.iter().any(|t| t.flow == 3) && contexts.tables.iter().all(|t| t.flow != 4));
    }
}
