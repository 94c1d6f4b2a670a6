//! `narrows cp` whose ends are killed or interrupted at any moment: no partial file appears under
//! its name, and the same command completes the copy.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::common::copies::*;
use crate::common::relay::{Hold, Relay, await_that};
use crate::common::*;

/// Rounds per direction.
const ROUNDS: u32 = 100;
/// Length in bytes of the large file: long enough to be sent in chunks if an earlier state exists.
const LARGE: usize = 3 << 20;

/// A remote shell that reports the server's process id.
fn told_shell(folder: &Path) -> PathBuf {
    let path = folder.join("shell");
    let line = format!("echo $$ > '{0}.new'; mv '{0}.new' '{0}'", folder.join("server").display());
    fs::write(&path, format!("#!/bin/sh\nshift\n{line}\nexec $*\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// The files that are rewritten between copies: small ones in several folders, and a large one.
fn changing(a: &Path) -> Vec<PathBuf> {
    let small = (0..40).map(|i| a.join(["", "a", "a/b"][i % 3]).join(format!("small {i}")));
    small.chain([a.join("a/large")]).collect()
}

fn make_source(a: &Path) {
    make_tree(a);
    for (i, path) in changing(a).iter().enumerate() {
        fs::write(path, random(if path.ends_with("large") { LARGE } else { 500 + 1500 * i })).unwrap();
    }
    fs::hard_link(a.join("small 0"), a.join("a/linked")).unwrap();
}

fn change_source(a: &Path, version: u64) {
    for path in changing(a) {
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&version.to_le_bytes(), 100).unwrap();
        if path.ends_with("large") {
            // Changes a quarter of it, so that the transfer takes time.
            file.write_all_at(&random(LARGE / 4)[version as usize..], version % 3 * (LARGE as u64 / 4)).unwrap();
        }
    }
}

/// Every state that each changing file ever had at the source.
#[derive(Default)]
struct States(HashMap<PathBuf, Vec<u64>>);

impl States {
    fn add(&mut self, a: &Path) {
        for path in changing(a) {
            let state = sum(&fs::read(&path).unwrap());
            self.0.entry(path.strip_prefix(a).unwrap().into()).or_default().push(state);
        }
    }

    /// Asserts that every file under its final name is complete.
    fn check(&self, b: &Path) {
        for (path, states) in &self.0 {
            if let Ok(content) = fs::read(b.join(path)) {
                assert!(states.contains(&sum(&content)), "{path:?} is no state that it ever had");
            }
        }
    }
}

fn is_alive(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    stat.is_ok_and(|s| !s.contains(") Z "))
}

fn kill_in_rounds(pull: bool) {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    make_source(&a);
    let shell = told_shell(home.path());
    // The name of the large file's temporary file.
    let partial = b.join("a").join(partial_name("large", ""));
    let mut states = States::default();
    states.add(&a);
    let args: [OsString; 2] =
        if pull { [remote(&a.join("")), b.clone().into()] } else { [a.join("").into(), remote(&b)] };
    let (mut completed, mut resumed, mut x) = (0, 0, 88_172_645_463_325_252u64);
    let mut whole = Duration::from_millis(100);
    // When the kills hit depends on the load of the machine: adds rounds until both outcomes have
    // occurred.
    for round in 0..8 * ROUNDS {
        if round >= ROUNDS && completed > 0 && resumed > 0 {
            break;
        }
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let _ = fs::remove_file(home.path().join("server"));
        let begun = Instant::now();
        let mut client = cp_command(home.path(), &shell).arg("-r").args(&args).spawn().unwrap();
        let moment = whole.mul_f64((x >> 40) as f64 / f64::from(1 << 24));
        while begun.elapsed() < moment && client.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let told = fs::read_to_string(home.path().join("server")).unwrap_or_default();
        let server = told.trim().parse().ok().and_then(Pid::from_raw);
        if round % 2 == 0
            && let Some(server) = server
        {
            let _ = kill_process(server, Signal::KILL);
        } else {
            let _ = client.kill();
        }
        let output = finish(client);
        if let Some(server) = server {
            await_that("the server to end", || !is_alive(server));
        }
        states.check(&b);
        // Where no copy completes before its kill, as under load, later kills come later.
        if output.status.code() != Some(0) {
            whole = whole.mul_f64(1.02);
        }
        match output.status.code() {
            None => {}
            Some(0) => {
                completed += 1;
                whole = (whole + begun.elapsed()) / 2;
                assert_eq!(snapshot(&b), snapshot(&a), "{pull} {round}");
                change_source(&a, completed);
                states.add(&a);
            }
            status => {
                assert_eq!(status, Some(5), "{pull} {round}: {}", stderr(&output));
                assert!(stderr(&output).contains("run the same command again"), "{}", stderr(&output));
            }
        }
        unlock(&b);
        resumed += u32::from(fs::metadata(&partial).is_ok_and(|m| m.len() > 256 << 10));
    }
    let output = finish(cp_command(home.path(), &shell).arg("-r").args(&args).spawn().unwrap());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(snapshot(&b), snapshot(&a));
    assert!(completed > 0 && resumed > 0, "{completed} were completed, {resumed} killed inside the large file");
    [a, b].iter().for_each(|folder| unlock(folder));
}

#[test]
fn a_push_that_is_killed_at_any_moment_is_completed_by_the_same_command() {
    kill_in_rounds(false);
}

#[test]
fn a_pull_that_is_killed_at_any_moment_is_completed_by_the_same_command() {
    kill_in_rounds(true);
}

/// Interrupts a copy in the middle of a long file, and completes it. `all`: as a terminal does, the remote
/// shell too.
fn interrupt(pull: bool, all: bool) {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    let content = random(40 << 20);
    fs::write(&a, &content).unwrap();
    let middle = 12 << 20;
    let relay = Relay::new(home.path(), if pull { Hold::Down(middle) } else { Hold::Up(middle) });
    let args: [OsString; 2] = if pull { [remote(&a), b.clone().into()] } else { [a.clone().into(), remote(&b)] };
    let mut copy = cp_command(home.path(), &relay.shell());
    copy.args(&args).process_group(0);
    let partial = home.path().join(partial_name("b", ""));
    let kept = || fs::metadata(&partial).map_or(0, |m| m.len());
    let stands = |_: &Child| {
        relay.await_held();
        await_that("the storing end to take what came", || kept() > middle / 2);
    };
    let output = relay.run(copy, stands, |client| match all {
        true => kill_process_group(Pid::from_child(client), Signal::INT).unwrap(),
        false => signal(client, "-INT"),
    });
    assert_eq!(output.status.signal(), Some(2), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("narrows: interrupted; run the same command again to resume\n"), "{said}");
    assert!(!said.contains("lost") && !said.contains("broken"), "{said}");
    await_that("the server to end", || relay.server().is_none_or(|server| !is_alive(server)));
    assert!(kept() > middle / 2 && !b.exists(), "what came is kept under another name");
    let args = [OsStr::new("--json"), &args[0], &args[1]];
    let json = json(&cp(home.path(), &args));
    assert!(fs::read(&b).unwrap() == content);
    assert!(json["wire_bytes"].as_u64().unwrap() < content.len() as u64 - middle / 2, "{json}");
    assert_eq!(partials(home.path()), Vec::<PathBuf>::new());
}

#[test]
fn a_push_that_is_interrupted_keeps_what_came() {
    interrupt(false, false);
}

#[test]
fn a_pull_that_is_interrupted_keeps_what_came() {
    interrupt(true, false);
}

#[test]
fn a_terminal_that_interrupts_the_remote_shell_too_is_no_lost_link() {
    interrupt(false, true);
    interrupt(true, true);
}

/// Cuts off a copy that resumes an earlier one, after `behind` bytes on the link. Returns the bytes
/// kept at the target, and those that the next copy need not send.
fn cut_off_again(pull: bool, behind: u64, cut: impl FnOnce(&Child, Option<Pid>)) -> (u64, u64) {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    let content = random(40 << 20);
    fs::write(&a, &content).unwrap();
    leave_partial(&home.path().join(partial_name("b", "")), &content[..20 << 20]);
    let partial = partial_name("b", "").trim_end_matches(".partial").to_owned();
    let longest = || {
        let own = |p: &PathBuf| p.file_name().unwrap().to_string_lossy().starts_with(&partial);
        entries(home.path()).iter().filter(|p| own(p)).filter_map(|p| Some(p.metadata().ok()?.len())).max().unwrap_or(0)
    };
    let relay = Relay::new(home.path(), if pull { Hold::Down(behind) } else { Hold::Up(behind) });
    let args: [OsString; 2] = if pull { [remote(&a), b.clone().into()] } else { [a.clone().into(), remote(&b)] };
    let mut copy = cp_command(home.path(), &relay.shell());
    copy.args(&args);
    let stands = |_: &Child| {
        relay.await_held();
        // Waits until the receiver has taken what passed.
        std::thread::sleep(Duration::from_millis(300));
    };
    relay.run(copy, stands, |client| cut(client, relay.server()));
    await_that("the server to end", || relay.server().is_none_or(|server| !is_alive(server)));
    let kept = longest();
    let output = cp(home.path(), &[OsStr::new("--json"), &args[0], &args[1]]);
    let wire = json(&output)["wire_bytes"].as_u64().unwrap();
    assert!(fs::read(&b).unwrap() == content);
    assert_eq!(partials(home.path()), Vec::<PathBuf>::new());
    (kept, content.len() as u64 - wire)
}

#[test]
fn a_copy_that_is_cut_off_again_loses_nothing_of_what_was_there() {
    let kill = |client: &Child, server: Option<Pid>| {
        signal(client, "-KILL");
        server.map(|server| kill_process(server, Signal::KILL));
    };
    for pull in [false, true] {
        // After the chunks arrived, but no content.
        let (kept, spared) = cut_off_again(pull, 160 << 10, kill);
        assert!(kept >= 20 << 20 && spared > 19 << 20, "{pull}: {kept} kept, {spared} spared");
        // When more than before has arrived.
        let (kept, spared) = cut_off_again(pull, 8 << 20, kill);
        assert!(kept >= 20 << 20 && spared > 19 << 20, "{pull}: {kept} kept, {spared} spared");
        let (kept, spared) = cut_off_again(pull, 8 << 20, |client, _| signal(client, "-INT"));
        assert!(kept > 24 << 20 && spared > 23 << 20, "{pull}: {kept} kept, {spared} spared");
    }
}

#[test]
fn a_copy_on_one_host_that_is_interrupted_says_so_and_no_more() {
    let home = home();
    let mut copy = narrows(home.path());
    copy.args(["cp", "-"]).arg(home.path().join("b")).stdin(Stdio::piped());
    let mut child = copy.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(&random(1 << 20)).unwrap();
    await_that("the storing end to begin", || !partials(home.path()).is_empty());
    signal(&child, "-INT");
    let output = finish(child);
    assert_eq!(output.status.signal(), Some(2));
    assert_eq!(stderr(&output), "narrows: interrupted\n");
    assert_eq!(partials(home.path()), Vec::<PathBuf>::new());
    drop(input);
}

#[test]
fn a_second_signal_ends_a_copy_that_is_stuck() {
    let home = home();
    fs::write(home.path().join("file"), "x").unwrap();
    let silent = home.path().join("silent");
    fs::write(&silent, "#!/bin/sh\nexec sleep 600\n").unwrap();
    fs::set_permissions(&silent, fs::Permissions::from_mode(0o755)).unwrap();
    // Nobody reads the program's messages, so it cannot even report the interruption.
    let (unread, full) = std::io::pipe().unwrap();
    rustix::fs::fcntl_setfl(&full, OFlags::NONBLOCK).unwrap();
    while (&full).write(&[0]).is_ok() {}
    rustix::fs::fcntl_setfl(&full, OFlags::empty()).unwrap();
    let mut copy = cp_command(home.path(), &silent);
    copy.arg(home.path().join("file")).arg(remote(Path::new("/x"))).stderr(full);
    let mut child = copy.spawn().unwrap();
    wait_until_signals_are_caught(&child);
    signal(&child, "-INT");
    std::thread::sleep(Duration::from_millis(2500));
    assert!(child.try_wait().unwrap().is_none(), "it is stuck");
    signal(&child, "-INT");
    let output = finish(child);
    assert_eq!(output.status.signal(), Some(2));
    drop(unread);
}
