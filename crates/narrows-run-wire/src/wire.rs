//! Protocol between the library in the program and the supervisor.
//!
//! It uses `core` only: no heap, and nothing but decoding can fail.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Both sides must have the same version: a program may outlive the file that it was started from.
pub const VERSION: u8 = 1;
/// The environment variable with the supervisor's address and the rules for connections.
pub const VARIABLE: &str = "NARROWS_RUN";

/// A `sockaddr_in` or `sockaddr_in6` in the kernel's layout, the rest zero.
pub type RawAddress = [u8; 28];

// --- the name of the program's end ---

/// Prefix of the abstract names of swapped descriptors. An abstract name has at most 107 bytes.
const MAGIC: [u8; 8] = *b"\0narrows";
pub const NAME_LEN: usize = 8 + 4 + 8 + 28 + 28;

/// The name of a swapped descriptor as `getsockname` returns it: everything about the connection
/// that never changes. It lives in the kernel, so it survives fork, exec and being sent to other
/// processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    pub id: u64,
    /// The connection was still being made when it was swapped, so it may not be established.
    pub was_connecting: bool,
    pub local: RawAddress,
    pub peer: RawAddress,
}

impl Name {
    pub fn encode(&self) -> [u8; NAME_LEN] {
        let mut out = Writer::<NAME_LEN>::new();
        out.put(&MAGIC);
        out.put(&[VERSION, u8::from(self.was_connecting), 0, 0]);
        out.put(&self.id.to_le_bytes());
        out.put(&self.local);
        out.put(&self.peer);
        out.bytes
    }

    /// `None` if it is some other socket's name.
    pub fn decode(name: &[u8]) -> Option<Self> {
        let mut reader = Reader { bytes: name };
        if name.len() != NAME_LEN || reader.take()? != MAGIC {
            return None;
        }
        let [version, was_connecting, _, _] = reader.take()?;
        let id = u64::from_le_bytes(reader.take()?);
        let (local, peer) = (reader.take()?, reader.take()?);
        (version == VERSION).then_some(Self { id, was_connecting: was_connecting != 0, local, peer })
    }
}

// --- requests and replies ---

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// This process is alive; no answer.
    Hello = 1,
    /// Hands over the TCP socket and the supervisor's end; no answer.
    New = 2,
    /// Asks for the state of the connection. The answer's value is a `State` byte; its status is
    /// the error with which the connection failed.
    State = 3,
    /// getsockopt on the TCP socket.
    GetOption = 4,
    /// setsockopt on the TCP socket.
    SetOption = 5,
    /// Asks how many bytes the peer's kernel has not confirmed.
    OutQueue = 6,
    /// This process listens at `local`; no answer.
    Listen = 7,
    /// Sends the one byte of the value urgently, after everything written so far.
    Urgent = 8,
    /// Asks for the TCP socket of a failed connection, to connect it again.
    TakeBack = 9,
    /// A connection was left plain for the reason in `number`; no answer.
    Plain = 10,
}

impl Kind {
    const ALL: [Self; 10] = [
        Self::Hello,
        Self::New,
        Self::State,
        Self::GetOption,
        Self::SetOption,
        Self::OutQueue,
        Self::Listen,
        Self::Urgent,
        Self::TakeBack,
        Self::Plain,
    ];
}

/// State of a connection, as reported to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// The connection ended and is no longer known.
    Gone = 0,
    Connecting = 1,
    /// Established, and not yet reported to a `connect`.
    JustConnected = 2,
    Connected = 3,
    Failed = 4,
}

impl State {
    pub fn of(byte: u8) -> Self {
        [Self::Gone, Self::Connecting, Self::JustConnected, Self::Connected, Self::Failed]
            .into_iter()
            .find(|s| *s as u8 == byte)
            .unwrap_or(Self::Gone)
    }
}

/// Requester of the state, in `number`, because some results are reported only once per kind of
/// requester.
pub const BY_CONNECT: i32 = 0;
pub const BY_ERROR: i32 = 1;
pub const BY_NAME: i32 = 2;

