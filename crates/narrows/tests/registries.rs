//! A codec and a policy of another crate: values in the options of a flow.

use std::io::Cursor;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread;

use narrows::ErrorKind;
use narrows::codec::{Codec, CodecId, Codecs, Contexts, DEFAULT_METHODS, DecodeError, Decoder, Encoder, Level, Method};
use narrows::monitor::View;
use narrows::policy::{Choice, NoSettings, Policies, Policy, PolicySpec, Registered};
use narrows::receiver::{Receiver, ReceiverConfig};
use narrows::sender::Summary;
use narrows::stream::{ReceiveOptions, SendOptions, receive, send};
use narrows::transport::Link;

/// Run lengths: a byte, and how often it comes.
#[derive(Debug)]
struct Runs;

impl Codec for Runs {
    fn id(&self) -> CodecId {
        CodecId(60)
    }

    fn name(&self) -> &'static str {
        "runs"
    }

    fn levels(&self) -> &'static [Level] {
        &[1, 2]
    }

    fn default_level(&self) -> Level {
        1
    }

    fn encoder_memory(&self, _level: Level, raw_len: usize, _history_len: usize) -> usize {
        raw_len
    }

    fn nominal_ns_per_byte(&self, level: Level) -> (f32, f32) {
        (level as f32, 0.5)
    }

    fn encoder(&self) -> Box<dyn Encoder> {
        Box::new(Context)
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(Context)
    }
}

struct Context;

impl Encoder for Context {
    fn encode(&mut self, _level: Level, _history: &[u8], raw: &[u8], out: &mut [u8]) -> Option<usize> {
        let mut len = 0;
        for run in raw.chunk_by(|a, b| a == b).flat_map(|run| run.chunks(255)) {
            out.get_mut(len..len + 2)?.copy_from_slice(&[run[0], run.len() as u8]);
            len += 2;
        }
        Some(len)
    }
}

impl Decoder for Context {
    fn decode(&mut self, _history: &[u8], wire: &[u8], out: &mut [u8]) -> Result<usize, DecodeError> {
        let mut len = 0;
        let (runs, []) = wire.as_chunks() else { return Err(DecodeError) };
        for [byte, count] in runs {
            let count = usize::from(*count);
            out.get_mut(len..len + count).ok_or(DecodeError)?.fill(*byte);
            len += count;
        }
        Ok(len)
    }
}

/// Every second block as runs, if the receiver knows them.
#[derive(Default)]
struct Alternating {
    blocks: usize,
}

impl Policy for Alternating {
    fn choose(&mut self, view: &View<'_>) -> Choice {
        self.blocks += 1;
        let runs = Method::new(CodecId(60), 2);
        let method = if self.blocks.is_multiple_of(2) && view.limits.allows(runs) { runs } else { Method::STORE };
        Choice::new(method, BLOCK_LEN.min(view.limits.block_max))
    }

    fn whole_blocks(&self) -> Option<usize> {
        Some(BLOCK_LEN)
    }
}

const BLOCK_LEN: usize = 64 << 10;

static ALTERNATING: Registered = Registered {
    name: "alternating",
    usage: "alternating",
    about: "every second block as runs",
    examples: &["alternating"],
    parse: |rest, _codecs| {
        let settings = NoSettings {
            name: "alternating",
            block_max: BLOCK_LEN,
            gather_ns: 0,
            links: false,
            methods: || vec![Method::STORE, Method::new(CodecId(60), 2)],
            build: |_| Box::new(Alternating::default()),
        };
        settings.parse(rest)
    },
};

fn codecs() -> Codecs {
    Codecs::default().with(&Runs).unwrap()
}

fn policies() -> Policies {
    Policies::default().with(&[&ALTERNATING]).unwrap()
}

fn raw() -> Vec<u8> {
    (0..12_000_000u32).map(|i| (i >> 6) as u8).collect()
}

/// Sends into memory: nobody says there what the reader has.
fn one_way(options: SendOptions) -> (Vec<u8>, Summary) {
    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let sink = Sink::default();
    let (summary, _) = send(Cursor::new(raw()), Link::writer(sink.clone()), options).unwrap();
    let wire = sink.0.lock().unwrap().clone();
    (wire, summary)
}

