//! Names of hosts are looked up by threads, since the system's resolver waits.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::limits::LOOKUPS_MAX;

/// Most addresses of a name that are tried.
const ADDRESSES_MAX: usize = 16;

/// Starts look-ups, a limited number at a time.
#[derive(Default)]
pub(super) struct Lookups(Arc<AtomicUsize>);

/// What a look-up came to.
pub(super) type Found = std::io::Result<Vec<SocketAddr>>;

impl Lookups {
    /// Looks a host up and tells what was found, at once if it is an address. False: too many are
    /// under way.
    pub(super) fn start(&self, host: &str, port: u16, tell: impl FnOnce(Found) + Send + 'static) -> bool {
        if let Ok(ip) = host.parse::<IpAddr>() {
            tell(Ok(vec![SocketAddr::new(ip, port)]));
            return true;
        }
        if self.0.fetch_add(1, Ordering::AcqRel) >= LOOKUPS_MAX {
            self.0.fetch_sub(1, Ordering::AcqRel);
            return false;
        }
        let (host, place) = (host.to_owned(), Place(Arc::clone(&self.0)));
        let look = move || {
            let _place = place;
            tell((host.as_str(), port).to_socket_addrs().map(|found| found.take(ADDRESSES_MAX).collect()));
        };
        std::thread::Builder::new().name("narrows-lookup".into()).stack_size(512 << 10).spawn(look).is_ok()
    }
}

struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn so_many_are_under_way_at_a_time_and_addresses_need_none() {
        let lookups = Lookups::default();
        let (ends, end): (Vec<_>, Vec<_>) = (0..LOOKUPS_MAX).map(|_| channel::<()>()).unzip();
        for end in end {
            assert!(lookups.start("localhost", 1, move |_| assert!(end.recv().is_err(), "it waits for its end")));
        }
        assert!(!lookups.start("localhost", 1, |_| panic!("it is one too many")));
        let (told, found) = channel();
        assert!(lookups.start("127.0.0.1", 1, move |f| told.send(f.unwrap()).unwrap()));
        assert_eq!(found.recv().unwrap().len(), 1);
        drop(ends);
        while lookups.0.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
        assert!(lookups.start("localhost", 1, |_| {}));
    }
}
