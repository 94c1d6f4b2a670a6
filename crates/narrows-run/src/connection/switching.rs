//! Switch from plain bytes to frames: applies the results of the negotiation with the other end.

use std::os::fd::OwnedFd;
use std::time::Duration;

use narrows::block::Block;
use narrows::upgrade::marker::MARKER_LEN;
use narrows::upgrade::{self, Event, FlowLimits};

use super::Connection;
use crate::account::{LiveConnection, Outcome, Traffic};
use crate::proof;
use crate::shared::PumpContext;
use crate::wire::{BY_GATEWAY, Request};
use narrows_watch::account::Account;

/// The negotiation with the other end.
pub(super) struct Negotiation {
    pub(super) flow: upgrade::Flow,
    /// The flow's words are dropped: nobody negotiates. The connection is plain, or in frames from
    /// the start because the operator says so.
    silent: bool,
}

impl Connection {
    /// Handles an event from the negotiation.
    pub(crate) fn hear(&mut self, event: Event, context: &mut PumpContext) {
        // A peer that has finished may have closed its socket, and would answer a marker with a
        // reset.
        if self.network_ended || self.is_encrypted() {
            self.negotiation.flow.decline();
        }
        match self.negotiation.flow.hear(event) {
            Ok(released) => self.pass_down(&released),
            Err(e) => self.refuse(&e),
        }
        self.after_flow(context);
    }

    pub(super) fn after_flow(&mut self, context: &mut PumpContext) {
        if let Some(marker) = self.negotiation.flow.take_marker() {
            self.held.keep_options();
            let stores = self.is_encrypted() || self.stores_within_host(context);
            self.up.switch(&marker, self.origin.same_host, stores, self.serial, context);
        }
        while let Some(word) = self.negotiation.flow.poll_word() {
            if !self.negotiation.silent {
                context.shared.negotiator.say(self.id, word);
            }
        }
    }

    /// Starts frames both ways from the first byte on. `frames` are bytes that already came.
    pub(super) fn begin_framed(&mut self, frames: Vec<u8>, context: &mut PumpContext) {
        self.held.keep_options();
        self.up.switch(&[], self.origin.same_host, self.stores_within_host(context), self.serial, context);
        self.down.switch(0, self.serial, context);
        if !frames.is_empty()
            && let Err(e) = self.down.receive(Block::from_vec(frames), self.serial, context)
        {
            self.refuse(&e);
        }
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.up.first.are_encrypted() || self.down.first.are_encrypted()
    }

    fn stores_within_host(&self, context: &PumpContext) -> bool {
        self.origin.same_host && context.shared.compressor.stores_within_host
    }

    /// Takes bytes from the network: plain ones, a marker, or frames after a marker.
    pub(super) fn came(&mut self, input: &[u8], context: &mut PumpContext) -> narrows::Result<()> {
        let step = self.negotiation.flow.receive(input, context.now_ns())?;
        self.pass_down(&step.released);
        self.pass_down(&input[..step.plain]);
        if let Some(at) = step.frames {
            self.down.switch(MARKER_LEN, self.serial, context);
            if at < input.len() {
                let rest = Block::from_vec(input[at..].to_vec());
                self.down.receive(rest, self.serial, context)?;
            }
        }
        self.after_flow(context);
        Ok(())
    }

    /// The state of the connection for `narrows status` and notes.
    pub(crate) fn account(&self, context: &PumpContext) -> LiveConnection {
        let outcome = match (self.up.is_framed(), self.down.is_framed()) {
            (true, true) => Outcome::Framed,
            (false, false) => Outcome::Plain(self.why_plain()),
            _ => Outcome::Half,
        };
        LiveConnection {
            id: self.id,
            peer: self.origin.peer,
            accepted: self.origin.accepted,
            age: Duration::from_nanos(context.now_ns().saturating_sub(self.origin.begun_ns)),
            outcome,
            encrypted: self.is_encrypted(),
            within_host: self.stores_within_host(context),
            out: Traffic::out(&self.up),
            sent: self.up.summary().map(Account::of).unwrap_or_default(),
            back: Traffic::back(&self.down),
        }
    }

    fn why_plain(&self) -> String {
        match self.negotiation.flow.why_plain() {
            // Also if the other end detected it.
            _ if self.is_encrypted() => "encrypted already".into(),
            Some(why) => why.to_string(),
            None if self.origin.accepted => "its client did not ask for more".into(),
            None => "it was over before the other end answered".into(),
        }
    }

    /// What was invalid about the peer's data, if anything was.
    pub(crate) fn refused(&self) -> Option<&str> {
        self.ending.refused()
    }
}

/// Starts the negotiation with the other end. Returns it, and whether the peer is this host.
pub(super) fn negotiate(request: &Request, network: &OwnedFd, context: &PumpContext) -> (Negotiation, bool) {
    let limits = FlowLimits::default();
    let shared = &context.shared;
    let addresses = proof::addresses(request);
    let same_host = addresses.is_some_and(|a| a.client().ip().is_loopback() || a.client().ip() == a.server().ip());
    if request.accepted {
        // The kernel tells it only once, so it is read before anything else is done with the
        // socket.
        let clock = proof::clock_in_syn(network);
        if let Some(addresses) = addresses {
            shared.negotiator.accepted(request.id, addresses, clock);
        }
        let flow = upgrade::Flow::server(limits, shared.direct.accepts);
        return (Negotiation { flow, silent: addresses.is_none() }, same_host);
    }
    if request.option == BY_GATEWAY {
        return (Negotiation { flow: upgrade::Flow::client(limits), silent: true }, same_host);
    }
    let server = addresses.map(|a| a.server());
    let mut nonce = [0; 16];
    if server.is_some_and(|s| shared.direct.holds(s))
        && rustix::rand::getrandom(&mut nonce[..], rustix::rand::GetRandomFlags::empty()).is_ok()
    {
        return (Negotiation { flow: upgrade::Flow::direct(limits, &nonce), silent: true }, same_host);
    }
    let connecting = request.number > 1;
    let clock = proof::clock_at_syn(network, connecting);
    let claim = addresses.zip(clock);
    if let Some((addresses, clock_ms)) = claim {
        shared.negotiator.connecting(request.id, addresses, clock_ms);
    }
    (Negotiation { flow: upgrade::Flow::client(limits), silent: claim.is_none() }, same_host)
}
