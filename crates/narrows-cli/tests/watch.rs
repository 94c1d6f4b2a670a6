//! Watching of running processes: `status`, `top`, metrics, logs and traces, of tunnels, servers,
//! agents and copies that carry something meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use serde_json::Value;

use crate::common::copies::{cp_command, remote};
use crate::common::relay::{Hold, Relay};
use crate::common::*;

/// A process that runs until it is dropped, and the lines of its stdout and stderr.
struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (told, lines) = channel();
        let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        for stream in [Box::new(out) as Box<dyn Read + Send>, Box::new(err)] {
            let told = told.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let _ = told.send(line);
                }
            });
        }
        Self { child, lines }
    }

    /// What follows these words on the next line that has them.
    fn said(&self, words: &str) -> String {
        let begun = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(begun.elapsed());
            let line = self.lines.recv_timeout(left).unwrap_or_else(|e| panic!("{words}: {e}"));
            if let Some((_, rest)) = line.split_once(words) {
                return rest.trim().to_owned();
            }
        }
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Both ends of a tunnel to an echo, with metrics.
struct Tunnel {
    server: Process,
    client: Process,
    server_metrics: String,
    client_metrics: String,
    listening: String,
    target: u16,
}

impl Tunnel {
    fn start(home: &Path, more: &[&str]) -> Self {
        let (target, token) = (echo(), home.join("token"));
        // Within a host the link is so fast that nothing but raw blocks may pay.
        let more = [&["--policy", "fixed:zstd:level=1"], more].concat();
        let mut server = command(home);
        server.args(["tunnel", "--listen", "127.0.0.1:0", "--metrics", "0", "--token-out"]).arg(&token).args(&more);
        let server = Process::start(&mut server);
        let (address, server_metrics) = said_both(&server, "waiting for tunnels on ");
        wait_for(|| token.exists());
        let mut client = command(home);
        client.args([
            "tunnel",
            "-L",
            &format!("0:127.0.0.1:{target}"),
            &format!("narrows://{address}"),
            "--metrics",
            "0",
        ]);
        let client = Process::start(client.arg("--token-file").arg(&token).args(&more));
        let (listening, client_metrics) = said_both(&client, "-> ");
        let listening = listening.trim_end_matches(" ->").to_owned();
        Self { server, client, server_metrics, client_metrics, listening, target }
    }
}

/// The address after these words and that of the metrics, in whatever order they come.
fn said_both(process: &Process, words: &str) -> (String, String) {
    let (mut address, mut metrics) = (None, None);
    while address.is_none() || metrics.is_none() {
        let line = process.lines.recv_timeout(PATIENCE).unwrap();
        let line = line.trim_start_matches("narrows: ");
        if let Some(rest) = line.strip_prefix("metrics on http://") {
            metrics = Some(rest.trim_end_matches("/metrics").to_owned());
        } else if let Some((before, after)) = line.split_once(words) {
            address = Some(if words == "-> " { before.trim() } else { after.trim() }.to_owned());
        }
    }
    (address.unwrap(), metrics.unwrap())
}

fn command(home: &Path) -> Command {
    let mut command = narrows(home);
    command.env("XDG_STATE_HOME", home).env_remove("NARROWS_TOKEN").env_remove("NARROWS_LOG");
    command
}

