//! Zarr stores in folders: transposed arrays, arrays with few chunks, and what is not looked at.

use std::fs;
use std::num::NonZero;
use std::os::unix::fs::symlink;
use std::path::Path;

use narrows_array::{ArrayView, Bound, ByteOrder, Chooser, Dtype, Layout, Options};
use narrows_variables::{Errors, Side, Store, Variable, check, compare};
use rustix::fs::{CWD, FileType, Mode, mknodat};

const ONE: NonZero<usize> = NonZero::<usize>::MIN;

fn put(root: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    let file = root.join(name);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, bytes).unwrap();
}

/// Metadata of version 3 of an array of f32.
fn metadata(shape: &[u64], chunk: &[u64], fill: f32, codecs: &str) -> String {
    format!(
        r#"{{"zarr_format": 3, "node_type": "array", "shape": {shape:?}, "data_type": "float32", "fill_value": {fill},
            "chunk_grid": {{"name": "regular", "configuration": {{"chunk_shape": {chunk:?}}}}},
            "chunk_key_encoding": {{"name": "default"}}, "codecs": [{codecs}]}}"#
    )
}

const BYTES: &str = r#"{"name": "bytes", "configuration": {"endian": "little"}}"#;

fn only(store: &Store) -> &Variable {
    assert_eq!(store.variables.len(), 1);
    &store.variables[0]
}

fn open(root: &Path) -> Store {
    Store::open(root).unwrap().unwrap()
}

fn errors(a: &Store, b: &Store) -> narrows::Result<Errors> {
    compare(Side { store: a, variable: only(a) }, Side { store: b, variable: only(b) }, ONE)
}

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

#[test]
fn transposed_arrays_are_compared_by_their_own_axes() {
    const SHAPE: [u64; 3] = [4, 6, 10];
    const CHUNK: [u64; 3] = [2, 3, 5];
    let value = |at: [u64; 3]| ((at[0] * 6 + at[1]) * 10 + at[2]) as f32;
    let each = |shape: [u64; 3]| {
        (0..shape[0]).flat_map(move |i| (0..shape[1]).flat_map(move |j| (0..shape[2]).map(move |k| [i, j, k])))
    };
    let folder = tempfile::tempdir().unwrap();
    let original = folder.path().join("a.raw");
    fs::write(&original, floats(each(SHAPE).map(value))).unwrap();
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        for layout in [Layout::RowMajor, Layout::ColumnMajor] {
            let root = folder.path().join(format!("{order:?} {layout:?}"));
            let codecs = format!(
                r#"{{"name": "transpose", "configuration": {{"order": {order:?}}}}}, {{"name": "narrows.array"}}"#
            );
            put(&root, "zarr.json", metadata(&SHAPE, &CHUNK, 0.0, &codecs));
            // Axis i of what the codec gets is axis order[i] of the array.
            let seen = order.map(|axis| CHUNK[axis]);
            let shape = seen.map(|n| n as usize);
            for grid in each([2, 2, 2]) {
                let mut places: Vec<[u64; 3]> = each(seen).collect();
                if layout == Layout::ColumnMajor {
                    places.sort_by_key(|place| [place[2], place[1], place[0]]);
                }
                let bytes = floats(places.iter().map(|place| {
                    let mut at = [0; 3];
                    (0..3).for_each(|i| at[order[i]] = grid[order[i]] * CHUNK[order[i]] + place[i]);
                    value(at)
                }));
                let view =
                    ArrayView { dtype: Dtype::F32, order: ByteOrder::Little, layout, shape: &shape, bytes: &bytes };
                let chunk = Chooser::new(Options::default(), Bound::default()).unwrap().encode(&view).unwrap();
                put(&root, &format!("c/{}/{}/{}", grid[0], grid[1], grid[2]), chunk);
            }
            let store = open(&root);
            let found = errors(&store, &Store::raw(&original, only(&store)).unwrap()).unwrap();
            let summary = (found.count, found.different, found.broken, found.failed.len());
            assert_eq!(summary, (240, 0, Some(0), 0), "{order:?} {layout:?}");
        }
    }
}

