//! Changes to a running tunnel: rules, limits and trusted keys.

use rustls::pki_types::UnixTime;
use webpki::EndEntityCert;

use super::uplink::UplinkState;
use super::{Kind, Pump};
use crate::engine::Key;
use crate::reason::Reason;
use crate::refusal;
use crate::session::Role;
use crate::settings::{Change, Report, Trust, Uplink};

impl Pump {
    pub(super) fn change(&mut self, change: Change) {
        let Change { allow, allow_listen, proxy_from, send_proxy, limits, hello_within_ns } = change;
        let settings = &mut self.settings;
        (settings.allow, settings.allow_listen) = (allow, allow_listen);
        (settings.proxy_from, settings.send_proxy) = (proxy_from, send_proxy);
        settings.timing.hello_within_ns = hello_within_ns;
        settings.limits = limits;
        self.work.engine.compression.memory.set_total(limits.memory);
        self.strangers.rates.set(limits.greetings_per_s, limits.greetings_per_s);
        self.flows.rates.set(limits.flows_per_s, limits.flows_per_s);
        self.judge_listeners();
    }

    /// Sessions whose other end would be refused today open nothing more. What is open goes on: it may
    /// have been trusted for good reasons when it began, and ends by itself.
    pub(super) fn judge(&mut self, trust: Trust) {
        self.sessions.trust = trust;
        for at in 0..self.sessions.len() {
            let Some(place) = self.sessions.get(at).filter(|place| place.distrusted_ns.is_none()) else {
                continue;
            };
            let (role, carriers) = (place.role, place.carriers);
            let why = carriers.into_iter().flatten().find_map(|key| match self.hub.kind(key) {
                Some(Kind::Carrier(_)) => self.refusal(role, key),
                _ => None,
            });
            if let Some(why) = why {
                self.distrust(at, &why);
            }
        }
    }

    /// Why the other end of a carrier, or of one that is to be, would be refused.
    pub(super) fn refusal(&mut self, role: Role, key: Key) -> Option<String> {
        let trust = &self.sessions.trust;
        let name = match self.uplink.as_ref().map(UplinkState::to) {
            Some(Uplink::Tls { name, .. }) => Some(name),
            _ => None,
        };
        let wire = match self.hub.kind(key)? {
            Kind::Carrier(carrier) => &carrier.wire,
            Kind::Stranger(stranger) => &stranger.wire,
            _ => return None,
        };
        let (end_entity, others) = wire.proof()?.split_first()?;
        let now = UnixTime::now();
        let (judged, wants_key) = match role {
            Role::Acceptor => {
                let judge = trust.dialers.as_ref()?;
                let judged = judge.verify_client_cert(end_entity, others, now).map(|_| ());
                (judged, judge.requires_raw_public_keys())
            }
            Role::Dialer => {
                let judge = trust.acceptor.as_ref()?;
                let judged = judge.verify_server_cert(end_entity, others, name?, &[], now).map(|_| ());
                (judged, judge.requires_raw_public_keys())
            }
        };
        let has_certificate = EndEntityCert::try_from(end_entity).is_ok();
        if has_certificate == wants_key {
            return Some(refusal::MIXED.to_owned());
        }
        judged.err().map(|e| refusal::words(&e).unwrap_or_else(|| e.to_string()))
    }

    fn distrust(&mut self, at: usize, why: &str) {
        self.counters.sessions_distrusted.add(1);
        let now_ns = self.now_ns;
        let Some(place) = self.sessions.get_mut(at) else { return };
        place.distrusted_ns = Some(now_ns);
        place.session.leave(Reason::Forbidden, &as_told(why));
        let (host, role) = (place.host, place.role);
        self.set_apart(at);
        if role == Role::Dialer {
            if self.is_uplink(at) {
                self.uplink.iter_mut().for_each(UplinkState::rename);
                self.leave_uplink(at, why);
            }
        } else {
            let host = host.map_or_else(|| "a client".to_owned(), |host| host.to_string());
            self.reports.tell(Report::Peer { text: format!("{host}: not trusted any more: {why}") });
        }
        self.sessions.touch(at);
    }
}

/// Why an end is refused, in words for it.
pub(super) fn as_told(why: &str) -> String {
    let told = why.strip_prefix("the other end's").map(|rest| format!("this end's{rest}"));
    let told = told.or_else(|| (why == refusal::MIXED).then(|| why.to_owned()));
    told.unwrap_or_else(|| "this end's token is not valid any more".into())
}
