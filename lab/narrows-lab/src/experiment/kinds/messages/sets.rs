//! Sets of messages from a corpus: those to send, and, disjoint from them, those to train
//! dictionaries on.
//!
//! For each protocol, the first half of the messages is for development: dictionaries are trained
//! on it. The second half is held out and sent. Exact duplicates are left out, since captures see
//! packets twice.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use narrows::message::Training;

use super::file;

/// Folder of the corpus with files of messages, each prefixed with its length: 4 bytes, little
/// endian.
const FOLDER: &str = "telecom/msgs";
/// File with single messages of 450 to 1450 bytes of all protocols.
const NATURAL: &str = "natural-450-1450";
/// Dictionary length in the measurements that this reproduces.
const DICTIONARY_LEN: usize = 32 << 10;

/// Writes NAME.msgs and NAME.dict into `folder`.
pub(super) fn prepare(corpus: &Path, name: &str, folder: &Path) -> Result<()> {
    let files = corpus.join(FOLDER);
    let (development, held_out) = if name == "natural" {
        by_protocol(read(&files.join(format!("{NATURAL}.msgs")))?, &protocols(&files)?)
    } else {
        halves(read(&files.join(format!("{name}.msgs")))?)
    };
    ensure!(!held_out.is_empty(), "there are too few");
    let framed = |m: &Vec<u8>| [&(m.len() as u32).to_le_bytes()[..], m].concat();
    fs::write(file(folder, name, "msgs"), held_out.iter().flat_map(framed).collect::<Vec<u8>>())?;
    // Only its digest is sent, so the dictionary pays if it saves anything.
    let trained = Training::of(&development, u64::MAX >> 1).with_len(DICTIONARY_LEN).train();
    let trained = trained.context("no dictionary can be made of the messages")?;
    fs::write(file(folder, name, "dict"), trained.dictionary.content())?;
    Ok(())
}

/// Reads the distinct messages of a file, in order.
fn read(path: &Path) -> Result<Vec<Vec<u8>>> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&bytes).with_context(|| format!("{} is cut", path.display()))
}

fn parse(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (mut rest, mut seen, mut messages) = (bytes, HashSet::new(), Vec::new());
    while !rest.is_empty() {
        let (len, behind) = rest.split_first_chunk()?;
        let (message, behind) = behind.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        if seen.insert(message) {
            messages.push(message.to_vec());
        }
        rest = behind;
    }
    Some(messages)
}

fn halves(mut messages: Vec<Vec<u8>>) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let held_out = messages.split_off(messages.len() / 2);
    (messages, held_out)
}

/// Maps each message to the protocol whose file contains it.
fn protocols(files: &Path) -> Result<HashMap<Vec<u8>, String>> {
    let mut of = HashMap::new();
    let list = fs::read_dir(files).with_context(|| format!("cannot read {}", files.display()))?;
    let mut paths: Vec<_> = list.filter_map(|e| e.ok().map(|e| e.path())).collect();
    paths.sort();
    for path in paths.iter().filter(|p| p.extension().is_some_and(|e| e == "msgs")) {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if name != NATURAL {
            for message in read(path)? {
                of.entry(message).or_insert_with(|| name.clone());
            }
        }
    }
    Ok(of)
}

/// The halves of each protocol, in the order of protocols and messages in the capture.
fn by_protocol(messages: Vec<Vec<u8>>, of: &HashMap<Vec<u8>, String>) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let mut groups: Vec<(Option<&String>, Vec<Vec<u8>>)> = Vec::new();
    for message in messages {
        let protocol = of.get(&message);
        match groups.iter_mut().find(|g| g.0 == protocol) {
            Some(group) => group.1.push(message),
            None => groups.push((protocol, vec![message])),
        }
    }
    let (mut development, mut held_out) = (Vec::new(), Vec::new());
    for (_, group) in groups {
        let (first, second) = halves(group);
        development.extend(first);
        held_out.extend(second);
    }
    (development, held_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_was_not_trained_on_and_nothing_comes_twice() {
        let corpus = tempfile::tempdir().unwrap();
        let files = corpus.path().join(FOLDER);
        fs::create_dir_all(&files).unwrap();
        // Each message has a number with digits that no other message has.
        let number = |i: usize| format!("{:016x}", (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let message = |protocol: &str, i: usize| {
            format!("{protocol} message of a kind that is often sent, number {} with a tail", number(i)).into_bytes()
        };
        let put = |name: &str, messages: &[Vec<u8>]| {
            let framed = |m: &Vec<u8>| [&(m.len() as u32).to_le_bytes()[..], m].concat();
            fs::write(files.join(format!("{name}.msgs")), messages.iter().flat_map(framed).collect::<Vec<u8>>())
                .unwrap();
        };
        let one: Vec<_> = (0..100).map(|i| message("one", i / 2)).collect();
        let other: Vec<_> = (0..50).map(|i| message("other", i)).collect();
        put("one", &one);
        put("other", &other);
        put(NATURAL, &[other.clone(), one].concat());
        let folder = tempfile::tempdir().unwrap();
        for name in ["one", "natural"] {
            prepare(corpus.path(), name, folder.path()).unwrap();
        }
        let sent = |name: &str| read(&file(folder.path(), name, "msgs")).unwrap();
        let half = |protocol: &str| (25..50).map(|i| message(protocol, i)).collect::<Vec<_>>();
        assert_eq!(sent("one"), half("one"));
        assert_eq!(sent("natural"), [half("other"), half("one")].concat());
        let dictionary = fs::read(file(folder.path(), "one", "dict")).unwrap();
        let holds = |i: usize| dictionary.windows(8).any(|w| w == &number(i).as_bytes()[4..12]);
        assert!((0..25).any(holds) && !(25..50).any(holds));
        assert!(prepare(corpus.path(), "none", folder.path()).is_err());
        assert!(parse(&[3, 0, 0, 0, 1]).is_none());
    }
}
