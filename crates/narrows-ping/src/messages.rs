//! The messages to send: read from a file or generated, and cut to sizes.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use narrows::Error;
use narrows::message::MESSAGE_MAX;

use crate::samples::{Layout, split_lines, split_message};

/// Maximum length of a file of messages, in bytes.
const FILE_MAX: u64 = 256 << 20;

/// Messages of one size, or of their original sizes if `size` is `None`.
pub struct Set {
    pub size: Option<usize>,
    pub messages: Vec<Vec<u8>>,
}

/// Reads messages, each preceded by its length (4 bytes, little endian), or one in each line if the
/// name of the file or `lines` says so.
///
/// # Errors
/// It cannot be read, is too long, or is no file of messages.
pub fn read(path: &Path, lines: bool) -> Result<Vec<Vec<u8>>> {
    let about = || format!("cannot use {}", path.display());
    let len = std::fs::metadata(path).with_context(about)?.len();
    ensure!(len <= FILE_MAX, "{} is longer than 256 MiB", path.display());
    let bytes = std::fs::read(path).with_context(about)?;
    match Layout::of(path, lines) {
        Layout::Lines => parse_lines(&bytes),
        Layout::Lengths => parse(&bytes),
        // It may be text, whose first letters give an impossible length.
        Layout::One => parse(&bytes)
            .context("it is read as messages, each preceded by its length (--lines: one message in each line)"),
    }
    .with_context(about)
}

fn parse_lines(bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut messages = Vec::new();
    for line in split_lines(bytes) {
        ensure!(
            line.len() <= MESSAGE_MAX,
            Error::limit(format!(
                "message {} has {} bytes; the longest message has {MESSAGE_MAX}",
                messages.len() + 1,
                line.len()
            ))
        );
        messages.push(line.to_vec());
    }
    ensure!(!messages.is_empty(), "there are no messages in it");
    Ok(messages)
}

fn parse(bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
    let (mut rest, mut messages) = (bytes, Vec::new());
    while !rest.is_empty() {
        let (message, behind) = split_message(rest, messages.len() + 1)?;
        messages.push(message.to_vec());
        rest = behind;
    }
    ensure!(!messages.is_empty(), "there are no messages in it");
    Ok(messages)
}

/// At most `count` messages of their original sizes, or, for each of `sizes`, of the concatenated
/// messages cut to that size.
///
/// # Errors
/// All messages together are shorter than a size.
pub fn sets(source: &[Vec<u8>], sizes: &[usize], count: usize) -> Result<Vec<Set>> {
    if sizes.is_empty() {
        return Ok(vec![Set { size: None, messages: source.iter().take(count).cloned().collect() }]);
    }
    let all = source.concat();
    let cut = |&size: &usize| {
        let messages: Vec<_> = match size {
            0 => vec![Vec::new(); count],
            _ => all.chunks_exact(size).take(count).map(<[u8]>::to_vec).collect(),
        };
        ensure!(!messages.is_empty(), "all messages together have less than {size} bytes");
        Ok(Set { size: Some(size), messages })
    };
    sizes.iter().map(cut).collect()
}

/// Generates artificial signalling messages (SIP) of at least `len` bytes in all, always the same.
pub fn made_up(len: usize) -> Vec<Vec<u8>> {
    const METHODS: [&str; 4] = ["INVITE", "SUBSCRIBE", "REGISTER", "OPTIONS"];
    const FIELDS: [&str; 6] = [
        "Via: SIP/2.0/TCP proxy",
        "Contact: <sip:user",
        "Route: <sip:border",
        "Record-Route: <sip:core",
        "P-Asserted-Identity: <sip:line",
        "Allow: INVITE, ACK, CANCEL, BYE, PRACK, NOTIFY, UPDATE;host",
    ];
    let mut state = 7u64;
    let mut draw = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let (mut all, mut made) = (Vec::new(), 0);
    while made < len {
        let (method, user) = (METHODS[draw(4) as usize], draw(5000));
        let mut text = format!("{method} sip:{user}@example.net SIP/2.0\r\nCSeq: {} {method}\r\n", all.len() + 1);
        let until = 350 + draw(900) as usize;
        while text.len() < until {
            let (field, host, tag) = (FIELDS[draw(6) as usize], draw(40), draw(1 << 44));
            let _ = write!(text, "{field}{host}.example.net;branch=z9hG4bK{tag:011x}>\r\n");
        }
        made += text.len();
        all.push(text.into_bytes());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_messages_is_read_whole_or_refused_by_the_number_of_the_message() {
        let file = [&3u32.to_le_bytes()[..], b"abc", &0u32.to_le_bytes(), &2u32.to_le_bytes(), b"de"].concat();
        assert_eq!(parse(&file).unwrap(), [&b"abc"[..], b"", b"de"]);
        let said = |bytes: &[u8]| parse(bytes).unwrap_err().to_string();
        assert!(said(&file[..file.len() - 1]).contains("message 3"));
        assert!(said(&file[..9]).contains("message 2"));
        assert!(said(b"").contains("no messages"));
        assert!(said(&70_000u32.to_le_bytes()).contains("message 1 has 70000 bytes"));
    }

    #[test]
    fn lines_are_messages_without_their_ends() {
        assert_eq!(parse_lines(b"{\"a\":1}\r\n\n{\"b\":2}").unwrap(), [b"{\"a\":1}", b"{\"b\":2}"]);
        assert!(parse_lines(b"\n\r\n").unwrap_err().to_string().contains("no messages"));
        let long = [b"a\n".to_vec(), vec![b'x'; MESSAGE_MAX + 1]].concat();
        assert!(parse_lines(&long).unwrap_err().to_string().contains("message 2 has 65536 bytes"));
    }

    #[test]
    fn sizes_are_cut_from_all_messages_end_to_end() {
        let source = [b"abc".to_vec(), b"defgh".to_vec()];
        let sets = sets(&source, &[3, 0], 10).unwrap();
        assert_eq!(sets[0].messages, [b"abc", b"def"]);
        assert_eq!(sets[1].messages.len(), 10);
        assert!(super::sets(&source, &[9], 10).is_err());
        assert_eq!(super::sets(&source, &[], 1).unwrap()[0].messages, [b"abc"]);
    }

    #[test]
    fn made_up_messages_are_enough_and_the_same() {
        let made = made_up(100_000);
        assert!(made.iter().map(Vec::len).sum::<usize>() >= 100_000);
        assert_eq!(made, made_up(100_000));
        assert!(made.iter().all(|m| (350..1500).contains(&m.len())));
    }
}
