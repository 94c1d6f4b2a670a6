//! Encodes the content of files at the sending end, each file as a stream of its own.
//!
//! One flow of the engine encodes the blocks of all files, so what it learns of link and data holds for
//! the next file too. It writes into a pipe, out of which its frames are taken as fast as the
//! connection drains, so its policy sees that rate as `narrows pipe` sees the rate of its output.

use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeReader, Read};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use narrows::block::{Block, BufferPool};
use narrows::codec::CodecId;
use narrows::entry::{DIGEST_LEN, EndState, KnownFrame, RecordWriter};
use narrows::frame::{self, BlockHeader, Header, PREFACE_LEN, ReadLimits};
use narrows::hint::Hint;
use narrows::monitor::expectation::PeerLink;
use narrows::policy::Policy;
use narrows::sender::Summary;
use narrows::stream::{self, BlockSource, Control, SendOptions};
use narrows::transport::Link;
use narrows_file::alone::Maker;

use super::BLOCK_LEN;
use super::room::Room;

/// Content up to this length is stored as it is: no method makes it shorter by more than the time of a
/// thread costs.
pub(crate) const STORED_MAX: usize = 256;
/// Items that wait for their turn. Small files have four each.
const ITEMS_MAX: usize = 256;
/// Blocks that wait for the engine, which takes what it has room for. Waking it for each small one would
/// take longer than encoding it. Their bytes are those of the items.
const BLOCKS_MAX: usize = 64;
/// Records are handed on in pieces of this length.
const GATHER_LEN: usize = 64 << 10;
/// Length of the buffer for frames.
const BUFFER_LEN: usize = 128 << 10;

/// Stored blocks go as they are over links that are faster than this, in bytes/s: 1 Gbit/s carries 118 MB/s.
/// A copy within a busy host may be measured not much faster, and must not be loaded with encoding.
const FAST_ABOVE: f64 = 125e6;

/// Whether a link is too fast for stored blocks to be encoded. One that is not known yet counts as that of
/// the copy that stored them so.
fn is_fast(link: Option<PeerLink>) -> bool {
    link.is_none_or(|link| link.rate_bytes_per_s > FAST_ABOVE)
}

/// How a sending end makes frames.
pub struct FramesOptions {
    options: SendOptions,
    /// The flow that carries them.
    pub(crate) carrier: Arc<Control>,
    /// Files are read from a folder of stored files.
    pub(crate) unwraps: bool,
    /// Whether the link is too fast for stored blocks to be encoded.
    is_fast: IsFast,
    /// What the command line says of all files; `None`: what is said of files does not count either.
    pub(crate) hint: Option<Hint>,
    /// What the encoding flow was, at the end.
    pub(crate) encoding: Encoding,
}

type IsFast = Box<dyn Fn() -> bool + Send>;

/// What an encoding flow has done and learned.
#[derive(Clone, Default)]
pub struct Encoding(Arc<Mutex<Option<Ended>>>);

/// Totals and policy of a flow that has ended.
type Ended = (Summary, Box<dyn Policy>);