/// A server that sends back what it gets; its port.
fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut socket in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(n @ 1..) = socket.read(&mut buffer) {
                    if socket.write_all(&buffer[..n]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

fn exchange(socket: &mut TcpStream, sent: &[u8]) {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut writer, copy) = (socket.try_clone().unwrap(), sent.to_vec());
    let writing = std::thread::spawn(move || writer.write_all(&copy).unwrap());
    let mut got = vec![0; sent.len()];
    socket.read_exact(&mut got).unwrap();
    writing.join().unwrap();
    assert!(got == sent);
}

fn wait_for(is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "it never happens");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn http(address: &str, request: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

fn scrape(address: &str) -> String {
    let answer = http(address, "GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("text/plain; version=0.0.4"), "{head}");
    body.to_owned()
}

/// Samples by name and labels, after checking every rule of the text format.
fn samples(page: &str) -> BTreeMap<String, f64> {
    let (mut samples, mut families) = (BTreeMap::new(), BTreeSet::new());
    let (mut name, mut kind) = (String::new(), String::new());
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (of, help) = rest.split_once(' ').unwrap();
            assert!(!help.is_empty() && families.insert(of.to_owned()), "{line}: twice, or without words");
            name = of.into();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (of, what) = rest.split_once(' ').unwrap();
            assert_eq!(of, name, "TYPE follows HELP");
            assert!(["counter", "gauge", "histogram"].contains(&what));
            assert_eq!(what == "counter", of.ends_with("_total"), "{of}");
            kind = what.into();
        } else {
            let (key, value) = line.rsplit_once(' ').unwrap();
            let value: f64 = value.replace("+Inf", "inf").parse().unwrap_or_else(|_| panic!("{line}"));
            let of = key.split('{').next().unwrap();
            let suffix = of.strip_prefix(&name).unwrap_or_else(|| panic!("{line} is not of {name}"));
            let known: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(known.contains(&suffix), "{line}");
            assert!(of.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{line}");
            assert!(kind != "counter" || value >= 0.0);
            assert!(samples.insert(key.to_owned(), value).is_none(), "{line}: twice");
        }
    }
    assert!(page.ends_with('\n'));
    samples
}

/// Names that a query can use.
fn names(page: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in page.lines() {
        match line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            Some((name, "histogram")) => names.extend(["_bucket", "_sum", "_count"].map(|s| format!("{name}{s}"))),
            Some((name, _)) => drop(names.insert(name.to_owned())),
            None => {}
        }
    }
    names
}

fn status(args: &[&str]) -> String {
    let output = finish_reading(narrows(Path::new("/nonexistent")).arg("status").args(args).spawn().unwrap());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// The document of a process, if it is there.
fn document(pid: i32) -> Option<Value> {
    let all: Value = serde_json::from_str(&status(&["--json"])).unwrap();
    all["processes"].as_array().unwrap().iter().find(|p| p["pid"] == pid).cloned()
}

#[test]
fn a_tunnel_is_scraped_while_it_carries() {
    let home = home();
    let tunnel = Tunnel::start(home.path(), &[]);
    let mut socket = TcpStream::connect(&tunnel.listening).unwrap();
    exchange(&mut socket, b"select 1");
    exchange(&mut socket, &text(3_000_000));
    for (address, up) in [(&tunnel.client_metrics, Some(1.0)), (&tunnel.server_metrics, None)] {
        let samples = samples(&scrape(address));
        let sample = |key: &str| *samples.get(key).unwrap_or_else(|| panic!("{key} of {samples:#?}"));
        for way in ["out", "in"] {
            let (raw, wire) = ("narrows_raw_bytes_total", "narrows_wire_bytes_total");
            let [raw, wire] = [raw, wire].map(|name| sample(&format!("{name}{{direction=\"{way}\"}}")));
            assert!(raw == 3_000_008.0 && wire > 1000.0 && wire < raw / 2.0, "{way}: {raw} raw, {wire} on the wire");
        }
        assert_eq!(sample("narrows_tunnel_flows_open"), 1.0);
        assert_eq!(sample("narrows_connections_open"), 1.0);
        assert_eq!(sample("narrows_tunnel_flows_opened_total"), 1.0);
        assert_eq!(sample("narrows_tunnel_sessions_open"), 1.0);
        assert!(sample("narrows_tunnel_carriers_open") >= 1.0);
        assert_eq!(sample("narrows_tunnel_connect_seconds_count"), 1.0);
        assert_eq!(samples.get("narrows_tunnel_up").copied(), up);
        let by_method =
            |name: &str| samples.range(format!("{name}{{")..format!("{name}|")).map(|(_, v)| v).sum::<f64>();
        let (frames, raw) = (by_method("narrows_method_frames_total"), by_method("narrows_method_raw_bytes_total"));
        assert!(frames >= 1.0 && raw > 2_900_000.0 && raw <= 3_000_008.0, "{frames} frames of {raw} bytes");
        assert!(sample("process_cpu_seconds_total") > 0.0 && sample("process_resident_memory_bytes") > 1e6);
    }
    drop(socket);
    // What has ended still counts, and its length is known.
    wait_for(|| samples(&scrape(&tunnel.client_metrics))["narrows_tunnel_flow_seconds_count"] == 1.0);
    let samples = samples(&scrape(&tunnel.client_metrics));
    assert_eq!(samples["narrows_tunnel_flows_open"], 0.0);
    assert_eq!(samples["narrows_raw_bytes_total{direction=\"out\"}"], 3_000_008.0);
    let open = http(&tunnel.client_metrics, "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n");
    assert!(open.contains("# TYPE narrows_wire_bytes counter\n") && open.ends_with("# EOF\n"));
}

#[test]
fn promtool_finds_no_fault() {
    if !narrows_test::has("promtool") {
        return;
    }
    let home = home();
    let tunnel = Tunnel::start(home.path(), &[]);
    exchange(&mut TcpStream::connect(&tunnel.listening).unwrap(), &text(300_000));
    for address in [&tunnel.client_metrics, &tunnel.server_metrics] {
        let mut command = Command::new("promtool");
        command.args(["check", "metrics"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = store_filter(&mut command, scrape(address).as_bytes());
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
        assert!(output.status.success() && said.trim().is_empty(), "{said}");
    }
}

#[test]
fn hostile_clients_of_the_page_stop_neither_it_nor_the_tunnel() {
    let home = home();
    let tunnel = Tunnel::start(home.path(), &[]);
    let mut socket = TcpStream::connect(&tunnel.listening).unwrap();
    let silent: Vec<_> = (0..200).filter_map(|_| TcpStream::connect(&tunnel.client_metrics).ok()).collect();
    // One that never reads, and some that send what is no request.
    for request in [&b"GET /metrics HTTP/1.1\r\n\r\n"[..], b"\x16\x03\x01", b"GET / HTTP/9\r\n\r\n", &[b'a'; 9000]] {
        let _ = TcpStream::connect(&tunnel.client_metrics).map(|mut s| s.write_all(request));
    }
    exchange(&mut socket, &text(1_000_000));
    drop(silent);
    wait_for(|| {
        let Ok(mut socket) = TcpStream::connect(&tunnel.client_metrics) else { return false };
        let _ = socket.set_read_timeout(Some(Duration::from_secs(2)));
        let mut answer = String::new();
        socket.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").is_ok()
            && socket.read_to_string(&mut answer).is_ok()
            && answer.starts_with("HTTP/1.1 200 OK")
    });
    let threads = fs::read_dir(format!("/proc/{}/task", tunnel.client.pid())).unwrap().count();
    assert!(threads < 80, "{threads} threads");
}

#[test]
fn status_lists_both_ends_of_a_tunnel() {
    let home = home();
    let tunnel = Tunnel::start(home.path(), &[]);
    let mut socket = TcpStream::connect(&tunnel.listening).unwrap();
    exchange(&mut socket, &text(500_000));
    for (pid, accepted) in [(tunnel.client.pid(), true), (tunnel.server.pid(), false)] {
        let document = document(pid).unwrap();
        assert_eq!((document["kind"].as_str(), document["version"].as_u64()), (Some("tunnel"), Some(1)));
        let flow = &document["connections"][0];
        assert_eq!(flow["accepted"], accepted);
        assert_eq!(flow["target"], format!("127.0.0.1:{}", tunnel.target));
        assert_eq!(flow["peer"], socket.local_addr().unwrap().to_string());
        assert_eq!(flow["outcome"], "compressed");
        assert_eq!((&flow["out"]["raw_bytes"], &flow["back"]["raw_bytes"]), (&500_000.into(), &500_000.into()));
        assert!(flow["out"]["wire_bytes"].as_u64().unwrap() < 250_000);
        assert!(flow["out"]["methods"][0]["name"].is_string());
        assert_eq!(document["totals"]["out_raw_bytes"], 500_000);
        assert!(document["metrics"].as_array().unwrap().iter().any(|m| m["name"] == "narrows_tunnel_flows_open"));
    }
    let text = status(&[]);
    assert!(text.contains(&format!("(tunnel {}): 1 live, 0 ended", tunnel.client.pid())), "{text}");
    assert!(text.contains(&format!("from {} to 127.0.0.1:{}", socket.local_addr().unwrap(), tunnel.target)), "{text}");
}

#[test]
fn a_server_and_a_copy_to_it_are_seen_while_it_lasts() {
    let home = home();
    let home = home.path();
    let (dir, token) = (home.join("served"), home.join("token"));
    fs::create_dir(&dir).unwrap();
    let mut server = command(home);
    server
        .args(["serve", "--listen", "127.0.0.1:0", "--metrics", "0", "--dir"])
        .arg(&dir)
        .arg("--token-out")
        .arg(&token);
    let server = Process::start(&mut server);
    let (mut address, mut metrics) = (None, None);
    while address.is_none() || metrics.is_none() {
        let line = server.lines.recv_timeout(PATIENCE).unwrap();
        if let Some((_, rest)) = line.split_once("metrics on http://") {
            metrics = Some(rest.trim_end_matches("/metrics").to_owned());
        } else if line.contains("serving /") {
            address = line.rsplit(' ').next().map(str::to_owned);
        }
    }
    let (address, metrics) = (address.unwrap(), metrics.unwrap());
    let mut copy = command(home);
    copy.args(["cp", "--policy", "fixed:zstd:level=1", "-", &format!("narrows://{address}/big"), "--token-file"])
        .arg(&token)
        .stdin(Stdio::piped());
    let mut copy = Process::start(&mut copy);
    let mut stdin = copy.child.stdin.take().unwrap();
    let data = text(4 << 20);
    stdin.write_all(&data).unwrap();
    stdin.flush().unwrap();
    let seen = |pid: i32, way: &str| {
        let document = document(pid)?;
        let copy = document["connections"].get(0)?.clone();
        (copy[way]["raw_bytes"].as_u64()? > 1 << 20).then_some((document, copy))
    };
    wait_for(|| seen(copy.pid(), "out").is_some() && seen(server.pid(), "back").is_some());
    let (of_copy, sent) = seen(copy.pid(), "out").unwrap();
    assert_eq!(
        (&of_copy["kind"], &sent["peer"], &sent["accepted"]),
        (&"cp".into(), &address.as_str().into(), &false.into())
    );
    assert!(sent["progress"]["bytes"].as_u64().unwrap() > 0 && of_copy["methods"][0]["frames"].as_u64().unwrap() > 0);
    let (of_server, stored) = seen(server.pid(), "back").unwrap();
    assert_eq!((&of_server["kind"], &stored["outcome"]), (&"serve".into(), &"stores".into()));
    let now = samples(&scrape(&metrics));
    assert_eq!((now["narrows_serve_copies_open"], now["narrows_connections_open"]), (1.0, 1.0));
    drop(stdin);
    assert!(copy.child.wait().unwrap().success());
    wait_for(|| samples(&scrape(&metrics))["narrows_serve_copies_open"] == 0.0);
    let later = samples(&scrape(&metrics));
    assert_eq!(later["narrows_serve_copies_ended_total{result=\"complete\"}"], 1.0);
    assert!(later["narrows_raw_bytes_total{direction=\"in\"}"] >= data.len() as f64);
    assert!(later["narrows_wire_bytes_total{direction=\"in\"}"] < data.len() as f64 / 2.0);
    assert!(document(copy.pid()).is_none(), "what has ended is not listed");
}

#[test]
fn a_copy_is_as_far_as_the_other_end_has_it() {
    const HELD_AFTER: u64 = 100_000;
    let home = home();
    let home = home.path();
    fs::write(home.join("a"), random(300_000)).unwrap();
    let relay = Relay::new(home, Hold::Up(HELD_AFTER));
    let mut copy = cp_command(home, &relay.shell());
    copy.args(["--policy", "fixed:store"]).arg(home.join("a")).arg(remote(&home.join("b")));
    let seen = |client: &Child| {
        let copy = document(Pid::from_child(client).as_raw_nonzero().get())?["connections"].get(0)?.clone();
        let figure = |of: &str, name: &str| copy[of][name].as_u64();
        Some((figure("progress", "bytes_total")?, figure("progress", "bytes")?, figure("out", "raw_bytes")?))
    };
    let meanwhile = |client: &Child| {
        // What waits is within the buffers of pipes.
        wait_for(|| seen(client).is_some_and(|(total, done, _)| (total, done) > (299_999, 0)));
        let (_, done, sent) = seen(client).unwrap();
        assert!(done <= HELD_AFTER && sent <= HELD_AFTER, "{done} {sent}");
    };
    let output = relay.run(copy, |_| relay.await_held(), meanwhile);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}

fn agent(home: &Path) -> (Process, String) {
    let mut agent = command(home);
    agent.args(["agent", "--metrics", "0", "--listen", &format!("127.0.0.3:{}", free_port())]);
    let agent = Process::start(&mut agent);
    let metrics = agent.said("metrics on http://").trim_end_matches("/metrics").to_owned();
    (agent, metrics)
}

#[test]
fn an_agent_is_seen() {
    let home = home();
    let (agent, metrics) = agent(home.path());
    let samples = samples(&scrape(&metrics));
    assert_eq!(samples["narrows_agent_supervisors_open"], 0.0);
    assert_eq!(samples["narrows_agent_gateway_refused_total"], 0.0);
    let document = document(agent.pid()).unwrap();
    assert_eq!((&document["kind"], document["connections"].as_array().unwrap().len()), (&"agent".into(), 0));
}

/// Metrics in the expressions of the dashboard.
fn metrics_in(expression: &str) -> BTreeSet<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = expression.split(|c: char| !word(c));
    words.filter(|w| w.starts_with("narrows_") || w.starts_with("process_")).map(str::to_owned).collect()
}

#[test]
fn the_dashboard_asks_for_what_is_there() {
    let home = home();
    let tunnel = Tunnel::start(home.path(), &[]);
    let (_agent, of_agent) = agent(home.path());
    let mut server = command(home.path());
    server.args(["serve", "--listen", "127.0.0.1:0", "--insecure", "--metrics", "0", "--dir"]).arg(home.path());
    let server = Process::start(&mut server);
    let of_server = server.said("metrics on http://").trim_end_matches("/metrics").to_owned();
    let mut there = BTreeSet::new();
    for address in [&tunnel.client_metrics, &tunnel.server_metrics, &of_agent, &of_server] {
        there.extend(names(&scrape(address)));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/grafana-narrows.json");
    let dashboard: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let mut asked = BTreeSet::new();
    let panels = dashboard["panels"].as_array().unwrap();
    for panel in panels {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            let metrics = metrics_in(expression);
            assert!(!metrics.is_empty(), "{expression}");
            let unknown: Vec<_> = metrics.iter().filter(|name| !there.contains(*name)).collect();
            assert!(unknown.is_empty(), "{}: {unknown:?}", panel["title"]);
            asked.extend(metrics);
        }
    }
    // What is exported is shown, but what is there for other uses.
    let unused = ["process_start_time_seconds", "process_open_fds"];
    let unseen: Vec<_> = there
        .iter()
        .filter(|name| !asked.contains(*name) && !unused.contains(&name.as_str()))
        .filter(|name| !name.ends_with("_seconds_sum") && !name.ends_with("_seconds_count"))
        .collect();
    assert!(unseen.is_empty(), "no panel shows {unseen:?}");
    let described = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/watching.md")).unwrap();
    let base =
        |name: &str| ["_bucket", "_sum", "_count"].iter().find_map(|s| name.strip_suffix(s)).unwrap_or(name).to_owned();
    let undescribed: Vec<_> = there.iter().map(|n| base(n)).filter(|n| !described.contains(&format!("`{n}"))).collect();
    assert!(undescribed.is_empty(), "docs/watching.md lacks {undescribed:?}");
    let ids: BTreeSet<_> = panels.iter().map(|p| p["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "numbers of panels are unique");
}

/// Every expression is PromQL, of which counters are asked for rates and gauges are not.
#[test]
fn the_dashboard_s_queries_are_sound() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/grafana-narrows.json");
    let dashboard: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let mut rules = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let (title, place) = (&panel["title"], &panel["gridPos"]);
        let side = |key: &str| place[key].as_u64().unwrap();
        assert!(side("w") > 0 && side("h") > 0 && side("x") + side("w") <= 24, "{title}");
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "$datasource", "{title}");
        assert!(panel["description"].as_str().is_some_and(|text| text.ends_with('.')), "{title}");
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title}");
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            for metric in metrics_in(expression) {
                let is_counter = metric.ends_with("_total") || metric.ends_with("_bucket");
                assert_eq!(is_counter, expression.contains(&format!("rate({metric}{{")), "{title}: {metric}");
            }
            assert!(expression.contains("job=~\"$job\", instance=~\"$instance\""), "{title}: {expression}");
            let expression = expression.replace("$__rate_interval", "5m");
            rules.push(serde_json::json!({ "record": format!("test:{}", rules.len()), "expr": expression }));
        }
    }
    assert!(rules.len() > 40);
    if !narrows_test::has("promtool") {
        return;
    }
    let home = home();
    let file = home.path().join("rules.yml");
    // JSON is YAML.
    let all = serde_json::json!({ "groups": [{ "name": "dashboard", "rules": rules }] });
    fs::write(&file, all.to_string()).unwrap();
    let output = Command::new("promtool").args(["check", "rules"]).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
}

