//! One end of a connection: encodes and decodes messages with the method of the connection.

use std::time::Instant;

use anyhow::{Result, bail, ensure};
use narrows::codec::{self, Method as Codec};
use narrows::message::{Came, Contexts, MESSAGE_MAX, MessageConfig, MessageEnd};
use narrows::monitor::cost::Prior;
use narrows::policy::{Fixed, Policy, PolicySetup};

use crate::hello::Hello;
use crate::kept::Kept;
use crate::method::{Context, Method};

/// Bytes of the length of a message, encoded or not.
const LEN: usize = 2;

/// One end of a connection.
pub(crate) enum End {
    Plain,
    Alone { codec: Codec, contexts: Kept<codec::Contexts>, room: Box<[u8]> },
    Messages(Box<MessageFlows>),
}

/// The message flows of both directions.
pub(crate) struct MessageFlows {
    pub(crate) end: MessageEnd,
    contexts: Kept<Contexts>,
    begun: Instant,
    /// The policy learns from measurements; other policies need no clock.
    pub(crate) learns: bool,
    /// The last message sent, its bytes on the wire, and when it was encoded.
    last: Option<(u64, usize, Instant)>,
}

/// How a message was encoded, for the mix.
pub(crate) struct Encoded {
    pub(crate) method: Codec,
    pub(crate) linked: bool,
}

impl End {
    /// The end of a connection with these settings.
    pub(crate) fn new(hello: &Hello, method: Method, is_server: bool) -> Result<Self> {
        let (policy, context): (Box<dyn Policy>, _) = match method {
            Method::Plain => return Ok(Self::Plain),
            Method::Alone(codec) => {
                let room = vec![0; MESSAGE_MAX].into();
                return Ok(Self::Alone { codec, contexts: Kept::take(), room });
            }
            Method::Fixed { codec, context } => {
                let is_linked = matches!(context, Context::History | Context::Seeded);
                (Box::new(Fixed::new(codec, is_linked)), context)
            }
            Method::Chosen => {
                let policy = hello.policy.build(&PolicySetup::new(1, Prior::shipped()));
                let context = if hello.dictionary.is_some() { Context::Seeded } else { Context::History };
                (policy, context)
            }
        };
        let dictionary = hello.dictionary.as_ref().filter(|_| matches!(context, Context::Dictionary | Context::Seeded));
        let config = MessageConfig {
            history: if matches!(context, Context::History | Context::Seeded) { hello.history } else { 0 },
            // Any number that differs from that of the other end.
            epoch: hello.epoch ^ u64::from(is_server),
            seed: dictionary.filter(|_| context == Context::Seeded).cloned(),
            known: dictionary.cloned().into_iter().collect(),
            ..MessageConfig::default()
        };
        let mut end = MessageEnd::new(config, policy)?;
        if let (Context::Dictionary, Some(dictionary)) = (context, dictionary) {
            ensure!(end.sender_mut().offer(dictionary.clone(), true), "the dictionary cannot be offered");
        }
        Ok(Self::Messages(Box::new(MessageFlows {
            end,
            contexts: Kept::take(),
            begun: Instant::now(),
            learns: method == Method::Chosen,
            last: None,
        })))
    }

    /// Starts recording every choice of the policy.
    pub(crate) fn record(&mut self) {
        if let Self::Messages(flows) = self {
            flows.end.sender_mut().record();
        }
    }

    /// The choices recorded since the last call, as JSON lines.
    pub(crate) fn take_trace(&mut self) -> String {
        match self {
            Self::Messages(flows) => flows.end.sender_mut().take_trace(),
            _ => String::new(),
        }
    }

