//! Codecs of older systems, with which the laboratory compares: LZO, LZF, LZW. Each is a codec of
//! another crate to the engine.
//!
//! ```
//! let codecs = narrows_older::codecs();
//! assert_eq!(codecs.parse("lzo:level=3")?.codec, narrows_older::LZO);
//! # Ok::<(), narrows::Error>(())
//! ```

use std::sync::LazyLock;

use narrows::codec::{Codec, CodecId, Codecs};

mod lzf;
mod lzo;
mod lzw;
mod room;

/// LZO1X.
pub const LZO: CodecId = CodecId(8);
/// LZF.
pub const LZF: CodecId = CodecId(9);
/// LZW.
pub const LZW: CodecId = CodecId(10);

/// The codecs of this crate, in the order of help texts.
pub const CODECS: &[&dyn Codec] = &[lzo::ENTRY, lzf::ENTRY, lzw::ENTRY];

/// Those of the engine, and these after them.
///
/// # Panics
/// Never: a test registers them.
pub fn codecs() -> &'static Codecs {
    static ALL: LazyLock<Codecs> = LazyLock::new(|| {
        let all: Vec<_> = Codecs::shipped().iter().chain(CODECS.iter().copied()).collect();
        Codecs::new(&all).expect("numbers and names of their own")
    });
    &ALL
}
