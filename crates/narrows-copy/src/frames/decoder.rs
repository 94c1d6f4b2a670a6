//! Decodes the stream of one file as it comes; every block is compared before a byte of it is passed on.

use std::io;

use narrows::Error;
use narrows::codec::{CodecId, Contexts};
use narrows::frame::BlockHeader;

use narrows_file::alone::{Event, Reader};

/// Decoder of one stream after another. It holds one block and its body.
pub(crate) struct Decoder {
    reader: Reader,
    contexts: Contexts,
    body: Vec<u8>,
    raw: Vec<u8>,
}

impl Decoder {
    pub(crate) fn new() -> Self {
        Self { reader: Reader::new(true), contexts: Contexts::default(), body: Vec::new(), raw: Vec::new() }
    }

    /// Begins the next stream.
    pub(crate) fn begin(&mut self) {
        self.reader = Reader::new(true);
        self.body.clear();
    }

    /// The reader, which knows the totals.
    pub(crate) fn reader(&mut self) -> &mut Reader {
        &mut self.reader
    }

    /// Takes the next bytes of the stream, and passes on the raw bytes of every block in them.
    ///
    /// # Errors
    /// The stream is damaged, or `on_raw` fails.
    pub(crate) fn push(&mut self, bytes: &[u8], mut on_raw: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let Self { reader, contexts, body, raw } = self;
        let pushed = reader.push(bytes, |event| {
            match event {
                Event::Frame => body.clear(),
                Event::Body(part) => body.extend_from_slice(part),
                // Its check was compared as it came.
                Event::End(header, _) if header.codec == CodecId::STORE => on_raw(body)?,
                Event::End(header, at) => {
                    decode(header, at, body, contexts, raw)?;
                    on_raw(raw)?;
                }
            }
            Ok(())
        });
        pushed.map_err(into_io)
    }
}

/// Decodes a block into `raw` and compares its check.
fn decode(
    header: &BlockHeader,
    at: u64,
    body: &[u8],
    contexts: &mut Contexts,
    raw: &mut Vec<u8>,
) -> narrows::Result<()> {
    let Some(codec) = header.codec.codec() else {
        return Err(Error::unsupported(format!("this program has no codec {}", header.codec.0)));
    };
    let len = header.raw_len.unwrap_or_default();
    raw.resize(len, 0);
    let decoded = contexts.decoder(codec).decode(&[], body, raw);
    if decoded.is_ok_and(|n| n == len) && header.check == Some(header.check_of(raw, body, at)) {
        return Ok(());
    }
    Err(Error::corrupt("a block does not match its check"))
}

/// The error of the system, if there is one below it.
pub(crate) fn into_io(mut error: Error) -> io::Error {
    error.source.take().unwrap_or_else(|| io::Error::other(error.to_string()))
}
