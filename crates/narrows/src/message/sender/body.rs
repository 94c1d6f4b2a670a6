//! The body of a message frame: encoded as chosen, if that makes it shorter.

use std::sync::Arc;

use super::{BUSY_MESSAGES, MessageSender, RELOAD_COLD};
use crate::codec::{CodecId, Dictionary, Level};
use crate::message::comparison::Use;
use crate::message::header::{first_byte, put};
use crate::message::history::lone_check;
use crate::message::{Coding, Contexts};
use crate::policy::Choice;

/// The encoding of a message. Its body is the message itself or in the buffer of the contexts.
pub(super) struct Encoded {
    pub(super) coding: Coding,
    /// Encoded with the history; of a stored message: kept out of the history.
    pub(super) linked: bool,
    pub(super) slot: u8,
    /// Digest of the dictionary in that slot.
    digest: u64,
    len: usize,
}

impl MessageSender {
    /// Body of a private message, which is kept out of the history.
    pub(super) fn private_body(&self, message: &[u8]) -> Encoded {
        Encoded { coding: Coding::Store, linked: self.is_ordered(), slot: 0, digest: 0, len: message.len() }
    }

    /// Encodes a message and appends it to the history. The body is in the buffer of `contexts`.
    pub(super) fn encode_body(&mut self, message: &[u8], choice: &Choice, contexts: &mut Contexts) -> Encoded {
        let stored = Encoded { coding: Coding::Store, linked: false, slot: 0, digest: 0, len: message.len() };
        let (is_lz4, is_zstd) = (choice.method.codec == CodecId::LZ4, choice.method.codec == CodecId::ZSTD);
        // zstd itself does not link: if both are asked for, use the shorter of linked LZ4 and zstd
        // with the dictionary.
        let both = is_zstd && self.slots.current().is_some();
        if choice.linked && (is_lz4 || both) && self.history.takes(message.len()) {
            let len = self.encode_linked(message, contexts);
            let linked = Encoded { coding: Coding::Lz4, linked: true, slot: 0, digest: 0, len };
            let encoded = if len < message.len() { linked } else { stored };
            return if both { self.shorter(message, choice.method.level, encoded, contexts) } else { encoded };
        }
        self.history.append(message);
        let coding = match choice.method.codec {
            CodecId::LZ4 => Coding::Lz4,
            CodecId::ZSTD => Coding::Zstd,
            _ => return stored,
        };
        let alone = Encoded { coding, ..stored };
        let level = choice.method.level;
        let Some((slot, dictionary)) = self.slots.current().map(|(slot, d)| (slot, Arc::clone(d))) else {
            let len = encode_with(contexts, coding, level, None, message);
            return if len < message.len() { Encoded { len, ..alone } } else { stored };
        };
        let mut encode = |dictionary| encode_with(contexts, coding, level, dictionary, message);
        let (len, used) = match self.comparison.next() {
            Use::With => (encode(Some(&*dictionary)), true),
            Use::Without => (encode(None), false),
            Use::Both => {
                let without = encode(None);
                let with = encode(Some(&*dictionary));
                self.comparison.compared(with.min(message.len()), without.min(message.len()));
                // The buffer holds the last encoding.
                if without < with { (encode(None), false) } else { (with, true) }
            }
        };
        let (slot, digest) = if used { (slot, dictionary.digest()) } else { (0, 0) };
        if len < message.len() { Encoded { slot, digest, len, ..alone } } else { stored }
    }

    /// Encodes with the history and appends the message to it. Returns the length of the body.
    fn encode_linked(&mut self, message: &[u8], contexts: &mut Contexts) -> usize {
        let (table, room) = contexts.table(self.flow, &mut self.table_hint);
        // If no table was filled from this history yet, index all of it: the seed would otherwise
        // never be found.
        if !self.begun.filled {
            table.forget();
        }
        let whole = self.pace.busy_messages > BUSY_MESSAGES || !self.begun.filled;
        self.begun.filled = true;
        let reload = if whole { self.history.window() } else { RELOAD_COLD };
        let (buffer, at) = self.history.place(message, table);
        table.encode(buffer, at, reload, 1, room).unwrap_or(usize::MAX)
    }

    /// Encodes with the dictionary. Returns that if it is shorter than `encoded`, whose body is in
    /// the buffer.
    fn shorter(&self, message: &[u8], level: Level, encoded: Encoded, contexts: &mut Contexts) -> Encoded {
        let Contexts { codecs, encoded: room, .. } = contexts;
        let Some((slot, dictionary)) = self.slots.current() else { return encoded };
        match codecs.encode_zstd(Some(dictionary), level, message) {
            Some(body) if body.len() < encoded.len => {
                room[..body.len()].copy_from_slice(body);
                Encoded { coding: Coding::Zstd, linked: false, slot, digest: dictionary.digest(), len: body.len() }
            }
            _ => encoded,
        }
    }

    pub(super) fn put_frame(&mut self, message: &[u8], encoded: &Encoded, contexts: &Contexts, out: &mut Vec<u8>) {
        let Encoded { coding, linked, slot, digest, len } = *encoded;
        let ordered = self.is_ordered();
        let has_check = linked && coding != Coding::Store || slot != 0 || self.config.check_all;
        let borders = self.config.carrier.borders;
        let first = first_byte(coding, linked, slot, has_check, len, borders);
        if ordered {
            self.chain = self.chain.after(message);
        }
        let check = has_check.then(|| if ordered { self.chain.check() } else { lone_check(digest, message, first) });
        put(out, first, len, check, borders);
        out.extend_from_slice(if coding == Coding::Store { message } else { &contexts.encoded[..len] });
    }
}

/// Encodes into the buffer of `contexts`. Returns a length above any message if that fails.
fn encode_with(
    contexts: &mut Contexts,
    coding: Coding,
    level: Level,
    dictionary: Option<&Dictionary>,
    message: &[u8],
) -> usize {
    let Contexts { codecs, encoded, .. } = contexts;
    let len = if coding == Coding::Lz4 {
        codecs.encode_lz4(dictionary, message, encoded)
    } else {
        codecs.encode_zstd(dictionary, level, message).map(|body| {
            let len = body.len().min(encoded.len());
            encoded[..len].copy_from_slice(&body[..len]);
            body.len()
        })
    };
    len.unwrap_or(usize::MAX)
}
