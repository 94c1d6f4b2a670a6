//! State of cold processes: the threads and the contexts of methods that exist already.

use narrows::codec::Method;
use narrows::sender::LinkSample;

use super::host::Host;
use super::link::InFlight;

/// State of a run between cold processes.
pub(super) struct Cold {
    pub(super) host: Host,
    /// Methods that each thread has used, of encoders and decoders.
    used: [Vec<(Method, usize)>; 2],
    threads_started: usize,
    /// A write that has not returned: when it began, and the sample of the link.
    pub(super) writing: Option<LinkSample>,
}

impl Cold {
    pub(super) fn new(host: Host) -> Self {
        Self { host, used: Default::default(), threads_started: 0, writing: None }
    }

    /// Work and charge of an encoding: the first of a thread starts the thread, and its first of a
    /// method makes a context.
    pub(super) fn encoding(
        &mut self,
        method: Method,
        (work_ns, charge_ns): (f64, f64),
        cores: usize,
        on_io: bool,
    ) -> (f64, f64) {
        let mut charge_ns = charge_ns + self.first_use(0, method, cores);
        if method != Method::STORE && !on_io {
            charge_ns += self.host.hand_over_ns;
            if self.threads_started < cores {
                self.threads_started += 1;
                charge_ns += self.host.thread_start_ns;
            }
        }
        (work_ns * (1.0 + self.host.cold_share), charge_ns)
    }

    /// Work of decoding a frame and storing its bytes.
    pub(super) fn decoding(&mut self, frame: &InFlight, decoders: usize) -> f64 {
        let first_ns = self.first_use(1, frame.method, decoders);
        let store_ns = self.host.hand_over_ns + frame.raw_len as f64 * self.host.store_ns_per_byte;
        first_ns + store_ns + frame.decode_ns * (1.0 + self.host.cold_share)
    }

    fn first_use(&mut self, end: usize, method: Method, threads: usize) -> f64 {
        let ns = Host::first_use_ns(method);
        let used = &mut self.used[end];
        let threads_of = match used.iter_mut().find(|u| u.0 == method) {
            Some(u) => &mut u.1,
            None => {
                used.push((method, 0));
                &mut used.last_mut().expect("there is one").1
            }
        };
        if *threads_of == threads {
            return 0.0;
        }
        *threads_of += 1;
        if end == 0 { ns.0 } else { ns.1 }
    }
}
