//! The keys of a file for `narrows tunnel --config`: each is a field of the options.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use narrows::policy::PolicySpec;
use narrows_watch::logs::{self, Form};
use narrows_watch::page;
use toml::Spanned;
use toml::de::DeValue;

use super::options::Options;
use crate::forward::{self, Forward};
use crate::limits::{CARRIERS_MAX, FLOWS_MAX};
use crate::rules::Rules;

/// Most values of a list: as many rules or forwards as a person keeps in view, and some more.
const VALUES_MAX: usize = 10_000;
/// Longest time that can be given, in seconds.
const DAY: u64 = 86_400;

/// A key, and what is done with it.
pub(super) struct Key {
    pub(super) name: &'static str,
    /// Whether a change of it counts for a tunnel that runs.
    pub(super) is_live: bool,
    /// Reads its value into the arguments.
    pub(super) read: fn(&mut Options, &Spanned<DeValue<'_>>, &mut Reading<'_>),
    /// Whether it is not set.
    pub(super) is_unset: fn(&Options) -> bool,
    /// Takes its value from other arguments.
    pub(super) take: fn(&mut Options, &Options),
    /// Whether it is the same in both.
    pub(super) is_same: fn(&Options, &Options) -> bool,
}

macro_rules! key {
    ($is_live:expr, $name:ident, $check:expr, $($field:ident).+) => {
        Key {
            name: stringify!($name),
            is_live: $is_live,
            read: |args, value, reading| args.$($field).+ = Setting::read(value, reading, stringify!($name), &$check),
            is_unset: |args| args.$($field).+.is_unset(),
            take: |args, from| args.$($field).+ = from.$($field).+.clone(),
            is_same: |a, b| a.$($field).+.is_same(&b.$($field).+),
        }
    };
}

/// A key whose change needs a restart.
macro_rules! fixed {
    ($name:ident) => {
        fixed!($name, Check::Any)
    };
    ($name:ident, $check:expr) => {
        key!(false, $name, $check, $name)
    };
}

/// One whose change counts at once.
macro_rules! live {
    ($name:ident) => {
        live!($name, Check::Any)
    };
    ($name:ident, $check:expr) => {
        key!(true, $name, $check, $name)
    };
}

macro_rules! limit {
    ($is_live:expr, $name:ident, $range:expr) => {
        key!($is_live, $name, Check::Range($range.0, $range.1), limits.$name)
    };
}

pub(super) const KEYS: [Key; 30] = [
    fixed!(to, Check::Text(other_end)),
    fixed!(local, Check::Text(forward)),
    fixed!(remote, Check::Text(forward)),
    fixed!(dynamic, Check::Text(listener)),
    fixed!(shell, Check::Text(shell)),
    fixed!(remote_narrows),
    fixed!(listen, Check::Text(address)),
    live!(allow, Check::Text(rule)),
    live!(allow_listen, Check::Text(rule)),
    live!(token_file),
    fixed!(token_out),
    live!(key_file),
    live!(cert),
    live!(key),
    live!(ca),
    live!(crl),
    live!(allow_name),
    live!(send_proxy),
    live!(proxy_from),
    fixed!(carriers, Check::Range(1, CARRIERS_MAX as u64)),
    fixed!(keep_trying),
    live!(drain_timeout, Check::Range(0, DAY)),
    fixed!(health, Check::Text(address)),
    fixed!(metrics, Check::Text(metrics)),
    key!(false, log, Check::Any, log.form),
    key!(false, log_level, Check::Text(logs::check), log.levels),
    fixed!(policy),
    live!(verbose),
    live!(quiet),
    fixed!(json),
];

/// Keys of the table `limits`.
pub(super) const LIMITS: [Key; 6] = [
    limit!(false, connections, (1, FLOWS_MAX as u64)),
    limit!(true, memory_mib, (16, 1 << 20)),
    limit!(true, handshakes, (1, 65_536)),
    limit!(true, handshake_seconds, (1, 600)),
    limit!(true, handshakes_per_second, (1, 1_000_000)),
    limit!(true, connections_per_second, (1, 1_000_000)),
];

/// All of them.
pub(super) fn all() -> impl Iterator<Item = &'static Key> {
    KEYS.iter().chain(&LIMITS)
}

