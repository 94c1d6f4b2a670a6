//! Copies of files and folders: read at one end, sent as an entry stream, stored at the other.

pub mod carrier;
pub mod carriers;
mod delta;
pub mod direct;
mod earlier;
mod error;
pub mod fallback;
pub mod filter;
pub mod frames;
mod hash;
pub mod hello;
pub mod holes;
pub mod landing;
mod listing;
pub mod measure;
mod meta;
pub mod outlet;
mod partial_name;
pub mod place;
pub mod remote_path;
pub mod reread;
pub mod scan;
pub mod serve;
pub mod served;
pub mod source;
pub mod special;
pub mod spelling;
pub mod store;
pub mod tree;

pub use error::{Error, FORM, Reason, Result, is_link_lost};
pub use meta::HINT_DEVICES;
use narrows_host::words::{e_text, shown};
