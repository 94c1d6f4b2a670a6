//! Four kinds of data with their costs, made without a clock.

use std::sync::OnceLock;

use narrows::block::Block;
use narrows::codec::{Contexts, DEFAULT_METHODS, Method};
use narrows_sim::measure::measurable;
use narrows_sim::rng::Rng;
use narrows_sim::table::{CLASSES, Cost, Table};

const POOL_LEN: usize = 1 << 20;

/// Four kinds of data. Sizes are those of the codecs, times the nominal ones, so every machine has the
/// same table.
pub(crate) fn tables() -> &'static [Table] {
    static TABLES: OnceLock<Vec<Table>> = OnceLock::new();
    TABLES.get_or_init(made)
}

fn made() -> Vec<Table> {
    let mut rng = Rng(7);
    let mut lines = Vec::new();
    while lines.len() < POOL_LEN {
        let (a, b, c) = (rng.below(200), rng.below(1 << 16), rng.below(9));
        lines.extend_from_slice(format!("10.0.{c}.{a} - GET /item/{b}/view?page={c} 200 {}\n", a * 37).as_bytes());
    }
    let mut records = Vec::new();
    let mut value = 0i32;
    while records.len() < POOL_LEN {
        value += rng.below(40) as i32 - 20;
        records.extend_from_slice(&value.to_le_bytes());
        records.extend_from_slice(&[0, 0, rng.below(4) as u8, 1]);
    }
    let mut words = Vec::new();
    while words.len() < POOL_LEN {
        let most = 1 + rng.below(3000);
        let word = rng.below(most);
        words.extend_from_slice(format!("{:x}{} ", word * 7919 % 60_000, ["a", "en", "ing", ""][word % 4]).as_bytes());
    }
    let noise: Vec<u8> = (0..POOL_LEN).map(|_| rng.next_u64() as u8).collect();
    let pools = [("lines", lines), ("records", records), ("words", words), ("noise", noise)];
    pools.into_iter().map(|(name, bytes)| table(name, bytes)).collect()
}

fn table(name: &str, mut bytes: Vec<u8>) -> Table {
    bytes.truncate(POOL_LEN);
    let methods = measurable(DEFAULT_METHODS);
    let mut table = Table::new(name, Block::from_vec(bytes), methods.clone());
    let mut contexts = Contexts::default();
    for (class, class_len) in CLASSES.into_iter().enumerate() {
        for i in 0..POOL_LEN / class_len {
            let raw = table.block(class, i).to_vec();
            let row = methods.iter().map(|m| cost(&mut contexts, *m, &raw)).collect();
            table.push(class, row);
        }
    }
    table
}

fn cost(contexts: &mut Contexts, method: Method, raw: &[u8]) -> Cost {
    let mut wire = vec![0; raw.len()];
    let n = raw.len() as f64;
    let wire_len = contexts.encoder(method.info()).encode(method.level, &[], raw, &mut wire).unwrap_or(raw.len());
    let decode_ns = n * f64::from(method.info().nominal_ns_per_byte(method.level).1);
    // On noise codecs soon give up.
    let effort = if wire_len < raw.len() { 1.0 } else { 0.2 };
    Cost { encode_ns: effort * method.nominal_encode_ns(raw.len()) as f64, decode_ns, wire_len: wire_len as f64 }
}
