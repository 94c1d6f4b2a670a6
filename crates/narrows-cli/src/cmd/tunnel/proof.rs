//! Proof of an end of a tunnel, and its trust in the other one: a token or certificates.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use narrows::Error;
use narrows_copy::direct::keys::{self, Keys, Token};
use narrows_copy::direct::proof;
use narrows_tunnel::certificates::Files;
use narrows_tunnel::settings::{PROTOCOL, Trust};
use rustls::{ClientConfig, ServerConfig};

use crate::args::tunnel::TunnelArgs;
use crate::watch;

/// Of the end that others connect to.
pub(super) struct Server {
    pub(super) config: Arc<ServerConfig>,
    pub(super) trust: Trust,
    /// What clients need, if they need a token.
    pub(super) token: Option<String>,
}

/// Of the end that connects.
pub(super) struct Client {
    pub(super) config: Arc<ClientConfig>,
    pub(super) trust: Trust,
    /// The name that the server proves, if it is not that of its host.
    pub(super) name: Option<&'static str>,
}

pub(super) fn server(args: &TunnelArgs) -> Result<Server> {
    if let Some(files) = certificates(args) {
        let trust = Trust { dialers: Some(files.dialers()?), acceptor: None };
        return Ok(Server { config: files.server()?, trust, token: None });
    }
    let keys = Keys::load(&key_path(args)?)?;
    let trust = Trust { dialers: Some(proof::client_verifier(&keys)?), acceptor: None };
    Ok(Server { config: proof::server_config(&keys, PROTOCOL)?, trust, token: Some(keys.token()?.to_string()) })
}

pub(super) fn client(args: &TunnelArgs) -> Result<Client> {
    if let Some(files) = certificates(args) {
        let trust = Trust { dialers: None, acceptor: Some(files.acceptor()?) };
        return Ok(Client { config: files.client()?, trust, name: None });
    }
    let token = load_token(args)?;
    let trust = Trust { dialers: None, acceptor: Some(proof::server_verifier(&token)) };
    Ok(Client { config: proof::client_config(&token, PROTOCOL)?, trust, name: Some(proof::NAME) })
}

pub(super) fn certificates(args: &TunnelArgs) -> Option<Files> {
    let (cert, key, ca) = (args.cert.clone()?, args.key.clone()?, args.ca.clone()?);
    Some(Files { cert, key, ca, crl: args.crl.clone(), names: args.allow_name.clone() })
}

/// What a start with these settings would fail for, each with its key. Nothing is made.
pub(super) fn faults(args: &TunnelArgs) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let mut fault = |key: &'static str, result: Result<()>| {
        found.extend(result.err().map(|e| (key, narrows_host::words::one_line(&e))));
    };
    let by_token = args.cert.is_none();
    let is_shell = args.to.as_ref().is_some_and(|to| !to.as_encoded_bytes().starts_with(b"narrows://"));
    let metrics = args.watch.metrics.as_deref().and_then(watch::full_address);
    let mut taken: Vec<(&str, SocketAddr)> = Vec::new();
    for (key, address) in [("listen", &args.listen), ("health", &args.health), ("metrics", &metrics)] {
        let Some(address) = address else { continue };
        match super::resolve(address) {
            Ok(found) => {
                let other = taken.iter().find(|(_, other)| found.iter().any(|own| is_same(own, other)));
                fault(key, other.map_or(Ok(()), |(other, _)| Err(anyhow!("{key} and {other} have the same address"))));
                taken.extend(found.into_iter().map(|address| (key, address)));
            }
            Err(e) => fault(key, Err(e)),
        }
    }
    if args.listen.is_some() {
        let made = args.key_file.as_deref().is_some_and(Path::exists);
        let key = if by_token { "key_file" } else { "cert" };
        fault(key, if made || !by_token { server(args).and_then(|_| in_time(args)) } else { Ok(()) });
    } else if !is_shell {
        fault(if by_token { "token_file" } else { "cert" }, client(args).and_then(|_| in_time(args)));
    }
    found
}

fn in_time(args: &TunnelArgs) -> Result<()> {
    certificates(args).map_or(Ok(()), |files| Ok(files.are_own_in_time()?))
}

/// Whether two listeners could not be there at the same time. Port 0 is a different one each time.
fn is_same(a: &SocketAddr, b: &SocketAddr) -> bool {
    let (one, other) = (a.ip(), b.ip());
    let meet = one == other || one.is_unspecified() || other.is_unspecified();
    a.port() != 0 && a.port() == b.port() && meet && a.is_ipv4() == b.is_ipv4()
}

fn key_path(args: &TunnelArgs) -> Result<std::path::PathBuf> {
    if let Some(path) = &args.key_file {
        return Ok(path.clone());
    }
    let (state, home) = (std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"));
    // Not the key of `serve`: who may copy files may not therefore reach services.
    Ok(keys::default_path(state.as_deref(), home.as_deref())?.with_file_name("tunnel.key"))
}

fn load_token(args: &TunnelArgs) -> Result<Token> {
    if let Some(path) = &args.token_file {
        return Ok(Token::load(path)?);
    }
    let text = std::env::var("NARROWS_TOKEN").ok().filter(|text| !text.is_empty());
    let text = text.context(Error::misuse(
        "narrows:// needs the token that `narrows tunnel --listen` writes: give --token-file FILE",
    ))?;
    Ok(Token::parse(&text)?)
}
