//! Proof of an end of a tunnel, and its trust in the other one: a token or certificates.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use narrows::Error;
use narrows_host::words;
use narrows_trust::certificates::Files;
use narrows_trust::ends::{Client, Server};
use narrows_trust::keys::{self, Token};
use narrows_watch::page;

use super::options::Options;
use crate::settings::PROTOCOL;

pub(super) fn server(args: &Options) -> Result<Server> {
    Ok(match certificates(args) {
        Some(files) => Server::by_certificates(&files, PROTOCOL)?,
        None => Server::by_keys(&key_path(args)?, PROTOCOL)?,
    })
}

pub(super) fn client(args: &Options) -> Result<Client> {
    Ok(match certificates(args) {
        Some(files) => Client::by_certificates(&files, PROTOCOL)?,
        None => Client::by_token(&load_token(args)?, PROTOCOL)?,
    })
}

pub(super) fn certificates(args: &Options) -> Option<Files> {
    let (cert, key, ca) = (args.cert.clone()?, args.key.clone()?, args.ca.clone()?);
    Some(Files { cert, key, ca, crl: args.crl.clone(), names: args.allow_name.clone() })
}

/// What a start with these settings would fail for, each with its key. Nothing is made.
pub(super) fn faults(args: &Options) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let mut fault = |key: &'static str, result: Result<()>| {
        found.extend(result.err().map(|e| (key, words::one_line(&e))));
    };
    let by_token = args.cert.is_none();
    let is_shell = args.to.as_ref().is_some_and(|to| !to.as_encoded_bytes().starts_with(b"narrows://"));
    let metrics = args.metrics.as_deref().and_then(page::full_address);
    let mut taken: Vec<(&str, SocketAddr)> = Vec::new();
    for (key, address) in [("listen", &args.listen), ("health", &args.health), ("metrics", &metrics)] {
        let Some(address) = address else { continue };
        match super::address::resolve(address) {
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

fn in_time(args: &Options) -> Result<()> {
    certificates(args).map_or(Ok(()), |files| Ok(files.are_own_in_time()?))
}

/// Whether two listeners could not be there at the same time. Port 0 is a different one each time.
fn is_same(a: &SocketAddr, b: &SocketAddr) -> bool {
    let (one, other) = (a.ip(), b.ip());
    let meet = one == other || one.is_unspecified() || other.is_unspecified();
    a.port() != 0 && a.port() == b.port() && meet && a.is_ipv4() == b.is_ipv4()
}

fn key_path(args: &Options) -> Result<std::path::PathBuf> {
    Ok(args.key_file.clone().map_or_else(|| keys::path_of_user(keys::TUNNEL), Ok)?)
}

fn load_token(args: &Options) -> Result<Token> {
    if let Some(path) = &args.token_file {
        return Ok(Token::load(path)?);
    }
    let text = std::env::var(keys::VARIABLE).ok().filter(|text| !text.is_empty());
    let text = text.context(Error::misuse(
        "narrows:// needs the token that `narrows tunnel --listen` writes: give --token-file FILE",
    ))?;
    Ok(Token::parse(&text)?)
}
