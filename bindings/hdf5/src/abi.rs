//! The face that HDF5 sees: the class of the filter and its three callbacks.

#![allow(unsafe_code, reason = "the interface of plug-ins")]

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use narrows::{Error, Result};
use narrows_array::hdf5::{Chunks, Elements, FILTER_ID, Params};

use crate::host::{Entry, Host, Id};
use crate::types;

/// `H5Z_class2_t`.
#[repr(C)]
struct Class {
    version: c_int,
    id: c_int,
    encoder_present: c_uint,
    decoder_present: c_uint,
    name: *const c_char,
    can_apply: unsafe extern "C" fn(Id, Id, Id) -> c_int,
    set_local: unsafe extern "C" fn(Id, Id, Id) -> c_int,
    filter: unsafe extern "C" fn(c_uint, usize, *const c_uint, usize, *mut usize, *mut *mut c_void) -> usize,
}

// SAFETY: it is never changed, and the name is a string constant.
unsafe impl Sync for Class {}

// The callbacks of shim.c, which call the functions below with the address that they return to.
unsafe extern "C" {
    fn narrows_hdf5_can_apply(plist: Id, kind: Id, space: Id) -> c_int;
    fn narrows_hdf5_set_local(plist: Id, kind: Id, space: Id) -> c_int;
    fn narrows_hdf5_filter(
        flags: c_uint,
        count: usize,
        words: *const c_uint,
        len: usize,
        room: *mut usize,
        bytes: *mut *mut c_void,
    ) -> usize;
}

static CLASS: Class = Class {
    version: 1,
    id: FILTER_ID as c_int,
    encoder_present: 1,
    decoder_present: 1,
    name: c"narrows".as_ptr(),
    can_apply: narrows_hdf5_can_apply,
    set_local: narrows_hdf5_set_local,
    filter: narrows_hdf5_filter,
};

/// The flag of reads, and that of filters which may fail when they write.
const REVERSE: c_uint = 0x100;
const OPTIONAL: c_uint = 1;

thread_local! {
    /// Contexts and memory of this thread: HDF5 may call on several at a time.
    static CHUNKS: RefCell<Chunks> = RefCell::new(Chunks::new());
}

/// Works with the contexts of this thread; with new ones when they are gone, since HDF5 writes what is
/// left when the process exits.
fn with_chunks<T>(mut work: impl FnMut(&mut Chunks) -> T) -> T {
    let worked = CHUNKS.try_with(|chunks| chunks.try_borrow_mut().ok().map(|mut chunks| work(&mut chunks)));
    worked.ok().flatten().unwrap_or_else(|| work(&mut Chunks::new()))
}

/// Kind of the plug-in: a filter.
#[unsafe(no_mangle)]
pub extern "C" fn H5PLget_plugin_type() -> c_int {
    0
}

/// The class of the filter.
#[unsafe(no_mangle)]
pub extern "C" fn H5PLget_plugin_info() -> *const c_void {
    (&raw const CLASS).cast()
}

/// Whether the filter takes elements of this type: 1, 0, or -1 for an error.
///
/// # Safety
/// HDF5 calls it, with identifiers of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_hdf5_can_apply_from(caller: *const c_void, _plist: Id, kind: Id) -> c_int {
    let fixed = catch_unwind(|| types::is_fixed(&Host::of(caller)?, kind));
    fixed.ok().flatten().map_or(-1, c_int::from)
}

/// Adds to the parameters what the elements of a new dataset are.
///
/// # Safety
/// HDF5 calls it, with identifiers of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_hdf5_set_local_from(caller: *const c_void, plist: Id, kind: Id) -> c_int {
    let set = catch_unwind(|| {
        let Some(host) = Host::of(caller) else { return -1 };
        match describe(&host, plist, kind) {
            Ok(()) => 0,
            Err(e) => {
                host.push_error(&e.to_string());
                -1
            }
        }
    });
    set.unwrap_or(-1)
}