#[test]
fn top_prints_a_frame() {
    let home = home();
    let tunnel = Tunnel::start(home.path(), &[]);
    let mut socket = TcpStream::connect(&tunnel.listening).unwrap();
    exchange(&mut socket, &text(500_000));
    let top = |args: &[&str]| {
        let mut command = narrows(home.path());
        command.args(["top", "-d", "0.3"]).args(args).env("LC_ALL", "C.UTF-8");
        let child = command.spawn().unwrap();
        // Something moves while it looks.
        exchange(&mut socket.try_clone().unwrap(), &text(500_000));
        let output = finish_reading(child);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let filter = format!("{}/", tunnel.client.pid());
    let text = top(&["--once", "--filter", &filter]);
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("narrows top  ") && lines[0].ends_with(&format!("every 0.3 s  /{filter}")), "{text}");
    for (line, label) in lines[1..6].iter().zip(["goodput ", "wire ", "ratio ", "CPU ", "methods "]) {
        assert!(line.starts_with(label), "{text}");
    }
    assert!(lines[7].starts_with("PID/ID     FLOW ") && lines[7].ends_with("AGE"), "{text}");
    assert_eq!(lines.len(), 9, "{text}");
    assert!(
        lines[8].starts_with(&format!("{filter}1 ")) && lines[8].contains(&format!("127.0.0.1:{}", tunnel.target)),
        "{text}"
    );
    assert!(text.lines().all(|line| line.chars().count() <= 80 && !line.contains('\u{1b}')), "{text}");
    let text = top(&["--batch", "-n", "2", "--processes", "--ascii", "--width", "120", "--filter", "tunnel -L"]);
    assert!(text.is_ascii() && text.matches("narrows top").count() == 2, "{text}");
    assert!(
        text.contains(&format!("{:>7} tunnel -L 0:127.0.0.1:{} narrows://", tunnel.client.pid(), tunnel.target)),
        "{text}"
    );
}

