//! `narrows plan` from the command line: data, files of a site, forms of output, wrong usage.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(place.at("logs")).unwrap();
        fs::create_dir(place.at("noise")).unwrap();
        let mut state = 1u64;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        let words = ["link ", "block ", "of the ", "window ", "price ", "and\n"];
        for file in 0..4 {
            let text: String = (0..60_000).map(|_| words[draw() as usize % words.len()]).collect();
            fs::write(place.at("logs").join(file.to_string()), text).unwrap();
        }
        let noise: Vec<u8> = (0..300_000).map(|_| draw() as u8).collect();
        fs::write(place.at("noise/file"), noise).unwrap();
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// With a private cache, so that no calibration of this host is read.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_narrows"));
        command.arg("plan").args(args).env("XDG_CACHE_HOME", self.at("cache")).current_dir(self.folder.path());
        command
    }

    /// With few methods.
    fn run(&self, args: &[&str]) -> Output {
        self.command(&[&["--methods", "lz4,zstd:level=1,zstd:level=6"], args].concat()).output().unwrap()
    }

    fn good(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.good(&[args, &["--json"]].concat())).unwrap()
    }

    /// Fails with this status and one line, which contains the words.
    fn bad(&self, args: &[&str], status: i32, words: &str) {
        let output = self.run(args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{args:?}: {error}");
        assert!(error.contains(words), "{args:?}: {error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{error}");
        assert!(output.stdout.is_empty());
    }
}

fn rows<'a>(json: &'a Value, table: &str) -> &'a Vec<Value> {
    json["tables"][table]["rows"].as_array().unwrap_or_else(|| panic!("no table {table}"))
}

fn row<'a>(json: &'a Value, table: &str, key: &str, value: &str) -> &'a Value {
    rows(json, table).iter().find(|r| r[key] == value).unwrap_or_else(|| panic!("no {value} in {table}"))
}

#[test]
fn methods_are_measured_on_data_and_their_intervals_reach_the_tables() {
    let place = Place::new();
    let json = place.json(&["logs", "noise"]);
    let lz4 = row(&json, "methods", "method", "lz4");
    let ratio = &lz4["ratio"];
    let [low, value, high] = ["low", "value", "high"].map(|k| ratio[k].as_f64().unwrap());
    assert!(low <= value && value <= high && value > 1.1, "{ratio}");
    let of_class = |class: &str| rows(&json, "methods").iter().find(|r| r["class"] == class).unwrap();
    assert!(of_class("noise")["ratio"]["value"].as_f64().unwrap() < 1.01, "noise does not shrink");
    assert!(of_class("logs")["ratio"]["value"].as_f64().unwrap() > 2.0);
    let slow =
        rows(&json, "network").iter().find(|r| r["method"] == "  zstd:level=6" || r["method"] == "* zstd:level=6");
    let times = &slow.unwrap()["times_plain"];
    assert!(times["low"].as_f64() <= times["value"].as_f64() && times["value"].as_f64().unwrap() > 1.0, "{times}");
    for table in ["summary", "inputs", "thresholds", "multiplier", "file_system", "memory", "storage", "archive"] {
        assert!(!rows(&json, table).is_empty(), "{table}");
    }
}

#[test]
fn shares_weigh_the_classes_of_data() {
    let place = Place::new();
    let share = |logs: f64| {
        fs::write(place.at("site.toml"), format!("[work]\nshares = {{ logs = {logs}, noise = 1 }}\n")).unwrap();
        let json = place.json(&["--config", "site.toml", "logs", "noise"]);
        row(&json, "methods", "method", "zstd:level=6")["ratio"]["value"].as_f64().unwrap()
    };
    assert!(share(100.0) > 1.5 * share(0.01));
    fs::write(place.at("site.toml"), "[work]\nshares = { log = 1 }\n").unwrap();
    place.bad(&["--config", "site.toml", "logs"], 2, "work.shares has 'log', but the classes of the data are logs");
}

