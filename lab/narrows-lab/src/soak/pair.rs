//! A pair of one client and one server under `narrows run`, and the thread that kills them.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use narrows_sim::rng::Rng;

use super::host::{How, LEAVES, Running, Side, World, write_port};
use super::judge::{Kill, Victim};
use super::log::{Life, Log};

/// Connections of a client at a time.
const CONNECTIONS: usize = 3;
/// Longest time that a program runs without its supervisor before it is replaced.
const ALONE_MAX_MS: usize = 1500;
const TICK: Duration = Duration::from_millis(20);

pub(super) struct Pair<'a> {
    world: &'a World,
    log: &'a Log,
    number: u64,
    rng: Rng,
    direct: bool,
    lives: [u64; 2],
    /// Ended programs whose supervisors may still have to pass on what they wrote.
    leaving: Vec<Running>,
}

/// A kind of kill.
#[derive(Debug, Clone, Copy)]
enum Blow {
    Program,
    ProgramThenSupervisor,
    Supervisor,
    BothPrograms,
    BothSupervisors,
}

/// Kinds of kills with their shares in percent.
const BLOWS: [(Blow, usize); 5] = [
    (Blow::Program, 40),
    (Blow::ProgramThenSupervisor, 10),
    (Blow::Supervisor, 40),
    (Blow::BothPrograms, 5),
    (Blow::BothSupervisors, 5),
];

fn draw(rng: &mut Rng) -> Blow {
    let mut left = rng.below(100);
    for (blow, share) in BLOWS {
        match left.checked_sub(share) {
            None => return blow,
            Some(rest) => left = rest,
        }
    }
    Blow::Program
}

impl<'a> Pair<'a> {
    pub(super) fn new(world: &'a World, log: &'a Log, number: u64, seed: u64) -> Self {
        let rng = Rng(seed ^ (number + 1).wrapping_mul(0xd134_2543_de82_ef95));
        Self { world, log, number, rng, direct: number.is_multiple_of(2), lives: [0; 2], leaving: Vec::new() }
    }

    /// Kills at random intervals until `until`, then checks that all programs end regularly.
    pub(super) fn run(mut self, until: Instant, kill_every: Duration) -> Result<()> {
        let mut server = self.start(Side::Server)?;
        let mut client = self.start(Side::Client)?;
        loop {
            // Exponential interval, limited to four times the mean.
            let wait = kill_every.mul_f64((-(1.0 - self.rng.unit()).ln()).min(4.0));
            if !self.wait(wait.min(until.saturating_duration_since(Instant::now()))) || Instant::now() >= until {
                break;
            }
            let blow = draw(&mut self.rng);
            let side = Side::BOTH[self.rng.below(2)];
            let both = matches!(blow, Blow::BothPrograms | Blow::BothSupervisors);
            let struck: Vec<Side> = Side::BOTH.into_iter().filter(|s| both || *s == side).collect();
            for side in &struck {
                let running = if *side == Side::Client { &mut client } else { &mut server };
                match blow {
                    Blow::Supervisor | Blow::BothSupervisors => self.kill_supervisor(*side, running),
                    Blow::Program | Blow::BothPrograms => self.kill_program(*side, running, Victim::Program),
                    Blow::ProgramThenSupervisor => {
                        self.kill_program(*side, running, Victim::ProgramFirst);
                        let pause = self.rng.below(30) as u64;
                        thread::sleep(Duration::from_millis(pause));
                        let (before_ns, after_ns) = running.kill_supervisor();
                        self.note(*side, Victim::SupervisorThen, before_ns, after_ns);
                    }
                }
            }
            // A program whose supervisor was killed runs on without it for a while, then is
            // replaced.
            if matches!(blow, Blow::Supervisor | Blow::BothSupervisors) {
                // With --peer clients would keep sending frames to the server, which it cannot
                // decode alone.
                let most = if self.direct && struck.contains(&Side::Server) { 100 } else { ALONE_MAX_MS };
                let alone = Duration::from_millis(self.rng.below(most) as u64);
                let goes_on = self.wait(alone);
                for side in &struck {
                    let running = if *side == Side::Client { &mut client } else { &mut server };
                    self.kill_program(*side, running, Victim::Orphan);
                }
                if !goes_on {
                    break;
                }
            } else {
                let pause = self.rng.below(200) as u64;
                thread::sleep(Duration::from_millis(pause));
            }
            for side in struck.into_iter().rev() {
                let next = self.start(side)?;
                let place = if side == Side::Client { &mut client } else { &mut server };
                self.leaving.push(std::mem::replace(place, next));
            }
        }
        for (side, mut running) in [(Side::Client, client), (Side::Server, server)] {
            running.finish();
            if !running.program.ends_within(LEAVES) {
                self.world.fault(format!("pair {}: the {} ({}) does not end", self.number, side.name(), running.how));
                self.kill_program(side, &mut running, Victim::Program);
            }
            self.leaving.push(running);
        }
        let begun = Instant::now();
        while !self.leaving.is_empty() && begun.elapsed() < 2 * LEAVES {
            self.sweep();
            thread::sleep(TICK);
        }
        Ok(())
    }

    fn start(&mut self, side: Side) -> Result<Running> {
        let life = self.lives[side as usize];
        self.lives[side as usize] += 1;
        let how = How::draw(&mut self.rng, self.direct);
        let name = format!("{}-{}-{life}", self.number, side.name());
        let record = self.world.record(self.number, side, life).to_string_lossy().into_owned();
        let port_file = self.world.path(&format!("{}.port", self.number));
        let polls = if how.polls { "polled" } else { "blocking" };
        let (number, seed) = (self.number.to_string(), (self.rng.next_u64() >> 1).to_string());
        let running = match side {
            Side::Server => {
                let words = ["serve", &record, "{port}", polls, "both"];
                let running = Running::start(self.world, &name, side, &how, &words)?;
                write_port(&port_file, running.port)?;
                running
            }
            Side::Client => {
                let (life, port, count) = (life.to_string(), port_file.to_string_lossy(), CONNECTIONS.to_string());
                let words = ["connect", &record, &port, &number, &life, &seed, polls, &count];
                Running::start(self.world, &name, side, &how, &words)?
            }
        };
        self.log.live(Life { pair: self.number, side, life, direct: how.direct, how: how.to_string() });
        Ok(running)
    }

    fn kill_program(&mut self, side: Side, running: &mut Running, victim: Victim) {
        let (before_ns, after_ns) = running.kill_program();
        self.note(side, victim, before_ns, after_ns);
    }

    fn kill_supervisor(&mut self, side: Side, running: &mut Running) {
        let (before_ns, after_ns) = running.kill_supervisor();
        self.note(side, Victim::Supervisor, before_ns, after_ns);
    }

    fn note(&self, side: Side, victim: Victim, before_ns: u64, after_ns: u64) {
        let life = self.lives[side as usize] - 1;
        self.log.kill(Kill { pair: self.number, side, life, victim, before_ns, after_ns });
    }

    /// Waits; false if the run is to end.
    fn wait(&mut self, time: Duration) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < time {
            if self.world.stopped() {
                return false;
            }
            self.sweep();
            thread::sleep(TICK.min(time.saturating_sub(begun.elapsed())));
        }
        true
    }

    fn sweep(&mut self) {
        let world = self.world;
        self.leaving.retain_mut(|running| !running.has_left(world));
    }
}
