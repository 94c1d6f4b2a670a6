//! Questions to the kernel about TCP sockets of other processes: sock_diag(7). They need no
//! privileges, and hold nothing open.

use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

use crate::sys::{self, TcpInfo};

/// Longest dump of the sockets of this network namespace, in ns. A host with so many sockets that
/// it takes longer (some 10,000) costs this once, and its pipes count as pipes.
const DUMP_NS: u64 = 2_000_000;
/// Bytes of one answer: the most that the kernel puts into one message.
const ANSWER_LEN: usize = 32 << 10;
/// Answers of one dump. The time ends a dump long before; this ends one whose clock stands.
const ANSWERS_MAX: usize = 10_000;

/// linux/netlink.h and linux/inet_diag.h: lengths of headers, and the numbers used here.
const HEADER_LEN: usize = 16;
const REQUEST_LEN: usize = HEADER_LEN + 56;
const MESSAGE_LEN: usize = 72;
const ID_LEN: usize = 48;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const INET_DIAG_INFO: u16 = 2;
const ESTABLISHED: u32 = 1 << 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;

/// A connection to another host: its addresses, ports and cookie, by which the kernel finds it at
/// once, and its inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Socket {
    family: u8,
    id: [u8; ID_LEN],
    pub(super) inode: u32,
}

/// What the kernel tells of a connection.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Told {
    /// Bytes that were written to the socket and not acknowledged.
    pub(super) queued: u64,
    pub(super) info: TcpInfo,
}

/// Why no socket was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// None of them is connected yet, or they are no TCP sockets of this network namespace.
    Unconnected,
    /// Several are connected: which one carries the bytes is not known.
    Several,
    /// There are too many sockets to look at, or the kernel does not answer.
    Unknown,
}

/// A line to the kernel.
pub(super) struct Kernel {
    socket: File,
    answer: Vec<u8>,
}

impl Kernel {
    pub(super) fn open() -> Option<Self> {
        Some(Self { socket: File::from(sys::diag_socket()?), answer: vec![0; ANSWER_LEN] })
    }

    /// The one connection among sockets with these inodes. After an error the line is of no use.
    pub(super) fn find(&mut self, inodes: &[u32]) -> Result<Socket, Missing> {
        let end_ns = sys::monotonic_ns() + DUMP_NS;
        let (mut found, mut several) = (None, false);
        for family in [AF_INET, AF_INET6] {
            self.ask(family, &[0; ID_LEN], NLM_F_DUMP, 0).ok_or(Missing::Unknown)?;
            let mut answers = 0;
            while let Some(len) = self.hear().filter(|_| answers < ANSWERS_MAX) {
                answers += 1;
                let mut is_over = false;
                for (kind, body) in Messages(&self.answer[..len]) {
                    match kind {
                        SOCK_DIAG_BY_FAMILY => {
                            let Some(socket) = Socket::parse(body).filter(|s| inodes.contains(&s.inode)) else {
                                continue;
                            };
                            several |= found.replace(socket).is_some();
                        }
                        NLMSG_DONE => is_over = true,
                        _ => return Err(Missing::Unknown),
                    }
                }
                if is_over {
                    answers = 0;
                    break;
                }
                if sys::monotonic_ns() > end_ns {
                    return Err(Missing::Unknown);
                }
            }
            if answers > 0 {
                return Err(Missing::Unknown);
            }
        }
        if several { Err(Missing::Several) } else { found.ok_or(Missing::Unconnected) }
    }

    /// The state of a connection; `None` if it is gone.
    pub(super) fn look(&mut self, socket: &Socket) -> Option<Told> {
        self.ask(socket.family, &socket.id, 0, INET_DIAG_INFO)?;
        let len = self.hear()?;
        let (kind, body) = Messages(&self.answer[..len]).next()?;
        if kind != SOCK_DIAG_BY_FAMILY || Socket::parse(body)?.inode != socket.inode {
            return None;
        }
        let queued = u32_at(body, 60)?.into();
        let info = Attributes(body.get(MESSAGE_LEN..)?).find(|(kind, _)| *kind == INET_DIAG_INFO)?.1;
        Some(Told { queued, info: TcpInfo::from_raw(info) })
    }

    fn ask(&mut self, family: u8, id: &[u8; ID_LEN], flags: u16, attribute: u16) -> Option<()> {
        let mut request = Vec::with_capacity(REQUEST_LEN);
        request.extend((REQUEST_LEN as u32).to_ne_bytes());
        request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        request.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        // Neither number nor sender: each question is answered before the next one is asked.
        request.extend([0; 8]);
        let attributes = if attribute > 0 { 1 << (attribute - 1) } else { 0 };
        request.extend([family, IPPROTO_TCP, attributes, 0]);
        request.extend(ESTABLISHED.to_ne_bytes());
        request.extend(id);
        self.socket.write_all(&request).ok()
    }

    /// The kernel answers within the question, so nothing is waited for.
    fn hear(&mut self) -> Option<usize> {
        sys::recv_nowait(self.socket.as_fd(), &mut self.answer).ok().filter(|len| *len > 0)
    }
}

