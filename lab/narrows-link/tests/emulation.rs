//! Real links, where this machine allows them; elsewhere each test is skipped (`narrows_test`).

use std::io::{Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use narrows_link::{Backend, Emulation, Error, LinkCounters, Profile, Side};
use narrows_test::{PATIENCE, lacks, skip};

#[track_caller]
fn start(profile: &str, backend: Backend) -> Option<Emulation> {
    match Emulation::start_with(&profile.parse::<Profile>().unwrap(), backend) {
        Ok(link) => Some(link),
        Err(Error::Missing(why)) => {
            skip(why);
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn counters_when(link: &Emulation, done: impl Fn(&LinkCounters) -> bool) -> LinkCounters {
    let begun = Instant::now();
    loop {
        let counters = link.counters();
        if done(&counters) {
            return counters;
        }
        assert!(begun.elapsed() < PATIENCE, "{counters:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn packets_pass_in_both_directions_and_are_counted() {
    for backend in [Backend::Tun, Backend::Packet] {
        let Some(link) = start("rate=100mbit,delay=1ms", backend) else { continue };
        let client = link.probe_socket(Side::Client).unwrap();
        let server = link.probe_socket(Side::Server).unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut buf = [0; 2000];
        for i in 0..20u8 {
            client.send_to(&[i; 1000], server.local_addr().unwrap()).unwrap();
            let (len, from) = server.recv_from(&mut buf).unwrap();
            assert_eq!((len, buf[0], from), (1000, i, client.local_addr().unwrap()));
            server.send_to(&buf[..10], from).unwrap();
            assert_eq!(client.recv_from(&mut buf).unwrap().0, 10);
        }
        let counters = counters_when(&link, |c| c.down.packets >= 20);
        // The headers of IP and UDP are 28 bytes.
        assert_eq!((counters.up.packets, counters.up.bytes), (20, 20 * 1028), "{backend}");
        assert_eq!((counters.down.packets, counters.down.bytes), (20, 20 * 38), "{backend}");
        assert!(link.is_alive());
    }
}

#[test]
fn a_link_that_loses_everything_delivers_nothing_until_it_is_changed() {
    let Some(link) = start("loss=100%", Backend::Auto) else { return };
    let client = link.probe_socket(Side::Client).unwrap();
    let server = link.probe_socket(Side::Server).unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    for _ in 0..10 {
        client.send_to(b"lost", server.local_addr().unwrap()).unwrap();
    }
    counters_when(&link, |c| c.up.lost == 10);
    link.set(&"none".parse().unwrap()).unwrap();
    let mut buf = [0; 10];
    // The pump may apply the change after the first packet; later packets arrive in any case.
    let begun = Instant::now();
    server.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    loop {
        client.send_to(b"here", server.local_addr().unwrap()).unwrap();
        if server.recv_from(&mut buf).is_ok() {
            break;
        }
        assert!(begun.elapsed() < PATIENCE);
    }
    assert_eq!(&buf[..4], b"here");
}

#[test]
fn commands_run_at_their_sides_and_reach_each_other() {
    let Some(link) = start("rate=200mbit,delay=1ms,loss=0.1%", Backend::Auto) else { return };
    // Device address and environment, printed by programs that every Linux has.
    let inside = |side| {
        let mut command = link.command(side, "sh");
        command.args(["-c", "cat /proc/net/fib_trie; echo $NARROWS_LINK_SERVER $NARROWS_LINK_PROFILE"]);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let (client, server) = (inside(Side::Client), inside(Side::Server));
    assert!(client.contains(&link.address(Side::Client).to_string()), "{client}");
    assert!(server.contains(&link.address(Side::Server).to_string()), "{server}");
    assert!(client.contains("127.0.0.1"), "{client}");
    assert!(client.contains("10.77.0.2 rate=200mbit,delay=1ms,loss=0.1%"), "{client}");
    // Bash can open sockets; a test binary that runs itself would need its own arguments.
    if !std::process::Command::new("bash").args(["-c", "true"]).status().is_ok_and(|s| s.success()) {
        return lacks("bash");
    }
    let script = "exec 3<>/dev/tcp/$NARROWS_LINK_CLIENT/1; echo";
    let refused = link.command(Side::Server, "bash").args(["-c", script]).stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("refused"), "{text}");
}

#[test]
fn a_congestion_control_that_is_not_there_is_named() {
    if start("none", Backend::Auto).is_none() {
        return;
    }
    let profile: Profile = "none,congestion=nosuch".parse().unwrap();
    let error = Emulation::start(&profile).map(drop).unwrap_err().to_string();
    assert!(error.contains("cannot set the congestion control 'nosuch'"), "{error}");
}

#[test]
fn nothing_is_left_of_commands_when_the_link_is_dropped() {
    let Some(link) = start("none", Backend::Auto) else { return };
    let mut child = link.command(Side::Client, "sh");
    // A grandchild in a session of its own keeps the pipe open until it ends.
    child.args(["-c", "setsid sh -c 'echo up; sleep 600' & wait"]).stdout(Stdio::piped()).stdin(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut up = [0; 3];
    stdout.read_exact(&mut up).unwrap();
    drop(link);
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    assert!(!child.wait().unwrap().success());
    std::io::stdout().flush().unwrap();
}
