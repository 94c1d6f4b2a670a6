//! The rate of a link.

/// A link rate in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate(pub f64);

impl Rate {
    /// The same in Mbit/s.
    pub fn mbit(self) -> f64 {
        self.0 / 125_000.0
    }
}
