//! The file of `narrows tunnel --config` (docs/tunnel.md): options by their long names, with `_` for `-`.

use std::collections::HashMap;
use std::fmt;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use narrows_host::near::nearest_key;
use narrows_host::{whole, words};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::known::{self, KEYS, Key, LIMITS, Reading};
use super::options::Options;
use super::proof;

/// Longest file in bytes: thousands of forwards and rules.
const FILE_MAX: u64 = 1 << 20;
/// Most faults that are told; further ones are likely to follow from these.
const FAULTS_MAX: usize = 50;

/// What is wrong with the settings, a line each.
#[derive(Debug)]
pub(super) struct Faults {
    /// The first ones.
    told: Vec<String>,
    /// How many more there are.
    more: usize,
}

impl From<String> for Faults {
    fn from(fault: String) -> Self {
        Self { told: vec![fault], more: 0 }
    }
}

impl Faults {
    /// The first ones of some, in words.
    fn of<T>(faults: Vec<T>, words: impl FnMut(T) -> String) -> Self {
        let more = faults.len().saturating_sub(FAULTS_MAX);
        Self { told: faults.into_iter().take(FAULTS_MAX).map(words).collect(), more }
    }

    /// Tells all of them. The status is that of wrong usage.
    pub(super) fn tell(&self) -> ExitCode {
        self.told.iter().for_each(words::note);
        if self.more > 0 {
            words::note(format_args!("and {} more faults", self.more));
        }
        ExitCode::from(2)
    }
}

/// The first fault, and how many more there are.
impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.told.first().map_or("", String::as_str))?;
        match self.told.len() + self.more {
            0 | 1 => Ok(()),
            n => write!(f, ", and {} more faults", n - 1),
        }
    }
}

/// `narrows tunnel check-config`.
pub(super) fn check(path: &Path) -> Result<ExitCode> {
    let faults = Given::read(path).and_then(|given| {
        let found = inconsistent(&given.args);
        let found = if found.is_empty() { proof::faults(&given.args) } else { found };
        given.named(found)
    });
    match faults {
        Ok(()) => {
            words::note(format_args!("{}: no fault", path.display()));
            Ok(ExitCode::SUCCESS)
        }
        Err(faults) => Ok(faults.tell()),
    }
}

/// The options of the command line, and what they leave out by the file that they name.
pub(super) fn with_file(flags: &Options) -> Result<Options, Faults> {
    let Some(path) = &flags.config else {
        Given::default().named(inconsistent(flags))?;
        return Ok(flags.clone());
    };
    let given = Given::read(path)?;
    let mut args = flags.clone();
    known::all().filter(|key| (key.is_unset)(flags)).for_each(|key| (key.take)(&mut args, &given.args));
    given.named(inconsistent(&args))?;
    Ok(args)
}

/// What a file says.
#[derive(Default)]
struct Given {
    args: Options,
    /// `FILE:`, or nothing.
    name: String,
    /// The line of each key.
    lines: HashMap<&'static str, usize>,
}

impl Given {
    fn read(path: &Path) -> Result<Self, Faults> {
        let name = words::shown(path.as_os_str().as_encoded_bytes());
        let text = text_of(path).map_err(|why| Faults::from(format!("{name}: {why}")))?;
        match Self::parse(&text, whole::folder_of(path)) {
            Ok(given) => Ok(Self { name, ..given }),
            Err(mut faults) => {
                faults.sort();
                // A line is counted for those that are told only.
                Err(Faults::of(faults, |(at, why)| format!("{name}:{}: {why}", line_of(&text, at))))
            }
        }
    }

    fn parse(text: &str, folder: &Path) -> Result<Self, Vec<(usize, String)>> {
        let (table, errors) = DeTable::parse_recoverable(text);
        let mut reading = Reading { folder, faults: Vec::new() };
        if !errors.is_empty() {
            let faults = errors.iter().map(|e| (e.span().map_or(0, |span| span.start), e.message().to_owned()));
            return Err(faults.collect());
        }
        let mut given = Self::default();
        for (key, value) in table.get_ref() {
            if key.get_ref() != "limits" {
                given.take((&KEYS, "in [limits]"), text, key, value, &mut reading);
                continue;
            }
            match value.get_ref().as_table() {
                Some(limits) => {
                    for (key, value) in limits {
                        given.take((&LIMITS, "above [limits]"), text, key, value, &mut reading);
                    }
                }
                None => reading.fault(key.span().start, "limits is a table: [limits]"),
            }
        }
        if reading.faults.is_empty() { Ok(given) } else { Err(reading.faults) }
    }

