//! Packs: trees of files in one file (`docs/format.md`, section 17). Each member is listed and read
//! without the rest, by a directory at the end; repeated content is stored once.
//!
//! A pack is a file of streams. Its raw bytes are an entry stream, as `narrows cp` speaks it, and after
//! it the directory.

#![warn(missing_docs)]

mod begin;
mod builder;
mod check;
mod columns;
mod compare;
mod directory;
mod group;
mod item;
mod member;
#[cfg(feature = "mount")]
pub mod mount;
mod order;
mod pack;
mod repeats;
mod select;
mod tail;
mod trailer;
mod unpack;
mod writer;

#[cfg(test)]
mod tests;

pub use begin::begins_as_pack;
pub use check::{Checked, check_members, members_in};
pub use compare::compare_directory;
pub use item::{Content, Item};
pub use member::{Extents, Member, MemberReader};
pub use order::cmp as cmp_path;
pub use pack::{Cursor, Pack, followed, read_trailer};
pub use select::Selector;
pub use trailer::Trailer;
pub use unpack::{AHEAD, Left, unpack_all, unpack_some};
pub use writer::{Input, PackOptions, Packed, Progress, pack};

pub use narrows::{Error, ErrorKind, Result};
