//! Two writers of one topic whose units are damaged, lost, repeated and forged in transit, and a
//! clock that jumps; each frame has a check. The reader delivers only messages that were sent;
//! waiting messages are bounded, and none waits for ever.
#![no_main]

use std::cell::RefCell;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use narrows::message::{Contexts, Dictionary, MessageConfig, TopicReader, TopicWriter};
use narrows::monitor::cost::Prior;
use narrows::policy::{PolicySetup, PolicySpec};

thread_local! {
    static CONTEXTS: RefCell<Contexts> = RefCell::new(Contexts::default());
}

fuzz_target!(|data: &[u8]| {
    let [mode, data @ ..] = data else { return };
    let specs = ["messages", "fixed:lz4", "fixed:zstd:level=1", "fixed:store"];
    let spec: PolicySpec = specs[usize::from(mode & 3)].parse().expect("a policy");
    let config = |epoch| MessageConfig { epoch, check_all: true, message_max: 4096, ..MessageConfig::default() };
    let writer = |epoch| {
        let policy = spec.build(&PolicySetup::new(1, Prior::shipped()));
        TopicWriter::new(config(epoch), policy).expect("a sound configuration")
    };
    let mut writers = [writer(1), writer(2)];
    let mut reader = TopicReader::new(config(0)).expect("a sound configuration");
    CONTEXTS.with_borrow_mut(|contexts| topic(&mut writers, &mut reader, data, contexts));
});

/// Runs a topic. The input's bytes define what is written and what happens to it.
fn topic(writers: &mut [TopicWriter; 2], reader: &mut TopicReader, mut data: &[u8], contexts: &mut Contexts) {
    let (mut now_ns, mut sent, mut forged) = (0, Vec::<Vec<u8>>::new(), false);
    while let [what, len, rest @ ..] = data {
        let (words, behind) = rest.split_at(usize::from(*len).min(rest.len()));
        data = behind;
        let writer = &mut writers[usize::from(what & 1)];
        let mut unit = Vec::new();
        match what >> 1 & 7 {
            0 => {
                let content = words.repeat(64 / words.len().max(1) + 1);
                if let Some(dictionary) = Dictionary::new(content) {
                    writer.offer(Arc::new(dictionary));
                }
            }
            1 => now_ns += u64::from(*len) << 28,
            2 => writer.reader_came(),
            3 | 4 => {
                writer.announcement(now_ns, &mut unit);
            }
            _ => {
                let message = words.repeat(usize::from(what >> 6) + 1);
                if writer.send(&message, now_ns, contexts, &mut unit).is_ok() {
                    sent.push(message);
                }
            }
        }
        let times = match what >> 4 & 15 {
            1 => 0,
            2 => 2,
            3 => {
                // The check detects this except once in 2^32 cases.
                unit.iter_mut().zip(words).for_each(|(byte, change)| *byte ^= change);
                1
            }
            4 => {
                unit.truncate(usize::from(*len));
                1
            }
            5 => {
                forged = true;
                unit = words.to_vec();
                1
            }
            _ => 1,
        };
        for _ in 0..times {
            let _ = reader.receive(&unit, now_ns, contexts, |m| assert!(forged || sent.iter().any(|s| s == m)));
        }
        assert!(reader.waiting() <= 1024);
    }
    if let Some(at) = reader.next_wakeup_ns() {
        assert!(reader.waiting() > 0);
        // Each message has its own time limit.
        reader.on_time(at.max(now_ns) + 25_000_000_000, contexts, |m| assert!(forged || sent.iter().any(|s| s == m)));
    }
    assert!(reader.waiting() == 0 && reader.next_wakeup_ns().is_none());
}