fn read(wire: Vec<u8>, options: ReceiveOptions) -> narrows::Result<Vec<u8>> {
    let mut receiver = Receiver::new(options.into_engine(), Default::default());
    let (mut contexts, pool, mut out) = (Contexts::default(), Default::default(), Vec::new());
    for piece in wire.chunks(100_000) {
        receiver.receive(narrows::block::Block::from_vec(piece.to_vec()))?;
        while let Some(job) = receiver.poll_job() {
            receiver.finish(job.run(&mut contexts, &pool))?;
        }
        while let Some(raw) = receiver.read() {
            out.extend_from_slice(&raw);
        }
    }
    receiver.close()?;
    Ok(out)
}

/// Over a link on which the receiver answers.
fn duplex(sends: SendOptions, receives: ReceiveOptions) -> (Vec<u8>, Summary) {
    let (here, there) = UnixStream::pair().unwrap();
    let (near, far) = (Link::unix(here).unwrap(), Link::unix(there).unwrap());
    let out = tempfile::NamedTempFile::new().unwrap();
    let sink = out.reopen().unwrap();
    let receiver = thread::spawn(move || receive(sink, far, receives));
    let (summary, _) = send(Cursor::new(raw()), near, sends).unwrap();
    receiver.join().unwrap().unwrap();
    (std::fs::read(out.path()).unwrap(), summary)
}

fn frames(summary: &Summary, codec: CodecId) -> u64 {
    summary.mix.iter().filter(|row| row.method.codec == codec).map(|row| row.frames).sum()
}

#[test]
fn a_codec_of_another_crate_is_sent_and_received() {
    let spec = policies().parse_with("fixed:runs:level=2", &codecs()).unwrap();
    assert_eq!(spec.to_string(), "fixed:runs:level=2");
    assert_eq!(spec.methods(), [Method::new(CodecId(60), 2)]);
    let (wire, summary) = one_way(SendOptions::new(spec).registry(&codecs()));
    assert!(wire.len() < raw().len() / 10 && frames(&summary, CodecId::STORE) == 0, "{:?}", summary.mix);
    assert!(read(wire, ReceiveOptions::default().registry(&codecs())).unwrap() == raw());
}

#[test]
fn who_lacks_the_codec_refuses_it_by_its_number() {
    let spec = policies().parse_with("fixed:runs", &codecs()).unwrap();
    let (wire, _) = one_way(SendOptions::new(spec).registry(&codecs()));
    let error = read(wire, ReceiveOptions::default()).unwrap_err();
    assert!(error.kind == ErrorKind::Unsupported && error.message.contains("codec 60"), "{error}");
}

/// Stored streams with codecs that only the laboratory has.
#[test]
fn codecs_of_older_systems_are_refused_with_the_name_of_the_laboratory() {
    for (name, codec) in [("lzo", "codec 8, LZO"), ("lzf", "codec 9, LZF"), ("lzw", "codec 10, LZW")] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lab/narrows-older/tests/streams");
        let wire = std::fs::read(format!("{folder}/v1-{name}.nrw")).unwrap();
        let error = read(wire, ReceiveOptions::default()).unwrap_err();
        assert!(error.kind == ErrorKind::Unsupported && error.message.contains(codec), "{error}");
        assert!(error.message.contains("only the laboratory"), "{error}");
    }
}

#[test]
fn a_receiver_that_answers_is_sent_what_it_has() {
    let spec = || policies().parse_with("fixed:runs", &codecs()).unwrap();
    // Little memory: most blocks are chosen after the receiver has said what it decodes.
    let options = || SendOptions::new(spec()).registry(&codecs()).memory_max(1 << 20);
    let (out, summary) = duplex(options(), ReceiveOptions::default().registry(&codecs()));
    assert!(out == raw());
    assert!(frames(&summary, CodecId(60)) > 0, "{:?}", summary.mix);
    let (out, summary) = duplex(options(), ReceiveOptions::default());
    assert!(out == raw());
    assert_eq!(frames(&summary, CodecId(60)), 0, "{:?}", summary.mix);
}

