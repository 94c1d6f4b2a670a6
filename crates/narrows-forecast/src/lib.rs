//! What Narrows would give for data, a link or a site, before anything is sent: the answers of `narrows oracle`,
//! `narrows measure` and `narrows plan`, and their pages.

pub mod measure;
pub mod oracle;
pub mod plan;
mod rate;

pub use rate::Rate;
