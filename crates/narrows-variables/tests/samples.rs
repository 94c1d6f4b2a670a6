//! The stored samples (`data/make.py`): every layout, index, filter and codec gives the elements that were
//! written; damage is found, and found where it is.

use std::num::NonZero;
use std::path::{Path, PathBuf};

use narrows_variables::{Found, Reader, Side, Store, Variable, check, chunks_of, compare};

const ONE: NonZero<usize> = NonZero::<usize>::MIN;

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn open(name: &str) -> Store {
    Store::open(&path(name)).unwrap().unwrap_or_else(|| panic!("{name} has no format"))
}

fn find<'a>(store: &'a Store, path: &str) -> &'a Variable {
    let all = || store.variables.iter().map(|v| v.path.as_str()).collect::<Vec<_>>().join("\n");
    store.variables.iter().find(|v| v.path == path).unwrap_or_else(|| panic!("no {path} in:\n{}", all()))
}

fn bytes(store: &Store, variable: &Variable) -> Vec<u8> {
    let chunks = chunks_of(store, variable).unwrap_or_else(|e| panic!("{}: {e}", variable.path));
    let from = vec![0; variable.shape.len()];
    let read = Reader::new(store, variable, &chunks).read(&from, &variable.shape);
    read.unwrap_or_else(|e| panic!("{}: {e}", variable.path))
}

/// Elements as numbers, by the name of their type.
fn numbers(store: &Store, path: &str) -> Vec<f64> {
    let variable = find(store, path);
    let bytes = bytes(store, variable);
    let each = |f: fn(&[u8]) -> f64| bytes.chunks_exact(variable.element.bytes).map(f).collect();
    match variable.element.name.as_str() {
        "i8" => each(|b| f64::from(b[0] as i8)),
        "u8" | "bool" => each(|b| f64::from(b[0])),
        "u16" => each(|b| f64::from(u16::from_le_bytes([b[0], b[1]]))),
        "i16" => each(|b| f64::from(i16::from_le_bytes([b[0], b[1]]))),
        "i16 big-endian" => each(|b| f64::from(i16::from_be_bytes([b[0], b[1]]))),
        "i32" => each(|b| f64::from(i32::from_le_bytes(b.try_into().unwrap()))),
        "f32" => each(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))),
        "f32 big-endian" => each(|b| f64::from(f32::from_be_bytes(b.try_into().unwrap()))),
        "f64" => each(|b| f64::from_le_bytes(b.try_into().unwrap())),
        "f64 big-endian" => each(|b| f64::from_be_bytes(b.try_into().unwrap())),
        "c64" => bytes.chunks_exact(8).map(|b| f64::from(f32::from_le_bytes(b[..4].try_into().unwrap()))).collect(),
        name => panic!("{path}: {name}"),
    }
}

fn plain(count: usize) -> Vec<f64> {
    (0..count).map(|i| (i * 37 % 1013) as f64).collect()
}

fn assert_plain(store: &Store, path: &str) {
    let found = numbers(store, path);
    assert_eq!(found, plain(found.len()), "{path}");
    assert!(!found.is_empty(), "{path}");
}

fn assert_smooth(store: &Store, path: &str) -> Found {
    let found = numbers(store, path);
    assert_eq!(found.len(), 3000);
    for (i, y) in found.iter().enumerate() {
        let x = f64::from((100.0 * (i as f64 / 50.0).sin()) as f32);
        assert!((x - y).abs() <= 0.5, "{path}: element {i} is {y}, not {x}");
    }
    let checked = check(store, find(store, path), ONE);
    assert_eq!((checked.damaged_count, checked.abs.map(|r| r.high)), (0, Some(0.5)), "{:?}", checked.damaged);
    assert!(checked.worst_abs > 0.0 && checked.worst_abs <= 0.5 && checked.ratio() > 2.0, "{checked:?}");
    checked
}

