//! Sockets that have their address and do not answer yet: a server first writes what its clients look for, such
//! as a token, and fails before it does if its address is taken.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

/// A socket of TCP with an address, which refuses connections.
#[derive(Debug)]
pub struct Bound(TcpListener);

impl Bound {
    /// The first address of `to` that can be had.
    ///
    /// # Errors
    /// None can be.
    pub fn to(to: impl ToSocketAddrs) -> io::Result<Self> {
        let mut failed = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
        for address in to.to_socket_addrs()? {
            match Self::one(&address) {
                Ok(bound) => return Ok(bound),
                Err(e) => failed = e,
            }
        }
        Err(failed)
    }

    fn one(to: &SocketAddr) -> io::Result<Self> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // As the standard library: connections of a server before this one may still be ending.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, to)?;
        Ok(Self(socket.into()))
    }

    /// The address that it has.
    ///
    /// # Errors
    /// The system fails.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Answers from now on. `backlog`: connections that may wait to be accepted.
    ///
    /// # Errors
    /// Another server answers there by now.
    pub fn listen(self, backlog: i32) -> io::Result<TcpListener> {
        listen(&self.0, backlog)?;
        Ok(self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn a_bound_socket_answers_when_it_listens() {
        let bound = Bound::to("127.0.0.1:0").unwrap();
        let address = bound.address().unwrap();
        assert_eq!(TcpStream::connect(address).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let listener = bound.listen(1).unwrap();
        TcpStream::connect(address).unwrap();
        assert_eq!(Bound::to(address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        assert!(Bound::to("[::1").is_err());
    }
}