impl Encoding {
    /// Totals and policy, once the flow has ended; `None` if there was nothing to encode.
    pub fn take(&self) -> Option<(Summary, Box<dyn Policy>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl FramesOptions {
    /// `options` choose the methods, `carrier` is the flow that carries the frames. `unwraps`: the sources
    /// are stored files.
    pub fn new(options: SendOptions, carrier: &Arc<Control>, unwraps: bool) -> Self {
        let options = options.check(false).history(0).separate(true).gather_ns(0).block_max(BLOCK_LEN).index(false);
        let (carrier, link) = (Arc::clone(carrier), Arc::clone(carrier));
        let is_fast: IsFast = Box::new(move || is_fast(link.send_summary().link));
        Self { options, carrier, unwraps, is_fast, hint: None, encoding: Encoding::default() }
    }

    /// Files of which their attribute or a rule says `never` are stored as they are, unless `hint`, that
    /// of the command line, asks for something else.
    #[must_use]
    pub fn obey_never(self, hint: Hint) -> Self {
        Self { hint: Some(hint), ..self }
    }

    /// What the encoding flow will have done.
    pub fn encoding(&self) -> Encoding {
        self.encoding.clone()
    }
}

/// What goes out, in order.
pub(crate) enum Item {
    /// Records that are ready.
    Records(Vec<u8>),
    /// The stream of a file begins, whose blocks have so many raw bytes at most.
    Begin(usize),
    /// A block to be encoded.
    Raw(Block),
    /// A block to be stored as it is.
    Plain(Block),
    /// A frame as it is stored at this end.
    Frame(BlockHeader, Vec<u8>),
    /// A frame that the other end has.
    Known(Known),
    /// The stream of a file ends. With it the sums of all raw bytes, if not all of them came as blocks.
    End(EndState, Option<Vec<u64>>),
    /// Everything was sent.
    Done,
    /// Where the frames of the engine come from.
    Engine(PipeReader),
}

impl Item {
    /// Bytes of content in it.
    fn len(&self) -> usize {
        match self {
            Self::Records(bytes) | Self::Frame(_, bytes) => bytes.len(),
            Self::Raw(raw) | Self::Plain(raw) | Self::Known(Known::Stored(_, raw)) => raw.len(),
            Self::End(_, sums) => sums.as_ref().map_or(0, |sums| size_of_val(&sums[..])),
            Self::Known(Known::Raw { .. }) | Self::Begin(_) | Self::Done | Self::Engine(_) => 0,
        }
    }
}

/// A frame that the other end has.
pub(crate) enum Known {
    /// It is stored there and has these raw bytes.
    Stored(KnownFrame, Block),
    /// Its raw bytes are there.
    Raw { raw_len: usize, frame_len: usize, check: u64 },
}

/// The copy is over.
pub(crate) struct OverError;

/// The encoder of a copy.
pub(crate) struct Encoder {
    items: SyncSender<Item>,
    room: Arc<Room>,
    options: Option<SendOptions>,
    is_fast: IsFast,
    blocks: Option<SyncSender<Block>>,
    encoding: Encoding,
}

impl Encoder {
    /// Starts the thread that puts everything in order. `emit` takes the records, and hears how many
    /// bytes wait after them; `end` hears whether all went.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start(
        options: FramesOptions,
        emit: impl FnMut(Vec<u8>, usize) -> Result<(), OverError> + Send + 'static,
        end: impl FnOnce(bool) + Send + 'static,
    ) -> io::Result<Self> {
        let (items, taken) = sync_channel(ITEMS_MAX);
        let room = Arc::<Room>::default();
        let of_thread = Arc::clone(&room);
        let assembly = Assembly {
            items: taken,
            room: Arc::clone(&room),
            frames: None,
            out: Vec::new(),
            maker: None,
            have: 0,
            emit,
        };
        std::thread::Builder::new().name("narrows-frames".into()).spawn(move || {
            let end = move |all| {
                of_thread.end();
                end(all);
            };
            let mut told = AtEnd { end: Some(end), all: false };
            told.all = assembly.run().is_ok();
        })?;
        let FramesOptions { options, is_fast, encoding, .. } = options;
        Ok(Self { items, room, options: Some(options), is_fast, blocks: None, encoding })
    }

    /// Sends an item in its turn.
    pub(crate) fn put(&self, item: Item) -> Result<(), OverError> {
        self.room.take(item.len())?;
        self.items.send(item).map_err(|_| OverError)
    }

    /// Encodes a block and sends its frames.
    pub(crate) fn block(&mut self, raw: Block) -> Result<(), OverError> {
        if raw.len() <= STORED_MAX {
            return self.put(Item::Plain(raw));
        }
        self.start_engine().map_err(|_| OverError)?;
        self.put(Item::Raw(raw.clone()))?;
        self.blocks.as_ref().ok_or(OverError)?.send(raw).map_err(|_| OverError)
    }

    /// Sends a stored frame of the raw bytes from `at` on; false if it is damaged. One that was encoded
    /// goes as it is: it is smaller already, and to decode and encode it would take more of this host
    /// than it saves of the link. A block that was stored as it was is encoded only for a link that the
    /// carrier knows to be slow: the encoder itself sees how fast its pipe drains, which its own load
    /// makes slow.
    pub(crate) fn stored(&mut self, header: BlockHeader, frame: &[u8], at: u64) -> Result<bool, OverError> {
        let is_plain = header.codec == CodecId::STORE && header.raw_len.is_some_and(|len| len <= BLOCK_LEN);
        if !is_plain || (self.is_fast)() {
            self.put(Item::Frame(header, frame.to_vec()))?;
            return Ok(true);
        }
        let raw = Block::from_vec(frame[header.header_len()..].to_vec());
        if Some(header.check_of(&raw, &raw, at)) != header.check {
            return Ok(false);
        }
        self.block(raw)?;
        Ok(true)
    }

    /// Starts the engine for the first block.
    fn start_engine(&mut self) -> io::Result<()> {
        let Some(options) = self.options.take() else { return Ok(()) };
        let (reader, writer) = io::pipe()?;
        let link = Link::file_writer(File::from(OwnedFd::from(writer)));
        let (blocks, taken) = sync_channel(BLOCKS_MAX);
        let encoding = self.encoding.clone();
        std::thread::Builder::new().name("narrows-encode".into()).spawn(move || {
            if let Ok(ended) = stream::send_blocks(Blocks { blocks: taken }, link, options) {
                *encoding.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
            }
        })?;
        self.blocks = Some(blocks);
        self.items.send(Item::Engine(reader)).map_err(io::Error::other)
    }

    /// Ends the engine's flow, so that its totals are known when the copy has ended.
    pub(crate) fn end(&mut self) -> Result<(), OverError> {
        self.blocks = None;
        self.put(Item::Done)
    }
}

/// Tells how a thread ended, also if it panics: the other end of the copy waits for it.
struct AtEnd<F: FnOnce(bool)> {
    end: Option<F>,
    all: bool,
}

impl<F: FnOnce(bool)> Drop for AtEnd<F> {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            end(self.all);
        }
    }
}

