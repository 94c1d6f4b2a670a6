//! What an acceptor connects to and listens on for dialers.

use std::net::IpAddr;
use std::path::PathBuf;

use narrows::{Error, Result};

use super::target::Endpoint;

/// A list of permissions. Without any, only loopback is permitted, with any port.
#[derive(Debug, Clone, Default)]
pub struct Rules(Vec<Rule>);

/// `HOST:PORT`, where either may be `*`, or the path of a unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    Tcp {
        host: Option<String>,
        port: Option<u16>,
    },
    Unix(PathBuf),
    /// Everything, unix sockets too.
    Any,
    /// Nothing. It stands alone.
    Nothing,
}

impl Rules {
    /// Permits everything.
    pub fn any() -> Self {
        Self(vec![Rule::Any])
    }

    /// Reads rules as they are given on the command line: `HOST:PORT`, `*:PORT`, `HOST:*`, `*:*` (all
    /// of TCP), `any`, or `/path`; or `none` alone.
    ///
    /// # Errors
    /// `Misuse`
    pub fn parse(texts: &[String]) -> Result<Self> {
        let rules = texts.iter().map(|text| Rule::parse(text)).collect::<Result<Vec<_>>>()?;
        if rules.len() > 1 && rules.contains(&Rule::Nothing) {
            return Err(Error::misuse("none allows nothing, and stands alone"));
        }
        Ok(Self(rules))
    }

    /// Whether a dialer may name this endpoint. Of a host with a name it may depend on the address:
    /// then [`Rules::allow_address`] decides. False: no address of the name could be permitted, and it
    /// need not be looked up.
    pub fn may_allow(&self, to: &Endpoint) -> bool {
        match to {
            Endpoint::Unix(path) => self.0.iter().any(|r| *r == Rule::Any || matches!(r, Rule::Unix(p) if p == path)),
            Endpoint::Tcp { host, port } => {
                self.0.is_empty() || self.0.iter().any(|rule| rule.allows_port(*port) && rule.may_allow_host(host))
            }
        }
    }

    /// Whether this address may be connected to or listened on for an endpoint that named `host`; an
    /// empty one is `localhost`.
    pub fn allow_address(&self, host: &str, address: IpAddr, port: u16) -> bool {
        let address = address.to_canonical();
        if self.0.is_empty() {
            return address.is_loopback();
        }
        self.0.iter().any(|rule| rule.allows_port(port) && rule.allows_host(host, address))
    }
}

impl Rule {
    fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            let text = narrows_host::words::shown(text.as_bytes());
            Error::misuse(format!(
                "'{text}' is not HOST:PORT, such as db:5432, *:443 or 10.0.0.1:*, nor /path, nor any, nor none"
            ))
        };
        if text == "any" {
            return Ok(Self::Any);
        }
        if text == "none" {
            return Ok(Self::Nothing);
        }
        if text.starts_with('/') {
            return Ok(Self::Unix(text.into()));
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        let port = match port {
            "*" => None,
            port => Some(port.parse().map_err(|_| wrong())?),
        };
        match host {
            "" => Err(wrong()),
            // Taken as a name it would never match.
            host if host.contains('/') => Err(Error::misuse(format!(
                "'{}' is a network: name the addresses in it one by one, or * for all",
                narrows_host::words::shown(host.as_bytes())
            ))),
            "*" => Ok(Self::Tcp { host: None, port }),
            host => Ok(Self::Tcp { host: Some(host.to_owned()), port }),
        }
    }

    fn allows_port(&self, port: u16) -> bool {
        match self {
            Self::Any => true,
            Self::Tcp { port: allowed, .. } => allowed.is_none_or(|allowed| allowed == port),
            Self::Unix(_) | Self::Nothing => false,
        }
    }

    fn allows_host(&self, host: &str, address: IpAddr) -> bool {
        match self {
            Self::Any | Self::Tcp { host: None, .. } => true,
            Self::Tcp { host: Some(allowed), .. } => match allowed.parse::<IpAddr>() {
                Ok(allowed) => allowed.to_canonical() == address,
                Err(_) => allowed.eq_ignore_ascii_case(named(host)),
            },
            Self::Unix(_) | Self::Nothing => false,
        }
    }

    /// Whether there can be an address for which it allows the host.
    fn may_allow_host(&self, host: &str) -> bool {
        let is_name = |host: &str| host.parse::<IpAddr>().is_err();
        match self {
            // A name may have this address.
            Self::Tcp { host: Some(allowed), .. } if !is_name(allowed) && is_name(host) => true,
            rule => rule.allows_host(host, host.parse::<IpAddr>().unwrap_or(IpAddr::from([0; 4])).to_canonical()),
        }
    }
}

