//! What a running process of Narrows tells of itself, to `narrows status`, `narrows top` and Prometheus.
//!
//! ```text
//! describe() -> Status --- answer.rs: unix socket, JSON ---> ask.rs: `status`, `top`
//!                      \-- scrape.rs: GET /metrics -- text.rs ---> Prometheus
//! ```
//!
//! A process describes itself only when it is asked. `status`, `metric`, `account`, `histogram`,
//! `bottleneck`, `table` and `text` have no I/O and read no clock. `outlet` and `logs` are the lines that a
//! service writes; `table` and `top` are for people who look.

pub mod account;
pub mod answer;
pub mod ask;
pub mod bottleneck;
pub mod copy;
pub mod histogram;
pub mod http;
pub mod logs;
pub mod metric;
mod name;
pub mod outlet;
pub mod page;
pub mod process;
pub mod scrape;
pub mod status;
mod sys;
pub mod table;
pub mod text;
#[cfg(feature = "top")]
pub mod top;
pub mod trace;

/// Describes the process at this moment. It is called by several threads, and may take a second.
pub type Describe = std::sync::Arc<dyn Fn() -> status::Status + Send + Sync>;
