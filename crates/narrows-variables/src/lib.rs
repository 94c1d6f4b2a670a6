//! Variables of HDF5 (NetCDF-4 included), Zarr 2 and 3, .npy and files of chunks, read without their
//! libraries: where each chunk is, what filtered it, and, for chunks of Narrows, whether they are whole and
//! what they say of their error.
//!
//! ```no_run
//! # fn main() -> narrows::Result<()> {
//! use std::num::NonZero;
//!
//! let Some(store) = narrows_variables::Store::open("o.nc".as_ref())? else { return Ok(()) };
//! for variable in &store.variables {
//!     let found = narrows_variables::check(&store, variable, NonZero::<usize>::MIN);
//!     println!("{}: {} chunks, {} damaged", variable.path, found.chunks, found.damaged_count);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! It only reads, and it takes hostile files: every length is compared with the file, or with what a chunk
//! may have, before anything is allocated, structures that lead in circles end, and what the structure of a
//! file takes together has a limit that follows from its length.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod budget;
mod bytes;
mod check;
mod compare;
mod cut;
mod fields;
mod filter;
mod hdf5;
mod limits;
mod number;
mod parallel;
mod place;
mod plain;
mod plane;
mod reader;
#[cfg(feature = "report")]
pub mod report;
mod spectrum;
mod store;
mod variable;
mod zarr;

pub use check::{Damage, Found, Range, check};
pub use compare::{Errors, Side, compare};
pub use filter::{Decoded, Decoders, Filter, HDF5_ID};
pub use plane::{Plane, plane};
pub use reader::{Reader, chunks_of};
pub use spectrum::spectrum;
pub use store::Store;
pub use variable::{Chunk, Element, Variable};

/// Reads metadata of a Zarr array, for tests with arbitrary bytes.
///
/// # Errors
/// They are damaged, or of a kind that is not known here.
pub fn zarr_metadata(path: &str, text: &[u8]) -> narrows::Result<Option<Variable>> {
    let json = serde_json::from_slice(text).map_err(|e| narrows::Error::corrupt(e.to_string()))?;
    zarr::parse(path, &json)
}