/// The name of a host in an endpoint.
fn named(host: &str) -> &str {
    if host.is_empty() { "localhost" } else { host }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(texts: &[&str]) -> Rules {
        Rules::parse(&texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    fn allows(rules: &Rules, host: &str, address: &str, port: u16) -> bool {
        let to = Endpoint::Tcp { host: host.into(), port };
        rules.may_allow(&to) && rules.allow_address(host, address.parse().unwrap(), port)
    }

    #[test]
    fn without_rules_only_loopback_is_reached() {
        let rules = Rules::default();
        assert!(allows(&rules, "localhost", "127.0.0.1", 80));
        assert!(allows(&rules, "any.name", "::1", 80), "whatever its name");
        assert!(allows(&rules, "x", "::ffff:127.0.0.1", 80));
        for other in ["10.0.0.1", "0.0.0.0", "::", "::ffff:10.0.0.1", "169.254.169.254"] {
            assert!(!allows(&rules, "localhost", other, 80), "{other}");
        }
        assert!(!rules.may_allow(&Endpoint::Unix("/run/docker.sock".into())));
    }

    #[test]
    fn rules_name_what_is_reached_and_nothing_else() {
        let rules = rules(&["db.internal:5432", "10.0.0.7:*", "*:443", "/run/app.sock", "[::1]:22"]);
        assert!(allows(&rules, "DB.internal", "10.9.9.9", 5432));
        assert!(!allows(&rules, "db.internal", "10.9.9.9", 5433));
        assert!(!allows(&rules, "other", "10.9.9.9", 5432));
        assert!(allows(&rules, "anything", "10.0.0.7", 1), "by its address");
        assert!(allows(&rules, "anything", "::ffff:10.0.0.7", 1));
        assert!(allows(&rules, "anything", "8.8.8.8", 443));
        assert!(allows(&rules, "::1", "::1", 22));
        assert!(!allows(&rules, "localhost", "127.0.0.1", 80), "loopback is not added to rules");
        assert!(rules.may_allow(&Endpoint::Unix("/run/app.sock".into())));
        assert!(!rules.may_allow(&Endpoint::Unix("/run/other.sock".into())));
    }

    #[test]
    fn names_that_no_rule_can_permit_are_not_looked_up() {
        let may = |texts: &[&str], host: &str, port| rules(texts).may_allow(&Endpoint::Tcp { host: host.into(), port });
        let named = ["db.internal:5432"];
        assert!(may(&named, "DB.internal", 5432) && !may(&named, "other", 5432) && !may(&named, "10.0.0.1", 5432));
        let addressed = ["10.0.0.7:*"];
        assert!(may(&addressed, "other", 1), "it may have this address");
        assert!(may(&addressed, "10.0.0.7", 1) && !may(&addressed, "10.0.0.8", 1));
        assert!(may(&["*:80"], "other", 80) && !may(&["*:80"], "other", 81) && may(&[], "other", 1));
    }

    #[test]
    fn the_default_place_to_listen_is_localhost() {
        assert!(allows(&rules(&["localhost:8080"]), "", "127.0.0.1", 8080));
        assert!(!allows(&rules(&["localhost:8080"]), "*", "0.0.0.0", 8080));
        assert!(allows(&rules(&["127.0.0.1:8080"]), "", "127.0.0.1", 8080));
    }

    #[test]
    fn any_is_everything_and_stars_are_all_of_tcp() {
        assert!(Rules::any().may_allow(&Endpoint::Unix("/x".into())));
        assert!(allows(&Rules::any(), "h", "10.0.0.1", 1));
        let stars = rules(&["*:*"]);
        assert!(allows(&stars, "h", "10.0.0.1", 1) && !stars.may_allow(&Endpoint::Unix("/x".into())));
    }

    #[test]
    fn none_allows_nothing_and_stands_alone() {
        let none = rules(&["none"]);
        assert!(!allows(&none, "localhost", "127.0.0.1", 80) && !allows(&none, "h", "10.0.0.1", 80));
        assert!(!none.may_allow(&Endpoint::Unix("/x".into())));
        assert!(Rules::parse(&["none".to_owned(), "db:1".to_owned()]).is_err());
    }

    #[test]
    fn wrong_rules_are_refused() {
        for text in ["", "db", ":80", "db:", "db:99999", "db:http", "relative/path", "10.0.0.0/8:*", "[fd00::/8]:80"] {
            assert!(Rules::parse(&[text.to_owned()]).is_err(), "{text}");
        }
    }
}
