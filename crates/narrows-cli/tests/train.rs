//! `narrows train` from the command line: its output, messages, and errors.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use narrows::message::{DICTIONARY_MAX, Dictionary};
use narrows_test::noise_of;
use serde_json::Value;

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn train(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_narrows"));
        command.arg("train").args(args).current_dir(self.folder.path()).output().unwrap()
    }

    fn names(&self) -> Vec<String> {
        let list = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<_> = list.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// Messages of one kind: the same fields, different values.
fn message(i: u64) -> Vec<u8> {
    let key = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("{{\"temperature\": {}.{}, \"unit\": \"celsius\", \"sensor\": \"{:08x}\"}}", i % 40, key % 10, key >> 32)
        .into()
}

fn list(messages: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    messages.flat_map(|m| [&(m.len() as u32).to_le_bytes()[..], &m].concat()).collect()
}

fn words(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_dictionary_of_messages_and_files_and_folders_is_written_and_judged() {
    let place = Place::new();
    fs::create_dir_all(place.at("captures/deep")).unwrap();
    fs::write(place.at("captures/deep/a.msgs"), list((0..500).map(message))).unwrap();
    for i in 500..520 {
        fs::write(place.at(&format!("captures/{i}")), message(i)).unwrap();
    }
    fs::write(place.at("b.msgs"), list((500..600).map(message))).unwrap();
    let output = place.train(&["captures", "b.msgs", "-o", "dict", "--json"]);
    assert!(output.status.success(), "{}", words(&output));
    let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
    let content = fs::read(place.at("dict")).unwrap();
    assert_eq!(figures["dictionary_bytes"], content.len());
    assert_eq!((&figures["messages"], &figures["repeated_messages"]), (&600.into(), &20.into()));
    assert_eq!(figures["held_back_messages"], 120);
    let ratio = |name: &str| figures[name].as_f64().unwrap();
    assert!(ratio("ratio_with") > 1.5 * ratio("ratio_without"), "{figures}");
    let dictionary = Dictionary::new(content).expect("a dictionary");
    assert_eq!(figures["digest"], format!("{:016x}", dictionary.digest()));
    assert!(output.stderr.is_empty());
}

#[test]
fn the_same_is_said_in_words_unless_nobody_wants_to_know() {
    let place = Place::new();
    fs::write(place.at("a.msgs"), list((0..500).map(message))).unwrap();
    let output = place.train(&["a.msgs", "-o", "dict", "--size", "4K"]);
    assert!(output.status.success() && output.stdout.is_empty());
    let said = words(&output);
    assert!(said.contains("100 held back: ratio ") && said.lines().count() == 1, "{said}");
    let len = fs::read(place.at("dict")).unwrap().len();
    assert!(len <= 4096 && said.contains(&format!("{len} bytes")), "{said}");
    let output = place.train(&["a.msgs", "-o", "dict", "--size", "1K", "-q"]);
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty());
    assert!(fs::read(place.at("dict")).unwrap().len() <= 1024, "replaced");
}

#[test]
fn lines_are_messages_and_the_last_ones_judge() {
    let place = Place::new();
    // Typical content changes over time: a dictionary of old messages is worth less for later ones.
    let era =
        |i: u64| (0..4).flat_map(|k| noise_of(i / 40 * 8 + k, 200)).map(|b| format!("{b:02x}")).collect::<String>();
    let lines: String = (0..400).map(|i| format!("{{\"i\": {i}, \"era\": \"{}\"}}\r\n\n", era(i))).collect();
    fs::write(place.at("a.jsonl"), &lines).unwrap();
    fs::write(place.at("a.log"), &lines).unwrap();
    let said = [&["a.jsonl"][..], &["--lines", "a.log"]].map(|files| {
        let output = place.train(&[files, &["-o", "dict", "--json", "--force"]].concat());
        assert!(output.status.success(), "{}", words(&output));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    });
    assert_eq!(said[0], said[1]);
    let (figures, ratio) = (&said[0], |name: &str| said[0][name].as_f64().unwrap());
    assert_eq!((&figures["messages"], &figures["held_back_messages"]), (&400.into(), &80.into()));
    assert!(ratio("ratio_with") < 1.2 * ratio("ratio_without"), "it knows nothing of the later ones: {figures}");
    let output = place.train(&["a.log", "-o", "dict"]);
    assert!(!output.status.success() && words(&output).contains("--lines"), "{}", words(&output));
}

#[test]
fn too_few_messages_are_no_dictionary() {
    let place = Place::new();
    fs::write(place.at("a.msgs"), list((0..19).chain(0..19).map(message))).unwrap();
    let output = place.train(&["a.msgs", "-o", "dict", "--force"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(words(&output).contains("19 different messages are too few"), "{}", words(&output));
    assert_eq!(place.names(), ["a.msgs"]);
}

#[test]
fn a_dictionary_that_does_not_pay_is_written_only_by_force() {
    let place = Place::new();
    fs::write(place.at("a.msgs"), list((0..300).map(|i| noise_of(i, 200)))).unwrap();
    let output = place.train(&["a.msgs", "-o", "dict"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(words(&output).starts_with("narrows: no dictionary pays off: ratio 1.00"), "{}", words(&output));
    assert_eq!(place.names(), ["a.msgs"]);
    let output = place.train(&["a.msgs", "-o", "dict", "--force"]);
    assert!(output.status.success() && words(&output).contains("it does not pay off"), "{}", words(&output));
    assert_eq!(place.names(), ["a.msgs", "dict"]);
}

#[test]
fn what_cannot_be_read_or_written_leaves_no_file_and_is_named() {
    let place = Place::new();
    fs::write(place.at("a.msgs"), list((0..300).map(message))).unwrap();
    fs::write(place.at("cut.msgs"), &list((0..300).map(message))[..5000]).unwrap();
    for (args, named) in [
        (["a.msgs", "none", "-o", "dict"], "none"),
        (["a.msgs", "cut.msgs", "-o", "dict"], "cut.msgs is no file of messages: it "),
        (["a.msgs", "a.msgs", "-o", "none/dict"], "none/dict"),
    ] {
        let output = place.train(&args);
        let damaged = args.contains(&"cut.msgs");
        assert_eq!(output.status.code(), Some(if damaged { 3 } else { 1 }), "{args:?}");
        let said = words(&output);
        assert!(said.contains(named) && said.lines().count() == 1, "{said}");
    }
    assert_eq!(place.names(), ["a.msgs", "cut.msgs"]);
    for wrong in [
        &["a.msgs"][..],
        &["-o", "dict"],
        &["a.msgs", "-o", "d", "--size", "65K"],
        &["a.msgs", "-o", "d", "--size", "9"],
    ] {
        assert_eq!(place.train(wrong).status.code(), Some(2), "{wrong:?}");
    }
    assert_eq!(DICTIONARY_MAX, 64 << 10, "as --help says");
}

#[test]
fn a_sample_is_never_replaced_by_the_dictionary() {
    let place = Place::new();
    fs::create_dir(place.at("samples")).unwrap();
    (0..50).for_each(|i| fs::write(place.at(&format!("samples/{i}")), message(i)).unwrap());
    fs::hard_link(place.at("samples/7"), place.at("other name")).unwrap();
    for output in ["samples/7", "other name"] {
        let run = place.train(&["-o", output, "samples"]);
        assert_eq!(run.status.code(), Some(2), "{}", words(&run));
        assert!(words(&run).contains("is one of the samples"), "{}", words(&run));
        assert_eq!(fs::read(place.at("samples/7")).unwrap(), message(7));
    }
}