/// The blocks that the engine reads.
struct Blocks {
    blocks: Receiver<Block>,
}

impl BlockSource for Blocks {
    fn next(&mut self, _: usize, _: &BufferPool) -> io::Result<Block> {
        // The end of the channel is that of the flow.
        Ok(self.blocks.recv().unwrap_or_default())
    }
}

/// Puts records and frames in order.
struct Assembly<E> {
    items: Receiver<Item>,
    room: Arc<Room>,
    frames: Option<BufReader<PipeReader>>,
    out: Vec<u8>,
    maker: Option<Maker>,
    /// Raw bytes that the other end has and was not told to take.
    have: u64,
    emit: E,
}

impl<E: FnMut(Vec<u8>, usize) -> Result<(), OverError>> Assembly<E> {
    fn run(mut self) -> Result<(), OverError> {
        let records = RecordWriter::default();
        let mut body = Vec::new();
        loop {
            let item = match self.items.try_recv() {
                Ok(item) => item,
                Err(TryRecvError::Disconnected) => return Err(OverError),
                Err(TryRecvError::Empty) => {
                    self.emit()?;
                    self.items.recv().map_err(|_| OverError)?
                }
            };
            self.room.give(item.len());
            match item {
                Item::Records(bytes) => self.out.extend_from_slice(&bytes),
                Item::Begin(block_max) => {
                    let maker = self.maker.insert(Maker::new(block_max));
                    records.data(maker.preface(), &mut self.out);
                }
                Item::Plain(raw) => {
                    self.flush_have(&records);
                    if let Some(maker) = &mut self.maker
                        && !raw.is_empty()
                    {
                        let header = maker.block(CodecId::STORE, &raw, &raw);
                        put_frame(&records, &header, &raw, &mut self.out);
                    }
                }
                Item::Raw(raw) => {
                    self.flush_have(&records);
                    self.encoded(&records, raw, &mut body)?;
                }
                Item::Frame(header, frame) => {
                    self.flush_have(&records);
                    if let (Some(maker), Some(check), Some(raw_len)) = (&mut self.maker, header.check, header.raw_len) {
                        maker.as_it_is(raw_len, frame.len(), check);
                        records.data(&frame, &mut self.out);
                    }
                }
                Item::Known(known) => {
                    if let Some(maker) = &mut self.maker {
                        match known {
                            Known::Stored(frame, raw) => {
                                maker.known(&frame, &raw);
                                self.have += raw.len() as u64;
                            }
                            Known::Raw { raw_len, frame_len, check } => {
                                maker.as_it_is(raw_len, frame_len, check);
                                self.have += raw_len as u64;
                            }
                        }
                    }
                }
                Item::End(state, sums) => {
                    self.flush_have(&records);
                    if let Some(maker) = self.maker.take()
                        && state != EndState::Partial
                    {
                        let tail = maker.finish(sums);
                        tail.chunks(BLOCK_LEN).for_each(|part| records.data(part, &mut self.out));
                    }
                    records.end(state, &[0; DIGEST_LEN], &mut self.out);
                }
                Item::Done => return self.emit(),
                Item::Engine(reader) => self.frames = Some(BufReader::with_capacity(BUFFER_LEN, reader)),
            }
            if self.out.len() >= GATHER_LEN {
                self.emit()?;
            }
        }
    }