    /// Takes a key of a table, which knows some; others belong elsewhere.
    fn take(
        &mut self,
        (known, elsewhere): (&'static [Key], &str),
        text: &str,
        key: &Spanned<DeString<'_>>,
        value: &Spanned<DeValue<'_>>,
        reading: &mut Reading<'_>,
    ) {
        let (name, at) = (key.get_ref(), key.span().start);
        if let Some(key) = known.iter().find(|key| key.name == name) {
            self.lines.insert(key.name, line_of(text, at));
            return (key.read)(&mut self.args, value, reading);
        }
        let mut names: Vec<&str> = known.iter().map(|key| key.name).collect();
        let shown = words::shown(name.as_bytes());
        if known::all().any(|key| key.name == name) {
            return reading.fault(at, format!("{shown} belongs {elsewhere}"));
        }
        reading.fault(
            at,
            match nearest_key(name, &names) {
                Some(near) => format!("'{shown}' is not known; did you mean {near}?"),
                None => {
                    names.sort_unstable();
                    format!("'{shown}' is not known; known are {}", names.join(", "))
                }
            },
        );
    }

    /// Faults with their lines, if there are any.
    fn named(&self, faults: Vec<(&'static str, String)>) -> Result<(), Faults> {
        if faults.is_empty() {
            return Ok(());
        }
        Err(Faults::of(faults, |(key, why)| match self.lines.get(key) {
            Some(line) => format!("{}:{line}: {why}", self.name),
            None if self.name.is_empty() => why,
            None => format!("{}: {why}", self.name),
        }))
    }
}

fn text_of(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let (file, _) = whole::open_regular(path).map_err(|e| words::e_text(&e))?;
    file.take(FILE_MAX + 1).read_to_string(&mut text).map_err(|e| words::e_text(&e))?;
    if text.len() as u64 > FILE_MAX {
        return Err(format!("it has more than {FILE_MAX} bytes"));
    }
    Ok(text)
}

fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|b| *b == b'\n').count() + 1
}