/// The sender does not know the codec that the policy chooses: it sends the block as it is.
#[test]
fn a_codec_that_is_not_registered_is_stored() {
    let (wire, summary) = one_way(SendOptions::with_policy(Box::new(Alternating::default())));
    assert_eq!(frames(&summary, CodecId(60)), 0);
    assert!(read(wire, ReceiveOptions::default()).unwrap() == raw());
}

#[test]
fn balance_weighs_a_codec_of_another_crate() {
    let mut methods = DEFAULT_METHODS.to_vec();
    methods.push(codecs().parse("runs").unwrap());
    let options = SendOptions::new(PolicySpec::balance()).registry(&codecs()).methods(&methods);
    let (wire, _) = one_way(options);
    assert!(read(wire, ReceiveOptions::default().registry(&codecs())).unwrap() == raw());
}

#[test]
fn a_policy_of_another_crate_is_named_and_chooses() {
    let spec = policies().parse("alternating").unwrap();
    assert_eq!((spec.name(), spec.to_string(), spec.block_max()), ("alternating", "alternating".into(), BLOCK_LEN));
    assert!(policies().parse("alternating:x").is_err());
    assert!("alternating".parse::<PolicySpec>().unwrap_err().message.contains("no policy is called"));
    let options = SendOptions::new(spec).registry(&codecs()).threads(1);
    let (wire, summary) = one_way(options);
    let (runs, stored) = (frames(&summary, CodecId(60)), frames(&summary, CodecId::STORE));
    assert!(runs > 10 && runs.abs_diff(stored) <= 1, "{:?}", summary.mix);
    assert!(read(wire, ReceiveOptions::default().registry(&codecs())).unwrap() == raw());
}

/// Workers are shared: a flow with another codec of the same number gets contexts of its own.
#[test]
fn two_codecs_of_one_number_do_not_share_contexts() {
    #[derive(Debug)]
    struct Other;
    impl Codec for Other {
        fn id(&self) -> CodecId {
            CodecId(60)
        }
        fn name(&self) -> &'static str {
            "other"
        }
        fn levels(&self) -> &'static [Level] {
            &[0]
        }
        fn default_level(&self) -> Level {
            0
        }
        fn encoder_memory(&self, _level: Level, _raw_len: usize, _history_len: usize) -> usize {
            0
        }
        fn nominal_ns_per_byte(&self, _level: Level) -> (f32, f32) {
            (1.0, 1.0)
        }
        fn encoder(&self) -> Box<dyn Encoder> {
            struct Nothing;
            impl Encoder for Nothing {
                fn encode(&mut self, _: Level, _: &[u8], _: &[u8], _: &mut [u8]) -> Option<usize> {
                    None
                }
            }
            Box::new(Nothing)
        }
        fn decoder(&self) -> Box<dyn Decoder> {
            Box::new(Context)
        }
    }
    let (mut contexts, mut room) = (Contexts::default(), [0; 64]);
    assert_eq!(contexts.encoder(&Runs).encode(1, &[], &[7; 100], &mut room), Some(2));
    assert_eq!(contexts.encoder(&Other).encode(0, &[], &[7; 100], &mut room), None);
    assert_eq!(contexts.encoder(&Runs).encode(1, &[], &[7; 100], &mut room), Some(2));
}

#[test]
fn a_trace_names_the_codec_as_its_registry_does() {
    let trace = tempfile::NamedTempFile::new().unwrap();
    let spec = policies().parse_with("fixed:runs", &codecs()).unwrap();
    one_way(SendOptions::new(spec).registry(&codecs()).trace(Box::new(trace.reopen().unwrap())));
    let trace = std::fs::read_to_string(trace.path()).unwrap();
    assert!(trace.contains("\"method\":\"runs\"") && !trace.contains("codec-60"), "{trace}");
    assert!(ReceiverConfig::default().registry.get(CodecId(60)).is_none());
}
