//! The cache folder of the user.

use std::path::PathBuf;

/// `$XDG_CACHE_HOME/narrows` or `~/.cache/narrows`; `None` if neither XDG_CACHE_HOME nor HOME is set.
pub fn folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("narrows"))
}