/// The TCP socket leads to a gateway at `peer`'s host, which is to be asked for `peer`'s port.
pub const BY_GATEWAY: i32 = 1;

/// Reason why a connection stays plain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Reason {
    Scope = 1,
    Loopback = 2,
    Shared = 3,
    Failed = 4,
    /// Registered in an epoll or under two numbers before it connected (under the filter), or
    /// registered in an io_uring ring.
    Elsewhere = 5,
    /// Both ends are on this host, where no codec is as fast as memory.
    Within = 6,
}

impl Reason {
    #[cfg_attr(not(test), allow(dead_code, reason = "the library only sends reasons"))]
    pub fn words(number: i32) -> &'static str {
        match number {
            1 => "out of scope",
            2 => "loopback",
            6 => "both ends are this host",
            3 => "socket shared between processes, or made before a fork",
            4 => "could not be handed over",
            5 => "socket registered or duplicated before it connected",
            _ => "unknown reason",
        }
    }
}

/// The longest option value that is passed on; TCP_INFO has some 280 bytes.
pub const VALUE_MAX: usize = 512;
pub const REQUEST_LEN: usize = 16 + 4 + 4 + 8 + 8 + 8 + 28 + 28 + VALUE_MAX;
pub const REPLY_LEN: usize = 8 + VALUE_MAX;

pub type Token = [u8; 16];

#[derive(Clone, Copy)]
pub struct Request {
    /// Proves that the sender belongs to this supervisor's run: the token is in the environment
    /// only.
    pub token: Token,
    pub kind: Kind,
    /// For `New`: the connection was accepted.
    pub accepted: bool,
    pub id: u64,
    /// For `New`: number of fill bytes in the program's end. For `Plain`: the reason. For `State`:
    /// the requester.
    pub number: i32,
    /// For `New`: SO_LINGER as the program has set it, two ints.
    pub linger: [u8; 8],
    pub level: i32,
    /// For `New`: `BY_GATEWAY`, or 0.
    pub option: i32,
    pub local: RawAddress,
    pub peer: RawAddress,
    pub value_len: u16,
    pub value: [u8; VALUE_MAX],
}

impl Request {
    pub const fn new(token: Token, kind: Kind, id: u64) -> Self {
        Self {
            token,
            kind,
            accepted: false,
            id,
            number: 0,
            linger: [0; 8],
            level: 0,
            option: 0,
            local: [0; 28],
            peer: [0; 28],
            value_len: 0,
            value: [0; VALUE_MAX],
        }
    }

    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut out = Writer::<REQUEST_LEN>::new();
        out.put(&self.token);
        let [low, high] = self.value_len.to_le_bytes();
        out.put(&[VERSION, self.kind as u8 | if self.accepted { 0x80 } else { 0 }, low, high]);
        out.put(&self.number.to_le_bytes());
        out.put(&self.id.to_le_bytes());
        out.put(&self.linger);
        out.put(&self.level.to_le_bytes());
        out.put(&self.option.to_le_bytes());
        out.put(&self.local);
        out.put(&self.peer);
        out.put(&self.value);
        out.bytes
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader { bytes };
        if bytes.len() != REQUEST_LEN {
            return None;
        }
        let token = reader.take()?;
        let [version, kind, low, high] = reader.take()?;
        let value_len = u16::from_le_bytes([low, high]);
        if version != VERSION || usize::from(value_len) > VALUE_MAX {
            return None;
        }
        Some(Self {
            token,
            kind: Kind::ALL.into_iter().find(|k| *k as u8 == kind & 0x7f)?,
            accepted: kind & 0x80 != 0,
            number: i32::from_le_bytes(reader.take()?),
            id: u64::from_le_bytes(reader.take()?),
            linger: reader.take()?,
            level: i32::from_le_bytes(reader.take()?),
            option: i32::from_le_bytes(reader.take()?),
            local: reader.take()?,
            peer: reader.take()?,
            value_len,
            value: reader.take()?,
        })
    }
}

