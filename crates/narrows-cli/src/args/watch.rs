//! Options of everything that runs for long: metrics and the log.

use clap::{Args as ClapArgs, ValueEnum};
use narrows_watch::logs::{Form, Wanted};

/// How a service is watched.
#[derive(ClapArgs, Clone, Default)]
pub(crate) struct WatchArgs {
    /// Serve metrics for Prometheus at http://ADDR:PORT/metrics; PORT alone is one of 127.0.0.1. Whoever
    /// reaches it may read it
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) metrics: Option<String>,
    /// Write messages as lines with time, level and part to stderr, as text or as JSON
    #[arg(long, value_name = "FORM", value_enum)]
    pub(crate) log: Option<LogForm>,
    /// Messages of the log: error, warn, info, debug or off; or each part's, such as `info,flow=debug`; implies
    /// --log text [default: $NARROWS_LOG, or info]
    #[arg(long, value_name = "LEVELS")]
    pub(crate) log_level: Option<String>,
}

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogForm {
    Text,
    Json,
}

impl WatchArgs {
    /// What is said of the log.
    pub(crate) fn log(&self) -> Wanted {
        let form = self.log.map(|form| match form {
            LogForm::Text => Form::Text,
            LogForm::Json => Form::Json,
        });
        Wanted { form, levels: self.log_level.clone() }
    }
}