/// What a value must be beside its type.
pub(super) enum Check {
    Any,
    /// A text, or each of a list.
    Text(fn(&str) -> Result<(), String>),
    /// A number.
    Range(u64, u64),
}

/// Reads values, and collects what is wrong with them.
pub(super) struct Reading<'a> {
    /// Paths count from here.
    pub(super) folder: &'a Path,
    /// Faults, by the byte that each is about.
    pub(super) faults: Vec<(usize, String)>,
}

impl Reading<'_> {
    pub(super) fn fault(&mut self, at: usize, text: impl Into<String>) {
        self.faults.push((at, text.into()));
    }

    fn text(&mut self, value: &Spanned<DeValue<'_>>, key: &str, check: &Check) -> Option<String> {
        let at = value.span().start;
        let Some(text) = value.get_ref().as_str() else {
            self.fault(at, format!("{key} must be a text in quotes, not {}", kind(value.get_ref())));
            return None;
        };
        if text.contains('\0') {
            self.fault(at, format!("{key} has a NUL byte"));
            return None;
        }
        if let Check::Text(check) = check
            && let Err(why) = check(text)
        {
            self.fault(at, format!("{key}: {why}"));
            return None;
        }
        Some(text.to_owned())
    }

    fn texts(&mut self, value: &Spanned<DeValue<'_>>, key: &str, check: &Check) -> Vec<(usize, String)> {
        let Some(list) = value.get_ref().as_array() else {
            // One alone needs no list.
            let at = value.span().start;
            return self.text(value, key, check).map(|text| (at, text)).into_iter().collect();
        };
        if list.len() > VALUES_MAX {
            self.fault(value.span().start, format!("{key} has more than {VALUES_MAX} values"));
            return Vec::new();
        }
        if list.is_empty()
            && let Some(instead) = instead_of_empty(key)
        {
            self.fault(value.span().start, format!("{key} is empty: {instead}"));
        }
        list.iter().filter_map(|v| Some((v.span().start, self.text(v, key, check)?))).collect()
    }

    fn number(&mut self, value: &Spanned<DeValue<'_>>, key: &str, check: &Check) -> Option<u64> {
        let at = value.span().start;
        let (least, most) = if let Check::Range(least, most) = check { (*least, *most) } else { (0, u64::MAX) };
        let Some(number) = value.get_ref().as_integer() else {
            self.fault(at, format!("{key} must be a whole number, not {}", kind(value.get_ref())));
            return None;
        };
        let number = u64::from_str_radix(number.as_str(), number.radix()).ok();
        let found = number.filter(|n| (least..=most).contains(n));
        if found.is_none() {
            self.fault(at, format!("{key} must be from {least} to {most}"));
        }
        found
    }
}

