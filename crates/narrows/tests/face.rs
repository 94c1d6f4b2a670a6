//! The public face: what `cargo doc` shows of the library is in `face.txt`, so that a review sees every change.
//! The sources are formatted, so that items and their ends are found by their indentation.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Names of the face: [`NAMES_MAX`] at most at the root.
const NAMES_MAX: usize = 26;

struct Sources(Vec<String>);

impl Sources {
    /// Those of a folder, or one file.
    fn read(place: &Path) -> Self {
        let (mut files, mut folders) = (Vec::new(), Vec::new());
        if place.is_dir() { &mut folders } else { &mut files }.push(place.to_owned());
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if !path.ends_with("tests.rs") {
                    files.push(path);
                }
            }
        }
        files.sort();
        let without_tests = |text: String| text.split("\n#[cfg(test)]").next().unwrap_or_default().to_owned();
        Self(files.iter().map(|path| without_tests(fs::read_to_string(path).unwrap())).collect())
    }

    /// The lines of every block whose first line `is_head` takes, up to the line that ends it.
    fn blocks<'a>(&'a self, is_head: impl Fn(&str) -> bool + 'a) -> impl Iterator<Item = Vec<&'a str>> + 'a {
        self.0.iter().flat_map(move |text| {
            let lines: Vec<_> = text.lines().collect();
            let starts: Vec<_> = (0..lines.len()).filter(|i| is_head(lines[*i])).collect();
            starts.into_iter().map(|start| to_end(&lines[start..], "").to_vec()).collect::<Vec<_>>()
        })
    }
}

/// An item with this indentation: one line, or all to the closing line.
fn to_end<'a, 'b>(lines: &'b [&'a str], indent: &str) -> &'b [&'a str] {
    let ends = |line: &str| {
        let at_border = line.strip_prefix(indent).is_some_and(|rest| !rest.starts_with(' '));
        at_border && (line.ends_with('}') || line.ends_with(';') || line.ends_with(','))
    };
    let len = lines.iter().position(|line| ends(line)).map_or(lines.len(), |i| i + 1);
    &lines[..len]
}

/// A signature on one line, without its body.
fn signature(lines: &[&str]) -> String {
    let all = lines.iter().map(|line| line.trim()).filter(|line| !line.starts_with("//")).collect::<Vec<_>>().join(" ");
    let end = all.find(" {").unwrap_or(all.len());
    all[..end].trim_end_matches([';', ',']).replace("( ", "(").replace(", )", ")")
}

fn is_item(line: &str, name: &str) -> bool {
    let words = ["pub fn ", "pub async fn ", "pub struct ", "pub enum ", "pub trait ", "pub const ", "pub type "];
    let rest = words.iter().find_map(|word| line.strip_prefix(word));
    rest.and_then(|rest| rest.strip_prefix(name))
        .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
}

/// Whether a line begins an `impl` of this type's own or of a trait for it.
fn is_impl_of(line: &str, name: &str) -> bool {
    let Some(head) = line.strip_prefix("impl").filter(|_| line.ends_with('{') || line.ends_with("{}")) else {
        return false;
    };
    let of = head.rsplit_once(" for ").map_or_else(|| head.split_once("> ").map_or(head, |(_, of)| of), |(_, of)| of);
    of.trim_start().strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '<']))
}

fn describe(out: &mut String, sources: &Sources, name: &str, shown_as: &str) {
    let defined: Vec<_> = sources.blocks(|line| is_item(line, name)).collect();
    assert_eq!(defined.len(), 1, "{name} is defined once");
    let item = &defined[0];
    let alias = if name == shown_as { String::new() } else { format!("as {shown_as}: ") };
    writeln!(out, "{alias}{}", signature(item)).unwrap();
    let body = if item.len() > 1 { &item[1..item.len() - 1] } else { &[][..] };
    let (is_enum, is_trait) = (item[0].starts_with("pub enum"), item[0].starts_with("pub trait"));
    members(out, body, |line| {
        let first = line.chars().next().unwrap_or(' ');
        line.starts_with("pub ") || is_enum && first.is_uppercase() || is_trait && line.starts_with("fn ")
    });
    for block in sources.blocks(|line| is_impl_of(line, name)) {
        match block[0].split_once(" for ") {
            Some(_) => writeln!(out, "  {}", signature(&block[..1])).unwrap(),
            None if block.len() > 2 => members(out, &block[1..block.len() - 1], |line| line.starts_with("pub ")),
            None => {}
        }
    }
}

