//! Those who observe the storing end: what they are told of as it happens.

type OnWords = Box<dyn Fn(&str) + Send>;

/// Callbacks for events at the storing end.
pub struct Observers {
    /// Called with every failure.
    pub on_failure: OnWords,
    /// Called with every fifo, device and socket that is passed over; `None`: the sender tells of them.
    pub on_skipped: Option<OnWords>,
    /// Called with the name of every file that is stored.
    pub on_file: OnWords,
    /// Called with every removed entry; without it, the sender is told instead.
    pub on_removed: Option<OnWords>,
}

impl Observers {
    /// Callbacks that do nothing.
    pub fn none() -> Self {
        Self { on_failure: Box::new(|_| ()), on_skipped: None, on_file: Box::new(|_| ()), on_removed: None }
    }
}
