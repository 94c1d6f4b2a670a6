//! What is played, and what came of it.

use narrows::upgrade::WhyPlain;

use super::MS;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    Client,
    Server,
}

impl Who {
    pub(crate) fn other(self) -> Self {
        if self == Self::Client { Self::Server } else { Self::Client }
    }
}

/// What a program does.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Write(Vec<u8>),
    End,
}

#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    /// Whether each program runs under Narrows, and whether the server's host has the service.
    pub(crate) client: bool,
    pub(crate) server: bool,
    pub(crate) service: bool,
    pub(crate) direct: bool,
    /// One way.
    pub(crate) data_ns: u64,
    pub(crate) side_ns: u64,
    /// Added at random, for each segment.
    pub(crate) jitter_ns: u64,
    /// Segments are often short, and far apart.
    pub(crate) cut: bool,
    /// The side channel is there before the connection.
    pub(crate) warm: bool,
    pub(crate) accept_ns: u64,
    pub(crate) nat: bool,
    pub(crate) clock_off_ms: i32,
    pub(crate) syn_clock: bool,
    pub(crate) acts: Vec<(u64, Who, Act)>,
    /// A supervisor dies at this step.
    pub(crate) kill: Option<(Who, usize)>,
    /// The side channel breaks at this step, and works again after so long.
    pub(crate) break_at: Option<(usize, u64)>,
    /// The first side channels, one after the other; those behind them are well.
    pub(crate) slow: Vec<Slow>,
    /// The server's agent dies: when, how long nobody is there, and how long the next one knows of nothing.
    pub(crate) restart: Option<(u64, u64, u64)>,
    /// Between the server's supervisor and its agent, either way.
    pub(crate) line_ns: u64,
    /// Claims of somebody else: when, from the client's address, with its clock off by so much.
    pub(crate) forged: Vec<(u64, bool, i32)>,
}

/// A side channel on which everything takes longer, its end included.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slow {
    /// To connect.
    pub(crate) dial_ns: u64,
    /// What is said from then on, to the server and to the client.
    pub(crate) from_ns: u64,
    pub(crate) up_ns: u64,
    pub(crate) down_ns: u64,
}

impl Default for Setup {
    fn default() -> Self {
        let acts = vec![
            (50 * MS, Who::Client, Act::Write(b"request".to_vec())),
            (150 * MS, Who::Server, Act::Write(b"answer".to_vec())),
            (250 * MS, Who::Client, Act::Write(b"another".to_vec())),
            (350 * MS, Who::Server, Act::Write(b"and more".to_vec())),
            (450 * MS, Who::Client, Act::End),
            (550 * MS, Who::Server, Act::End),
        ];
        Self {
            seed: 1,
            client: true,
            server: true,
            service: true,
            direct: false,
            data_ns: 10 * MS,
            side_ns: 10 * MS,
            jitter_ns: 0,
            cut: false,
            warm: true,
            accept_ns: 0,
            nat: false,
            clock_off_ms: 0,
            syn_clock: true,
            acts,
            kill: None,
            break_at: None,
            slow: vec![],
            restart: None,
            line_ns: 0,
            forged: vec![],
        }
    }
}

/// How a program's reading ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Open,
    Eof,
    Error,
}

/// What each program saw.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) end: End,
    /// Plain bytes before the marker that its peer sent, if one did.
    pub(crate) switched_at: Option<usize>,
    pub(crate) held_max_ns: u64,
    pub(crate) why_plain: Option<WhyPlain>,
}

#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) client: Seen,
    pub(crate) server: Seen,
    pub(crate) steps: usize,
    pub(crate) dials: usize,
}