/// The members of an item that others see.
fn members(out: &mut String, body: &[&str], is_seen: impl Fn(&str) -> bool) {
    let indented = |line: &&str| line.len() > 4 && line.starts_with("    ") && !line[4..].starts_with(' ');
    for (i, line) in body.iter().enumerate().filter(|(_, line)| indented(line)) {
        let hidden = i > 0 && body[i - 1].trim() == "#[doc(hidden)]";
        if !hidden && is_seen(&line[4..]) && !line[4..].starts_with("pub(") {
            writeln!(out, "  {}", signature(to_end(&body[i..], "    "))).unwrap();
        }
    }
}

/// What a file re-exports: name in its module, name here.
fn exported(text: &str) -> Vec<(String, String)> {
    let mut names = Vec::new();
    for used in text.split("\npub use ").skip(1) {
        let used = used.split(';').next().unwrap_or_default();
        let list = used
            .split_once('{')
            .map_or_else(|| used.rsplit("::").next().unwrap_or_default(), |(_, list)| list.trim_end_matches('}'));
        for one in list.split(',').map(str::trim).filter(|one| !one.is_empty()) {
            let (name, shown_as) = one.split_once(" as ").unwrap_or((one, one));
            names.push((name.to_owned(), shown_as.to_owned()));
        }
    }
    names
}

#[test]
fn the_public_face_is_as_written() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = Sources::read(&root.join("src"));
    let (mut out, mut seen) = (String::new(), BTreeSet::new());
    for module in ["lib", "extend", "messages"] {
        let text = fs::read_to_string(root.join("src").join(module).with_extension("rs")).unwrap();
        writeln!(out, "# {}", if module == "lib" { "narrows" } else { module }).unwrap();
        let names = exported(&text);
        assert!(!names.is_empty() && (module != "lib" || names.len() <= NAMES_MAX), "{}", names.len());
        for (name, shown_as) in names {
            let of = place(module, &name).map(|place| Sources::read(&root.join("src").join(place)));
            if seen.insert((module == "lib", name.clone(), shown_as.clone())) {
                describe(&mut out, of.as_ref().unwrap_or(&sources), &name, &shown_as);
            }
        }
        out.push('\n');
    }
    let path = root.join("face.txt");
    if std::env::var_os("NARROWS_WRITE_FACE").is_some() {
        return fs::write(path, out).unwrap();
    }
    let written = fs::read_to_string(path).unwrap_or_default();
    if written != out {
        let changed: Vec<_> = out.lines().filter(|line| !written.lines().any(|old| old == *line)).collect();
        panic!(
            "the public face changed; if that is meant, tell it in the CHANGELOG and run this test with \
             NARROWS_WRITE_FACE=1: {changed:#?}"
        );
    }
}

/// Where a name is defined that several modules have.
fn place(module: &str, name: &str) -> Option<&'static str> {
    match (module, name) {
        ("lib", "Encoder" | "Decoder") => Some("stream/coder"),
        ("lib", "Control") => Some("stream.rs"),
        ("extend", "Encoder" | "Decoder") => Some("codec.rs"),
        ("extend", "Limits") => Some("monitor.rs"),
        ("messages", "Contexts") => Some("message/contexts.rs"),
        ("messages", "MESSAGE_MAX") => Some("message.rs"),
        _ => None,
    }
}
