//! The codecs and policies of the laboratory, which texts of plans and flags name.

use narrows::codec::{CodecId, Codecs, Method};
use narrows::policy::PolicySpec;

/// Those of the engine and of older systems.
pub(crate) fn codecs() -> &'static Codecs {
    narrows_older::codecs()
}

pub(crate) fn method(text: &str) -> narrows::Result<Method> {
    codecs().parse(text)
}

pub(crate) fn methods(text: &str) -> narrows::Result<Vec<Method>> {
    codecs().parse_list(text)
}

/// A policy of the engine or of older systems.
pub(crate) fn policy(text: &str) -> narrows::Result<PolicySpec> {
    narrows_classic::policies().parse_with(text, codecs())
}

/// Whether only the laboratory has the codec.
pub(crate) fn is_older(codec: CodecId) -> bool {
    narrows_older::CODECS.iter().any(|older| older.id() == codec)
}

/// The name of a method, which [`method`] reads.
pub(crate) fn name(method: Method) -> String {
    codecs().print(method)
}
