//! The HDF5 filter of Narrows, as a plug-in that HDF5 finds by `HDF5_PLUGIN_PATH`. It needs no HDF5 to be
//! built and links none: what it asks HDF5 for when a dataset is created, it looks up in the copy of HDF5
//! that calls it. Chunks and parameters are `narrows_array::hdf5`.

pub mod abi;
mod host;
mod types;