#[derive(Clone, Copy)]
pub struct Reply {
    /// 0, or an errno.
    pub status: i32,
    pub value_len: u32,
    pub value: [u8; VALUE_MAX],
}

impl Reply {
    pub const fn new(status: i32) -> Self {
        Self { status, value_len: 0, value: [0; VALUE_MAX] }
    }

    pub fn with(mut self, value: &[u8]) -> Self {
        let len = value.len().min(VALUE_MAX);
        self.value[..len].copy_from_slice(&value[..len]);
        self.value_len = len as u32;
        self
    }

    pub fn value(&self) -> &[u8] {
        &self.value[..(self.value_len as usize).min(VALUE_MAX)]
    }

    pub fn encode(&self) -> [u8; REPLY_LEN] {
        let mut out = Writer::<REPLY_LEN>::new();
        out.put(&self.status.to_le_bytes());
        out.put(&self.value_len.to_le_bytes());
        out.put(&self.value);
        out.bytes
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader { bytes };
        if bytes.len() != REPLY_LEN {
            return None;
        }
        let status = i32::from_le_bytes(reader.take()?);
        let value_len = u32::from_le_bytes(reader.take()?);
        Some(Self { status, value_len, value: reader.take()? })
    }
}

// --- scope ---

/// Limit of rules: more than anybody types. All are compared for each connection.
pub const RULES_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// True: hand over only connections that match such rules. False: all but matching ones.
    pub only: bool,
    pub address: Ipv6Addr,
    /// Prefix length of `address`; IPv4 is mapped into IPv6.
    pub prefix: u8,
    pub ports: (u16, u16),
}

impl Rule {
    const NONE: Self = Self { only: false, address: Ipv6Addr::UNSPECIFIED, prefix: 0, ports: (0, 0) };

    fn holds(&self, address: Ipv6Addr, port: u16) -> bool {
        let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
        let differs = (u128::from(self.address) ^ u128::from(address)) & mask;
        differs == 0 && (self.ports.0..=self.ports.1).contains(&port)
    }

    /// Parses `+::ffff:10.0.0.0/104=5432-5433`.
    fn parse(text: &str) -> Option<Self> {
        let only = text.starts_with('+');
        let (address, rest) = text.get(1..)?.split_once('/')?;
        let (prefix, ports) = rest.split_once('=')?;
        let (low, high) = ports.split_once('-')?;
        let prefix = prefix.parse().ok().filter(|p| *p <= 128)?;
        Some(Self { only, address: address.parse().ok()?, prefix, ports: (low.parse().ok()?, high.parse().ok()?) })
    }
}

impl core::fmt::Display for Rule {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let sign = if self.only { '+' } else { '-' };
        write!(f, "{sign}{}/{}={}-{}", self.address, self.prefix, self.ports.0, self.ports.1)
    }
}

/// Selects the connections that are handed over.
#[derive(Clone, Copy)]
pub struct Scope {
    pub loopback: bool,
    /// Hand over connections of this host with itself over non-loopback addresses. They are left
    /// plain unless the user asks for more.
    pub within: bool,
    rules: [Rule; RULES_MAX],
    count: usize,
}

impl Scope {
    pub const fn new(loopback: bool) -> Self {
        Self { loopback, within: loopback, rules: [Rule::NONE; RULES_MAX], count: 0 }
    }

    /// Adds a rule. False if there are too many.
    pub fn add(&mut self, rule: Rule) -> bool {
        let Some(place) = self.rules.get_mut(self.count) else { return false };
        *place = rule;
        self.count += 1;
        true
    }

    #[cfg_attr(not(test), allow(dead_code, reason = "the library only reads rules"))]
    pub fn rules(&self) -> &[Rule] {
        &self.rules[..self.count.min(RULES_MAX)]
    }