fn describe(host: &Host, plist: Id, kind: Id) -> Result<()> {
    let strange = || Error::unsupported("this HDF5 does not say what the dataset is; it needs version 1.10 or later");
    let filters = host.filters(plist).ok_or_else(strange)?;
    let at = filters.iter().position(|f| f.id == FILTER_ID as c_int).ok_or_else(strange)?;
    let entry = &filters[at];
    let mut params = Params::from_words(&entry.words)?;
    params.elements = None;
    // HDF5 asks even where the filter does not apply. Chunks are then stored without it, if it is optional.
    if types::is_fixed(host, kind) != Some(true) {
        return keep(host, plist, entry, &params);
    }
    let t = types::of(host, kind).ok_or_else(|| Error::limit("elements have at most 65535 bytes"))?;
    let mut elements =
        Elements { dtype: t.dtype, order: t.order, shape: host.chunk(plist).ok_or_else(strange)?, exact: t.exact };
    if at > 0 {
        // What this filter gets is no numbers then, but what another one made of them.
        if !params.bound.is_lossless() && !t.exact {
            return Err(Error::misuse(
                "a bound cannot be kept behind another filter: leave out shuffle, scaleoffset and the like",
            ));
        }
        let len = elements.raw_len()?;
        elements.shape = vec![len];
        elements.dtype = narrows_array::Dtype::Record(1);
        elements.exact = true;
    }
    // Elements of another type, which have other lengths, keep nothing.
    let fill = if elements.exact { None } else { host.fill(plist, kind, elements.dtype.bytes()) };
    params.elements = Some(elements.ending_in_one());
    params.keep_missing(fill.as_deref())?;
    keep(host, plist, entry, &params)
}

fn keep(host: &Host, plist: Id, entry: &Entry, params: &Params) -> Result<()> {
    let words = params.words()?;
    with_chunks(|chunks| chunks.forget(&words));
    let kept = host.modify_filter(plist, entry, &words);
    kept.ok_or_else(|| Error::unsupported("this HDF5 does not keep the filter's parameters"))
}

/// Encodes or decodes a chunk in place of `*bytes`; 0 is failure.
///
/// # Safety
/// `words` has `count` words; `*bytes` is memory of malloc with `*room` bytes, of which `len` are filled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn narrows_hdf5_filter_from(
    caller: *const c_void,
    flags: c_uint,
    count: usize,
    words: *const c_uint,
    len: usize,
    room: *mut usize,
    bytes: *mut *mut c_void,
) -> usize {
    // SAFETY: HDF5 passes valid pointers, checked for null; nothing else has the memory meanwhile.
    let (words, chunk) = unsafe {
        if bytes.is_null() || room.is_null() || (*bytes).is_null() || len > isize::MAX as usize {
            return 0;
        }
        let words = if words.is_null() || count == 0 { &[][..] } else { slice::from_raw_parts(words, count) };
        (words, slice::from_raw_parts((*bytes).cast::<u8>(), len))
    };
    let made = catch_unwind(AssertUnwindSafe(|| {
        with_chunks(
            |chunks| {
                if flags & REVERSE != 0 { chunks.decode(words, chunk) } else { chunks.encode(words, chunk) }
            },
        )
    }));
    let made = match made {
        Ok(Ok(made)) => made,
        Ok(Err(e)) => {
            // Chunks that an optional filter does not take are stored without it, which is no error.
            if flags & (REVERSE | OPTIONAL) != OPTIONAL {
                let push = || Host::of(caller).inspect(|host| host.push_error(&e.to_string()));
                let _ = catch_unwind(AssertUnwindSafe(push));
            }
            return 0;
        }
        Err(_) => {
            // What a panic left half done is not used again.
            let _ = catch_unwind(|| with_chunks(|chunks| *chunks = Chunks::new()));
            return 0;
        }
    };
    if made.is_empty() {
        return 0;
    }
    // SAFETY: malloc gives `made.len()` bytes or null; `*bytes` is memory of malloc, and HDF5 takes what
    // replaces it.
    unsafe {
        let replacement = libc::malloc(made.len());
        if replacement.is_null() {
            return 0;
        }
        replacement.cast::<u8>().copy_from_nonoverlapping(made.as_ptr(), made.len());
        libc::free(*bytes);
        *bytes = replacement;
        *room = made.len();
    }
    made.len()
}