#[test]
fn wrong_usage_of_top_and_status_is_said() {
    let home = home();
    for (args, words) in [
        (&["top"][..], "needs a terminal"),
        (&["top", "--once", "--batch"], "cannot be used with"),
        (&["top", "-d", "0"], "0.1 to 60"),
        (&["status", "--trace", "x"], "PID/ID"),
        (&["status", "--trace=-1/2"], "PID/ID"),
        (&["status", "--seconds", "3"], "--trace"),
        (&["tunnel", "--listen", "127.0.0.1:0", "--metrics", "x"], "--metrics"),
        (&["tunnel", "--listen", "127.0.0.1:0", "--log-level", "loud"], "--log-level"),
    ] {
        let output = finish(command(home.path()).args(args).spawn().unwrap());
        assert_eq!(code(&output), 2, "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{args:?}: {}", stderr(&output));
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = finish(
        command(home.path()).args(["tunnel", "--listen", "127.0.0.1:0", "--metrics", &address]).spawn().unwrap(),
    );
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains(&format!("cannot serve metrics on {address}")), "{}", stderr(&output));
    let output = finish(command(home.path()).args(["status", "--trace", "999999999/1"]).spawn().unwrap());
    assert_eq!(code(&output), 1, "{}", stderr(&output));
}

