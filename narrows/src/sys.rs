//! TCP_INFO, queue depths, CPU times. `unsafe` lives here and in the FFI wrappers under `codec/`.
