//! The two ends of a topic: any number of writers and of readers, without a back channel.

use std::collections::VecDeque;
use std::time::Instant;

use narrows::message::{MessageConfig, Missed, TopicReader, TopicWriter};

use crate::handles::{Held, Table};
use crate::messages::{ROOM_KEPT, Trainer, dictionary, epoch, with_contexts};
use crate::options::messages_policy;
use crate::status::{Failure, Result};

pub(crate) struct Writer {
    end: TopicWriter,
    begun: Instant,
    /// The unit that the last call returned, until the next call.
    unit: Vec<u8>,
    trainer: Trainer,
}

impl Writer {
    pub(crate) fn new(config: MessageConfig, spec: Option<&str>, learns: bool) -> Result<Self> {
        let policy = messages_policy(spec)?;
        let mut end = TopicWriter::new(MessageConfig { epoch: epoch(config.epoch), ..config }, policy)?;
        if learns {
            end.sample();
        }
        Ok(Self { end, begun: Instant::now(), unit: Vec::new(), trainer: Trainer::default() })
    }

    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn begin_unit(&mut self) {
        if self.unit.capacity() > ROOM_KEPT {
            self.unit = Vec::new();
        }
        self.unit.clear();
    }

    /// Returns the unit that publishes `message`.
    pub(crate) fn send(&mut self, message: &[u8]) -> Result<&[u8]> {
        self.begin_unit();
        if let Some(adoption) = self.trainer.take() {
            self.end.trained(adoption);
        }
        let now_ns = self.now_ns();
        let (end, unit) = (&mut self.end, &mut self.unit);
        with_contexts(|contexts| end.send(message, now_ns, contexts, unit))??;
        let took_ns = self.now_ns() - now_ns;
        self.end.sender_mut().took(took_ns);
        if self.trainer.is_idle()
            && let Some(training) = self.end.training(now_ns)
        {
            self.trainer.start(training);
        }
        Ok(&self.unit)
    }

    /// Returns the announcement that readers need, if one is due.
    pub(crate) fn announcement(&mut self) -> Option<&[u8]> {
        self.begin_unit();
        let now_ns = self.now_ns();
        self.end.announcement(now_ns, &mut self.unit).then_some(&*self.unit)
    }

    pub(crate) fn reader_came(&mut self) {
        self.end.reader_came();
    }

    /// `false` if the number of dictionaries is at its limit.
    pub(crate) fn offer(&mut self, content: &[u8]) -> Result<bool> {
        Ok(self.end.offer(dictionary(content)?))
    }
}

impl Held for Writer {
    const KIND: u8 = 6;
    const NAME: &'static str = "topic writer";
    fn table() -> &'static Table<Self> {
        static TABLE: Table<Writer> = Table::new();
        &TABLE
    }
}

pub(crate) struct Reader {
    end: TopicReader,
    begun: Instant,
    /// Messages that the application has not taken.
    messages: VecDeque<Vec<u8>>,
    /// The message that it took last.
    taken: Vec<u8>,
}

impl Reader {
    pub(crate) fn new(config: MessageConfig) -> Result<Self> {
        let end = TopicReader::new(MessageConfig { epoch: epoch(config.epoch), ..config })?;
        Ok(Self { end, begun: Instant::now(), messages: VecDeque::new(), taken: Vec::new() })
    }

    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    pub(crate) fn receive(&mut self, unit: &[u8]) -> Result<()> {
        // The engine bounds what one unit releases; many units would not be bounded.
        if !self.messages.is_empty() {
            return Err(Failure::misuse("messages are pending: call narrows_topic_next until it returns 0"));
        }
        let now_ns = self.now_ns();
        let (end, messages) = (&mut self.end, &mut self.messages);
        let result = with_contexts(|contexts| end.receive(unit, now_ns, contexts, |m| messages.push_back(m.to_vec())))?;
        // Messages released by the good part of a bad unit must be taken; `missed` counts the unit.
        if messages.is_empty() { Ok(result?) } else { Ok(()) }
    }

    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>> {
        if self.messages.is_empty() {
            let now_ns = self.now_ns();
            let (end, messages) = (&mut self.end, &mut self.messages);
            with_contexts(|contexts| end.on_time(now_ns, contexts, |m| messages.push_back(m.to_vec())))?;
        }
        let next = self.messages.pop_front();
        let any = next.is_some();
        self.taken = next.unwrap_or_default();
        Ok(any.then_some(&*self.taken))
    }

    pub(crate) fn missed(&self) -> Missed {
        self.end.missed()
    }
}

impl Held for Reader {
    const KIND: u8 = 7;
    const NAME: &'static str = "topic reader";
    fn table() -> &'static Table<Self> {
        static TABLE: Table<Reader> = Table::new();
        &TABLE
    }
}