/// Settings that do not go together, each with its key.
fn inconsistent(args: &Options) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let mut fault = |is: bool, key: &'static str, text: &str| {
        if is {
            found.push((key, text.to_owned()));
        }
    };
    let (accepts, dials) = (args.listen.is_some(), args.to.is_some());
    let forwards = [("local", &args.local), ("remote", &args.remote), ("dynamic", &args.dynamic)];
    fault(accepts && dials, "to", "give the other end, or --listen to be it; not both");
    for (key, given) in forwards
        .map(|(key, list)| (key, !list.is_empty()))
        .into_iter()
        .chain([("proxy_from", !args.proxy_from.is_empty())])
    {
        fault(accepts && given, key, &format!("{key} is for the end that connects, not with --listen"));
    }
    fault(
        !accepts && !dials && !args.stdio,
        "",
        "name the other end, narrows://HOST:PORT or [USER@]HOST, or be it yourself: --listen ADDR:PORT",
    );
    fault(
        dials && !accepts && forwards.iter().all(|(_, list)| list.is_empty()),
        "to",
        "nothing to forward: give -L, -R or -D, such as -L 5432:localhost:5432",
    );
    fault(args.shell.is_some() && super::is_direct(args), "shell", super::NO_SHELL);
    for (key, rules) in [("allow", &args.allow), ("allow_listen", &args.allow_listen)] {
        let alone = rules.len() < 2 || !rules.iter().any(|rule| rule == "none");
        fault(!alone, key, &format!("{key}: none allows nothing, and stands alone"));
    }
    let has_cert = args.cert.is_some();
    fault(has_cert && (args.key.is_none() || args.ca.is_none()), "cert", "--cert needs --key and --ca");
    for (key, given) in [
        ("key", args.key.is_some()),
        ("ca", args.ca.is_some()),
        ("crl", args.crl.is_some()),
        ("allow_name", !args.allow_name.is_empty()),
    ] {
        fault(given && !has_cert, key, &format!("--{} needs --cert", key.replace('_', "-")));
    }
    for (key, given, of_server) in [
        ("token_file", args.token_file.is_some(), false),
        ("token_out", args.token_out.is_some(), true),
        ("key_file", args.key_file.is_some(), true),
    ] {
        let name = key.replace('_', "-");
        fault(given && has_cert, key, &format!("this end is proved by --cert, and needs no --{name}"));
        fault(given && of_server && !accepts, key, &format!("--{name} needs --listen"));
    }
    fault(args.quiet && args.verbose, "quiet", "--quiet cannot be used with --verbose");
    let policy = args.policy.as_ref().map_or("balance", |policy| policy.name());
    let is_known = matches!(policy, "balance" | "fixed");
    fault(!is_known, "policy", "--policy: a tunnel supports only `balance` and `fixed:METHOD`");
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Options, Vec<(usize, String)>> {
        Given::parse(text, Path::new("/etc/narrows"))
            .map(|given| given.args)
            .map_err(|faults| faults.into_iter().map(|(at, why)| (line_of(text, at), why)).collect())
    }

    #[test]
    fn keys_are_options_and_paths_count_from_the_folder() {
        let text = r#"
            to = "narrows://db.example"
            local = ["5432:localhost:5432", "/run/a.sock:localhost:80"]
            dynamic = "1080"
            cert = "own.pem"
            key = "/keys/own.key"
            ca = "ca.pem"
            allow_name = "db.example"
            proxy_from = ["10.0.0.1", "::1"]
            carriers = 3
            drain_timeout = 30
            keep_trying = true
            policy = "fixed:zstd:level=5"
            [limits]
            memory_mib = 0x100
            connections_per_second = 1_000
        "#;
        let args = parsed(text).unwrap();
        assert_eq!(args.to.as_deref(), Some("narrows://db.example".as_ref()));
        assert_eq!(args.local.len(), 2);
        assert_eq!(args.dynamic, ["1080"]);
        assert_eq!(args.cert.as_deref(), Some(Path::new("/etc/narrows/own.pem")));
        assert_eq!(args.key.as_deref(), Some(Path::new("/keys/own.key")));
        assert_eq!(args.proxy_from.len(), 2);
        assert_eq!((args.carriers, args.drain_timeout, args.keep_trying), (Some(3), Some(30), true));
        assert_eq!((args.limits.memory_mib, args.limits.connections_per_second), (Some(256), Some(1000)));
        assert_eq!(args.policy.as_ref().map(ToString::to_string).as_deref(), Some("fixed:zstd:level=5"));
        assert!(inconsistent(&args).is_empty());
        assert!(inconsistent(&parsed("listen = \"0.0.0.0:7702\"").unwrap()).is_empty());
    }

    #[test]
    fn each_fault_has_its_line() {
        let text = "listn = \"0.0.0.0:7702\"\nallow = [\"localhost:5432\",\n  \"x\"]\ncarriers = 5\nkeep_trying = 1\n\
                    proxy_from = \"here\"\npolicy = \"nonsense\"\nxyzzy = 1\ncert = 5\nlisten = \"7702\"\nmemory_mib = 20\n\
                    [limits]\nmemory_mb = 1\nhandshakes = -1\nallow = \"any\"\n";
        let faults = parsed(text).err().unwrap();
        let expected = [
            (1, "'listn' is not known; did you mean listen?"),
            (3, "allow: 'x' is not HOST:PORT"),
            (4, "carriers must be from 1 to 4"),
            (5, "keep_trying must be true or false, not a number"),
            (6, "proxy_from: 'here' is no address"),
            (7, "policy: "),
            (8, "'xyzzy' is not known; known are allow, "),
            (9, "cert must be a text in quotes, not a number"),
            (10, "listen: '7702' is not ADDR:PORT"),
            (11, "memory_mib belongs in [limits]"),
            (13, "'memory_mb' is not known; did you mean memory_mib?"),
            (14, "handshakes must be from 1 to"),
            (15, "allow belongs above [limits]"),
        ];
        let mut sorted = faults.clone();
        sorted.sort();
        assert_eq!(sorted.len(), expected.len(), "{sorted:?}");
        for ((line, why), (at, words)) in sorted.iter().zip(expected) {
            assert!(*line == at && why.contains(words), "{line}: {why}; expected {at}: {words}");
        }
    }

    /// An empty list must not mean the default, which allows more than nothing.
    #[test]
    fn an_empty_list_of_permissions_is_a_fault() {
        for (key, words) in [("allow", "\"none\""), ("allow_listen", "\"none\""), ("allow_name", "all names")] {
            let faults = parsed(&format!("\n{key} = []\n")).err().unwrap();
            assert!(faults.len() == 1 && faults[0].0 == 2 && faults[0].1.contains(words), "{faults:?}");
            assert!(parsed(&format!("{key} = [\"none\"]")).is_ok());
        }
        assert!(parsed("local = []\nproxy_from = []").is_ok());
    }

    #[test]
    fn only_faults_that_are_told_are_looked_for_in_the_text() {
        let mut looked = 0;
        let faults = Faults::of(vec![(); 100_000], |()| {
            looked += 1;
            String::new()
        });
        assert_eq!((looked, faults.told.len(), faults.more), (FAULTS_MAX, FAULTS_MAX, 100_000 - FAULTS_MAX));
    }

    #[test]
    fn values_that_no_start_accepts_are_faults() {
        for (line, words) in [
            ("to = \"narrows://exa mple:1\"", "is not narrows://HOST:PORT"),
            ("to = \"narrows://a/b:1\"", "is not narrows://HOST:PORT"),
            ("shell = \"ssh 'x\"", "shell: "),
            ("shell = \"\"", "shell: "),
            ("metrics = \"nonsense\"", "metrics: 'nonsense' is not ADDR:PORT"),
        ] {
            let faults = parsed(line).err().unwrap_or_default();
            assert!(faults.len() == 1 && faults[0].1.contains(words), "{line}: {faults:?}");
        }
        for good in ["to = \"narrows://[fe80::1%eth0]:1\"", "to = \"narrows://a_b.c-d\"", "metrics = \"9710\""] {
            assert!(parsed(good).is_ok(), "{good}");
        }
    }

    #[test]
    fn what_is_no_toml_is_said_with_its_line() {
        for (text, line) in
            [("listen = ", 1), ("allow = []\nallow = []", 2), ("a b c", 1), ("limits = 1", 1), ("\n\n[x", 3)]
        {
            let faults = parsed(text).err().unwrap();
            assert_eq!(faults.iter().map(|f| f.0).min(), Some(line), "{text}: {faults:?}");
        }
        assert!(parsed("").unwrap().listen.is_none(), "an empty file says nothing");
    }

    #[test]
    fn settings_that_do_not_go_together_are_named() {
        let faults = |text: &str| {
            let given = Given::parse(text, Path::new("/")).ok().unwrap();
            given.named(inconsistent(&given.args)).err().map(|f| f.told).unwrap_or_default()
        };
        let both = faults("listen = \"[::]:1\"\nto = \"h\"\nlocal = \"1:a:1\"\n");
        assert!(both[0].starts_with(":2: give the other end") && both[1].starts_with(":3: local is for"), "{both:?}");
        for (text, words) in [
            ("", "name the other end"),
            ("to = \"narrows://h\"", "nothing to forward"),
            ("listen = \"[::]:1\"\ncert = \"a\"", "--cert needs --key and --ca"),
            ("listen = \"[::]:1\"\ncrl = \"a\"", "--crl needs --cert"),
            ("to = \"h\"\ndynamic = \"1\"\ntoken_out = \"a\"", "--token-out needs --listen"),
            ("listen = \"[::]:1\"\ncert=\"a\"\nkey=\"a\"\nca=\"a\"\nkey_file=\"a\"", "needs no --key-file"),
            ("listen = \"[::]:1\"\npolicy = \"storage\"", "only `balance`"),
            ("to = \"narrows://h\"\nlocal = \"1:a:1\"\nshell = \"ssh\"", "-e is for hosts"),
            ("listen = \"[::]:1\"\nallow = [\"none\", \"a:1\"]", "none allows nothing"),
            ("listen = \"[::]:1\"\nquiet = true\nverbose = true", "--quiet"),
        ] {
            let found = faults(text);
            assert!(found.len() == 1 && found[0].contains(words), "{text}: {found:?}");
        }
    }

    #[test]
    fn every_key_can_be_taken_compared_and_left_out() {
        let empty = Options::default();
        for key in known::all() {
            assert!((key.is_unset)(&empty) && (key.is_same)(&empty, &empty), "{}", key.name);
        }
        let mut names: Vec<&str> = known::all().map(|key| key.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KEYS.len() + LIMITS.len());
    }
}
