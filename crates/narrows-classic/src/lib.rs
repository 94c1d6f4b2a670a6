//! Policies of older systems, beside which those of the engine are measured, and `replay`, which
//! repeats what was decided before. They know of the engine what is public.
//!
//! ```
//! let spec = narrows_classic::policies().parse("stall:min=1,max=9")?;
//! assert_eq!((spec.name(), spec.block_max()), ("stall", 512 << 10));
//! # Ok::<(), narrows::Error>(())
//! ```

use std::sync::LazyLock;

use narrows::policy::{Policies, Registered};

mod adoc;
mod datacomp;
mod replay;
mod stall;

pub use adoc::Adoc;
pub use datacomp::{Datacomp, EventTable, Opportunity};
pub use replay::{Planned, Replay, Schedule};
pub use stall::Stall;

/// The policies of this crate, in the order of help texts.
pub const POLICIES: &[&Registered] = &[&adoc::ENTRY, &datacomp::ENTRY, &stall::ENTRY, &replay::ENTRY];

/// Those of the engine, and these after them.
pub fn policies() -> &'static Policies {
    // A test sees that the names differ.
    static ALL: LazyLock<Policies> = LazyLock::new(|| Policies::shipped().with(POLICIES).unwrap_or_default());
    &ALL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_registered_beside_those_of_the_engine() {
        let names: Vec<_> = policies().iter().map(|policy| policy.name).collect();
        assert_eq!(names, ["balance", "fixed", "messages", "storage", "adoc", "datacomp", "stall", "replay"]);
        for policy in POLICIES {
            assert!(!policy.examples.is_empty() && policy.usage.starts_with(policy.name), "{}", policy.name);
            assert!(!policy.about.is_empty() && !policy.about.contains('\n'), "{}", policy.name);
        }
    }

    #[test]
    fn specifications_print_as_they_parse() {
        let printed = |text: &str| policies().parse(text).unwrap().to_string();
        for text in POLICIES.iter().flat_map(|p| p.examples) {
            assert_eq!(printed(text), *text);
        }
        for (text, canonical) in [
            ("stall:max=9", "stall:min=-7,max=9"),
            ("datacomp:mode=train", "datacomp"),
            ("datacomp:table=a,b,mode=train", "datacomp:table=a,b"),
        ] {
            assert_eq!(printed(text), canonical);
        }
        for bad in [
            "nope",
            "replay",
            "replay:",
            "stall:0",
            "stall:min=0",
            "stall:min=9,max=3",
            "stall:max=99",
            "datacomp:mode=read",
            "datacomp:x",
            "datacomp:table=",
            "datacomp:mode=x",
        ] {
            assert!(policies().parse(bad).is_err(), "{bad}");
        }
    }
}
