//! Setup and outcome of a simulated connection.

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

/// An action of a program.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Write(Vec<u8>),
    End,
}

// More than 20 fields, each of them a condition that is drawn for a run.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    /// Whether each program runs under Narrows, and whether the server's host has the service.
    pub(crate) client: bool,
    pub(crate) server: bool,
    pub(crate) service: bool,
    pub(crate) direct: bool,
    /// One-way delay of the connection.
    pub(crate) data_ns: u64,
    pub(crate) side_ns: u64,
    /// Maximum of a random delay added to each segment.
    pub(crate) jitter_ns: u64,
    /// Whether segments are often short and far apart.
    pub(crate) cut: bool,
    /// Whether the side channel exists before the connection.
    pub(crate) warm: bool,
    pub(crate) accept_ns: u64,
    pub(crate) nat: bool,
    pub(crate) clock_off_ms: i32,
    pub(crate) syn_clock: bool,
    pub(crate) acts: Vec<(u64, Who, Act)>,
    /// A supervisor is killed at this step.
    pub(crate) kill: Option<(Who, usize)>,
    /// The side channel breaks at this step, and works again after this time in ns.
    pub(crate) break_at: Option<(usize, u64)>,
    /// Delays of the first side channels, in order; later ones have none.
    pub(crate) slow: Vec<Slow>,
    /// The server's agent dies: (when, time without agent, time for which the next one knows of
    /// nothing).
    pub(crate) restart: Option<(u64, u64, u64)>,
    /// One-way delay between the server's supervisor and its agent.
    pub(crate) line_ns: u64,
    /// Forged claims: (when, whether from the client's address, clock offset in ms).
    pub(crate) forged: Vec<(u64, bool, i32)>,
}

/// Additional delays of a side channel, which also apply to its end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slow {
    /// Delay of connecting.
    pub(crate) dial_ns: u64,
    /// Time after dialling from which messages are delayed, by `up_ns` to the server and by `down_ns`
    /// to the client.
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

/// Observations of one program.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) end: End,
    /// Number of plain bytes before the peer's marker, if the peer sent one.
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
