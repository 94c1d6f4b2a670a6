//! The status of a copy, for `status` and `top`.

use std::sync::Arc;

use narrows::stream::Control;
use narrows_copy::place::Place;
use narrows_copy::source::Progress;
use narrows_copy::store::EntryStore;
use narrows_watch::copy::{OneCopy, publish_copy};
use narrows_watch::status;

use super::plan::Plan;

/// Lets others watch a copy that this end sends.
pub(super) fn sending(
    plan: &Plan,
    target: &Place,
    control: &Arc<Control>,
    progress: impl Fn() -> Progress + Send + Sync + 'static,
) {
    let seen = Arc::clone(control);
    publish_copy(copy(plan, target, control, "sends"), move || {
        let p = progress();
        let crossed = p.bytes_crossed(seen.send_summary().crossed_raw_bytes);
        let total = if p.scanned && !p.endless { p.bytes } else { 0 };
        Some(status::Progress {
            files: p.files_sent + p.files_same,
            files_total: p.files,
            // What is there already is done.
            bytes: crossed + p.bytes_same + p.bytes_here,
            bytes_total: total,
        })
    });
}

/// Lets others watch a copy that this end stores.
pub(super) fn storing(plan: &Plan, from: &Place, control: &Arc<Control>, store: EntryStore) {
    publish_copy(copy(plan, from, control, "stores"), move || {
        let stored = store.stored();
        let (files_total, bytes_total) = stored.total.unwrap_or_default();
        Some(status::Progress {
            files: stored.files + stored.files_same,
            files_total,
            bytes: stored.bytes_done + stored.bytes_same,
            bytes_total,
        })
    });
}

fn copy(plan: &Plan, other: &Place, control: &Arc<Control>, outcome: &'static str) -> OneCopy {
    let words: Vec<_> = plan.paths.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let peer = match other {
        Place::Local(_) => String::new(),
        Place::Ssh { host, .. } => host.to_string_lossy().into_owned(),
        Place::Direct { host, port, .. } => format!("{host}:{port}"),
    };
    OneCopy { kind: "cp", program: words.join(" "), peer, accepted: false, outcome, control: Arc::clone(control) }
}
