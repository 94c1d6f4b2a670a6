//! Every decision with its reason, as JSON lines.
