//! Default options of commands, from a file in TOML: `[cp]` for every copy, `[hosts.NAME]` for copies to and
//! from a host.

use std::collections::{BTreeMap, BTreeSet};

use toml::de::{DeTable, DeValue};

/// The options of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    all: Vec<String>,
    hosts: BTreeMap<String, Vec<String>>,
}

/// Why a file is not understood, for the user.
#[derive(Debug)]
pub struct ConfigError(String);

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

impl Defaults {
    /// Parses the file.
    ///
    /// # Errors
    /// It is no TOML, or has what this program does not know.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let wrong = |text: String| Err(ConfigError(text));
        let table = DeTable::parse(text).map_err(|e| ConfigError(e.message().to_owned()))?;
        let mut own = Self::default();
        for (name, value) in table.get_ref() {
            let name = name.get_ref().as_ref();
            match (name, value.get_ref()) {
                ("cp", DeValue::Table(table)) => own.all = options("cp", table)?,
                ("hosts", DeValue::Table(hosts)) => {
                    for (host, value) in hosts {
                        let host = host.get_ref().as_ref();
                        let DeValue::Table(table) = value.get_ref() else {
                            return wrong(format!("hosts.{host} is no table"));
                        };
                        own.hosts.insert(host.to_owned(), options(&format!("hosts.{host}"), table)?);
                    }
                }
                _ => return wrong(format!("'{name}' is unknown here; there are [cp] and [hosts.NAME]")),
            }
        }
        Ok(own)
    }

    /// The options of a copy with these hosts; those of the hosts come last.
    pub fn options(&self, hosts: &BTreeSet<String>) -> Vec<String> {
        let of_hosts = hosts.iter().filter_map(|host| self.hosts.get(host)).flatten();
        self.all.iter().chain(of_hosts).cloned().collect()
    }
}

fn options(place: &str, table: &DeTable<'_>) -> Result<Vec<String>, ConfigError> {
    let wrong = |text: String| Err(ConfigError(text));
    let mut all = Vec::new();
    for (name, value) in table {
        let DeValue::Array(words) = value.get_ref() else {
            return wrong(format!("{place}.{} is no list", name.get_ref()));
        };
        if name.get_ref() != "options" {
            return wrong(format!("{place}.{} is unknown; there is {place}.options", name.get_ref()));
        }
        for word in words {
            match word.get_ref() {
                DeValue::String(word) => all.push(word.to_string()),
                _ => return wrong(format!("{place}.options has a value that is no text; write [\"-P\", \"2222\"]")),
            }
        }
    }
    if all.first().is_some_and(|word| !word.starts_with('-')) {
        return wrong(format!("{place}.options begins with '{}', which is no option", all[0]));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_add_to_what_is_for_all() {
        let text = "[cp]\noptions = [\"-z\"]\n[hosts.\"a.b\"]\noptions = [\"-P\", \"22\"]\n";
        let defaults = Defaults::parse(text).unwrap();
        assert_eq!(defaults.options(&["a.b".to_owned(), "c".to_owned()].into()), ["-z", "-P", "22"]);
        assert_eq!(defaults.options(&BTreeSet::new()), ["-z"]);
        assert_eq!(Defaults::parse("").unwrap(), Defaults::default());
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, words) in [
            ("x", "key"),
            ("[other]", "'other' is unknown"),
            ("cp = 1", "'cp' is unknown"),
            ("[cp]\nlevel = [\"1\"]", "cp.level is unknown"),
            ("[cp]\noptions = \"-z\"", "cp.options is no list"),
            ("[cp]\noptions = [1]", "no text"),
            ("[cp]\noptions = [\"x\"]", "no option"),
            ("[hosts]\na = 1", "hosts.a is no table"),
        ] {
            let error = Defaults::parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
