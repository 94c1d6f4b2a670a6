//! `narrows sync`: a mirror that asks before it removes.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};

use crate::common::copies::*;
use crate::common::world::*;
use crate::common::*;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

fn fill(world: &World, name: &str) {
    world.write("from", &["a", "sub/b"]);
    world.write(name, &["gone", "sub/gone too"]);
}

#[test]
fn a_mirror_is_made_in_every_way() {
    let world = World::new();
    for way in BOTH {
        let name = format!("to-{way:?}");
        fill(&world, &name);
        let run = |flags: &[&str]| finish(world.command(way, "sync", flags, &["from"], &name).spawn().unwrap());
        let before = snapshot(&world.path(&name));
        // Without a terminal nobody can be asked.
        let output = run(&[]);
        assert!(code(&output) == 2 && stderr(&output).contains("give --yes"), "{}", stderr(&output));
        let output = run(&["-n"]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(code(&output) == 0 && said.contains("deleting gone") && said.contains("sub/b"), "{said}");
        assert_eq!(snapshot(&world.path(&name)), before);
        let output = run(&["--yes"]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert_eq!(world.names(&name), world.names("from"), "{way:?}");
    }
    for bad in [&["from"][..], &["from", "x", "y"], &["-", "x"]] {
        let output = finish(narrows(world.home.path()).arg("sync").args(bad).spawn().unwrap());
        assert_eq!(code(&output), 2, "{bad:?}: {}", stderr(&output));
    }
}

/// Runs it on a terminal, where `answer` is typed; returns the status and what was said.
fn on_terminal(world: &World, flags: &[&str], answer: &str) -> (i32, String) {
    on_terminal_by(world, Way::Local, flags, answer, |_| ())
}

/// The same; `meanwhile` happens once the question is asked. A signal that ends it is its negative status.
fn on_terminal_by(
    world: &World,
    way: Way,
    flags: &[&str],
    answer: &str,
    meanwhile: impl FnOnce(&mut Child),
) -> (i32, String) {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let other = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let mut command = world.command(way, "sync", flags, &["from"], "to");
    let stdin = Stdio::from(other.try_clone().unwrap());
    let mut child = command.stdin(stdin).stdout(Stdio::null()).stderr(Stdio::from(other)).spawn().unwrap();
    drop(command);
    let mut terminal = File::from(terminal);
    let mut meanwhile = Some(meanwhile);
    let (mut all, mut buf) = (Vec::new(), [0; 4096]);
    while let Ok(n @ 1..) = terminal.read(&mut buf) {
        all.extend_from_slice(&buf[..n]);
        if String::from_utf8_lossy(&all).contains("[y/N]")
            && let Some(meanwhile) = meanwhile.take()
        {
            meanwhile(&mut child);
            terminal.write_all(answer.as_bytes()).unwrap();
        }
    }
    let status = child.wait().unwrap();
    let status = status.code().unwrap_or_else(|| -status.signal().unwrap());
    (status, String::from_utf8_lossy(&all).into_owned())
}

#[test]
fn a_terminal_shows_what_goes_and_asks() {
    let world = World::new();
    let gone = |name: &str| !Path::new(&world.path("to")).join(name).exists();
    for (answer, flags, removes) in
        [("n\n", &[][..], false), ("\n", &[], false), ("y\n", &[], true), ("yes\n", &["-q"], true)]
    {
        fill(&world, "to");
        let (status, said) = on_terminal(&world, flags, answer);
        assert!(
            said.contains("  gone\r\n") && said.contains("sub/gone too") && said.contains("Remove these 2?"),
            "{said}"
        );
        assert_eq!(status, i32::from(!removes), "{said}");
        assert_eq!(gone("gone") && gone("sub/gone too"), removes, "{said}");
        // Without a yes nothing is copied either.
        assert_eq!(!gone("a"), removes, "{said}");
        fs::remove_dir_all(world.path("to")).unwrap();
    }
    // Nothing goes, so nothing is asked.
    world.write("to", &["a"]);
    let (status, said) = on_terminal(&world, &[], "");
    assert!(status == 0 && !said.contains("Remove"), "{said}");
    // Many are counted.
    let names: Vec<String> = (0..50).map(|i| format!("gone{i}")).collect();
    world.write("to", &names.iter().map(String::as_str).collect::<Vec<_>>());
    let (status, said) = on_terminal(&world, &["--max-delete", "100"], "y\n");
    assert!(status == 0 && said.contains("and 30 more") && said.contains("Remove these 50?"), "{said}");
}

/// The list that was agreed to is what is removed, whoever stores.
#[test]
fn what_changes_after_the_question_stops_the_removal() {
    let world = World::new();
    for way in BOTH {
        // As many as were shown, but others.
        fill(&world, "to");
        let to = world.path("to");
        let exchange = |_: &mut Child| {
            fs::remove_file(to.join("gone")).unwrap();
            fs::write(to.join("precious"), "").unwrap();
        };
        let (status, said) = on_terminal_by(&world, way, &[], "y\n", exchange);
        assert!(status == 3 && said.contains("not what was shown"), "{way:?}: {said}");
        assert!(to.join("precious").exists() && to.join("sub/gone too").exists(), "{way:?}");
        // Names of any bytes are the same names at both ends.
        fs::write(to.join("odd\n\\n\u{202e}"), "").unwrap();
        fs::create_dir(to.join("folder")).unwrap();
        let (status, said) = on_terminal_by(&world, way, &[], "y\n", |_| ());
        assert_eq!(status, 0, "{way:?}: {said}");
        assert_eq!(world.names("to"), world.names("from"), "{way:?}");
        fs::remove_dir_all(&to).unwrap();
    }
}

/// Who interrupts the question and then types has not agreed.
#[test]
fn an_interrupted_question_is_no_and_ends_the_program() {
    let world = World::new();
    for way in BOTH {
        for (signal, number) in [(Signal::INT, 2), (Signal::TERM, 15)] {
            fill(&world, "to");
            let interrupt = |child: &mut Child| {
                kill_process(Pid::from_child(child), signal).unwrap();
                ended(child);
            };
            let (status, said) = on_terminal_by(&world, way, &[], "y\n", interrupt);
            assert_eq!(status, -number, "{way:?}: {said}");
            assert!(world.path("to").join("gone").exists(), "{way:?}");
            fs::remove_dir_all(world.path("to")).unwrap();
        }
    }
}
