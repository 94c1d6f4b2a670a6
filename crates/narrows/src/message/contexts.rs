//! What a thread needs to encode and decode messages of any number of flows: tables, contexts of codecs, room.

use super::MESSAGE_MAX;
use crate::codec::{DictionaryContexts, LinkedTable};

/// Tables over histories. Each has 16 KiB: together they stay in the second-level cache, and more flows than these taking
/// turns miss the cache with tables of their own anyway.
const TABLES: usize = 32;

/// Contexts of one thread, shared by all flows that it encodes or decodes.
pub struct Contexts {
    tables: Vec<Owned>,
    clock: u64,
    pub(super) codecs: DictionaryContexts,
    /// Room for any body.
    pub(super) encoded: Vec<u8>,
    /// Room for any message.
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
    /// The flow's table, or the one that was used longest ago, and room for a body. `hint` remembers which it was.
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
            // Its bytes may be gone, and others lie in their place.
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
