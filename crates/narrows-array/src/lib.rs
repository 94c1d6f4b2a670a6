//! Arrays of numbers, exact or within a stated error: steps that make numbers compressible, bounds that
//! are verified, a chooser that finds the pipeline for each chunk, and the chunk format of
//! `docs/format.md`, section 15.
//!
//! ```
//! use narrows_array::{ArrayView, Bound, Chooser, Coder, Dtype, RAW_MAX};
//!
//! # fn main() -> narrows::Result<()> {
//! let values: Vec<f32> = (0..4096).map(|i| (i as f32 / 100.0).sin()).collect();
//! let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
//! let mut chooser = Chooser::new(Default::default(), Bound::abs(0.001))?;
//! let chunk = chooser.encode(&ArrayView::new(Dtype::F32, &[64, 64], &bytes))?;
//! let array = Coder::new().decode(&chunk, RAW_MAX)?;
//! assert_eq!(array.shape, [64, 64]);
//! assert!(chunk.len() * 8 < bytes.len());
//! # Ok(())
//! # }
//! ```
//!
//! The crate does no I/O, starts no thread and reads no clock.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod back_end;
mod bound;
mod choose;
mod chunk;
pub mod file;
pub mod hdf5;
pub mod npy;
mod numbers;
mod pipeline;
mod places;
mod quantise;
mod step;
mod view;
mod words;

pub use back_end::BackEnd;
pub use bound::Bound;
pub use choose::{Chooser, Memory, Mode, Options, candidates};
pub use chunk::{Coder, Info, Kept, MAGIC, info};
pub use narrows::probe::{Probe, probe};
pub use pipeline::Pipeline;
pub use quantise::round as round_bits;
pub use step::{COLUMNS_MAX, STEPS_MAX, Step};
pub use view::{Array, ArrayView, Dtype, Layout, RANK_MAX, RAW_MAX};
pub use words::ByteOrder;
