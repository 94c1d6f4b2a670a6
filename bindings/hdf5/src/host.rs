//! The HDF5 that calls: its functions, looked up where the call came from.

#![allow(unsafe_code, reason = "functions of a library that is found at run time")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::{transmute_copy, zeroed};
use std::ptr::{null, null_mut};

/// An object of HDF5, since version 1.10.
pub(crate) type Id = i64;

/// A loaded HDF5. Every function gives `None` where HDF5 lacks it or fails.
pub(crate) struct Host(*mut c_void);

/// Looks up a function and calls it.
macro_rules! call {
    ($host:expr, $name:ident($($arg:expr => $type:ty),*) -> $result:ty) => {{
        // SAFETY: the type is that of the function in HDF5's public headers, unchanged since 1.10; pointers
        // are to memory of the lengths that are passed with them.
        unsafe {
            $host.symbol(concat!(stringify!($name), "\0")).map(|address| {
                let function: unsafe extern "C" fn($($type),*) -> $result = transmute_copy(&address);
                function($($arg),*)
            })
        }
    }};
}

/// The error stack that HDF5 shows to its user.
const DEFAULT_STACK: Id = 0;

/// Longest list of parameters that is read: what h5py shows.
const WORDS_MAX: usize = 256;

/// A filter in a list: its number, flags and parameters.
pub(crate) struct Entry {
    pub(crate) id: c_int,
    pub(crate) flags: c_uint,
    pub(crate) words: Vec<c_uint>,
}

/// How the bits of a float are laid out: sign, exponent's place and length, significand's place and length,
/// bias.
pub(crate) type Fields = ([usize; 5], usize);

