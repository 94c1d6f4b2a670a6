//! Listeners of dialers whose session is over: they wait a little for the next one.

use std::collections::VecDeque;
use std::net::IpAddr;

use narrows_host::shares::ALONE;

use super::listeners::{ListenerPlace, Purpose};
use super::sessions::SessionPlace;
use super::strangers::oldest_of_most;
use super::{Hub, Kind};
use crate::engine::Key;
use crate::hello::PROGRAM_LEN;
use crate::limits::LISTENERS_MAX;
use crate::principal::Principal;
use crate::socket::Listener;
use crate::target::Endpoint;

/// A listener of a dialer waits so long for its next session, and connections to it with it: as long
/// as those of a dialer's own listeners wait for a tunnel.
const HELD_NS: u64 = 5_000_000_000;
/// Listeners that wait: those of four sessions. Beyond it the oldest of the host that has most of them
/// makes room.
const HELD_MAX: usize = 4 * LISTENERS_MAX;

/// What a dialer asked for.
#[derive(Debug, Clone)]
pub(super) struct Request {
    host: Option<IpAddr>,
    /// The part of the dialer's name that stays while its program runs.
    program: [u8; PROGRAM_LEN],
    /// Who it is, unless nobody was asked to prove it.
    principal: Option<Principal>,
    pub(super) number: u64,
    pub(super) bind: Endpoint,
}

impl Request {
    /// Whether the listener of an earlier request is what this one asks for: connections wait at it that
    /// mean the client that had it. A port that the system chose is known by nothing but its number in the
    /// program: who uses it means the target of that one.
    fn continues(&self, earlier: &Self) -> bool {
        let is_same_program = self.program == earlier.program;
        let is_chosen = matches!(self.bind, Endpoint::Tcp { port: 0, .. });
        let is_its_own = if is_chosen {
            is_same_program && self.number == earlier.number
        } else {
            is_same_program || self.principal.is_some() && self.principal == earlier.principal
        };
        self.host == earlier.host && self.bind == earlier.bind && is_its_own
    }
}

impl Hub {
    /// The request of a session for a listener.
    pub(super) fn request(&mut self, place: Option<&SessionPlace>, number: u64, bind: &Endpoint) -> Request {
        let carriers = place.into_iter().flat_map(|place| place.carriers.into_iter().flatten());
        let principal = carriers.into_iter().find_map(|key| match self.kind(key) {
            Some(Kind::Carrier(carrier)) => carrier.wire.proof()?.first().map(Principal::of),
            _ => None,
        });
        let host = place.and_then(|place| place.host);
        let program = place.map(|place| place.hello.program()).unwrap_or_default();
        Request { host, program, principal, number, bind: bind.clone() }
    }

    /// Keeps the listeners of a session for the next one of its dialer.
    pub(super) fn hold_listeners(&mut self, keys: impl Iterator<Item = Key>, now_ns: u64) {
        let until_ns = now_ns + HELD_NS;
        for key in keys {
            let Some(Kind::Listener(place)) = self.kind(key) else { continue };
            let Purpose::Remote { request, .. } = &place.purpose else { continue };
            place.purpose = Purpose::Held { request: request.clone(), until_ns };
            self.set_timer(key, Some(until_ns));
        }
        let mut held: Vec<_> = self.held_places().collect();
        held.sort_by_key(|(_, _, _, until_ns)| *until_ns);
        let mut held = held.iter().map(|(key, _, request, _)| (*key, request.host.unwrap_or(ALONE))).collect();
        surplus(&mut held).into_iter().for_each(|key| drop(self.take(key)));
    }

    fn held_places(&self) -> impl Iterator<Item = (Key, &Listener, &Request, u64)> {
        self.iter().filter_map(|(key, kind)| match kind {
            Kind::Listener(ListenerPlace { listener, purpose: Purpose::Held { request, until_ns }, .. }) => {
                Some((key, listener, request.as_ref(), *until_ns))
            }
            _ => None,
        })
    }

    /// The listener that an earlier session had for what is asked for.
    pub(super) fn held_listener(&self, request: &Request) -> Option<(Key, String)> {
        let mut held = self.held_places();
        let (key, listener, ..) = held.find(|(_, _, earlier, _)| request.continues(earlier))?;
        Some((key, listener.address()))
    }
}

/// Takes those out, oldest first, that are too many: the oldest of the host that has most of them makes
/// room, so that nobody loses one to a host with more.
fn surplus(held: &mut VecDeque<(Key, IpAddr)>) -> Vec<Key> {
    let mut over = Vec::new();
    while held.len() > HELD_MAX
        && let Some(oldest) = oldest_of_most(held)
    {
        held.retain(|(key, _)| *key != oldest);
        over.push(oldest);
    }
    over
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(program: u8, number: u64, port: u16) -> Request {
        let bind = Endpoint::Tcp { host: String::new(), port };
        let program = [program; PROGRAM_LEN];
        Request { host: Some([192, 0, 2, 1].into()), program, principal: Some(known(1)), number, bind }
    }

    fn known(key: u8) -> Principal {
        Principal::of(&vec![key].into())
    }

    #[test]
    fn a_port_that_the_system_chose_stays_with_its_number_and_program() {
        let earlier = request(1, 3, 0);
        assert!(request(1, 3, 0).continues(&earlier));
        assert!(!request(1, 2, 0).continues(&earlier), "another target");
        assert!(!request(2, 3, 0).continues(&earlier), "another program");
        // A port with a name may have another number in the next file of a program that was started again.
        assert!(request(2, 2, 8080).continues(&request(1, 3, 8080)));
        assert!(!request(1, 3, 8080).continues(&earlier));
        assert!(!request(2, 3, 8080).continues(&request(1, 2, 8081)));
        let elsewhere = Request { host: Some([192, 0, 2, 2].into()), ..request(1, 3, 8080) };
        assert!(!elsewhere.continues(&request(1, 3, 8080)));
    }

    #[test]
    fn a_named_port_is_for_its_client_only() {
        let earlier = request(1, 3, 8080);
        let by = |program, principal| Request { principal, ..request(program, 3, 8080) }.continues(&earlier);
        assert!(by(2, Some(known(1))), "it was started again");
        assert!(!by(2, Some(known(2))) && !by(2, None));
        assert!(by(1, Some(known(2))), "with another name since a reload");
        let unproved = Request { principal: None, ..earlier };
        assert!(!Request { principal: None, ..request(2, 3, 8080) }.continues(&unproved));
    }

    #[test]
    fn the_host_that_has_most_makes_room() {
        let [greedy, modest, late] = [1, 2, 3].map(|host| IpAddr::from([192, 0, 2, host]));
        let all = |parts: [(IpAddr, usize); 3]| {
            let hosts = parts.into_iter().flat_map(|(host, count)| std::iter::repeat_n(host, count));
            (0..).zip(hosts).collect::<VecDeque<(Key, IpAddr)>>()
        };
        let mut held = all([(modest, 1), (greedy, HELD_MAX - 1), (late, 2)]);
        assert_eq!(surplus(&mut held), [1, 2]);
        assert_eq!(held.len(), HELD_MAX);
        let mut held = all([(modest, 1), (late, 1), (greedy, 5 * LISTENERS_MAX)]);
        assert_eq!(surplus(&mut held).len(), LISTENERS_MAX + 2);
        assert!([modest, late].iter().all(|host| held.iter().any(|(_, of)| of == host)));
        assert!(surplus(&mut held).is_empty());
    }
}
