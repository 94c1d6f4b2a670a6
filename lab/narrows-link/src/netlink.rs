//! The one rtnetlink message that this crate sends. Nothing here allocates, because the keeper
//! builds it between fork and exit.

use std::os::fd::RawFd;

use libc::c_int;

/// An rtnetlink message: nested attributes, each prefixed with its length.
pub(crate) struct Message {
    bytes: [u8; 256],
    len: usize,
}

impl Message {
    /// A request for a pair of veth devices: `name` here, `peer_name` in the namespace of the
    /// descriptor `peer`.
    pub(crate) fn new_pair(name: &str, peer_name: &str, peer: RawFd) -> Self {
        const VETH_INFO_PEER: u16 = 1;
        let mut message = Self::new();
        let header = message.begin_header(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL | libc::NLM_F_ACK);
        message.interface_info();
        message.attribute(libc::IFLA_IFNAME, name.as_bytes());
        let info = message.begin(libc::IFLA_LINKINFO);
        message.attribute(libc::IFLA_INFO_KIND, b"veth");
        let data = message.begin(libc::IFLA_INFO_DATA);
        let other = message.begin(VETH_INFO_PEER);
        message.interface_info();
        message.attribute(libc::IFLA_IFNAME, peer_name.as_bytes());
        message.attribute(libc::IFLA_NET_NS_FD, &peer.to_ne_bytes());
        for start in [other, data, info] {
            message.end(start);
        }
        message.end_header(header);
        message
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    const fn new() -> Self {
        Self { bytes: [0; 256], len: 0 }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len = (self.len + bytes.len()).next_multiple_of(4);
    }

    fn begin_header(&mut self, kind: u16, flags: c_int) -> usize {
        let start = self.len;
        self.put(&[0; 4]);
        self.put(&kind.to_ne_bytes());
        self.len -= 2;
        self.put(&((flags | libc::NLM_F_REQUEST) as u16).to_ne_bytes());
        self.len = start + 16;
        start
    }

    fn end_header(&mut self, start: usize) {
        let len = (self.len - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&len.to_ne_bytes());
    }

    /// An all-zero `ifinfomsg`, which requests nothing.
    fn interface_info(&mut self) {
        self.put(&[0; 16]);
    }

    fn begin(&mut self, kind: u16) -> usize {
        let start = self.len;
        self.bytes[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
        self.len += 4;
        start
    }

    fn end(&mut self, start: usize) {
        let len = (self.len - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        let start = self.begin(kind);
        self.put(value);
        // The length does not count the padding.
        let len = (4 + value.len()) as u16;
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
    }
}
