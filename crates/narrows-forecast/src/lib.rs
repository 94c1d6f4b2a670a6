//! Forecasts for data, a link or a site, before anything is sent: answers and pages of `narrows oracle`,
//! `narrows measure` and `narrows plan`.

pub mod measure;
pub mod oracle;
pub mod plan;
mod rate;

pub use rate::Rate;
