//! Keeps the library free of dependencies other than libc, so that the loader of every C library
//! can load it: musl's ends a program whose preloaded library needs a missing one.
//!
//! The linked parts of the standard library refer to libgcc_s, for unwinding, and to glibc's
//! loader, for thread-local variables. They run only in a panic, which ends the program. So the
//! unwinding functions are defined here as `abort`, and the loader's function is looked up. These
//! names stay within the library: the linker exports only the hooks.
#![allow(unsafe_code, reason = "symbols that linked code refers to; every block says why it is sound")]

use core::ffi::{c_char, c_int, c_void};
use core::mem::transmute;
use core::ptr::null_mut;

/// Defines functions that abort. Only the one that walks the stack for a message, below, returns:
/// it says that there is nothing to see.
#[cfg(all(not(test), target_arch = "x86_64"))]
macro_rules! end {
    ($($name:literal)*) => {
        core::arch::global_asm!($(
            concat!(".globl ", $name), concat!(".hidden ", $name), concat!(".type ", $name, ", @function"),
            concat!($name, ": jmp abort@PLT"),
        )*);
    };
}
#[cfg(all(not(test), target_arch = "aarch64"))]
macro_rules! end {
    ($($name:literal)*) => {
        core::arch::global_asm!($(
            concat!(".globl ", $name), concat!(".hidden ", $name), concat!(".type ", $name, ", %function"),
            concat!($name, ": b abort"),
        )*);
    };
}

#[cfg(not(test))]
end! {
    "_Unwind_DeleteException" "_Unwind_GetCFA" "_Unwind_GetDataRelBase" "_Unwind_GetIP" "_Unwind_GetIPInfo"
    "_Unwind_GetLanguageSpecificData" "_Unwind_GetRegionStart" "_Unwind_GetTextRelBase" "_Unwind_RaiseException"
    "_Unwind_Resume" "_Unwind_SetGR" "_Unwind_SetIP" "_Unwind_FindEnclosingFunction" "_Unwind_ForcedUnwind"
    "_Unwind_Resume_or_Rethrow"
}

// _URC_END_OF_STACK.
#[cfg(all(not(test), target_arch = "x86_64"))]
core::arch::global_asm!(
    ".globl _Unwind_Backtrace",
    ".hidden _Unwind_Backtrace",
    ".type _Unwind_Backtrace, @function",
    "_Unwind_Backtrace: mov $5, %eax",
    "ret",
    options(att_syntax)
);
#[cfg(all(not(test), target_arch = "aarch64"))]
core::arch::global_asm!(
    ".globl _Unwind_Backtrace",
    ".hidden _Unwind_Backtrace",
    ".type _Unwind_Backtrace, %function",
    "_Unwind_Backtrace: mov w0, #5",
    "ret"
);

/// Address of a thread-local variable. Other architectures find it without a function.
#[cfg(all(not(test), target_arch = "x86_64"))]
mod threads {
    use core::sync::atomic::AtomicPtr;

    use super::{c_void, null_mut};

    pub(super) static PLACE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

    core::arch::global_asm!(
        ".globl __tls_get_addr",
        ".hidden __tls_get_addr",
        ".type __tls_get_addr, @function",
        "__tls_get_addr: jmp *{place}(%rip)",
        place = sym PLACE,
        options(att_syntax)
    );
}

fn find(name: &[u8]) -> *mut c_void {
    // SAFETY: callers end names with a zero.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr().cast::<c_char>()) }
}

pub(crate) fn resolve() {
    #[cfg(all(not(test), target_arch = "x86_64"))]
    threads::PLACE.store(find(b"__tls_get_addr\0"), core::sync::atomic::Ordering::Relaxed);
}

type Handler = extern "C" fn();

/// `pthread_atfork`, which in glibc is a static function that calls `__register_atfork`.
pub(crate) fn at_fork(parent: Handler, child: Handler) {
    let (own, other) = (find(b"__register_atfork\0"), find(b"pthread_atfork\0"));
    // SAFETY: the functions have these types, and accept null for a missing handler and library.
    // The handlers are functions of this library, which is never unloaded.
    unsafe {
        if !own.is_null() {
            type Register =
                unsafe extern "C" fn(Option<Handler>, Option<Handler>, Option<Handler>, *mut c_void) -> c_int;
            transmute::<*mut c_void, Register>(own)(None, Some(parent), Some(child), null_mut());
        } else if !other.is_null() {
            type Register = unsafe extern "C" fn(Option<Handler>, Option<Handler>, Option<Handler>) -> c_int;
            transmute::<*mut c_void, Register>(other)(None, Some(parent), Some(child));
        }
    }
}
