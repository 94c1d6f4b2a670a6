//! Arbitrary bytes from a receiver into a sender, with or without a valid preface: reports, closes
//! and notes, on a plain link and on one behind another program.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narrows::block::BufferPool;
use narrows::flow::Encoding;
use narrows::frame::{ControlKind, Preface, Role, control_frame};
use narrows::monitor::cost::Prior;
use narrows::policy::{PolicySetup, PolicySpec};
use narrows::sender::{LinkSample, Sender, SenderConfig};

fuzz_target!(|data: &[u8]| {
    let [mode, rest @ ..] = data else { return };
    let policy = PolicySpec::balance().build(&PolicySetup::new(2, Prior::shipped()));
    let (notes, relayed) = (mode & 8 == 8, mode & 16 == 16);
    let config = SenderConfig { duplex: true, cores: 2, notes, relayed, ..SenderConfig::default() };
    let mut sender = Encoding::new(Sender::new(config, policy, BufferPool::default()));
    let mut bytes = Vec::new();
    if mode & 1 == 1 {
        let preface = Preface {
            role: Role::Receiver,
            critical: 0,
            optional: 0,
            check: true,
            block_max: 1 + usize::from(*mode) * 999,
            history: usize::from(*mode),
            codecs: u64::from(*mode),
            reach: usize::from(*mode) << 16,
        };
        bytes.extend(preface.encode());
    }
    if mode & 2 == 2 {
        for body in rest.chunks(24) {
            let kind = match (mode & 4 == 4, body[0] & 1 == 1) {
                (true, _) => ControlKind::Feedback,
                (false, true) => ControlKind::Note,
                (false, false) => ControlKind::Close,
            };
            let frame = control_frame(kind, body, 0);
            bytes.extend(frame.header.iter().chain(frame.body.iter()));
        }
    } else {
        bytes.extend(rest);
    }
    for (i, piece) in bytes.chunks(1 + usize::from(mode >> 3)).enumerate() {
        sender.write(&[i as u8; 300], i as u64 * 1000);
        while sender.next_job(i as u64 * 1000).is_some() {}
        sender.on_link(LinkSample { end_ns: i as u64 * 1000, accepted: 300, ..LinkSample::default() });
        let _ = sender.next_wakeup();
        if sender.receive(piece, i as u64 * 1000).is_err() {
            return;
        }
        while sender.take_note().is_some() {}
    }
});