    fn emit(&mut self) -> Result<(), OverError> {
        if self.out.is_empty() {
            return Ok(());
        }
        (self.emit)(std::mem::take(&mut self.out), self.room.waiting())
    }

    fn flush_have(&mut self, records: &RecordWriter) {
        if self.have > 0 {
            records.have(std::mem::take(&mut self.have), &mut self.out);
        }
    }

    /// Takes the frames of a block from the engine.
    fn encoded(&mut self, records: &RecordWriter, mut raw: Block, body: &mut Vec<u8>) -> Result<(), OverError> {
        while !raw.is_empty() {
            if self.frames.as_ref().is_some_and(|frames| frames.buffer().is_empty()) {
                // The next frame may take long to come.
                self.emit()?;
            }
            let frames = self.frames.as_mut().ok_or(OverError)?;
            let header = next_header(frames).map_err(|_| OverError)?;
            let raw_len = header.raw_len.filter(|len| *len <= raw.len()).ok_or(OverError)?;
            body.resize(header.wire_len, 0);
            frames.read_exact(body).map_err(|_| OverError)?;
            let part = raw.split_to(raw_len);
            let maker = self.maker.as_mut().ok_or(OverError)?;
            let header = maker.block(header.codec, &part, body);
            put_frame(records, &header, body, &mut self.out);
            if self.out.len() >= GATHER_LEN {
                self.emit()?;
            }
        }
        Ok(())
    }
}

fn put_frame(records: &RecordWriter, header: &[u8], body: &[u8], out: &mut Vec<u8>) {
    records.data_of(header.len() + body.len(), out);
    out.extend_from_slice(header);
    out.extend_from_slice(body);
}