/// What to write instead of an empty list, where it would look like nothing and mean the default.
fn instead_of_empty(key: &str) -> Option<&'static str> {
    match key {
        "allow" | "allow_listen" => Some("leave it out for the loopback, or write \"none\" to allow nothing"),
        "allow_name" => Some("leave it out for all names that ca vouches for, or name some"),
        _ => None,
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// A field of the arguments. One that is not set has its default, whatever the file says of others.
trait Setting: Clone + Default {
    fn read(value: &Spanned<DeValue<'_>>, reading: &mut Reading<'_>, key: &str, check: &Check) -> Self;
    fn is_unset(&self) -> bool;
    fn is_same(&self, other: &Self) -> bool;
}

/// Implements the questions for a type that can be compared.
macro_rules! compared {
    () => {
        fn is_unset(&self) -> bool {
            *self == Self::default()
        }

        fn is_same(&self, other: &Self) -> bool {
            self == other
        }
    };
}

impl Setting for Option<String> {
    fn read(value: &Spanned<DeValue<'_>>, reading: &mut Reading<'_>, key: &str, check: &Check) -> Self {
        reading.text(value, key, check)
    }

    compared!();
}

impl Setting for Option<OsString> {
    fn read(value: &Spanned<DeValue<'_>>, reading: &mut Reading<'_>, key: &str, check: &Check) -> Self {
        reading.text(value, key, check).map(OsString::from)
    }

    compared!();
}

impl Setting for Option<PathBuf> {
    fn read(value: &Spanned<DeValue<'_>>, reading: &mut Reading<'_>, key: &str, check: &Check) -> Self {
        reading.text(value, key, check).map(|text| reading.folder.join(text))
    }

    compared!();
}

impl Setting for Vec<String> {
    fn read(value: &Spanned<DeValue<'_>>, reading: &mut Reading<'_>, key: &str, check: &Check) -> Self {
        reading.texts(value, key, check).into_iter().map(|(_, text)| text).collect()
    }

    compared!();
}

impl Setting for Vec<IpAddr> {
    fn read(value: &Spanned<DeValue<'_>>, reading: &mut Reading<'_>, key: &str, check: &Check) -> Self {
        let mut found = Self::new();
        for (at, text) in reading.texts(value, key, check) {
            match text.parse() {
                Ok(address) => found.push(address),
                Err(_) => reading.fault(at, format!("{key}: '{}' is no address of a host", shown(&text))),
            }
        }
        found
    }

    compared!();
}

impl Setting for bool {
    fn read(value: &Spanned<DeValue<'_>>, reading: &mut Reading<'_>, key: &str, _check: &Check) -> Self {
        value.get_ref().as_bool().unwrap_or_else(|| {
            let text = format!("{key} must be true or false, not {}", kind(value.get_ref()));
            reading.fault(value.span().start, text);
            false
        })
    }

    compared!();
}

impl Setting for Option<u8> {
    fn read(value: &Spanned<DeValue<'_>>, reading: &mut Reading<'_>, key: &str, check: &Check) -> Self {
        reading.number(value, key, check).and_then(|n| n.try_into().ok())
    }

    compared!();
}

impl Setting for Option<u32> {
    fn read(value: &Spanned<DeValue<'_>>, reading: &mut Reading<'_>, key: &str, check: &Check) -> Self {
        reading.number(value, key, check).and_then(|n| n.try_into().ok())
    }

    compared!();
}

impl Setting for Option<Form> {
    fn read(value: &Spanned<DeValue<'_>>, reading: &mut Reading<'_>, key: &str, check: &Check) -> Self {
        let text = reading.text(value, key, check)?;
        let found = Form::ALL.into_iter().find(|(name, _)| *name == text).map(|(_, form)| form);
        if found.is_none() {
            reading.fault(value.span().start, format!("{key} is \"text\" or \"json\""));
        }
        found
    }

    compared!();
}

impl Setting for Option<PolicySpec> {
    fn read(value: &Spanned<DeValue<'_>>, reading: &mut Reading<'_>, key: &str, check: &Check) -> Self {
        let text = reading.text(value, key, check)?;
        narrows_classic::policies()
            .parse(&text)
            .map_err(|e| reading.fault(value.span().start, format!("{key}: {e}")))
            .ok()
    }

    fn is_unset(&self) -> bool {
        self.is_none()
    }

    fn is_same(&self, other: &Self) -> bool {
        self.as_ref().map(ToString::to_string) == other.as_ref().map(ToString::to_string)
    }
}

fn shown(text: &str) -> String {
    narrows_host::words::shown(text.as_bytes())
}

fn forward(text: &str) -> Result<(), String> {
    Forward::parse(text).map(drop).map_err(|e| e.to_string())
}

fn listener(text: &str) -> Result<(), String> {
    forward::listener(text).map(drop).map_err(|e| e.to_string())
}

fn rule(text: &str) -> Result<(), String> {
    Rules::parse(&[text.to_owned()]).map(drop).map_err(|e| e.to_string())
}

fn other_end(text: &str) -> Result<(), String> {
    match text.strip_prefix("narrows://") {
        Some(address) => super::address::host_and_port(address).map(drop).map_err(|e| e.to_string()),
        None if text.is_empty() || text.starts_with('-') => {
            Err("it is narrows://HOST:PORT, or a host that ssh reaches".into())
        }
        None => Ok(()),
    }
}

fn shell(text: &str) -> Result<(), String> {
    narrows_host::shell::words(text.as_ref()).map(drop)
}

fn metrics(text: &str) -> Result<(), String> {
    page::full_address(text)
        .map(drop)
        .ok_or_else(|| format!("'{}' is not ADDR:PORT, such as 127.0.0.1:9710", shown(text)))
}

fn address(text: &str) -> Result<(), String> {
    let is_one = text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if is_one { Ok(()) } else { Err(format!("'{}' is not ADDR:PORT, such as 0.0.0.0:7702", shown(text))) }
}