    /// As `excludes`, for an established connection, where the local address is known too.
    pub fn excludes_between(&self, local: IpAddr, host: IpAddr, port: u16) -> Option<Reason> {
        let within = !self.within && local.to_canonical() == host.to_canonical();
        self.excludes(host, port).or(within.then_some(Reason::Within))
    }

    /// Why a connection with `host` is not handed over, if so. `port` is the server's, on whichever
    /// side it is.
    pub fn excludes(&self, host: IpAddr, port: u16) -> Option<Reason> {
        let host = host.to_canonical();
        if host.is_loopback() && !self.loopback {
            return Some(Reason::Loopback);
        }
        let address = mapped(host);
        let (mut any_only, mut allowed) = (false, false);
        for rule in self.rules.iter().take(self.count) {
            let holds = rule.holds(address, port);
            if holds && !rule.only {
                return Some(Reason::Scope);
            }
            any_only |= rule.only;
            allowed |= rule.only && holds;
        }
        (any_only && !allowed).then_some(Reason::Scope)
    }
}

pub fn mapped(host: IpAddr) -> Ipv6Addr {
    match host {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// Host and port of a raw address; `None` if it is not an internet address.
pub fn host_and_port(raw: &RawAddress) -> Option<(IpAddr, u16)> {
    let mut reader = Reader { bytes: raw };
    let family = u16::from_ne_bytes(reader.take()?);
    let port = u16::from_be_bytes(reader.take()?);
    match family {
        AF_INET => Some((IpAddr::V4(Ipv4Addr::from(reader.take::<4>()?)), port)),
        AF_INET6 => {
            let _flow: [u8; 4] = reader.take()?;
            Some((IpAddr::V6(Ipv6Addr::from(reader.take::<16>()?)), port))
        }
        _ => None,
    }
}

/// The numbers are the same on every architecture of Linux.
pub const AF_INET: u16 = 2;
pub const AF_INET6: u16 = 10;

// --- the environment variable ---

/// Contents of the environment variable: the supervisor's address, the token, and what to hand
/// over.
#[derive(Clone, Copy)]
pub struct Setup {
    /// Abstract name of the control socket: a prefix and random bits.
    pub control: [u8; CONTROL_LEN],
    pub token: Token,
    /// The supervisor's user. Any other listener at that name has taken it after the supervisor was
    /// gone.
    pub owner: u32,
    /// Report plain connections too.
    pub verbose: bool,
    /// Leave MPTCP sockets as they are; otherwise they become TCP.
    pub keeps_mptcp: bool,
    pub scope: Scope,
    /// The port of gateways, 0 if there are none; and the servers that are reached through them.
    pub gateway_port: u16,
    pub gateways: Scope,
}

/// A zero byte, a readable prefix, 128 random bits.
pub const CONTROL_LEN: usize = CONTROL_PREFIX.len() + 16;
const CONTROL_PREFIX: [u8; 13] = *b"\0narrows-run:";

pub fn control_name(random: [u8; 16]) -> [u8; CONTROL_LEN] {
    let mut out = Writer::<CONTROL_LEN>::new();
    out.put(&CONTROL_PREFIX);
    out.put(&random);
    out.bytes
}

impl Setup {
    /// Parses `1:NAME:TOKEN:UID:lwvmg7701:RULE,RULE`; name and token are hexadecimal, and rules for
    /// gateways have another sign.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = core::str::from_utf8(text).ok()?;
        let mut parts = text.splitn(6, ':');
        if parts.next()?.parse::<u8>().ok()? != VERSION {
            return None;
        }
        let control = control_name(unhex(parts.next()?)?);
        let token = unhex(parts.next()?)?;
        let owner = parts.next()?.parse().ok()?;
        let flags = parts.next()?;
        let gateway_port = match flags.split_once('g') {
            Some((_, port)) => port.parse().ok()?,
            None => 0,
        };
        let (mut scope, mut gateways) = (Scope::new(flags.contains('l')), Scope::new(true));
        scope.within |= flags.contains('w');
        for text in parts.next()?.split(',').filter(|r| !r.is_empty()) {
            let rule = Rule::parse(text)?;
            let added = match text.strip_prefix(GATEWAY) {
                Some(_) => gateways.add(Rule { only: true, ..rule }),
                None => scope.add(rule),
            };
            if !added {
                return None;
            }
        }
        let (verbose, keeps_mptcp) = (flags.contains('v'), flags.contains('m'));
        Some(Self { control, token, owner, verbose, keeps_mptcp, scope, gateway_port, gateways })
    }

    /// Whether that server is reached through a gateway.
    pub fn is_by_gateway(&self, host: IpAddr, port: u16) -> bool {
        self.gateway_port != 0 && self.gateways.excludes(host, port).is_none()
    }
}

/// Sign of rules for gateways.
pub const GATEWAY: char = '@';

fn unhex(text: &str) -> Option<[u8; 16]> {
    let mut out = [0; 16];
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(out)
}

// --- bytes ---

struct Writer<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    const fn new() -> Self {
        Self { bytes: [0; N], at: 0 }
    }

    fn put(&mut self, part: &[u8]) {
        if let Some(place) = self.bytes.get_mut(self.at..self.at + part.len()) {
            place.copy_from_slice(part);
        }
        self.at += part.len();
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        Some(*head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_messages_come_back() {
        let name = Name { id: 0x0123_4567_89ab_cdef, was_connecting: true, local: [1; 28], peer: [2; 28] };
        assert_eq!(Name::decode(&name.encode()), Some(name));
        assert_eq!(Name::decode(&name.encode()[1..]), None);
        assert_eq!(Name::decode(&[0; NAME_LEN]), None);
        // A program may outlive the version that it was started with.
        let mut of_another_version = name.encode();
        of_another_version[8] += 1;
        assert_eq!(Name::decode(&of_another_version), None);
        assert_eq!(Name::decode(&[&name.encode()[..], &[0]].concat()), None);
        for kind in Kind::ALL {
            let mut request = Request::new([7; 16], kind, 42);
            (request.accepted, request.number, request.value_len) = (true, -5, 3);
            request.value[..3].copy_from_slice(b"abc");
            let back = Request::decode(&request.encode()).unwrap();
            assert_eq!((back.kind, back.id, back.number, back.accepted), (kind, 42, -5, true));
            assert_eq!((back.value_len, &back.value[..3]), (3, &b"abc"[..]));
        }
        let reply = Reply::decode(&Reply::new(111).with(b"xyz").encode()).unwrap();
        assert_eq!((reply.status, reply.value()), (111, &b"xyz"[..]));
        let longest = Reply::decode(&Reply::new(0).with(&[5; VALUE_MAX + 1]).encode()).unwrap();
        assert_eq!(longest.value(), [5; VALUE_MAX]);
    }

    /// Every user of the host can reach the control socket: invalid requests must be refused.
    #[test]
    fn rubbish_is_refused() {
        let good = Request::new([7; 16], Kind::New, 42).encode();
        for (at, byte) in [(16, 0), (16, 2), (17, 0), (17, 11), (17, 0x7f), (19, 3)] {
            let mut bad = good;
            bad[at] = byte;
            assert!(Request::decode(&bad).is_none(), "byte {at} = {byte}");
        }
        assert!(Request::decode(&good[..REQUEST_LEN - 1]).is_none());
        assert!(Request::decode(&[&good[..], &[0]].concat()).is_none());
        let mut longest = Request::new([7; 16], Kind::SetOption, 42);
        longest.value_len = VALUE_MAX as u16;
        assert_eq!(Request::decode(&longest.encode()).map(|r| r.value_len), Some(longest.value_len));
        longest.value_len += 1;
        assert!(Request::decode(&longest.encode()).is_none());
        let reply = Reply::new(0).encode();
        assert!(Reply::decode(&reply[1..]).is_none() && Reply::decode(&[&reply[..], &[0]].concat()).is_none());
        // A length that lies gives no bytes that are not there.
        let mut lying = reply;
        lying[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Reply::decode(&lying).map(|r| r.value().len()), Some(VALUE_MAX));
    }

    #[test]
    fn scope_says_what_is_handed_over() {
        let head = "1:00112233445566778899aabbccddeeff:ffeeddccbbaa99887766554433221100:1000:";
        let scope = |rest: &str| Setup::parse(format!("{head}{rest}").as_bytes()).unwrap().scope;
        let excludes = |scope: &Scope, host: &str, port| scope.excludes(host.parse().unwrap(), port);
        let all = scope(":");
        assert_eq!(excludes(&all, "10.1.2.3", 80), None);
        assert_eq!(excludes(&all, "127.0.0.1", 80), Some(Reason::Loopback));
        assert_eq!(excludes(&all, "::1", 80), Some(Reason::Loopback));
        assert_eq!(excludes(&all, "::ffff:127.0.0.1", 80), Some(Reason::Loopback));
        assert_eq!(excludes(&scope("l:"), "127.0.0.1", 80), None);
        let between = |scope: &Scope, local: &str, host: &str| {
            scope.excludes_between(local.parse().unwrap(), host.parse().unwrap(), 80)
        };
        assert_eq!(between(&all, "10.1.2.4", "10.1.2.3"), None);
        assert_eq!(between(&all, "10.1.2.3", "10.1.2.3"), Some(Reason::Within));
        assert_eq!(between(&all, "10.1.2.3", "::ffff:10.1.2.3"), Some(Reason::Within));
        assert_eq!(between(&all, "127.0.0.1", "127.0.0.1"), Some(Reason::Loopback));
        assert_eq!(between(&scope("w:"), "10.1.2.3", "10.1.2.3"), None);
        assert_eq!(between(&scope("w:"), "127.0.0.1", "127.0.0.1"), Some(Reason::Loopback));
        assert_eq!(between(&scope("l:"), "127.0.0.1", "127.0.0.1"), None);
        let some = scope("l:+::ffff:10.0.0.0/104=5432-5433,-::ffff:10.9.0.0/112=0-65535");
        assert_eq!(excludes(&some, "10.1.2.3", 5433), None);
        assert_eq!(excludes(&some, "10.1.2.3", 80), Some(Reason::Scope));
        assert_eq!(excludes(&some, "11.1.2.3", 5432), Some(Reason::Scope));
        assert_eq!(excludes(&some, "10.9.2.3", 5432), Some(Reason::Scope));
        let one = scope("l:+2001:db8::1/128=0-65535");
        assert_eq!(excludes(&one, "2001:db8::1", 1), None);
        assert_eq!(excludes(&one, "2001:db8::2", 1), Some(Reason::Scope));
        assert!(Setup::parse(format!("{head}:+2001:db8::1/129=0-1").as_bytes()).is_none());
        let printed = some.rules().iter().map(|r| r.to_string()).collect::<Vec<_>>().join(",");
        assert_eq!(scope(&format!("l:{printed}")).rules(), some.rules());
        let gateways = Setup::parse(format!("{head}g7701:@::ffff:10.0.0.1/128=80-80,-::/0=22-22").as_bytes()).unwrap();
        let by = |host: &str, port| gateways.is_by_gateway(host.parse().unwrap(), port);
        assert!(by("10.0.0.1", 80) && !by("10.0.0.1", 81) && !by("10.0.0.2", 80));
        assert_eq!(gateways.scope.rules().len(), 1);
        assert!(!Setup::parse(format!("{head}:").as_bytes()).unwrap().is_by_gateway("10.0.0.1".parse().unwrap(), 80));
        for bad in ["", "2::::", "1:0:0:0::", "1:é:x:0::", &format!("{}:", head.replace("1000", "root"))] {
            assert!(Setup::parse(bad.as_bytes()).is_none(), "{bad}");
        }
        assert!(Setup::parse(format!("{head}:rubbish").as_bytes()).is_none());
    }
}