const TERMINAL: &str = r#"
import os, pty, select, signal, struct, sys, termios, fcntl, time
program, end = sys.argv[1], sys.argv[2]
master, slave = pty.openpty()
fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 80, 0, 0))
before = termios.tcgetattr(slave)
pid = os.fork()
if pid == 0:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for fd in (0, 1, 2): os.dup2(slave, fd)
    os.close(master); os.close(slave)
    os.environ.update(TERM='xterm-256color', LC_ALL='C.UTF-8')
    if end == 'nocolor': os.environ['NO_COLOR'] = '1'
    if end == 'gone':
        # As under a shell, which leads the session.
        signal.signal(signal.SIGHUP, lambda *_: None)
        top = os.fork()
        if top:
            _, status = os.waitpid(top, 0)
            os._exit(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 99)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.execv(program, [program, 'top', '-d', '0.2'])
seen = b''
def read(seconds):
    global seen
    until = time.time() + seconds
    while time.time() < until:
        if select.select([master], [], [], 0.05)[0]:
            try: seen += os.read(master, 65536)
            except OSError: return
def until(what, seconds=30):
    begun = time.time()
    while what not in seen and time.time() < begun + seconds: read(0.1)
    assert what in seen, (what, seen[-2000:])
until(b'PID/ID')
# Clearing behind a full line would take its last column.
assert all(part[-1:] in b'HJ' for part in seen.split(b'\x1b[K')[:-1]), seen
if end == 'gone':
    os.close(slave); os.close(master)
    begun = time.time()
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done: break
        assert time.time() < begun + 30, 'it goes on without a terminal'
        time.sleep(0.05)
    print('signal', os.WEXITSTATUS(status))
    sys.exit()
