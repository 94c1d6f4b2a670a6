//! The handshake at the start of each connection. All numbers are little endian.
//!
//! ```text
//!   client: "nrwp" version:1 name_len:1 policy_len:1 hops:1 history:4 bits_per_s:8 epoch:8 dict_len:4 dict_digest:8
//!           polls:1
//!           name policy dictionary
//!   server: "nrwp" version:1 refused:1 text_len:2 text
//! ```

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use narrows::message::{DICTIONARY_MAX, DICTIONARY_MIN, Dictionary, HISTORY_MAX, HISTORY_MIN};
use narrows::policy::PolicySpec;
use narrows_host::words::shown;

use crate::kept;
use crate::method::{Method, NAME_MAX};
use crate::socket::BufferedSocket;
use crate::wire::Wire;

const MAGIC: [u8; 4] = *b"nrwp";
const VERSION: u8 = 1;
const HEAD_LEN: usize = 41;
/// Maximum length of a refusal, which is one line; a longer one is not from this program.
const TEXT_MAX: usize = 1000;

/// Settings of a connection for both ends.
#[derive(Debug, Clone)]
pub struct Hello {
    /// `None` for a connection without messages, which only shows that the client is running.
    pub method: Option<Method>,
    pub policy: PolicySpec,
    pub history: usize,
    pub wire: Option<Wire>,
    /// Both ends poll for data instead of sleeping.
    pub polls: bool,
    /// Epoch of the client's flow; that of the server differs.
    pub epoch: u64,
    pub dictionary: Option<Arc<Dictionary>>,
}

impl Hello {
    /// Sends the handshake and waits for the answer of the server.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub fn say(&self, socket: &mut BufferedSocket) -> Result<()> {
        let name = self.method.map(Method::wire_name).unwrap_or_default();
        let policy = self.policy.to_string();
        let dictionary = self.dictionary.as_deref().map_or(&[][..], Dictionary::content);
        let mut out = Vec::with_capacity(HEAD_LEN + name.len() + policy.len() + dictionary.len());
        out.extend_from_slice(&MAGIC);
        out.extend([VERSION, name.len() as u8, policy.len() as u8, self.wire.map_or(0, |w| w.hops)]);
        out.extend((self.history as u32).to_le_bytes());
        out.extend(self.wire.map_or(0, |w| w.bits_per_s).to_le_bytes());
        out.extend(self.epoch.to_le_bytes());
        out.extend((dictionary.len() as u32).to_le_bytes());
        out.extend(self.dictionary.as_ref().map_or(0, |d| d.digest()).to_le_bytes());
        out.push(u8::from(self.polls));
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(policy.as_bytes());
        out.extend_from_slice(dictionary);
        socket.write(&out)?;
        let head = socket.exactly(8)?;
        ensure!(head[..4] == MAGIC, "the server is not a narrows ping --serve");
        let text_len = usize::from(u16::from_le_bytes([head[6], head[7]]));
        ensure!(text_len <= TEXT_MAX, "the server is not a narrows ping --serve");
        let text = socket.exactly(text_len)?;
        ensure!(head[5] == 0, "the server refused: {}", shown(&text));
        ensure!(head[4] == VERSION, "the server speaks version {} of this protocol, not {VERSION}", head[4]);
        Ok(())
    }

    /// Reads the handshake of a client, which may send anything; `None` if it disconnected without
    /// sending.
    ///
    /// # Errors
    /// The client sent no handshake, or one that cannot be followed.
    pub fn hear(socket: &mut BufferedSocket) -> Result<Option<Self>> {
        if socket.came().is_empty() && !socket.more(crate::socket::TIMEOUT)? {
            return Ok(None);
        }
        // Wrong data is refused at once, without waiting for the rest of a handshake.
        let begun = socket.came().len().min(MAGIC.len());
        ensure!(socket.came()[..begun] == MAGIC[..begun], "the client is not narrows ping");
        let head = socket.exactly(HEAD_LEN)?;
        ensure!(head[..4] == MAGIC, "the client is not narrows ping");
        ensure!(head[4] == VERSION, "this server speaks version {VERSION} of this protocol, the client {}", head[4]);
        let long = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes")) as usize;
        let (name_len, policy_len) = (usize::from(head[5]), usize::from(head[6]));
        let (history, dictionary_len, digest) = (word(8), word(28), long(32));
        let wire = Some(Wire { bits_per_s: long(12), hops: head[7] }).filter(|w| w.bits_per_s != 0);
        ensure!(name_len <= NAME_MAX && policy_len <= NAME_MAX, "a name is too long");
        ensure!(history == 0 || (HISTORY_MIN..=HISTORY_MAX).contains(&history), "the history is not 1K to 64K");
        ensure!(wire.is_none_or(Wire::is_sound), "the emulated link is out of range");
        let dictionary_is_sound = dictionary_len == 0 || (DICTIONARY_MIN..=DICTIONARY_MAX).contains(&dictionary_len);
        ensure!(dictionary_is_sound, "a dictionary has {DICTIONARY_MIN} to {DICTIONARY_MAX} bytes");
        let name = String::from_utf8(socket.exactly(name_len)?)?;
        let method = if name.is_empty() { None } else { Some(Method::from_wire_name(&name)?) };
        let policy = policy(&String::from_utf8(socket.exactly(policy_len)?)?)?;
        let dictionary = match dictionary_len {
            0 => None,
            len => {
                let content = socket.exactly(len)?;
                ensure!(Dictionary::digest_of(&content) == digest, "the dictionary does not match its digest");
                let dictionary = kept::dictionary(content);
                ensure!(dictionary.is_some(), "the dictionary is malformed");
                dictionary
            }
        };
        ensure!(
            method.is_none_or(|m| !m.needs_dictionary()) || dictionary.is_some(),
            "the method needs a dictionary, and none was sent"
        );
        Ok(Some(Self { method, policy, history, wire, polls: head[40] == 1, epoch: long(20), dictionary }))
    }

    /// Answers a handshake; `refused` is the reason for a refusal.
    ///
    /// # Errors
    /// The client reads nothing.
    pub fn answer(socket: &mut BufferedSocket, refused: Option<&str>) -> Result<()> {
        let text = refused.unwrap_or_default();
        let text = &text.as_bytes()[..text.len().min(TEXT_MAX)];
        let mut out = MAGIC.to_vec();
        out.extend([VERSION, u8::from(refused.is_some())]);
        out.extend((text.len() as u16).to_le_bytes());
        out.extend_from_slice(text);
        socket.write(&out)
    }
}

/// Parses a policy. Only policies for messages without files are allowed, since a client must not
/// name files of the server.
///
/// # Errors
/// It is none, is not for messages, or has a file.
pub fn policy(text: &str) -> Result<PolicySpec> {
    let spec = narrows_classic::policies().parse(text)?;
    if spec.takes_messages() && spec.file().is_none() {
        return Ok(spec);
    }
    bail!(narrows::Error::misuse(format!("{spec} is not for messages; there are messages and fixed:METHOD")))
}