    /// Appends the encoded `message` to `out`; returns when it was ready, and its encoding. `now`
    /// is the start time.
    pub(crate) fn encode(&mut self, message: &[u8], now: Instant, out: &mut Vec<u8>) -> Result<(Instant, Encoded)> {
        let stored = Encoded { method: Codec::STORE, linked: false };
        let encoded = match self {
            Self::Plain => {
                out.extend((message.len() as u16).to_le_bytes());
                out.extend_from_slice(message);
                stored
            }
            Self::Alone { codec, contexts, room } => {
                let len = match message.len() {
                    0 | 1 => None,
                    len => contexts.encoder(codec.info()).encode(codec.level, &[], message, &mut room[..len - 1]),
                };
                let (is_encoded, body) = len.map_or((0, message), |len| (1, &room[..len]));
                out.extend((body.len() as u16).to_le_bytes());
                out.push(is_encoded);
                out.extend_from_slice(body);
                Encoded { method: if is_encoded == 1 { *codec } else { Codec::STORE }, linked: false }
            }
            Self::Messages(flows) => {
                let MessageFlows { end, contexts, begun, learns, last } = &mut **flows;
                let at = out.len();
                let sent = end.send(message, now.duration_since(*begun).as_nanos() as u64, contexts, out)?;
                let ready = Instant::now();
                // An empty one says nothing of the link or the codec.
                if *learns && !message.is_empty() {
                    end.took_to_encode(ready.duration_since(now).as_nanos() as u64);
                    *last = Some((sent.seq, out.len() - at, ready));
                }
                return Ok((ready, Encoded { method: sent.method, linked: sent.linked }));
            }
        };
        Ok((Instant::now(), encoded))
    }

    /// Takes one message from the front of `input`, with all that comes before it, and puts it into `message`. None, and nothing
    /// is taken but what came before it, if there is not all of it.
    pub(crate) fn decode(&mut self, input: &[u8], message: &mut Vec<u8>) -> Result<(usize, bool)> {
        let flows = match self {
            Self::Messages(flows) => flows,
            Self::Plain => {
                let Some((len, rest)) = input.split_first_chunk::<LEN>() else { return Ok((0, false)) };
                let len = usize::from(u16::from_le_bytes(*len));
                let Some(raw) = rest.get(..len) else { return Ok((0, false)) };
                message.clear();
                message.extend_from_slice(raw);
                return Ok((LEN + len, true));
            }
            Self::Alone { codec, contexts, room } => {
                let Some((len, rest)) = input.split_first_chunk::<LEN>() else { return Ok((0, false)) };
                let len = usize::from(u16::from_le_bytes(*len));
                let Some((is_encoded, body)) = rest.get(..=len).and_then(<[u8]>::split_first) else {
                    return Ok((0, false));
                };
                message.clear();
                match is_encoded {
                    0 => message.extend_from_slice(body),
                    1 => match contexts.decoder(codec.info()).decode(&[], body, room) {
                        Ok(raw_len) => message.extend_from_slice(&room[..raw_len]),
                        Err(_) => bail!("the received data is not valid {codec}"),
                    },
                    _ => bail!("the received data is not a message of this method"),
                }
                return Ok((LEN + 1 + len, true));
            }
        };
        let MessageFlows { end, contexts, learns, last, .. } = &mut **flows;
        let arrived = learns.then(Instant::now);
        let mut taken = 0;
        while taken < input.len() {
            let received = end.receive(&input[taken..], contexts)?;
            taken += received.consumed;
            match received.came {
                Came::Incomplete => return Ok((taken, false)),
                Came::Nothing => {}
                Came::Message(raw) => {
                    message.clear();
                    message.extend_from_slice(raw);
                    // An empty message begins a turn, long after the last message, so it gives no
                    // measurement.
                    let last = last.take().filter(|_| !message.is_empty());
                    if let Some(arrived) = arrived {
                        end.took_to_decode(arrived.elapsed().as_nanos() as u64);
                        if let Some((seq, wire_len, ready)) = last {
                            let span = arrived.duration_since(ready).as_nanos() as u64;
                            end.answered(seq, wire_len + taken, span);
                        }
                    }
                    return Ok((taken, true));
                }
                Came::Undecodable(lost) => bail!("a message could not be decoded: {lost:?}"),
                Came::Gap => bail!("messages were lost"),
            }
        }
        Ok((taken, false))
    }
}
