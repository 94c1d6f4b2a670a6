//! Bound of the raw bytes of a flow that the program at the other end has not read.
//!
//! Credit counts bytes as carriers bring them, of which a few may be many raw bytes. So each end also
//! tells how many raw bytes it has given to its local connection, and takes no more from that than the
//! other end's takes in a short time.

use super::flow::Flow;
use super::{FlowId, Session};
use crate::frame::Kind;

/// Length of the body of a delivered frame.
pub(super) const TOLD_LEN: usize = 8;

impl Flow {
    /// The peer has given `total` raw bytes to its local connection.
    pub(super) fn on_delivered(&mut self, total: u64, now_ns: u64) {
        self.peer_tells = true;
        self.out.ahead.set_peer_tells(true);
        self.out.ahead.delivered(total, now_ns);
    }
}

impl Session {
    /// Tells the peer that it will be told what is delivered. In front of *opened*: who has got that and
    /// no word of this knows that none will come.
    pub(super) fn tell_of_readers(&mut self, flow: FlowId) {
        if let Some(f) = self.flows.get(&flow) {
            let carrier = f.out.carrier;
            self.control(carrier, Kind::Delivered, flow, &0u64.to_le_bytes());
        }
    }

    /// Raw bytes that may be taken from the local connection without being too far ahead of the peer's.
    pub fn raw_room(&self, flow: FlowId) -> usize {
        self.flows.get(&flow).map_or(0, |f| f.out.ahead.room())
    }

    /// Raw bytes that may be ahead of the peer's reader.
    pub fn raw_window(&self, flow: FlowId) -> usize {
        self.flows.get(&flow).map_or(usize::MAX, |f| f.out.ahead.window())
    }

    /// `len` raw bytes were taken from the local connection.
    pub fn took_raw(&mut self, flow: FlowId, len: usize, now_ns: u64) {
        if let Some(f) = self.flows.get_mut(&flow) {
            f.out.ahead.sent(len, now_ns);
        }
    }

    /// The local connection was given `total` raw bytes of the flow so far: the peer is told, if that is
    /// due.
    pub fn delivered(&mut self, flow: FlowId, total: u64, now_ns: u64) {
        if self.report_ns(flow, total).is_some_and(|at| at <= now_ns)
            && let Some(f) = self.flows.get_mut(&flow)
        {
            f.inn.reports.told(total, now_ns);
            let carrier = f.inn.carrier;
            self.control(carrier, Kind::Delivered, flow, &total.to_le_bytes());
        }
    }

    /// When [`Session::delivered`] tells the peer so; `None`: not for so few bytes, or never.
    pub fn report_ns(&self, flow: FlowId, total: u64) -> Option<u64> {
        // After its finish frame the peer has nothing that could wait.
        let f = self.flows.get(&flow).filter(|f| f.peer_tells && !f.inn.ended)?;
        f.inn.reports.due_ns(total)
    }
}
