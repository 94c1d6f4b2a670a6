//! The account of a flow's bytes in the programs and the socket after a pipe, from looks at both ends.
//!
//! Of the bytes that the first program took out of the pipe, some are with the programs, some wait in
//! the socket, some are on their way, and the far end has acknowledged the others. The socket counts
//! bytes of its own: other bytes came before, ssh adds to each packet, and may compress. So a byte of
//! the socket counts as one of the flow only where it is queued, and the programs are thought to hold
//! what was taken and not written. All errors of that are bounded by what socket and programs hold at
//! one time, and none is carried on.

use super::sockets::Told;

/// A program that leaves its socket empty although it should hold more than this makes fewer bytes of
/// what it takes (ssh -C), or is as fast as it can. More is read by none at once.
const HELD_MAX: u64 = 256 << 10;
/// Time for which a socket must have had nothing to send: a program may lose its core for some slices
/// of the scheduler.
const EMPTY_NS: u64 = 20_000_000;

/// A program that was given bytes gets a core within a slice of the scheduler. One whose socket has
/// nothing to send while its pipe is full for longer is slow itself.
const WAKE_NS: u64 = 3_000_000;

/// Bytes of the flow on their way through programs and socket.
#[derive(Debug, Clone)]
pub(super) struct Account {
    /// Taken out of the pipe at the last look.
    taken: u64,
    /// Written to the socket then; `None` if the socket is another one than at the last look.
    written: Option<u64>,
    /// What the programs are thought to hold.
    held: u64,
    /// They make fewer bytes of what they take.
    shrinks: bool,
    /// Since when the socket has had nothing to send.
    empty_since_ns: Option<u64>,
    /// Since when the pipe has had bytes while the socket had nothing to send.
    unread_since_ns: Option<u64>,
    /// Bytes that have left this host, and those acknowledged. They never become less.
    pub(super) left: u64,
    pub(super) acked: u64,
}

impl Default for Account {
    fn default() -> Self {
        // What the socket has carried so far may be bytes of the flow.
        let written = Some(0);
        Self {
            taken: 0,
            written,
            held: 0,
            shrinks: false,
            empty_since_ns: None,
            unread_since_ns: None,
            left: 0,
            acked: 0,
        }
    }
}

impl Account {
    /// Another socket comes next. What it carried before is none of the flow.
    pub(super) fn change(&mut self) {
        self.written = None;
    }

    /// Whether `unread` bytes wait for no more than that their reader gets a core.
    pub(super) fn wakes(&mut self, now_ns: u64, unread: u64, told: &Told) -> bool {
        if unread == 0 || told.info.notsent_bytes > 0 {
            self.unread_since_ns = None;
            return false;
        }
        now_ns.saturating_sub(*self.unread_since_ns.get_or_insert(now_ns)) < WAKE_NS
    }

