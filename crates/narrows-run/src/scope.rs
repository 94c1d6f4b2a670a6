//! Connection rules: `--only` and `--except` select the connections that are handed over, `--peer`
//! those that begin in frames, `--via-gateway` those that go through gateways.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use super::error::{Error, Result};
use super::wire::{Rule, Scope, mapped};

/// Parses `HOST`, `ADDRESS/BITS` or `*`, each optionally with `:PORT` or `:PORT-PORT`; IPv6 is in
/// brackets if a port follows.
pub fn build(only: &[String], except: &[String], loopback: bool) -> Result<Scope> {
    let mut scope = Scope::new(loopback);
    let all = only.iter().map(|text| (text, true)).chain(except.iter().map(|text| (text, false)));
    for (text, only) in all {
        add(&mut scope, text, only, "--only and --except")?;
    }
    Ok(scope)
}

/// Peers with which frames begin without negotiation, because the operator says so.
#[derive(Clone, Copy)]
pub struct Direct {
    /// Servers; `None`: none.
    peers: Option<Scope>,
    /// Accept clients that begin in frames.
    pub accepts: bool,
}

impl Direct {
    pub fn new(peers: &[String], accepts: bool) -> Result<Self> {
        let mut scope = Scope::new(true);
        for text in peers {
            add(&mut scope, text, true, "--peer")?;
        }
        Ok(Self { peers: (!peers.is_empty()).then_some(scope), accepts })
    }

    pub fn holds(&self, server: SocketAddr) -> bool {
        self.peers.as_ref().is_some_and(|peers| peers.excludes(server.ip(), server.port()).is_none())
    }
}

/// Parses `--via-gateway`: servers that are reached through gateways on their hosts.
pub fn gateways(servers: &[String]) -> Result<Option<Scope>> {
    let mut scope = Scope::new(true);
    for text in servers {
        add(&mut scope, text, true, "--via-gateway")?;
    }
    Ok((!servers.is_empty()).then_some(scope))
}

/// Adds the rules that `text` stands for; `options` are where it was typed.
fn add(scope: &mut Scope, text: &str, only: bool, options: &'static str) -> Result<()> {
    let added = rules(text, only)?.into_iter().all(|rule| scope.add(rule));
    if added { Ok(()) } else { Err(Error::TooManyRules { options }) }
}

fn rules(text: &str, only: bool) -> Result<Vec<Rule>> {
    let bad = || Error::Rule(text.to_owned());
    let (host, ports) = split(text);
    let ports = match ports {
        None => (0, u16::MAX),
        Some(ports) => {
            let (low, high) = ports.split_once('-').unwrap_or((ports, ports));
            (low.parse().map_err(|_| bad())?, high.parse().map_err(|_| bad())?)
        }
    };
    if ports.0 > ports.1 {
        return Err(bad());
    }
    if host.is_empty() || host == "*" {
        return Ok(vec![Rule { only, address: mapped(IpAddr::V6(0u128.into())), prefix: 0, ports }]);
    }
    let (host, bits) = host.split_once('/').map_or((host, None), |(h, b)| (h, Some(b)));
    let addresses: Vec<IpAddr> = match (host.parse(), bits) {
        (Ok(address), _) => vec![address],
        (Err(_), Some(_)) => return Err(bad()),
        (Err(_), None) => {
            let unresolved = |source| Error::Unresolved { host: host.to_owned(), source };
            let found = (host, 0u16).to_socket_addrs().map_err(unresolved)?;
            found.map(|a| a.ip()).collect()
        }
    };
    addresses
        .into_iter()
        .map(|address| {
            let (most, above) = if address.is_ipv4() { (32, 96) } else { (128, 0) };
            let bits: u8 = bits.map_or(Ok(most), str::parse).map_err(|_| bad())?;
            if bits > most {
                return Err(bad());
            }
            Ok(Rule { only, address: mapped(address), prefix: bits + above, ports })
        })
        .collect()
}

/// Splits host and ports. Colons in an IPv6 address without brackets do not begin a port.
fn split(text: &str) -> (&str, Option<&str>) {
    if let Some((host, rest)) = text.strip_prefix('[').and_then(|t| t.split_once(']')) {
        return (host, rest.strip_prefix(':'));
    }
    match text.rsplit_once(':') {
        Some((host, ports)) if !host.contains(':') => (host, Some(ports)),
        _ => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_typed_in_many_ways() {
        let holds = |only: &[&str], except: &[&str], host: &str, port| {
            let texts = |list: &[&str]| list.iter().map(|t| (*t).to_string()).collect::<Vec<_>>();
            build(&texts(only), &texts(except), true).unwrap().excludes(host.parse().unwrap(), port).is_none()
        };
        assert!(holds(&[], &[], "10.0.0.1", 80));
        assert!(holds(&["10.0.0.0/8"], &[], "10.0.0.1", 80));
        assert!(!holds(&["10.0.0.0/8"], &[], "11.0.0.1", 80));
        assert!(holds(&["10.0.0.1:5432-5433"], &[], "10.0.0.1", 5433));
        assert!(!holds(&["10.0.0.1:5432"], &[], "10.0.0.1", 5433));
        assert!(holds(&["2001:db8::/32"], &[], "2001:db8::7", 80));
        assert!(holds(&["[2001:db8::7]:80"], &[], "2001:db8::7", 80));
        assert!(!holds(&["[2001:db8::7]:80"], &[], "2001:db8::7", 81));
        assert!(!holds(&[], &["*:22"], "10.0.0.1", 22));
        assert!(holds(&[], &[":22"], "10.0.0.1", 23));
        assert!(!holds(&["10.0.0.0/8"], &["10.0.0.1"], "10.0.0.1", 23));
        assert!(holds(&["localhost"], &[], "127.0.0.1", 23));
    }

    #[test]
    fn frames_begin_with_the_peers_that_are_named_and_with_no_other() {
        let holds = |peers: &[&str], server: &str| {
            let peers: Vec<_> = peers.iter().map(|p| (*p).to_string()).collect();
            Direct::new(&peers, false).unwrap().holds(server.parse().unwrap())
        };
        assert!(!holds(&[], "10.0.0.1:80"));
        assert!(holds(&["10.0.0.1"], "10.0.0.1:80"));
        assert!(!holds(&["10.0.0.1:81", "[2001:db8::7]:80"], "10.0.0.1:80"));
        assert!(holds(&["10.0.0.1:81", "[2001:db8::7]:80"], "[2001:db8::7]:80"));
        assert!(holds(&["127.0.0.1:5432"], "127.0.0.1:5432"));
        assert!(Direct::new(&["10.0.0.1:x".into()], false).is_err());
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for bad in ["10.0.0.0/33", "10.0.0.1:x", "10.0.0.1:5-4", "name/8", "10.0.0.1:70000"] {
            assert!(build(&[bad.to_string()], &[], false).is_err(), "{bad}");
        }
    }
}
