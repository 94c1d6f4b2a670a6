//! Progress and result of the copy at the storing end.

/// Progress and result of the copy at the storing end.
#[derive(Debug, Clone, Default)]
pub struct Stored {
    /// Files stored.
    pub files: u64,
    /// Their length in bytes.
    pub bytes: u64,
    /// Files that were unchanged.
    pub files_same: u64,
    /// Their length in bytes.
    pub bytes_same: u64,
    /// Bytes that were read to compare files by their contents.
    pub bytes_compared: u64,
    /// Totals of files and bytes of the copy, once the sender has announced them.
    pub total: Option<(u64, u64)>,
    /// Bytes of content that arrived or were present, including those of incomplete files.
    pub bytes_done: u64,
    /// Bytes of content that came as references to earlier content.
    pub bytes_repeated: u64,
    /// Failures at both ends.
    pub failed: u64,
    /// Those of files whose content could not be stored.
    pub not_stored: u64,
    /// Entries announced, except folders.
    pub announced: u64,
    /// Files that were wanted but did not arrive, without an error from the sender.
    pub unsaid: u64,
    /// Files that changed while they were read, and were stored nevertheless.
    pub changed: u64,
    /// Attributes that could not be preserved, as text.
    pub losses: Option<String>,
    /// Entries that were removed because the sources do not have them.
    pub removed: u64,
    /// Why none was removed.
    pub not_removed: Option<String>,
    /// Number and text of the reason why the sender does not copy at all.
    pub refused: Option<(u64, String)>,
}