#[test]
fn hdf5_of_both_ages_gives_what_was_written() {
    for name in ["earliest.h5", "latest.h5"] {
        let store = open(name);
        let plain = ["contiguous", "big", "complex", "compact", "again", "a/b/exact", "a/b/after"];
        for path in plain.into_iter().chain(["scalar"]) {
            assert_plain(&store, path);
        }
        assert_eq!(numbers(&store, "bool"), [0.0, 1.0]);
        let smooth = assert_smooth(&store, "a/b/smooth");
        assert_eq!((smooth.chunks, smooth.mix["left out"].0, smooth.bounded), (4, 1, 3));
        let exact = check(&store, find(&store, "a/b/exact"), ONE);
        assert_eq!((exact.chunks, exact.bounded, exact.damaged_count), (6, 0, 0));
        // A dataset with two names is one variable, and a soft link none.
        let deflate = store.variables.iter().filter(|v| ["a/b/deflate", "again", "other"].contains(&v.path.as_str()));
        let deflate: Vec<&str> = deflate.map(|v| v.path.as_str()).collect();
        assert_eq!(deflate, ["again"]);
        let kinds = |path: &str| find(&store, path).filters.iter().map(|f| f.name.clone()).collect::<Vec<_>>();
        assert_eq!(kinds("again"), ["shuffle", "deflate 1", "fletcher32"]);
        assert_eq!(kinds("a/b/after"), ["shuffle", "narrows"]);
        assert!(!find(&store, "text").element.is_numeric() && find(&store, "record").element.bytes == 10);
    }
}

#[test]
fn long_indexes_and_heaps_are_followed() {
    let paged = numbers(&open("paged.h5"), "paged");
    assert!(paged.len() == 1100 && paged.iter().enumerate().all(|(i, v)| *v == f64::from((i * 37 % 1013) as u8)));
    let store = open("latest.h5");
    for path in ["single", "implicit", "fixed", "longer", "growing", "growing first"] {
        assert_plain(&store, path);
    }
    let partly = numbers(&store, "a/b/partly");
    assert!(partly[..400].iter().all(|v| *v == 1.0) && partly[400..].iter().all(|v| *v == 7.0));
    assert_eq!(check(&store, find(&store, "a/b/partly"), ONE).chunks, 4);
    let store = open("newer.h5");
    assert_plain(&store, "free");
    assert_eq!(store.variables.iter().filter(|v| v.path.starts_with("many/")).count(), 12);
    assert_eq!(numbers(&store, "many/variable with a rather long name 011"), [11.0]);
    let store = open("far.h5");
    let far = numbers(&store, "far");
    for (i, v) in far.iter().enumerate() {
        let is_set = [0, 5, 100, 1000, 5000, 199_999].contains(&i);
        assert_eq!(*v, if is_set { (i % 251 + 1) as f64 } else { 0.0 }, "element {i}");
    }
    let store = open("names.h5");
    assert_eq!(store.variables.iter().map(|v| v.path.as_str()).collect::<Vec<_>>().len(), 1);
}

#[test]
fn netcdf_by_two_libraries_is_read() {
    let store = open("netcdf4.nc");
    assert_plain(&store, "model/t");
    assert_plain(&store, "model/p");
    assert_plain(&store, "model/z");
    assert_eq!(find(&store, "model/t").fill, 1e20f32.to_le_bytes());
    assert_plain(&open("h5netcdf.nc"), "t");
}

#[test]
fn attributes_name_what_is_missing() {
    let store = open("attributes.h5");
    assert_eq!(find(&store, "few").missing, [f64::from(1e20f32)]);
    assert_eq!(find(&store, "many").missing, [-9999.0, 1e20]);
    assert_eq!(find(&store, "shared").missing, [-7.0]);
    assert!(find(&store, "text").missing.is_empty());
    assert_eq!(find(&open("old-attributes.h5"), "few").missing, [-9.0]);
    assert_eq!(find(&open("netcdf4.nc"), "model/t").missing, [f64::from(1e20f32)]);
    // What a heap says of its attributes has a sum as well.
    let mut bad = std::fs::read(path("attributes.h5")).unwrap();
    let at = bad.windows(13).position(|w| w == b"missing_value").unwrap();
    bad[at] ^= 1;
    let store = Store::of_memory(bad).unwrap().unwrap();
    assert_eq!(check(&store, find(&store, "many"), ONE).damaged_count, 1);
    assert_eq!(check(&store, find(&store, "few"), ONE).damaged_count, 0);
}

#[test]
fn zarr_of_both_versions_gives_what_was_written() {
    for (name, plain) in [
        ("v2.zip", &["blosc", "blosc bits", "zlib", "zstd", "lz4", "raw", "nested", "big"][..]),
        ("v3.zip", &["default", "sharded", "big", "turned", "flat", "scalar"]),
    ] {
        let store = open(name);
        for path in plain {
            assert_plain(&store, path);
        }
        let smooth = assert_smooth(&store, "sub/smooth");
        assert_eq!((smooth.chunks, smooth.bounded), (4, 4), "{name}");
    }
    let store = open("v3.zip");
    let shards = assert_smooth(&store, "sub/shards");
    assert_eq!((shards.chunks, find(&store, "sub/shards").chunk.as_deref()), (8, Some(&[16, 32][..])));
    assert_eq!(check(&store, find(&store, "sharded"), ONE).chunks, 8);
}