impl Host {
    /// The HDF5 that has this address in its code.
    pub(crate) fn of(caller: *const c_void) -> Option<Self> {
        // SAFETY: dladdr takes any address and fills `found` if it returns more than 0; its name is then a
        // string that lives as long as the object is loaded, which it is while it calls us. RTLD_NOLOAD
        // only adds a reference to an object that is loaded.
        let handle = unsafe {
            let mut found: libc::Dl_info = zeroed();
            if libc::dladdr(caller, &mut found) == 0 || found.dli_fname.is_null() {
                return None;
            }
            let handle = libc::dlopen(found.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            // A program into which HDF5 is linked is not found by its name.
            if handle.is_null() { libc::dlopen(null(), libc::RTLD_LAZY) } else { handle }
        };
        (!handle.is_null()).then_some(Self(handle))
    }

    /// The address of a symbol, whose name ends in 0.
    fn symbol(&self, name: &str) -> Option<*mut c_void> {
        let name = CStr::from_bytes_with_nul(name.as_bytes()).ok()?;
        // SAFETY: the handle is open until `self` is dropped.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }

    /// The value of a variable that holds an identifier.
    fn variable(&self, name: &str) -> Option<Id> {
        let address = self.symbol(name)?;
        // SAFETY: the names that are asked for are variables of type hid_t, set when HDF5 started.
        Some(unsafe { address.cast::<Id>().read() })
    }

    /// Adds a line to the error stack that HDF5 shows.
    pub(crate) fn push_error(&self, text: &str) {
        let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
        let ids = ["H5E_ERR_CLS_g\0", "H5E_PLINE_g\0", "H5E_CANTFILTER_g\0"].map(|name| self.variable(name));
        let ([Some(class), Some(major), Some(minor)], Some(push)) = (ids, self.symbol("H5Epush2\0")) else { return };
        type Push =
            unsafe extern "C" fn(Id, *const c_char, *const c_char, c_uint, Id, Id, Id, *const c_char, ...) -> c_int;
        // HDF5 2 pauses the stack while a filter works, and both pausing and resuming empty it. Another stack
        // can take its place.
        let mut paused = false;
        call!(self, H5Eis_paused(DEFAULT_STACK => Id, &mut paused => *mut bool) -> c_int);
        let other = if paused { call!(self, H5Ecreate_stack() -> Id).filter(|&stack| stack > 0) } else { None };
        // SAFETY: the type is that of H5Epush2; the strings end in 0, and the format takes one string.
        unsafe {
            let push: Push = transmute_copy(&push);
            let (file, function) = (c"narrows".as_ptr(), c"filter".as_ptr());
            let stack = other.unwrap_or(DEFAULT_STACK);
            push(stack, file, function, 0, class, major, minor, c"narrows: %s".as_ptr(), text.as_ptr());
        }
        // This also closes the other stack.
        other.and_then(|stack| call!(self, H5Eset_current_stack(stack => Id) -> c_int));
    }

    /// The filters of a list, in the order in which they encode.
    pub(crate) fn filters(&self, plist: Id) -> Option<Vec<Entry>> {
        let count = call!(self, H5Pget_nfilters(plist => Id) -> c_int)?;
        (0..count).map(|i| self.filter(plist, i as c_uint)).collect()
    }

    fn filter(&self, plist: Id, index: c_uint) -> Option<Entry> {
        let (mut flags, mut count, mut words) = (0, WORDS_MAX, vec![0; WORDS_MAX]);
        let id = call!(self, H5Pget_filter2(
            plist => Id, index => c_uint, &mut flags => *mut c_uint, &mut count => *mut usize,
            words.as_mut_ptr() => *mut c_uint, 0 => usize, null_mut() => *mut c_char, null_mut() => *mut c_uint
        ) -> c_int)?;
        words.truncate(count);
        (id >= 0 && count <= WORDS_MAX).then_some(Entry { id, flags, words })
    }

    /// Replaces the parameters of a filter.
    pub(crate) fn modify_filter(&self, plist: Id, entry: &Entry, words: &[c_uint]) -> Option<()> {
        let status = call!(self, H5Pmodify_filter(
            plist => Id, entry.id => c_int, entry.flags => c_uint, words.len() => usize,
            words.as_ptr() => *const c_uint
        ) -> c_int)?;
        (status >= 0).then_some(())
    }

    /// Lengths of a chunk's axes.
    pub(crate) fn chunk(&self, plist: Id) -> Option<Vec<usize>> {
        let mut axes = [0u64; narrows_array::RANK_MAX];
        let rank = call!(self, H5Pget_chunk(
            plist => Id, axes.len() as c_int => c_int, axes.as_mut_ptr() => *mut u64
        ) -> c_int)?;
        let axes = axes.get(..usize::try_from(rank).ok()?)?;
        axes.iter().map(|&axis| usize::try_from(axis).ok()).collect()
    }

    /// The fill value that was set for a dataset, as an element of this type.
    pub(crate) fn fill(&self, plist: Id, kind: Id, len: usize) -> Option<Vec<u8>> {
        const USER_DEFINED: c_int = 2;
        let mut defined = 0;
        let status = call!(self, H5Pfill_value_defined(plist => Id, &mut defined => *mut c_int) -> c_int)?;
        if status < 0 || defined != USER_DEFINED {
            return None;
        }
        let mut fill = vec![0u8; len];
        let status =
            call!(self, H5Pget_fill_value(plist => Id, kind => Id, fill.as_mut_ptr().cast() => *mut c_void) -> c_int)?;
        (status >= 0).then_some(fill)
    }

    pub(crate) fn type_class(&self, kind: Id) -> Option<c_int> {
        call!(self, H5Tget_class(kind => Id) -> c_int)
    }

    pub(crate) fn type_size(&self, kind: Id) -> Option<usize> {
        call!(self, H5Tget_size(kind => Id) -> usize).filter(|&size| size > 0)
    }

    pub(crate) fn type_order(&self, kind: Id) -> Option<c_int> {
        call!(self, H5Tget_order(kind => Id) -> c_int)
    }

    pub(crate) fn is_signed(&self, kind: Id) -> Option<bool> {
        call!(self, H5Tget_sign(kind => Id) -> c_int).map(|sign| sign == 1)
    }

    /// Bits of a number, and those below them that are no part of it.
    pub(crate) fn precision(&self, kind: Id) -> Option<(usize, c_int)> {
        let precision = call!(self, H5Tget_precision(kind => Id) -> usize)?;
        Some((precision, call!(self, H5Tget_offset(kind => Id) -> c_int)?))
    }

    pub(crate) fn fields(&self, kind: Id) -> Option<Fields> {
        let mut fields = [0usize; 5];
        let [sign, exponent, exponent_len, significand, significand_len] = &mut fields;
        let status = call!(self, H5Tget_fields(
            kind => Id, sign => *mut usize, exponent => *mut usize, exponent_len => *mut usize,
            significand => *mut usize, significand_len => *mut usize
        ) -> c_int)?;
        let bias = call!(self, H5Tget_ebias(kind => Id) -> usize)?;
        (status >= 0).then_some((fields, bias))
    }

    /// The type that a type is made of, for as long as `look` takes.
    pub(crate) fn with_base<T>(&self, kind: Id, look: impl FnOnce(Id) -> Option<T>) -> Option<T> {
        let base = call!(self, H5Tget_super(kind => Id) -> Id)?;
        self.look_and_close(base, look)
    }

    pub(crate) fn is_variable_string(&self, kind: Id) -> bool {
        call!(self, H5Tis_variable_str(kind => Id) -> c_int) != Some(0)
    }

    pub(crate) fn members(&self, kind: Id) -> Option<c_int> {
        call!(self, H5Tget_nmembers(kind => Id) -> c_int)
    }

    /// The type of a member of a compound, for as long as `look` takes.
    pub(crate) fn with_member<T>(&self, kind: Id, index: c_uint, look: impl FnOnce(Id) -> Option<T>) -> Option<T> {
        let member = call!(self, H5Tget_member_type(kind => Id, index => c_uint) -> Id)?;
        self.look_and_close(member, look)
    }

    /// Where a member of a compound is, and what it is called.
    pub(crate) fn member(&self, kind: Id, index: c_uint) -> Option<(usize, Vec<u8>)> {
        let at = call!(self, H5Tget_member_offset(kind => Id, index => c_uint) -> usize)?;
        let name = call!(self, H5Tget_member_name(kind => Id, index => c_uint) -> *mut c_char)?;
        if name.is_null() {
            return None;
        }
        // SAFETY: HDF5 returned a string that ends in 0, and is ours until it is freed.
        let text = unsafe { CStr::from_ptr(name) }.to_bytes().to_vec();
        call!(self, H5free_memory(name.cast() => *mut c_void) -> c_int)?;
        Some((at, text))
    }

    fn look_and_close<T>(&self, kind: Id, look: impl FnOnce(Id) -> Option<T>) -> Option<T> {
        if kind < 0 {
            return None;
        }
        let seen = look(kind);
        call!(self, H5Tclose(kind => Id) -> c_int)?;
        seen
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: the handle is open and nobody uses it any more; the object stays, for it is calling us.
        unsafe { libc::dlclose(self.0) };
    }
}
