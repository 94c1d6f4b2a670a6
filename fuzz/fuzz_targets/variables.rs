//! Arbitrary bytes as an HDF5 file, a .zip file with a Zarr store, a file of chunks, and metadata of Zarr.
//! Whatever opens is checked, and read element by element, within what the file's length allows.
#![no_main]

use std::num::NonZero;

use libfuzzer_sys::fuzz_target;
use narrows_variables::{Side, Store, check, compare, plane, zarr_metadata};

/// Bytes of a variable that are read: enough for every path, little enough for many runs.
const RAW_MAX: u64 = 1 << 16;
/// First bytes of HDF5.
const MAGIC: &[u8] = b"\x89HDF\r\n\x1a\n";

fuzz_target!(|bytes: &[u8]| {
    let one = NonZero::<usize>::MIN;
    if let Ok(Some(variable)) = zarr_metadata("a", bytes) {
        assert!(variable.fill.is_empty() || variable.fill.len() == variable.element.bytes);
        assert_eq!(variable.axes.len(), variable.shape.len());
    }
    // Both with the beginning that the bytes have, and with that of HDF5.
    let forced = [MAGIC, bytes.get(8..).unwrap_or_default()].concat();
    for file in [bytes.to_vec(), forced] {
        let Ok(Some(store)) = Store::of_memory(file) else { continue };
        for variable in store.variables.iter().take(8) {
            let found = check(&store, variable, one);
            assert!(found.damaged.len() as u64 <= found.damaged_count);
            if variable.raw_bytes() <= RAW_MAX && variable.chunks_max() <= RAW_MAX {
                let side = Side { store: &store, variable };
                if let Ok(errors) = compare(side, side, one) {
                    assert_eq!(errors.different, 0, "an array differs from itself");
                }
                let _ = plane(&store, variable);
            }
        }
    }
});