#[test]
fn folders_of_both_versions_are_stores() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, bytes: &[u8]| {
        let file = folder.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    };
    put(".zgroup", br#"{"zarr_format": 2}"#);
    put(
        "two/.zarray",
        br#"{"zarr_format": 2, "shape": [3, 2], "chunks": [2, 2], "dtype": "<i2", "order": "F", "filters": null,
            "compressor": null, "fill_value": 185, "dimension_separator": "/"}"#,
    );
    // The first axis is the fastest; the other chunk is missing, and the element outside does not count.
    put("two/0/0", &[0, 0, 74, 0, 37, 0, 111, 0]);
    put("two/00/1", b"no chunk");
    put(
        "three/zarr.json",
        br#"{"zarr_format": 3, "node_type": "array", "shape": [3], "data_type": "uint8", "fill_value": 0,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
            "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes"}]}"#,
    );
    put("three/c/0", &[0, 37]);
    put("three/c/1", &[74, 9]);
    put("three/c/2", b"outside");
    put("bad/zarr.json", b"{");
    let store = Store::open(folder.path()).unwrap().unwrap();
    assert_plain(&store, "three");
    assert_eq!(numbers(&store, "two"), [0.0, 37.0, 74.0, 111.0, 185.0, 185.0]);
    let bad = check(&store, find(&store, "bad"), ONE);
    assert_eq!(bad.damaged_count, 1, "metadata that are no JSON are damage");
}

#[test]
fn a_flipped_byte_of_a_chunk_is_found_there_and_nowhere_else() {
    let whole = std::fs::read(path("latest.h5")).unwrap();
    let store = Store::of_memory(whole.clone()).unwrap().unwrap();
    let chunks = chunks_of(&store, find(&store, "a/b/smooth")).unwrap();
    let chunk = &chunks[&vec![32, 0]];
    let bytes = store.stored(chunk).unwrap();
    let at = whole.windows(bytes.len()).position(|w| w == bytes).unwrap();
    let mut bad = whole.clone();
    bad[at + bytes.len() - 9] ^= 1;
    let store = Store::of_memory(bad).unwrap().unwrap();
    let found = check(&store, find(&store, "a/b/smooth"), ONE);
    assert_eq!((found.damaged_count, found.damaged[0].origin.as_deref()), (1, Some(&[32, 0][..])));
    assert_eq!(check(&store, find(&store, "a/b/exact"), ONE).damaged_count, 0);
}

#[test]
fn what_is_cut_short_or_flipped_anywhere_ends_in_an_answer() {
    for name in ["earliest.h5", "latest.h5", "v3.zip"] {
        let whole = std::fs::read(path(name)).unwrap();
        let step = if name == "v3.zip" { 97 } else { 61 };
        for at in (0..whole.len()).step_by(step) {
            let mut bad = whole.clone();
            bad[at] ^= 0xff;
            for bytes in [bad, whole[..at].to_vec()] {
                let Ok(Some(store)) = Store::of_memory(bytes) else { continue };
                for variable in store.variables.iter().filter(|v| v.is_narrows()) {
                    check(&store, variable, ONE);
                }
            }
        }
    }
}

/// Structures of newer files have check sums: HDF5 refuses the file where one differs.
#[test]
fn a_flipped_byte_of_a_structure_with_a_sum_is_damage() {
    let mut kinds = Vec::new();
    for name in ["latest.h5", "newer.h5", "paged.h5", "far.h5", "names.h5"] {
        let whole = std::fs::read(path(name)).unwrap();
        let is_good = |bytes: Vec<u8>| {
            let Ok(Some(store)) = Store::of_memory(bytes) else { return false };
            store.variables.iter().all(|v| {
                let found = check(&store, v, ONE);
                found.damaged_count == 0 && found.unseen.is_none() && v.unseen().next().is_none()
            })
        };
        assert!(is_good(whole.clone()), "{name}");
        let names = [
            b"\x89HDF", b"OHDR", b"OCHK", b"BTHD", b"BTLF", b"BTIN", b"FRHP", b"FHDB", b"FHIB", b"FAHD", b"FADB",
            b"EAHD", b"EAIB", b"EASB", b"EADB",
        ];
        for kind in names {
            for at in (0..whole.len() - 16).filter(|at| whole[*at..].starts_with(kind)) {
                // Bytes that nothing else depends on: flags, clients, high bytes of addresses and times. A
                // structure to which nothing leads is not looked at.
                let is_found = |i: usize| {
                    let mut bad = whole.clone();
                    bad[at + i] ^= 0x10;
                    !is_good(bad)
                };
                if [5, 9, 13].into_iter().all(is_found) {
                    kinds.push(kind);
                }
            }
        }
    }
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds.len(), 15, "{kinds:?}");
}

