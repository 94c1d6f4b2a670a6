//! Arbitrary bytes as records and as answers, in pieces of any length: the result does not depend
//! on the pieces, no path leaves the folder, and a parsed entry serializes to the same entry.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narrows::entry::{Answer, Entry, Record, RecordParser, RecordWriter, check_path};

fn parse(bytes: &[u8], piece: usize, is_of_pack: bool) -> (Vec<String>, u64, bool) {
    let mut parser = if is_of_pack { RecordParser::of_pack() } else { RecordParser::default() };
    let (mut said, mut data) = (Vec::new(), 0);
    let mut failed = false;
    for piece in bytes.chunks(piece) {
        let result = parser.push(piece, |record| {
            match record {
                Record::Data(bytes) => data += bytes.len() as u64,
                Record::Entry(entry) => {
                    check_path(&entry.path).expect("a path that leads out was let through");
                    again(&entry);
                    said.push(format!("{entry:?}"));
                }
                other => said.push(format!("{other:?}")),
            }
            Ok(())
        });
        if result.is_err() {
            failed = true;
            break;
        }
    }
    (said, data, failed)
}

fn again(entry: &Entry) {
    // A single hard link refers to an entry that does not exist.
    if matches!(entry.kind, narrows::entry::EntryKind::HardLink { .. }) {
        return;
    }
    let read = |bytes: &[u8]| {
        let mut parser = RecordParser::of_pack();
        parser
            .push(bytes, |record| {
                assert_eq!(record, Record::Entry(entry.clone()));
                Ok(())
            })
            .expect("what was written reads");
    };
    let mut bytes = Vec::new();
    RecordWriter::default().entry(entry, &mut bytes).expect("what fitted fits");
    read(&bytes);
    bytes.clear();
    let mut records = RecordWriter::default();
    records.gather(entry, &mut bytes).expect("what fitted fits");
    records.gathered(&mut bytes);
    read(&bytes);
}

/// The answer without its text: if that is not UTF-8, the characters that replace wrong bytes may
/// be cut off.
fn without_text(answer: &Answer) -> Answer {
    let mut answer = answer.clone();
    match &mut answer {
        Answer::Failed { text, .. }
        | Answer::NotStored { text, .. }
        | Answer::Lost { text }
        | Answer::Made { text }
        | Answer::Refused { text, .. }
        | Answer::Removed { text, .. } => text.clear(),
        Answer::Files { .. }
        | Answer::Whole { .. }
        | Answer::Again { .. }
        | Answer::Repeated { .. }
        | Answer::Chunks { .. }
        | Answer::Frames { .. }
        | Answer::Sums { .. } => {}
    }
    answer
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&piece, bytes)) = bytes.split_first() else { return };
    for is_of_pack in [false, true] {
        assert_eq!(parse(bytes, 1 + usize::from(piece), is_of_pack), parse(bytes, usize::MAX, is_of_pack));
    }
    let (mut answers, mut written) = (Vec::new(), Vec::new());
    if Answer::parse_all(bytes, |answer| {
        answer.put(&mut written);
        answers.push(answer);
        Ok(())
    })
    .is_ok()
    {
        let mut rest = answers.iter();
        Answer::parse_all(&written, |answer| {
            assert!(rest.next().is_some_and(|first| without_text(first) == without_text(&answer)));
            Ok(())
        })
        .expect("what was read writes back");
        assert!(rest.next().is_none());
    }
});
