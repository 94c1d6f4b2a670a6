//! The plug-in as HDF5 loads it, called with what HDF5 would never pass: every answer is a failure or
//! right, and the memory stays valid.

#![allow(unsafe_code, reason = "the interface of plug-ins is C")]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::sync::mpsc;
use std::{env, thread};

use narrows_array::hdf5::{Elements, FILTER_ID, Params};
use narrows_array::{Bound, ByteOrder, Dtype};

const REVERSE: c_uint = 0x100;

type SetLocal = unsafe extern "C" fn(i64, i64, i64) -> c_int;
type Filter = unsafe extern "C" fn(c_uint, usize, *const c_uint, usize, *mut usize, *mut *mut c_void) -> usize;

/// `H5Z_class2_t`.
#[repr(C)]
struct Class {
    version: c_int,
    id: c_int,
    encoder_present: c_uint,
    decoder_present: c_uint,
    name: *const c_char,
    can_apply: SetLocal,
    set_local: SetLocal,
    filter: Filter,
}

fn class() -> &'static Class {
    let deps = env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let places: [PathBuf; 2] = [deps.clone(), deps.parent().unwrap().to_path_buf()];
    let found = places.iter().map(|p| p.join("libnarrows_hdf5.so")).filter(|p| p.is_file());
    let newest = found.max_by_key(|p| p.metadata().unwrap().modified().unwrap()).expect("cargo built no plug-in");
    let path = CString::new(newest.to_str().unwrap()).unwrap();
    // SAFETY: the plug-in is loaded for good, and its functions have these types.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!handle.is_null(), "{:?}", CStr::from_ptr(libc::dlerror()));
        let symbol = |name: &CStr| {
            let address = libc::dlsym(handle, name.as_ptr());
            assert!(!address.is_null(), "{name:?}");
            address
        };
        let kind: extern "C" fn() -> c_int = std::mem::transmute(symbol(c"H5PLget_plugin_type"));
        assert_eq!(kind(), 0);
        let info: extern "C" fn() -> *const Class = std::mem::transmute(symbol(c"H5PLget_plugin_info"));
        &*info()
    }
}

/// Calls the filter as HDF5 does; `None` if it fails, which must leave the memory as it was.
fn call(flags: c_uint, words: &[u32], bytes: &[u8]) -> Option<Vec<u8>> {
    // SAFETY: memory of malloc with the lengths that are passed.
    unsafe {
        let memory = libc::malloc(bytes.len().max(1));
        memory.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        let (mut room, mut chunk) = (bytes.len(), memory);
        let len = (class().filter)(flags, words.len(), words.as_ptr(), bytes.len(), &mut room, &mut chunk);
        let left = std::slice::from_raw_parts(chunk.cast::<u8>(), if len > 0 { len } else { bytes.len() }).to_vec();
        libc::free(chunk);
        if len == 0 {
            assert!(chunk == memory && room == bytes.len() && left == bytes);
            return None;
        }
        assert!(room >= len);
        Some(left)
    }
}

fn words(bound: Bound, dtype: Dtype, shape: &[usize]) -> Vec<u32> {
    let elements = Elements { dtype, order: ByteOrder::Little, shape: shape.to_vec(), exact: false };
    Params { bound, elements: Some(elements), ..Params::default() }.words().unwrap()
}

fn field(n: usize, seed: usize) -> Vec<u8> {
    (0..n).flat_map(|i| (((i + 7 * seed) as f32 / 40.0).sin() * 20.0).to_le_bytes()).collect()
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }
}

#[test]
fn the_class_is_what_hdf5_expects() {
    let class = class();
    assert_eq!((class.version, class.id, class.encoder_present, class.decoder_present), (1, FILTER_ID as c_int, 1, 1));
    // SAFETY: a string constant.
    assert_eq!(unsafe { CStr::from_ptr(class.name) }, c"narrows");
}

#[test]
fn chunks_come_back_exactly_or_within_the_bound() {
    let raw = field(40 * 50, 0);
    let exact = words(Bound::default(), Dtype::F32, &[40, 50]);
    let stored = call(0, &exact, &raw).unwrap();
    assert_eq!(call(REVERSE, &exact, &stored).unwrap(), raw);
    let lossy = words(Bound::abs(0.01), Dtype::F32, &[40, 50]);
    let shorter = call(0, &lossy, &raw).unwrap();
    assert!(shorter.len() < stored.len());
    let decoded = call(REVERSE, &lossy, &shorter).unwrap();
    let value = |b: &[u8]| f64::from(f32::from_le_bytes(b.try_into().unwrap()));
    assert!(raw.chunks(4).zip(decoded.chunks(4)).all(|(x, y)| (value(x) - value(y)).abs() <= 0.01));
    // Noise grows by its header only, and is no failure: the filter may be mandatory.
    let mut random = Random(3);
    let noise: Vec<u8> = (0..8000).map(|_| random.next() as u8).collect();
    let stored = call(0, &exact, &noise).unwrap();
    assert!(stored.len() < noise.len() + 64);
    assert_eq!(call(REVERSE, &exact, &stored).unwrap(), noise);
}

