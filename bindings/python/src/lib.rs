//! The compiled module `narrows._narrows`. Applications import `python/narrows/__init__.py`.

use pyo3::prelude::*;

mod array;
mod buffer;
mod comm;
mod error;
mod file;
mod hdf5;
mod message;
mod own;
mod stream;
mod sys;
mod value;

#[pymodule]
mod _narrows {
    #[pymodule_export]
    use super::array::{ArrayEncoder, DecodedArray, array_decode, array_info};

    #[pymodule_export]
    use super::file::{FileReader, format_of};

    #[pymodule_export]
    use super::hdf5::{Hdf5Chunks, hdf5_params};

    #[pymodule_export]
    use super::comm::{CommFlow, CommHub};

    #[pymodule_export]
    use super::message::{
        Adoption, Dictionary, MessageDecoder, MessageEncoder, MessageEnd, Stats, TopicReader, TopicWriter, Training,
        train,
    };

    #[pymodule_export]
    use super::stream::{
        Compressor, Decompressor, Flow, Reader, ReceivedTotals, SentTotals, Writer, compress, decompress, drive,
        leveled,
    };

    #[pymodule_export]
    use super::value::Values;

    #[pymodule_export]
    const ARRAY_MAX: usize = narrows_array::RAW_MAX;
    #[pymodule_export]
    const HDF5_FILTER: u32 = narrows_array::hdf5::FILTER_ID;
    #[pymodule_export]
    const MESSAGE_MAX: usize = narrows::message::MESSAGE_MAX;
    #[pymodule_export]
    const DICTIONARY_MAX: usize = narrows::message::DICTIONARY_MAX;
    #[pymodule_export]
    const DICTIONARY_MIN: usize = narrows::message::DICTIONARY_MIN;
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "as modules name it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
