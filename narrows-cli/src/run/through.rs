//! What happens to bytes between the program and the network, in one direction. The engine's place.

/// One of these stands in each direction of each connection.
pub(crate) enum Through {
    /// As they came.
    Unchanged,
}

impl Through {
    /// What goes on because of `input`. It has to be written before more is given.
    pub(crate) fn pass<'a>(&'a mut self, input: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Unchanged => input,
        }
    }

    /// No more will come: what still goes on.
    pub(crate) fn end(&mut self) -> &[u8] {
        match self {
            Self::Unchanged => &[],
        }
    }
}
