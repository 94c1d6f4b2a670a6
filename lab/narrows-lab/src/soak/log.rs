//! Log of all started programs and all kills. Together with the ends' records it suffices to judge
//! a soak.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

use super::host::Side;
use super::judge::{Kill, Victim};

/// One life: a program under its supervisor, until either was killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) pair: u64,
    pub(super) side: Side,
    pub(super) life: u64,
    pub(super) direct: bool,
    pub(super) how: String,
}

/// Lives and kills of all pairs.
#[derive(Default)]
pub(super) struct Log {
    kills: Mutex<Vec<Kill>>,
    lives: Mutex<Vec<Life>>,
}

impl Log {
    pub(super) fn kill(&self, kill: Kill) {
        self.kills.lock().unwrap_or_else(PoisonError::into_inner).push(kill);
    }

    pub(super) fn live(&self, life: Life) {
        self.lives.lock().unwrap_or_else(PoisonError::into_inner).push(life);
    }

    pub(super) fn kills(&self) -> Vec<Kill> {
        self.kills.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn lives(&self) -> Vec<Life> {
        self.lives.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads a file in the format in which [`Log`] is displayed.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let log = Self::default();
        for line in text.lines() {
            log.line(line).with_context(|| format!("{}: '{line}' is not a line of a log", path.display()))?;
        }
        Ok(log)
    }

    fn line(&self, line: &str) -> Option<()> {
        let words: Vec<&str> = line.split(' ').collect();
        let [kind, pair, side, life, rest @ ..] = &words[..] else { return None };
        let side = Side::BOTH.into_iter().find(|s| s.name() == *side)?;
        let (pair, life) = (pair.parse().ok()?, life.parse().ok()?);
        match (*kind, rest) {
            ("life", how) => {
                let direct = how.contains(&"direct");
                self.live(Life { pair, side, life, direct, how: how.join(" ") });
            }
            ("kill", [victim, before, after]) => {
                let victim = Victim::ALL.into_iter().find(|v| format!("{v:?}") == *victim)?;
                let (before_ns, after_ns) = (before.parse().ok()?, after.parse().ok()?);
                self.kill(Kill { pair, side, life, victim, before_ns, after_ns });
            }
            _ => return None,
        }
        Some(())
    }
}

impl std::fmt::Display for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for Life { pair, side, life, how, .. } in self.lives() {
            writeln!(f, "life {pair} {} {life} {how}", side.name())?;
        }
        for Kill { pair, side, life, victim, before_ns, after_ns } in self.kills() {
            writeln!(f, "kill {pair} {} {life} {victim:?} {before_ns} {after_ns}", side.name())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read() {
        let log = Log::default();
        let how = "fixed:lz4 direct preload parent polls".to_owned();
        log.live(Life { pair: 2, side: Side::Server, life: 7, direct: true, how });
        for victim in Victim::ALL {
            log.kill(Kill { pair: 2, side: Side::Client, life: 3, victim, before_ns: 5, after_ns: 6 });
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kills");
        fs::write(&path, log.to_string()).unwrap();
        let again = Log::read(&path).unwrap();
        assert_eq!((again.lives(), again.to_string()), (log.lives(), log.to_string()));
        assert_eq!(again.kills().len(), Victim::ALL.len());
        fs::write(&path, "kill 2 client 3 Nobody 5 6\n").unwrap();
        assert!(Log::read(&path).is_err());
    }
}
