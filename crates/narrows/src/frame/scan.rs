//! A look through the frames of a stream as they arrive, ahead of the receiver that decodes them.
//!
//! What a delivered frame says is wanted before the data in front of it has been read: the program
//! that is to read that data may itself wait until its own bytes are taken.

use super::control::DELIVERED_BODY_MAX;
use super::{
    BLOCK_MAX_HARD, ControlHeader, ControlKind, Header, PREFACE_LEN, Preface, ReadLimits, parse_delivered, parse_header,
};
use crate::error::Result;

/// What a scan has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scanned {
    /// The preface.
    Preface(Preface),
    /// The peer's reader has had so many raw bytes of the other direction.
    Delivered(u64),
    /// The end frame: nothing follows.
    End,
}

/// A scan of one stream. It holds less than a header, decodes nothing, and takes no memory of the
/// length of a frame.
#[derive(Debug, Default)]
pub struct Scan {
    limits: Option<ReadLimits>,
    /// The beginning of an item that is incomplete.
    carry: Vec<u8>,
    /// Bytes of a body that are passed over.
    skip: usize,
    /// Nothing more is looked at: the stream has ended, or is invalid, which its receiver reports.
    is_over: bool,
}

/// An item at the front of some bytes: its length, of which `skip` bytes may be missing.
struct Item {
    len: usize,
    skip: usize,
    found: Option<Scanned>,
}

impl Scan {
    /// Takes the next bytes of the stream.
    pub fn take(&mut self, mut wire: &[u8], mut on_found: impl FnMut(Scanned)) {
        while !wire.is_empty() && !self.is_over {
            if self.skip > 0 {
                let passed = self.skip.min(wire.len());
                self.skip -= passed;
                wire = &wire[passed..];
                continue;
            }
            let carried = self.carry.len();
            let parsed = if carried == 0 {
                self.parse(wire)
            } else {
                // No item of which the bytes are needed is longer than a preface.
                self.carry.extend_from_slice(&wire[..wire.len().min(PREFACE_LEN - carried)]);
                self.parse(&self.carry)
            };
            match parsed {
                Ok(Some(Item { len, skip, found })) => {
                    wire = &wire[len - carried..];
                    self.carry.clear();
                    self.skip = skip;
                    if let Some(found) = found {
                        self.found(found);
                        on_found(found);
                    }
                }
                Ok(None) if carried == 0 && wire.len() < PREFACE_LEN => {
                    self.carry.extend_from_slice(wire);
                    return;
                }
                Ok(None) if carried > 0 && self.carry.len() < PREFACE_LEN => return,
                Ok(None) | Err(_) => self.is_over = true,
            }
        }
    }

    fn found(&mut self, found: Scanned) {
        match found {
            Scanned::Preface(preface) => {
                self.limits = Some(ReadLimits {
                    block_max: BLOCK_MAX_HARD,
                    history: preface.history,
                    reach: preface.reach,
                    codecs: u64::MAX,
                    check: preface.check,
                    messages: true,
                });
            }
            Scanned::Delivered(_) => {}
            Scanned::End => self.is_over = true,
        }
    }

    fn parse(&self, bytes: &[u8]) -> Result<Option<Item>> {
        let Some(limits) = &self.limits else {
            let preface = Preface::parse(bytes)?;
            return Ok(preface.map(|p| Item { len: PREFACE_LEN, skip: 0, found: Some(Scanned::Preface(p)) }));
        };
        match parse_header(bytes, limits)? {
            None => Ok(None),
            Some(Header::Block(header)) => {
                Ok(Some(Item { len: header.header_len(), skip: header.wire_len, found: None }))
            }
            Some(Header::Control(header)) => Self::control(&header, bytes),
        }
    }