#[test]
fn chunks_that_neither_side_stores_are_counted_and_not_read() {
    // 4 TiB each, of other chunks; read, they would take hours.
    const SIDE: u64 = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, chunk: [u64; 2], fill: f32, places: &[(&str, f32)]| {
        let root = folder.path().join(name);
        put(&root, "zarr.json", metadata(&[SIDE, SIDE], &chunk, fill, BYTES));
        for (key, value) in places {
            put(&root, &format!("c/{key}"), floats(vec![*value; (chunk[0] * chunk[1]) as usize]));
        }
        open(&root)
    };
    let a = write("a", [256, 256], 0.0, &[("0/0", 3.0), ("4095/4095", 1.0)]);
    let b = write("b", [512, 128], 0.0, &[("0/0", 3.0), ("2047/8191", 1.5)]);
    let found = errors(&a, &b).unwrap();
    // The chunks share 256 x 128 elements at either end, and have as many alone; those shared first are the same.
    assert_eq!((found.count, found.different), (SIDE * SIDE, 5 * 256 * 128));
    assert_eq!((found.worst_abs, found.range(), found.failed.len()), (3.0, 3.0, 0));
    let empty = |name: &str, fill: f32| {
        let root = folder.path().join(name);
        put(&root, "zarr.json", metadata(&[10, 4], &[2, 2], fill, BYTES));
        open(&root)
    };
    let (zeros, ones) = (empty("zeros", 0.0), empty("ones", 1.0));
    let found = errors(&zeros, &ones).unwrap();
    assert_eq!((found.count, found.different, found.worst_abs), (40, 40, 1.0), "fill values that differ");
}

#[test]
fn what_is_not_read_is_said_and_nothing_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    put(root, "zarr.json", r#"{"zarr_format": 3, "node_type": "group"}"#);
    for name in ["good", "linked", "piped", "dangling"] {
        put(root, &format!("{name}/zarr.json"), metadata(&[4], &[2], 0.0, BYTES));
    }
    let pipe = |name: &str| mknodat(CWD, root.join(name), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    put(root, "good/c/0", floats([1.0, 2.0]));
    pipe("good/c/other");
    let elsewhere = tempfile::tempdir().unwrap();
    put(elsewhere.path(), "0", floats([1.0, 2.0]));
    symlink(elsewhere.path(), root.join("linked/c")).unwrap();
    fs::create_dir(root.join("piped/c")).unwrap();
    pipe("piped/c/1");
    fs::create_dir(root.join("dangling/c")).unwrap();
    symlink("nowhere", root.join("dangling/c/1")).unwrap();
    symlink(elsewhere.path(), root.join("group")).unwrap();
    fs::create_dir(root.join("hidden")).unwrap();
    pipe("hidden/zarr.json");
    let store = open(root);
    let said = |path: &str| {
        let variable = store.variables.iter().find(|v| v.path == path).unwrap();
        assert_eq!(check(&store, variable, ONE).damaged_count, 0, "{path}");
        variable.unseen().collect::<Vec<_>>().join("\n")
    };
    assert_eq!(said("good"), "", "a pipe that is no chunk is nobody's");
    for (path, part) in [
        ("linked", "linked/c: it is a link to a folder"),
        ("piped", "piped/c/1: it is a pipe"),
        ("dangling", "dangling/c/1: it is a link that leads nowhere"),
        ("hidden", "it is a pipe"),
    ] {
        assert!(said(path).contains(part), "{path}: {}", said(path));
    }
    assert!(store.unseen.len() == 1 && store.unseen[0].starts_with("group: it is a link"), "{:?}", store.unseen);
    // What was not seen is no fill value that could differ.
    let side = |path: &str| Side { store: &store, variable: store.variables.iter().find(|v| v.path == path).unwrap() };
    for path in ["linked", "piped", "dangling"] {
        assert!(compare(side(path), side("good"), ONE).is_err(), "{path}");
        assert!(compare(side("good"), side(path), ONE).is_err(), "{path}");
    }
    pipe("a.raw");
    assert!(Store::raw(&root.join("a.raw"), side("good").variable).is_err());
    assert!(Store::open(&root.join("a.raw")).unwrap().is_none());
}