impl Socket {
    fn parse(body: &[u8]) -> Option<Self> {
        let message = body.get(..MESSAGE_LEN)?;
        Some(Self { family: message[0], id: message[4..4 + ID_LEN].try_into().ok()?, inode: u32_at(message, 68)? })
    }

    /// Whether the peer is this host: a socket to it is not the link.
    pub(super) fn is_within_host(&self) -> bool {
        let (own, peer) = (self.address(4), self.address(20));
        peer.is_loopback() || peer == own
    }

    fn address(&self, at: usize) -> IpAddr {
        let mut all = [0; 16];
        all.copy_from_slice(&self.id[at..at + 16]);
        match self.family {
            AF_INET => Ipv4Addr::new(all[0], all[1], all[2], all[3]).into(),
            _ => Ipv6Addr::from(all).to_canonical(),
        }
    }
}

/// The messages of an answer: kind and body.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let len = u32_at(self.0, 0)? as usize;
        let kind = u16_at(self.0, 4)?;
        let body = self.0.get(HEADER_LEN..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    }
}

/// The attributes after a message: kind and value.
struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (len, kind) = (usize::from(u16_at(self.0, 0)?), u16_at(self.0, 2)?);
        let value = self.0.get(4..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    fn inode(socket: &TcpStream) -> u32 {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap().ino() as u32
    }

    #[test]
    fn a_connection_is_found_by_its_inode_and_told_of() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                narrows_test::skip("this host has no IPv6");
                continue;
            };
            let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (far, _) = listener.accept().unwrap();
            let Some(mut kernel) = Kernel::open() else { return narrows_test::skip("no sock_diag") };
            // A host with very many sockets is none for this test.
            let Ok(socket) = kernel.find(&[7, inode(&near)]) else { return narrows_test::skip("no dump of sockets") };
            assert!(socket.is_within_host() && socket.inode == inode(&near));
            assert_eq!(kernel.find(&[inode(&near), inode(&far)]), Err(Missing::Several));
            assert_eq!(kernel.find(&[]), Err(Missing::Unconnected));

            let before = kernel.look(&socket).unwrap();
            near.write_all(&[1; 5000]).unwrap();
            let after = kernel.look(&socket).unwrap();
            let written = |told: &Told| told.info.acked_bytes + told.queued;
            assert_eq!(written(&after) - written(&before), 5000);
            // Nobody reads: bytes stay in the queue of the socket once the window is closed.
            near.set_nonblocking(true).unwrap();
            let mut more = 0;
            while let Ok(n) = near.write(&[1; 100_000]) {
                more += n as u64;
            }
            let full = kernel.look(&socket).unwrap();
            assert_eq!(written(&full) - written(&after), more);
            assert!(full.queued > 0 && u64::from(full.info.notsent_bytes) <= full.queued);

            let gone = Socket { id: [9; ID_LEN], ..socket };
            assert!(kernel.look(&gone).is_none());
            let other = Socket { inode: socket.inode + 1, ..socket };
            assert!(kernel.look(&other).is_none(), "the tuple is that of another socket");
            assert!(kernel.look(&socket).is_some(), "an error leaves nothing behind");
        }
    }

    #[test]
    fn cut_answers_are_no_answers() {
        let whole: Vec<u8> =
            [&20u32.to_ne_bytes()[..], &SOCK_DIAG_BY_FAMILY.to_ne_bytes(), &[0; 10], &[1, 2, 3, 4]].concat();
        assert_eq!(Messages(&whole).collect::<Vec<_>>(), [(SOCK_DIAG_BY_FAMILY, &[1, 2, 3, 4][..])]);
        for len in 0..whole.len() {
            assert_eq!(Messages(&whole[..len]).next(), None, "{len}");
        }
        let short: Vec<u8> = [&3u32.to_ne_bytes()[..], &[0; 20]].concat();
        assert_eq!(Messages(&short).next(), None, "shorter than its own header");
        assert_eq!(Attributes(&[2, 0, 2, 0, 0, 0]).next(), None);
        assert!(Socket::parse(&[0; MESSAGE_LEN - 1]).is_none());
    }

    #[test]
    fn peers_on_this_host_are_told_from_others() {
        let socket = |family: u8, own: &[u8], peer: &[u8]| {
            let mut id = [0; ID_LEN];
            id[4..4 + own.len()].copy_from_slice(own);
            id[20..20 + peer.len()].copy_from_slice(peer);
            Socket { family, id, inode: 1 }
        };
        assert!(socket(AF_INET, &[127, 0, 0, 1], &[127, 0, 0, 2]).is_within_host());
        assert!(socket(AF_INET, &[10, 0, 0, 1], &[10, 0, 0, 1]).is_within_host());
        assert!(!socket(AF_INET, &[10, 0, 0, 1], &[10, 0, 0, 2]).is_within_host());
        let mapped = |last: u8| Ipv4Addr::new(127, 0, 0, last).to_ipv6_mapped().octets();
        assert!(socket(AF_INET6, &mapped(1), &mapped(1)).is_within_host());
    }
}