    fn control(header: &ControlHeader, bytes: &[u8]) -> Result<Option<Item>> {
        let (len, skip) = (header.header_len, header.body_len);
        match header.kind {
            ControlKind::Delivered if skip <= DELIVERED_BODY_MAX => {
                let Some(body) = bytes.get(len..len + skip) else { return Ok(None) };
                header.verify(body, 0)?;
                let found = Some(Scanned::Delivered(parse_delivered(body)?));
                Ok(Some(Item { len: len + skip, skip: 0, found }))
            }
            ControlKind::End => Ok(Some(Item { len, skip, found: Some(Scanned::End) })),
            _ => Ok(Some(Item { len, skip, found: None })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BASELINE_BLOCK_MAX, EndTotals, Role, delivered_frame, feature, reset_frame};
    use super::*;
    use crate::block::{Block, BufferPool};
    use crate::codec::{Contexts, Method};
    use crate::policy::Fixed;
    use crate::sender::{LinkSample, Sender, SenderConfig};

    /// A stream with blocks of many lengths and a delivered frame after each.
    fn stream() -> (Vec<u8>, Vec<u64>) {
        let config = SenderConfig { tells_delivered: true, ..SenderConfig::default() };
        let (pool, mut contexts) = (BufferPool::default(), Contexts::default());
        let mut sender = Sender::new(config, Box::new(Fixed::new(Method::STORE, false)), pool.clone());
        let mut told = Vec::new();
        let mut wire = Vec::new();
        for (i, len) in [1usize, 5, 300, 70_000, 12, 3].into_iter().enumerate() {
            sender.push(Block::from_vec(vec![i as u8; len]), 0);
            while let Some(job) = sender.poll_job(0) {
                let done = job.run(&mut contexts, &pool);
                sender.finish(done, 0);
            }
            let total = (1u64 << (7 * i)) * 3 - 1;
            sender.delivered(total);
            told.push(total);
            while let Some(frame) = sender.poll_transmit() {
                wire.extend_from_slice(&frame.header);
                wire.extend_from_slice(&frame.body);
            }
            sender.on_link(LinkSample { accepted: wire.len() as u64, ..LinkSample::default() });
        }
        sender.close(0);
        while let Some(frame) = sender.poll_transmit() {
            wire.extend_from_slice(&frame.header);
            wire.extend_from_slice(&frame.body);
        }
        (wire, told)
    }

    #[test]
    fn everything_is_found_however_the_bytes_are_cut() {
        let (wire, told) = stream();
        for piece in [1, 2, 7, 31, 33, 1000, wire.len()] {
            let mut scan = Scan::default();
            let mut found = Vec::new();
            wire.chunks(piece).for_each(|bytes| scan.take(bytes, |item| found.push(item)));
            let Some(Scanned::Preface(preface)) = found.first() else { panic!("{piece}: {found:?}") };
            assert_eq!(preface.optional & feature::DELIVERED, feature::DELIVERED);
            let totals: Vec<u64> =
                found.iter().filter_map(|f| if let Scanned::Delivered(n) = f { Some(*n) } else { None }).collect();
            assert_eq!(totals, told, "{piece}");
            assert_eq!(found.last(), Some(&Scanned::End), "{piece}");
        }
    }

    #[test]
    fn damage_ends_the_scan_and_nothing_else() {
        let (wire, _) = stream();
        for at in (0..wire.len()).filter(|at| at % 17 == 0 || *at < 400) {
            let mut damaged = wire.clone();
            damaged[at] ^= 0x55;
            let mut scan = Scan::default();
            damaged.chunks(13).for_each(|bytes| scan.take(bytes, |_| {}));
            assert!(scan.carry.len() <= PREFACE_LEN);
        }
        let preface = Preface {
            role: Role::Sender,
            critical: 0,
            optional: 0,
            check: true,
            block_max: BASELINE_BLOCK_MAX,
            history: 0,
            reach: 0,
            codecs: 1,
        };
        let mut wire = preface.encode().to_vec();
        wire.extend_from_slice(&reset_frame(0).header);
        let mut wrong = delivered_frame(7);
        wrong.body = Block::from_vec(vec![8]);
        wire.extend_from_slice(&wrong.header);
        wire.extend_from_slice(&wrong.body);
        wire.extend_from_slice(&EndTotals::default().frame().header);
        let mut found = Vec::new();
        Scan::default().take(&wire, |item| found.push(item));
        assert_eq!(found, [Scanned::Preface(preface)]);
    }
}