/// The next header of the engine's own stream, which has no checks.
fn next_header(frames: &mut BufReader<PipeReader>) -> io::Result<BlockHeader> {
    let wrong = |e: narrows::Error| io::Error::new(io::ErrorKind::InvalidData, e.to_string());
    let limits =
        ReadLimits { block_max: BLOCK_LEN, history: 0, reach: 0, codecs: u64::MAX, check: false, messages: false };
    if frames.fill_buf()?.first() == Some(&frame::MAGIC[0]) {
        // No frame begins like a preface.
        frames.read_exact(&mut [0; PREFACE_LEN])?;
    }
    let mut bytes = Vec::with_capacity(16);
    loop {
        let mut byte = [0];
        frames.read_exact(&mut byte)?;
        bytes.push(byte[0]);
        match frame::parse_header(&bytes, &limits).map_err(wrong)? {
            Some(Header::Block(header)) => return Ok(header),
            Some(Header::Control(_)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use narrows::frame::Preface;

    use super::*;

    /// Bytes that go out for a stored frame of 64 KiB that zstd makes shorter.
    fn sent_of_a_stored_block(is_fast: bool) -> Vec<u8> {
        let raw: Vec<u8> = (0..64 << 10).map(|i: u32| (i / 100 % 64) as u8).collect();
        let header = Maker::new(BLOCK_LEN).block(CodecId::STORE, &raw, &raw);
        let frame = [&header[..], &raw].concat();
        let limits = super::super::limits(&Preface::parse(Maker::new(BLOCK_LEN).preface()).unwrap().unwrap());
        let Ok(Some(Header::Block(header))) = frame::parse_header(&frame, &limits) else { panic!("no frame") };
        let policy = narrows::policy::PolicySpec::from_str("fixed:zstd:level=1").unwrap();
        let options = FramesOptions::new(SendOptions::new(policy), &Arc::default(), true);
        let options = FramesOptions { is_fast: Box::new(move || is_fast), ..options };
        let (told, heard) = sync_channel(1);
        let out = Arc::<Mutex<Vec<u8>>>::default();
        let taken = Arc::clone(&out);
        let emit = move |records: Vec<u8>, _| {
            taken.lock().unwrap().extend(records);
            Ok(())
        };
        let mut encoder = Encoder::start(options, emit, move |all| told.send(all).unwrap()).unwrap();
        assert!(encoder.put(Item::Begin(BLOCK_LEN)).is_ok());
        assert!(encoder.stored(header, &frame, 0).is_ok_and(|good| good));
        if !is_fast {
            assert!(encoder.stored(header, &frame, 1).is_ok_and(|good| !good), "the check is that of another place");
        }
        assert!(encoder.put(Item::End(EndState::Whole, None)).is_ok() && encoder.end().is_ok());
        assert_eq!(heard.recv_timeout(std::time::Duration::from_secs(60)), Ok(true));
        assert_eq!(encoder.blocks.is_none() && encoder.options.is_some(), is_fast, "whether there was an engine");
        let out = out.lock().unwrap().clone();
        assert_eq!(out.windows(frame.len()).any(|part| part == frame), is_fast);
        out
    }

    /// Sending stored blocks over a fast link costs no encoding.
    #[test]
    fn blocks_stored_as_they_were_are_encoded_for_slow_links_only() {
        let link = |rate_bytes_per_s| Some(PeerLink { rate_bytes_per_s, rtt_ns: None });
        assert_eq!([None, link(1e9), link(118e6), link(1e6)].map(is_fast), [true, true, false, false]);
        assert!(sent_of_a_stored_block(true).len() > 64 << 10);
        assert!(sent_of_a_stored_block(false).len() < 8 << 10);
    }

    #[test]
    fn a_thread_that_panics_ends_the_copy() {
        let options = FramesOptions::new(SendOptions::default(), &Arc::default(), false);
        let (told, heard) = sync_channel(1);
        let encoder = Encoder::start(options, |_, _| panic!("as planned"), move |all| told.send(all).unwrap()).unwrap();
        assert!(encoder.put(Item::Records(vec![1])).is_ok());
        assert_eq!(heard.recv_timeout(std::time::Duration::from_secs(60)), Ok(false));
    }
}