#[test]
fn data_that_does_not_shrink_is_best_left_alone() {
    let place = Place::new();
    let json = place.json(&["noise"]);
    assert!(rows(&json, "summary").iter().all(|r| r["answer"] == "none"), "{}", json["tables"]["summary"]);
    fs::write(place.at("byte"), "x").unwrap();
    assert!(place.good(&["byte"]).contains("In short"));
}

#[test]
fn a_terminal_of_100_columns_is_wide_enough_and_nothing_is_coloured() {
    let place = Place::new();
    for args in [&["logs"][..], &["--verbose", "logs"], &["--seed", "climate-2016", "-v"], &[]] {
        let text = place.good(args);
        assert!(!text.contains('\u{1b}'), "{args:?}");
        // Only the path may be longer.
        let wide: Vec<&str> = text.lines().filter(|l| l.chars().count() > 100).collect();
        assert!(wide.is_empty(), "{args:?}: {wide:?}");
    }
}

#[test]
fn the_file_that_init_writes_is_the_defaults() {
    let place = Place::new();
    assert!(place.good(&["--init"]).is_empty());
    let text = fs::read_to_string(place.at("site.toml")).unwrap();
    assert!(text.lines().filter(|l| l.starts_with('#')).count() > 30, "{text}");
    place.bad(&["--init"], 2, "site.toml is there already");
    assert_eq!(place.good(&["--init=-"]).trim_end(), text.trim_end());
    let (with, without) = (place.json(&["--config", "site.toml"]), place.json(&[]));
    assert_eq!(with["tables"]["inputs"], without["tables"]["inputs"]);
    assert_eq!(with["tables"]["storage"], without["tables"]["storage"]);
    // What was measured is in it too.
    place.good(&["--init=own.toml", "logs"]);
    let own = fs::read_to_string(place.at("own.toml")).unwrap();
    assert!(own.contains("name = \"zstd:level=6\"") && own.contains("class = \"logs\""), "{own}");
    let json = place.json(&["--config", "own.toml"]);
    assert!(json["about"].as_str().unwrap().contains("typed in the file"));
}

#[test]
fn a_mistake_in_the_file_is_one_line() {
    let place = Place::new();
    let cases: [(&[u8], &str); 9] = [
        (b"[storage]\nunit_disk_price = -1", "site.toml: storage.unit_disk_price is -1; it must be from 0"),
        (b"[storage]\nunit_disk_prise = 1", "did you mean unit_disk_price?"),
        (
            b"[[method]]\nname = \"a\"\nencode_mb_per_s = 1\ndecode_mb_per_s = 1\nratio = 0.5",
            "ratio is 0.5; it must be from 1",
        ),
        (b"[[link]]\nname = \"a\"\nrate_mbit_per_s = 0", "rate_mbit_per_s is 0"),
        (b"[node]\ncount = nan", "node.count is NaN"),
        (b"[node\ncount = 1", "site.toml: line 1"),
        (b"\xff\xfe\x00", "it is not text in UTF-8"),
        (b"currency = \"a\\u0007b\"", "invisible letters"),
        (&[b' '; (1 << 20) + 1], "longer than 1 MiB"),
    ];
    for (text, words) in cases {
        fs::write(place.at("site.toml"), text).unwrap();
        place.bad(&["--config", "site.toml"], 2, words);
    }
    fs::write(place.at("site.toml"), "").unwrap();
    assert!(place.good(&["--config", "site.toml"]).contains("In short"), "an empty file is one of defaults");
    place.bad(&["--config", "none.toml"], 1, "cannot read none.toml");
    place.bad(&["--config", "."], 1, "cannot read .");
}

