//! The result of a soak, as Markdown and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Args;
use super::host::{Accounts, World};
use super::judge::{Kill, Outcomes, Verdict, Victim};
use super::log::Life;
use crate::report::About;

pub(super) struct Report {
    about: Value,
    seed: u64,
    pairs: u64,
    elapsed: Duration,
    /// After each minute: kills, connections, bytes.
    minutes: Vec<[u64; 3]>,
    kills: BTreeMap<String, u64>,
    outcomes: Outcomes,
    lives: BTreeMap<String, u64>,
    /// In the order in which they are printed.
    counts: Vec<(&'static str, u64)>,
    accounts: Accounts,
    /// Faults of connections.
    faults: Vec<String>,
    /// Faults that the driver observed: processes that did not end, or unexpected output.
    seen: Vec<String>,
}

impl Report {
    pub(super) fn new(args: &Args) -> Self {
        Self {
            about: About::new().json(),
            seed: args.seed,
            pairs: args.pairs,
            elapsed: Duration::ZERO,
            minutes: Vec::new(),
            kills: BTreeMap::new(),
            outcomes: Outcomes::new(),
            lives: BTreeMap::new(),
            counts: Vec::new(),
            accounts: Accounts::default(),
            faults: Vec::new(),
            seen: Vec::new(),
        }
    }

    /// Restores from the output of [`Report::json`] what judging again does not compute.
    pub(super) fn again(args: &Args, text: &str) -> Result<Self> {
        let json: Value = serde_json::from_str(text)?;
        let number = |key: &str| json[key].as_u64().with_context(|| format!("there is no {key}"));
        let seconds =
            |key: &str| json[key].as_f64().and_then(|s| Duration::try_from_secs_f64(s).ok()).unwrap_or_default();
        let accounts = Accounts {
            outcomes: serde_json::from_value(json["supervisors_said"].clone())?,
            started: number("programs_started")?,
            leaving_max: seconds("supervisor_left_after_max_s"),
        };
        Ok(Self {
            about: json["about"].clone(),
            seed: number("seed")?,
            pairs: number("pairs")?,
            elapsed: seconds("seconds"),
            minutes: serde_json::from_value(json["kills_connections_bytes_by_minute"].clone())?,
            accounts,
            seen: serde_json::from_value(json["seen"].clone())?,
            ..Self::new(args)
        })
    }

    pub(super) fn faults(&self) -> usize {
        self.faults.len() + self.seen.len()
    }

    pub(super) fn minute(&mut self, kills: usize, so_far: &Verdict) {
        let row = [kills as u64, so_far.connections, so_far.bytes];
        self.minutes.push(row);
        eprintln!(
            "soak: minute {}: {kills} kills, {} connections, {} MB, {} faults",
            self.minutes.len(),
            so_far.connections,
            so_far.bytes / 1_000_000,
            so_far.faults.len()
        );
    }

    pub(super) fn soaked(&mut self, kills: &[Kill], lives: &[Life], verdict: Verdict) {
        for kill in kills.iter().filter(|k| k.victim != Victim::SupervisorThen) {
            *self.kills.entry(kill.label()).or_default() += 1;
        }
        for Life { side, how, .. } in lives {
            *self.lives.entry(format!("{} {how}", side.name())).or_default() += 1;
        }
        self.counts = vec![
            ("kills", kills.len() as u64),
            ("connections", verdict.connections),
            ("bytes", verdict.bytes),
            ("refused while a server was replaced", verdict.refused),
            ("whole, of programs whose supervisor had been killed before", verdict.plain_after_kill),
        ];
        self.outcomes = verdict.outcomes;
        self.faults = verdict.faults;
    }

    pub(super) fn killed(&mut self, runs: u64, bytes: u64) {
        self.counts =
            vec![("programs killed after their last write, of which everything arrived", runs), ("bytes", bytes)];
    }

    pub(super) fn finish(&mut self, world: &World, elapsed: Duration) {
        self.elapsed = elapsed;
        self.accounts = world.accounts();
        self.seen = world.faults();
    }

    pub(super) fn json(&self) -> String {
        let outcomes: serde_json::Map<String, Value> =
            self.outcomes.iter().map(|(met, all)| (met.clone().unwrap_or("nobody".into()), json!(all))).collect();
        let counts: serde_json::Map<String, Value> = self.counts.iter().map(|(k, v)| ((*k).into(), json!(v))).collect();
        let all = json!({
            "about": self.about, "seed": self.seed, "pairs": self.pairs, "seconds": self.elapsed.as_secs_f64(),
            "counts": counts, "kills": self.kills, "ends_by_first_kill": outcomes, "programs": self.lives,
            "programs_started": self.accounts.started, "supervisors_said": self.accounts.outcomes,
            "supervisor_left_after_max_s": self.accounts.leaving_max.as_secs_f64(),
            "kills_connections_bytes_by_minute": self.minutes, "faults": self.faults, "seen": self.seen,
        });
        format!("{all:#}\n")
    }

    pub(super) fn markdown(&self) -> String {
        let said = |key: &str| self.about[key].as_str().unwrap_or_default().to_owned();
        let mut page = format!(
            "`{}`: seed {}, {:.0} s. {}, {} cores, Linux {}; commit {}.\n\n",
            said("command"),
            self.seed,
            self.elapsed.as_secs_f64(),
            said("machine"),
            said("cores"),
            said("kernel"),
            said("commit")
        );
        for (what, count) in &self.counts {
            let _ = writeln!(page, "- {what}: {count}");
        }
        let accounts = &self.accounts;
        let _ = writeln!(page, "- programs started under `narrows run`: {}", accounts.started);
        let _ = writeln!(
            page,
            "- longest from the end of a program until its supervisor left: {:.1} s",
            accounts.leaving_max.as_secs_f64()
        );
        let _ = writeln!(page, "- **faults: {}**", self.faults());
        for fault in self.faults.iter().chain(&self.seen).take(20) {
            let _ = writeln!(page, "  - {fault}");
        }
        let columns: Vec<&str> = {
            let mut all: Vec<&str> = self.outcomes.values().flat_map(|o| o.keys().copied()).collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        if !columns.is_empty() {
            page.push_str("\nDirections of connections, by the first kill that met them and by how they ended for the reader:\n\n");
            let _ = writeln!(page, "| first kill | kills | {} |", columns.join(" | "));
            let _ = writeln!(page, "| --- |{}", " --: |".repeat(columns.len() + 1));
            for (met, ends) in &self.outcomes {
                let kills = met.as_ref().map_or(String::new(), |m| self.kills.get(m).copied().unwrap_or(0).to_string());
                let cells: Vec<String> =
                    columns.iter().map(|c| ends.get(c).map_or(String::new(), u64::to_string)).collect();
                let _ = writeln!(page, "| {} | {kills} | {} |", met.as_deref().unwrap_or("none"), cells.join(" | "));
            }
        }
        if !accounts.outcomes.is_empty() {
            page.push_str("\nWhat supervisors that were not killed said of their connections:\n\n| outcome | ends |\n| --- | --: |\n");
            for (outcome, count) in &accounts.outcomes {
                let _ = writeln!(page, "| {outcome} | {count} |");
            }
        }
        page
    }
}