during = termios.tcgetattr(slave)
assert during[3] & termios.ICANON == 0, 'raw while it runs'
assert b'\x1b[?1049h' in seen and b'\x1b[?25l' in seen
seen = b''
os.write(master, b'?'); until(b'reverse the order'); os.write(master, b' ')
seen = b''
os.write(master, b'\t'); until(b'MEMORY')
fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack('HHHH', 10, 40, 0, 0)); os.kill(pid, signal.SIGWINCH); read(0.5)
if end in ('q', 'nocolor'): os.write(master, b'q')
elif end == 'ctrl-c': os.write(master, b'\x03')
else: os.kill(pid, getattr(signal, end))
begun = time.time()
while True:
    read(0.1)
    done, status = os.waitpid(pid, os.WNOHANG)
    if done: break
    assert time.time() < begun + 30, 'it hangs'
read(0.2)
assert b'\x1b[?1049l' in seen and b'\x1b[?25h' in seen, seen[-500:]
after = termios.tcgetattr(slave)
assert after == before, 'the terminal is as it was'
if end == 'nocolor': assert b'\x1b[38;' not in seen, seen
print('signal', os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, 'code', os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1)
"#;

#[test]
fn top_gives_the_terminal_back_however_it_ends() {
    if !narrows_test::has("python3") {
        return;
    }
    for (end, expected) in [
        ("q", "signal 0 code 0"),
        ("ctrl-c", "signal 0 code 0"),
        ("nocolor", "signal 0 code 0"),
        ("SIGTERM", "signal 15 code -1"),
        ("SIGHUP", "signal 1 code -1"),
        ("gone", "signal 1"),
    ] {
        let mut command = Command::new("python3");
        command.args(["-c", TERMINAL, env!("CARGO_BIN_EXE_narrows"), end]);
        let output = finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert_eq!(said, expected, "{end}: {}", stderr(&output));
    }
}

