//! State that the threads of a supervisor share, and orders to its pumps.

use std::io::Result;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use narrows::block::BufferPool;
use narrows::codec::Contexts;
use narrows::pool::Queue;
use narrows::receiver::DecodeDone;
use narrows::sender::Done;
use narrows::stream::{Told, Workers};
use narrows::upgrade::Event;
use rustix::event::{EventfdFlags, eventfd};

use super::account::{LiveConnection, Totals};
use super::asker::Asker;
use super::compressor::Compressor;
use super::held::{Held, Holdings};
use super::negotiator::Negotiator;
use super::scope::Direct;
use super::talk::Talk;
use super::wire::Request;

/// State shared by all threads of the supervisor.
pub struct Shared {
    /// Connections that pumps have or will find in their inboxes.
    pub live: AtomicUsize,
    /// TCP sockets of failed connections that all pumps keep, and their limit.
    pub kept: AtomicUsize,
    pub kept_max: usize,
    /// Eventfd, signalled when no connection is live any more.
    pub idle: OwnedFd,
    pub talk: Talk,
    pub negotiator: Negotiator,
    pub compressor: Arc<Compressor>,
    /// Peers with which frames begin without negotiation.
    pub direct: Direct,
    /// The TCP sockets of all connections.
    pub held: Holdings,
    /// Totals of connections that are over.
    pub totals: Totals,
    pub begun: Instant,
}

/// Resources that a pump lends to the connection whose turn it is.
pub struct PumpContext {
    pub shared: Arc<Shared>,
    /// Sends orders to this pump, for workers.
    pub inlet: Inlet,
    pub contexts: Contexts,
    pub buffers: BufferPool,
    /// Serial number of the latest connection.
    serial: u64,
}

impl PumpContext {
    pub(crate) fn new(shared: Arc<Shared>, inlet: Inlet) -> Self {
        Self { shared, inlet, contexts: Contexts::default(), buffers: BufferPool::default(), serial: 0 }
    }

    /// The clock of all connections.
    pub fn now_ns(&self) -> u64 {
        self.shared.begun.elapsed().as_nanos() as u64
    }

    pub fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// What a worker calls that panicked over a block of this connection.
    pub fn on_panic(&self, serial: u64) -> impl Fn() + Send + Sync + use<> {
        let inlet = self.inlet.clone();
        move || inlet.send(Order::Failed { serial })
    }

    /// Runs the jobs of a direction, here or on the workers of this queue, of whose results `order` tells.
    pub fn workers<'a, D: Send + 'static>(
        &'a mut self,
        queue: &'a Queue,
        order: impl Fn(Box<D>) -> Order + Copy + Send + 'static,
    ) -> Workers<'a, impl FnMut() -> Told<D>> {
        let Self { contexts, buffers, inlet, shared, .. } = self;
        let tell = move || -> Told<D> {
            let (inlet, at_work) = (inlet.clone(), shared.compressor.at_work());
            Box::new(move |done| {
                let _at_work = at_work;
                inlet.send(order(Box::new(done)));
            })
        };
        Workers { contexts, buffers, queue, tell }
    }
}

pub enum Order {
    Take {
        request: Box<Request>,
        held: Arc<Held>,
        program: OwnedFd,
    },
    /// A request about a connection; the answer goes to `socket`.
    Ask {
        request: Box<Request>,
        asker: Asker,
        socket: OwnedFd,
    },
    /// An event from the negotiation of a connection.
    Hear {
        id: u64,
        event: Event,
    },
    /// A worker has encoded a block of a connection.
    Encoded {
        serial: u64,
        done: Box<Done>,
    },
    /// A worker has decoded a block of a connection.
    Decoded {
        serial: u64,
        done: Box<DecodeDone>,
    },
    /// A worker has panicked over a block of a connection.
    Failed {
        serial: u64,
    },
    /// Asks for a snapshot of all connections.
    Snapshot {
        answer: Sender<Vec<LiveConnection>>,
    },
}

/// Sends orders to a pump.
#[derive(Clone)]
pub struct Inlet {
    orders: Sender<Order>,
    bell: Arc<OwnedFd>,
}

impl Inlet {
    /// The way to a new pump, what arrives there, and the bell that says that something did.
    pub(crate) fn open() -> Result<(Self, Receiver<Order>, Arc<OwnedFd>)> {
        let (orders, inbox) = channel();
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok((Self { orders, bell: Arc::clone(&bell) }, inbox, bell))
    }

    pub fn send(&self, order: Order) {
        // A pump ends only with the process.
        let _ = self.orders.send(order);
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
    }
}