    /// The programs have taken `taken` bytes in total. `told` is older than that count, so that a byte
    /// which changes its place meanwhile counts as held. Returns whether what was said so far was wrong.
    pub(super) fn observe(&mut self, now_ns: u64, taken: u64, told: &Told) -> bool {
        let written = told.info.acked_bytes + told.queued;
        let came = taken.saturating_sub(self.taken);
        let went = written.saturating_sub(self.written.unwrap_or(written));
        self.held = (self.held + came).saturating_sub(went);
        self.taken = self.taken.max(taken);
        self.written = Some(self.written.unwrap_or(written).max(written));

        let unsent = u64::from(told.info.notsent_bytes).min(told.queued);
        let since_ns = *self.empty_since_ns.get_or_insert(now_ns);
        let is_wrong = unsent == 0 && self.held > HELD_MAX && now_ns.saturating_sub(since_ns) >= EMPTY_NS;
        if unsent > 0 {
            self.empty_since_ns = None;
        }
        self.shrinks |= is_wrong;
        if self.shrinks || told.queued == 0 && self.held <= HELD_MAX {
            self.held = 0;
        }
        // Bytes that were in the socket before the flow are ahead of it, and are none of its own.
        let passed = self.taken.saturating_sub(self.held);
        self.left = self.left.max(passed.saturating_sub(unsent));
        self.acked = self.acked.max(passed.saturating_sub(told.queued)).min(self.left);
        is_wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::TcpInfo;

    const MS: u64 = 1_000_000;

    /// A program between pipe and socket, and the socket's link.
    struct Relay {
        account: Account,
        now_ns: u64,
        taken: u64,
        holds: u64,
        /// Bytes of the socket for one of the pipe.
        expands: f64,
        queued: f64,
        acked: f64,
        /// How often the account was wrong.
        wrong: u32,
    }

    impl Relay {
        fn new(expands: f64, before: u64) -> Self {
            let (account, queued, acked) = (Account::default(), 0.0, before as f64);
            Self { account, now_ns: 0, taken: 0, holds: 0, expands, queued, acked, wrong: 0 }
        }

        /// A millisecond in which the program takes `taken` bytes and holds at most `most` while the
        /// socket has room up to `room`, and the link carries `carried`.
        fn turn(&mut self, taken: u64, room: u64, carried: u64) {
            self.now_ns += MS;
            self.taken += taken;
            self.holds += taken;
            let fits = ((room as f64 - self.queued).max(0.0) / self.expands) as u64;
            let passed = self.holds.min(fits);
            self.holds -= passed;
            self.queued += passed as f64 * self.expands;
            let gone = self.queued.min(carried as f64);
            (self.queued, self.acked) = (self.queued - gone, self.acked + gone);
            let info = TcpInfo {
                acked_bytes: self.acked as u64,
                notsent_bytes: (self.queued as u32).saturating_sub(20_000),
                ..TcpInfo::default()
            };
            self.wrong +=
                u32::from(self.account.observe(self.now_ns, self.taken, &Told { queued: self.queued as u64, info }));
        }

        fn unacked(&self) -> u64 {
            self.taken - self.account.acked
        }
    }

    #[test]
    fn what_a_program_holds_has_not_left() {
        let mut relay = Relay::new(1.0, 0);
        for _ in 0..500 {
            relay.turn(100_000, 200_000, 10_000);
            assert_eq!(relay.unacked(), relay.holds + relay.queued as u64);
        }
        assert!(relay.holds > 40_000_000, "a buffer that takes all");
        assert!(relay.account.left > relay.account.acked);
    }

    #[test]
    fn what_the_socket_carried_before_is_none_of_the_flow() {
        let mut relay = Relay::new(1.0, 5_000_000);
        // 150 KB of something else wait in the socket.
        relay.queued = 150_000.0;
        relay.turn(50_000, 250_000, 10_000);
        assert_eq!((relay.account.left, relay.account.acked), (0, 0));
        for _ in 0..30 {
            relay.turn(10_000, 250_000, 10_000);
        }
        assert_eq!(relay.unacked(), relay.holds + relay.queued as u64);
    }

    /// Programs that add a little, that add a third, and that halve what they take, on a link that is
    /// always full: rate and backlog stay those of the flow.
    #[test]
    fn programs_that_change_the_bytes_do_not_mislead() {
        for expands in [1.002, 1.33, 0.5, 0.1] {
            let mut relay = Relay::new(expands, 4_000);
            let mut before = 0;
            for turn in 0..5000u64 {
                // The program takes what the socket has room for.
                let taken = ((300_000.0 - relay.queued) / expands).max(0.0) as u64;
                relay.turn(taken, 300_000, 12_500);
                let backlog = relay.queued / expands;
                if expands > 1.0 {
                    assert!((relay.unacked() as f64 - backlog).abs() < 110_000.0, "{expands} {turn}");
                }
                if turn % 1000 == 999 {
                    let rate = (relay.account.acked - before) as f64 / 1000.0;
                    before = relay.account.acked;
                    assert!(rate < 1.02 * 12_500.0 / expands, "{expands}: {rate}");
                    // Bytes that shrank count as held until the socket is empty; none is lost.
                    let least = if expands < 1.0 { 12_500.0 } else { 0.9 * 12_500.0 / expands };
                    assert!(rate > 0.98 * least, "{expands}: {rate}");
                }
            }
            // The flow pauses, and all of it crosses.
            for _ in 0..400 {
                relay.turn(0, 300_000, 12_500);
            }
            assert_eq!((relay.unacked(), relay.wrong), (0, u32::from(expands < 1.0)), "{expands}");
        }
    }

    /// A socket that is empty for a time proves that a program makes fewer bytes; from then on nothing
    /// counts as held, and the one leap is told.
    #[test]
    fn a_program_that_compresses_is_known_by_its_empty_socket() {
        let mut relay = Relay::new(0.4, 0);
        // All that is queued is on its way.
        relay.queued = 10_000.0;
        for _ in 0..3000 {
            let (before, wrong) = (relay.account.acked, relay.wrong);
            relay.turn(10_000, 300_000, 4_000);
            let leap = relay.account.acked - before;
            assert!(leap < 30_000 || relay.wrong > wrong || relay.account.held <= HELD_MAX, "{leap}");
            assert!(relay.unacked() < 2 * HELD_MAX, "{}", relay.unacked());
        }
        assert_eq!(relay.wrong, 1);
    }

    #[test]
    fn an_empty_socket_behind_a_full_pipe_is_a_slow_program() {
        let mut relay = Relay::new(1.0, 0);
        for _ in 0..100 {
            relay.turn(1_000, 300_000, 100_000);
        }
        // All that it took has crossed: its rate is what it takes.
        assert_eq!((relay.account.left, relay.account.acked), (100_000, 100_000));
    }

    #[test]
    fn a_reader_may_take_a_slice_to_wake_and_no_longer() {
        let mut account = Account::default();
        let told = |notsent_bytes| Told { queued: 0, info: TcpInfo { notsent_bytes, ..TcpInfo::default() } };
        let looks = [(0, 0, 0), (1, 500, 0), (3, 900, 0), (4, 900, 0), (5, 0, 0), (6, 7, 0), (7, 7, 1), (12, 7, 0)];
        let wakes = looks.map(|(ms, unread, unsent)| account.wakes(ms * MS, unread, &told(unsent)));
        assert_eq!(wakes, [false, true, true, false, false, true, false, true]);
    }

    #[test]
    fn nothing_that_is_told_makes_an_account_go_back() {
        let mut account = Account::default();
        let told = |acked_bytes, queued, notsent_bytes| Told {
            queued,
            info: TcpInfo { acked_bytes, notsent_bytes, ..TcpInfo::default() },
        };
        let strange = [
            (1000, told(u64::MAX / 2, 0, 0)),
            (5000, told(0, u64::from(u32::MAX), u32::MAX)),
            (2000, told(7, 100, 200)),
            (9000, told(0, 0, 0)),
        ];
        let mut last = (0, 0);
        for (i, (taken, told)) in strange.iter().enumerate() {
            account.observe(i as u64 * MS, *taken, told);
            assert!(account.left >= last.0 && account.acked >= last.1 && account.acked <= account.left);
            assert!(account.left <= account.taken);
            last = (account.left, account.acked);
        }
    }
}