/// Whoever takes the name of a process before it starts does not hide it.
#[test]
fn a_process_is_seen_although_another_one_has_its_name() {
    let home = home();
    let serving = home.path().join("go");
    // Its number is known before it begins.
    let script = format!("while [ ! -e {0} ]; do sleep 0.05; done; exec \"$@\"", serving.display());
    let narrows = command(home.path());
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh"]).arg(narrows.get_program());
    narrows.get_envs().for_each(|(name, value)| {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    });
    let token = home.path().join("token");
    let process = Process::start(command.args(["tunnel", "--listen", "127.0.0.1:0", "--token-out"]).arg(&token));
    let user = rustix::process::geteuid().as_raw();
    let taken = ["status", "trace"].map(|kind| {
        let name = format!("narrows-{kind}:{user}:{}", process.pid());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
        std::os::unix::net::UnixListener::bind_addr(&address).unwrap()
    });
    fs::write(&serving, "").unwrap();
    process.said("waiting for tunnels on ");
    wait_for(|| document(process.pid()).is_some());
    // What the other one would say to a trace is not asked for: the process itself has no such flow.
    let flow = format!("{}/1", process.pid());
    let output = finish(self::narrows(home.path()).args(["status", "--trace", &flow]).spawn().unwrap());
    assert!(code(&output) == 2 && stderr(&output).contains("has no flow"), "{}", stderr(&output));
    drop(taken);
}

