//! Streams whose frames stand alone and are put together, or compared, without being encoded or
//! decoded: format.md section 18.

use narrows::frame::{BASELINE_BLOCK_MAX, Preface, ReadLimits, Role};

mod maker;
mod reader;

pub use maker::Maker;
pub use reader::{Event, Reader};

/// Whether frames of this stream stand alone and can be checked.
pub fn stands_alone(preface: &Preface) -> bool {
    preface.role == Role::Sender
        && preface.critical == 0
        && preface.check
        && preface.history == 0
        && preface.reach == 0
        && preface.block_max <= BASELINE_BLOCK_MAX
}

/// The limits that the preface of such a stream sets.
pub fn limits(preface: &Preface) -> ReadLimits {
    ReadLimits {
        block_max: preface.block_max,
        history: 0,
        reach: 0,
        codecs: preface.codecs,
        check: true,
        messages: false,
    }
}