#[test]
fn a_superblock_without_a_sum_is_damaged_where_hdf5_says_so() {
    let whole = std::fs::read(path("earliest.h5")).unwrap();
    assert_eq!(whole[8], 0, "a superblock of version 0");
    let kind = |bytes: Vec<u8>| Store::of_memory(bytes).err().map(|e| e.kind);
    assert_eq!(kind(whole.clone()), None);
    for at in [9, 10, 12] {
        let mut bad = whole.clone();
        bad[at] ^= 4;
        assert_eq!(kind(bad), Some(narrows::ErrorKind::Corrupt), "byte {at}");
    }
    for name in ["earliest.h5", "latest.h5"] {
        let whole = std::fs::read(path(name)).unwrap();
        assert_eq!(kind(whole[..whole.len() - 1].to_vec()), Some(narrows::ErrorKind::Truncated), "{name}");
    }
}

#[test]
fn errors_against_an_original_are_exact_and_broken_bounds_are_found() {
    let (copy, other) = (open("latest.h5"), open("v3.zip"));
    let side = |store, path| Side { store, variable: find(store, path) };
    let same = compare(side(&copy, "a/b/exact"), side(&copy, "a/b/exact"), ONE).unwrap();
    assert_eq!((same.count, same.different, same.broken), (1200, 0, Some(0)));
    assert!(same.psnr_db().is_infinite() && same.failed.is_empty());
    // Two copies within .5 of the same numbers, of different chunks.
    let two = compare(side(&copy, "a/b/smooth"), side(&other, "sub/shards"), ONE).unwrap();
    assert!(two.failed.is_empty() && two.worst_abs <= 1.0, "{two:?}");
    let wrong = compare(side(&copy, "a/b/smooth"), side(&copy, "a/b/exact"), ONE);
    assert!(wrong.is_err(), "the shapes differ");
    let raw = (0..3000).flat_map(|i| ((100.0 * (f64::from(i) / 50.0).sin()) as f32).to_le_bytes());
    let mut raw: Vec<u8> = raw.collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.raw");
    std::fs::write(&file, &raw).unwrap();
    let like = find(&copy, "a/b/smooth");
    let original = Store::raw(&file, like).unwrap();
    let good = compare(side(&copy, "a/b/smooth"), side(&original, ""), ONE).unwrap();
    let stated = check(&copy, like, ONE).worst_abs;
    assert!(good.broken == Some(0) && good.worst_abs > 0.0 && good.worst_abs <= stated, "{good:?}, {stated}");
    assert!(good.rmse() < good.worst_abs && good.psnr_db() > 40.0 && (199.0..201.0).contains(&good.range()));
    raw[4 * 40 + 3] ^= 0x80;
    std::fs::write(&file, &raw).unwrap();
    let bad = compare(side(&copy, "a/b/smooth"), side(&Store::raw(&file, like).unwrap(), ""), ONE).unwrap();
    assert_eq!((bad.broken, bad.broken_at.as_deref()), (Some(1), Some(&[0, 32][..])));
}

#[test]
fn files_of_other_kinds_say_what_they_are() {
    let text = |bytes: &[u8]| Store::of_memory(bytes.to_vec()).err().map(|e| e.message).unwrap_or_default();
    assert!(text(b"CDF\x01\0\0\0\0").contains("classic NetCDF"));
    assert!(text(b"PK\x03\x04").contains(".zip"));
    assert!(Store::of_memory(b"hello world".to_vec()).unwrap().is_none());
    assert!(Store::open(Path::new(env!("CARGO_MANIFEST_DIR"))).err().unwrap().message.contains("no Zarr store"));
}

#[test]
fn folders_that_link_to_one_another_are_read_once() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    // Followed, these are 2^30 folders.
    for i in 0..30 {
        let folder = root.path().join(i.to_string());
        std::fs::create_dir(&folder).unwrap();
        for name in ["a", "b"] {
            std::os::unix::fs::symlink(root.path().join((i + 1).to_string()), folder.join(name)).unwrap();
        }
    }
    assert!(Store::open(root.path()).unwrap().unwrap().variables.is_empty());
}