#[test]
fn parameters_of_other_versions_and_nonsense_fail() {
    let raw = field(200, 0);
    let good = words(Bound::abs(0.1), Dtype::F32, &[10, 20]);
    let stored = call(0, &good, &raw).unwrap();
    let mut bad: Vec<Vec<u32>> = vec![vec![], vec![1], vec![0], vec![2, 1, 2, 3], vec![u32::MAX; 16], vec![1; 300]];
    bad.extend((0..good.len()).map(|len| good[..len].to_vec()));
    bad.push(good.iter().copied().chain([0]).collect());
    bad.push(words(Bound::abs(0.1), Dtype::F32, &[20, 10]));
    bad.push(words(Bound::abs(0.1), Dtype::F32, &[10, 21]));
    bad.push(words(Bound::abs(0.1), Dtype::I32, &[10, 20]));
    for words in bad {
        assert_eq!(call(REVERSE, &words, &stored), None, "{words:?}");
    }
    for words in [vec![], vec![1], vec![2], words(Bound::default(), Dtype::F32, &[10, 21])] {
        assert_eq!(call(0, &words, &raw), None, "{words:?}");
    }
    // SAFETY: null pointers are what is tested.
    unsafe {
        let filter = class().filter;
        assert_eq!(filter(0, 0, null(), 0, null_mut(), null_mut()), 0);
        let (mut room, mut chunk) = (0, null_mut());
        assert_eq!(filter(REVERSE, 3, null(), 0, &mut room, &mut chunk), 0);
        // Where the caller is no HDF5, nothing can be asked.
        assert_eq!((class().set_local)(1, 2, 3), -1);
        assert_eq!((class().can_apply)(1, 2, 3), -1);
    }
}

#[test]
fn damaged_chunks_fail_or_have_the_same_values() {
    let raw = field(600, 1);
    let mut random = Random(5);
    for bound in [Bound::default(), Bound::abs(0.01), Bound { digits: Some(3), ..Bound::default() }] {
        let words = words(bound, Dtype::F32, &[30, 20]);
        let stored = call(0, &words, &raw).unwrap();
        let good = call(REVERSE, &words, &stored).unwrap();
        for len in 0..stored.len() {
            assert_eq!(call(REVERSE, &words, &stored[..len]), None);
        }
        for at in 0..stored.len() {
            for change in [1, 16, 128, 255] {
                let mut damaged = stored.clone();
                damaged[at] ^= change;
                assert!(call(REVERSE, &words, &damaged).is_none_or(|decoded| decoded == good), "byte {at}");
            }
        }
        for _ in 0..2000 {
            let noise: Vec<u8> = (0..random.below(200)).map(|_| random.next() as u8).collect();
            assert_eq!(call(REVERSE, &words, &noise), None);
        }
    }
}

#[test]
fn any_parameters_and_any_bytes_are_safe() {
    let mut random = Random(9);
    let good = words(Bound { rel: Some(0.01), fills: vec![1e20], ..Bound::default() }, Dtype::F32, &[10, 20]);
    let raw = field(200, 2);
    for _ in 0..3000 {
        let mut words = good.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(words.len());
            words[at] = (random.next() as u32) >> random.below(32);
        }
        if let Some(stored) = call(0, &words, &raw) {
            assert_eq!(call(REVERSE, &words, &stored).expect("what was stored is read").len(), raw.len());
        }
    }
}

#[test]
fn threads_get_the_bytes_that_one_gets() {
    let words = words(Bound::abs(0.001), Dtype::F32, &[64, 32]);
    let all = || -> Vec<_> { (0..20).map(|i| call(0, &words, &field(64 * 32, i)).unwrap()).collect() };
    let made: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(all)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(made.windows(2).all(|w| w[0] == w[1]));
}

/// HDF5 writes what is left when the process exits, after the main thread's own data are gone.
#[test]
fn chunks_are_encoded_when_the_data_of_a_thread_are_gone() {
    struct Last(mpsc::Sender<Option<Vec<u8>>>);

    impl Drop for Last {
        fn drop(&mut self) {
            let words = words(Bound::default(), Dtype::F32, &[10, 20]);
            self.0.send(call(0, &words, &field(200, 1))).unwrap();
        }
    }

    thread_local!(static LAST: RefCell<Option<Last>> = const { RefCell::new(None) });

    let (sender, made) = mpsc::channel();
    let first = thread::spawn(move || {
        // What is made first goes last.
        LAST.set(Some(Last(sender)));
        call(0, &words(Bound::default(), Dtype::F32, &[10, 20]), &field(200, 1))
    });
    let first = first.join().unwrap();
    assert!(first.is_some());
    assert_eq!(made.recv().unwrap(), first);
}