#[test]
fn a_flow_is_traced_on_demand() {
    let home = home();
    let tunnel = Tunnel::start(home.path(), &[]);
    let mut socket = TcpStream::connect(&tunnel.listening).unwrap();
    exchange(&mut socket, b"hello");
    let id = document(tunnel.client.pid()).unwrap()["connections"][0]["id"].clone();
    let flow = format!("{}/{id}", tunnel.client.pid());
    let mut command = narrows(home.path());
    let tracing = Process::start(command.args(["status", "--trace", &flow, "--seconds", "60", "--json"]));
    let first: Value = serde_json::from_str(&tracing.lines.recv_timeout(PATIENCE).unwrap()).unwrap();
    assert_eq!((&first["event"], &first["id"]), (&"flow".into(), &id));
    exchange(&mut socket, b"short");
    exchange(&mut socket, &text(1_000_000));
    drop(socket);
    let (mut events, mut raw, mut wire) = (BTreeMap::<String, usize>::new(), 0, 0);
    // It ends with its flow, long before the time is over.
    while let Ok(line) = tracing.lines.recv_timeout(PATIENCE) {
        let event: Value = serde_json::from_str(&line).unwrap();
        *events.entry(event["event"].as_str().unwrap().into()).or_default() += 1;
        if event["event"] == "encoded" {
            raw += event["raw_len"].as_u64().unwrap();
            wire += event["wire_len"].as_u64().unwrap();
        }
        if event["event"] == "choose" {
            assert!(event["method"].is_string() && event["rate_bytes_per_s"].is_number(), "{line}");
        }
    }
    assert!(events.contains_key("raw") && events["choose"] >= 1 && events["encoded"] >= 1, "{events:?}");
    assert!(raw > 900_000 && wire < raw / 2, "{raw} to {wire}");
    let output = finish(narrows(home.path()).args(["status", "--trace", &flow]).spawn().unwrap());
    assert_eq!(code(&output), 2, "it is over: {}", stderr(&output));
    assert!(stderr(&output).contains("has no flow"), "{}", stderr(&output));
}

#[test]
fn a_log_has_lines_with_parts_and_numbers() {
    let home = home();
    let (target, token) = (echo(), home.path().join("token"));
    let mut server = command(home.path());
    server.args(["tunnel", "--listen", "127.0.0.1:0", "--log", "json", "--token-out"]).arg(&token);
    let server = Process::start(&mut server);
    let next = |process: &Process, part: &str, message: &str| {
        loop {
            let line = process.lines.recv_timeout(PATIENCE).unwrap_or_else(|e| panic!("{message}: {e}"));
            let event: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line}: {e}"));
            assert!(event["timestamp"].is_string() && event["level"].is_string(), "{line}");
            if event["target"] == part && event["message"] == message {
                return event;
            }
        }
    };
    let address = next(&server, "tunnel", "waiting for tunnels")["address"].as_str().unwrap().to_owned();
    wait_for(|| token.exists());
    let mut client = command(home.path());
    client.args(["tunnel", "-L", &format!("0:127.0.0.1:{target}"), &format!("narrows://{address}"), "--token-file"]);
    client.arg(&token).env("NARROWS_LOG", "warn,tunnel=info").args(["--log", "json"]);
    let client = Process::start(&mut client);
    let listening = next(&client, "tunnel", "listening")["from"].as_str().unwrap().to_owned();
    let mut socket = TcpStream::connect(listening).unwrap();
    exchange(&mut socket, &text(100_000));
    let from = socket.local_addr().unwrap().to_string();
    drop(socket);
    let ended = next(&server, "flow", "ended");
    assert_eq!((&ended["from"], &ended["to"]), (&from.into(), &format!("127.0.0.1:{target}").into()));
    assert_eq!(
        (&ended["raw_in"], &ended["raw_out"], &ended["reason"]),
        (&100_000.into(), &100_000.into(), &"closed".into())
    );
    assert!(ended["flow"].as_u64().is_some() && ended["seconds"].is_number() && ended["level"] == "INFO");
    // The client's filter lets nothing of flows through.
    let rest: Vec<_> = client.lines.try_iter().collect();
    assert!(rest.iter().all(|line| !line.contains("\"target\":\"flow\"")), "{rest:?}");
    // As text, with the error that ends it.
    let mut command = command(home.path());
    let output = finish(
        command
            .args(["tunnel", "-L", "0:x:1", "narrows://127.0.0.1:1", "--log", "text", "--token-file"])
            .arg(&token)
            .spawn()
            .unwrap(),
    );
    let said = stderr(&output);
    assert_eq!(code(&output), 1, "{said}");
    assert!(said.lines().all(|line| line.starts_with("20")) && said.contains(" ERROR tunnel: "), "{said}");
}