#[test]
fn what_cannot_be_measured_is_said_in_one_line() {
    let place = Place::new();
    fs::write(place.at("empty"), "").unwrap();
    fs::create_dir(place.at("bare")).unwrap();
    place.bad(&["none"], 1, "cannot read none");
    place.bad(&["empty"], 1, "empty contains no data");
    place.bad(&["bare"], 1, "bare contains no data");
    place.bad(&["/dev/null"], 1, "neither a file nor a folder");
    place.bad(&["--set", "node.cores=2"], 2, "--set node.cores=2: 'node.cores' is not known; known are count");
    place.bad(&["--set", "node.count=none"], 2, "'none' is not a number");
    place.bad(&["--set", "count=1"], 2, "write it as node.cores_free=8");
    place.bad(&["--html", "logs/0", "logs/0"], 2, "logs/0");
    let store = place.command(&["--methods", "store", "logs"]).output().unwrap();
    assert_eq!(store.status.code(), Some(2));
    for args in
        [&["--seed", "adoc-2002"][..], &["--json", "--csv"], &["--sample", "0", "logs"], &["--seconds", "0", "logs"]]
    {
        assert_eq!(place.run(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn a_number_set_on_the_command_line_counts() {
    let place = Place::new();
    let goodput = |cores: &str| {
        let json = place.json(&["--seed", "climate-2016", "--set", &format!("node.cores_free={cores}")]);
        let row =
            rows(&json, "network").iter().find(|r| r["method"].as_str().unwrap().ends_with(" xz")).unwrap().clone();
        row["goodput_mb_per_s"]["value"].as_f64().unwrap()
    };
    assert_eq!((goodput("1"), goodput("10")), (26.0, 260.0));
}

#[test]
fn the_text_is_printed_beside_what_the_models_give() {
    let place = Place::new();
    let text = place.good(&["--seed", "climate-2016"]);
    assert!(text.contains("reproduces") && text.contains("DIFFERS, point 2") && text.contains("NOT GIVEN, point 9"));
    let json = place.json(&["--seed", "climate-2016"]);
    let published = rows(&json, "published");
    assert!(published.len() > 40);
    for row in published.iter().filter(|r| r["verdict"] == "reproduces") {
        let [printed, recomputed] = ["printed", "recomputed"].map(|k| row[k].as_f64().unwrap());
        assert!((recomputed / printed - 1.0).abs() <= 0.01, "{row}");
    }
    for point in 1..=13 {
        let marked = published.iter().find(|r| r["verdict"].as_str().unwrap().ends_with(&format!("point {point}")));
        assert!(!marked.unwrap()["reason"].as_str().unwrap().is_empty(), "point {point}");
    }
}

#[test]
fn csv_has_six_columns_and_the_page_every_picture() {
    let place = Place::new();
    let csv = place.good(&["--csv", "--html", "plan.html", "logs"]);
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("table,row,column,low,value,high"));
    assert!(csv.lines().all(|l| l.contains('"') || l.matches(',').count() == 5), "{csv}");
    assert!(csv.contains("\nstorage,0,s1_price,"));
    let page = fs::read_to_string(place.at("plan.html")).unwrap();
    assert!(page.matches("<svg ").count() >= 12 && page.ends_with("</html>\n"));
    for figure in 4..=8 {
        assert!(page.contains(&format!("Figure {figure}")), "Figure {figure}");
    }
}

#[test]
fn a_closed_pipe_ends_it_as_other_filters() {
    let place = Place::new();
    let mut child = place.command(&["--seed", "climate-2016", "--csv"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut one = [0; 1];
    let mut pipe = child.stdout.take().unwrap();
    pipe.read_exact(&mut one).unwrap();
    drop(pipe);
    let status = child.wait().unwrap();
    // What fits into the pipe at once may be written before it is closed.
    assert!(status.signal() == Some(libc::SIGPIPE) || status.success(), "{status}");
}

#[test]
fn stdin_is_data_too_and_two_paths_of_one_name_are_two_classes() {
    let place = Place::new();
    fs::create_dir(place.at("other")).unwrap();
    fs::create_dir(place.at("other/logs")).unwrap();
    fs::write(place.at("other/logs/a"), "b".repeat(10_000)).unwrap();
    let json = place.json(&["logs", "other/logs"]);
    let classes: Vec<&str> = rows(&json, "methods").iter().filter_map(|r| r["class"].as_str()).collect();
    assert!(classes.contains(&"logs") && classes.contains(&"logs 2"), "{classes:?}");
    let mut command = place.command(&["--methods", "lz4", "-", "--json"]);
    let output = command.stdin(fs::File::open(place.at("logs/0")).unwrap()).output().unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("\"stdin\""));
}
