//! The models behind `narrows plan`: gain of compression for a site, in time and money.
//!
//! The models are those of Kuhn, Kunkel and Ludwig, *Data Compression for Climate Data* (2016),
//! section 2, with one for flows whose encoding, transfer and decoding overlap, as those of Narrows
//! do, and one for archives. The crate does no I/O: it takes a [`Site`](site::Site) and
//! methods with their speeds and ratios, and gives tables.
//!
//! ```
//! use narrows_plan::{report, site};
//!
//! let site = site::Site { methods: site::default_methods(), ..Default::default() };
//! let sheets = report::sheets(&site, "nothing was measured");
//! assert!(sheets.iter().any(|s| s.key == "storage"));
//! ```
//!
//! Units: MB, GB and TB are powers of 1000. A ratio is raw / compressed bytes. Figures that were
//! measured have intervals, which every output carries on.

pub mod archive;
pub mod config;
pub mod interval;
pub mod memory;
pub mod method;
pub mod network;
pub mod published;
mod random;
pub mod report;
pub mod seed;
pub mod sensitivity;
pub mod sheet;
pub mod site;
pub mod storage;
pub mod threshold;
