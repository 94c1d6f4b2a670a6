//! Import rules between modules (`docs/ARCHITECTURE.md`), checked by reading the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A source file without comments and without its tests.
struct Source {
    /// Path under the crate's `src`, with `/`.
    name: String,
    code: String,
}

#[test]
fn policies_and_monitors_only_observe_and_decide() {
    let forbidden = [
        "std::fs",
        "std::io",
        "std::net",
        "std::os",
        "std::process",
        "std::thread",
        "Instant",
        "SystemTime",
        "crate::frame",
        "crate::pool",
        "crate::receiver",
        "crate::sender",
        "crate::stream",
        "crate::sys",
        "crate::transport",
        "Encoder",
        "Decoder",
        "Contexts",
        "lz4_sys",
        "zstd_safe",
        "flate2",
        "bzip2::",
        "liblzma",
        "snap::",
    ];
    let mut files = engine(|name| in_module(name, "policy") || in_module(name, "monitor"));
    files.extend(sources(&workspace().join("crates/narrows-classic/src")));
    check(&files, &forbidden);
}

#[test]
fn nothing_below_the_driver_does_io_or_reads_a_clock() {
    let upper = ["stream", "transport", "pool", "sys", "calibration"];
    let below = engine(|name| !upper.iter().any(|u| in_module(name, u)));
    // Allowed: an error may contain an `io::Error`, and the trace writes to a writer from the
    // driver.
    let io_types = engine(|name| {
        !upper.iter().any(|u| in_module(name, u)) && !in_module(name, "error") && !in_module(name, "trace")
    });
    check(
        &below,
        &["std::fs", "std::net", "std::process", "TcpStream", "UnixStream", "File::", "Instant", "SystemTime"],
    );
    check(&io_types, &["io::Read", "io::Write", "io::stdin", "io::stdout", "io::{Read", "io::{Write", "io::prelude"]);
}

/// Which thread runs which job, and how many are out, is decided in one place for all drivers.
#[test]
fn drivers_take_jobs_by_flows_only() {
    let mut files = engine(|name| !in_module(name, "flow"));
    for folder in ["crates", "bindings"] {
        for member in fs::read_dir(workspace().join(folder)).unwrap() {
            let member = member.unwrap().path();
            if member.file_name().is_some_and(|name| name != "narrows") {
                files.extend(sources(&member.join("src")));
            }
        }
    }
    files.retain(|s| !s.name.ends_with("tests.rs"));
    assert!(files.len() > 300, "the sources were not found");
    check(&files, &[".poll_job(", ".on_link_dry("]);
}

#[test]
fn threads_are_started_by_the_pool_and_the_driver_only() {
    let others = engine(|name| !["stream", "transport", "pool"].iter().any(|u| in_module(name, u)));
    check(&others, &["thread::spawn", "thread::Builder", "thread::scope"]);
}

#[test]
fn the_receiver_knows_nothing_of_how_a_choice_was_made() {
    let of_messages = ["receiver", "header", "control", "history", "contexts"].map(|part| format!("message/{part}.rs"));
    check(
        &engine(|name| in_module(name, "receiver") || of_messages.contains(&name.to_owned())),
        &["policy", "monitor", "crate::sender", "crate::trace", "crate::oracle", "View", "Choice"],
    );
}

#[test]
fn codecs_and_frames_know_nothing_of_flows() {
    check(
        &engine(|name| in_module(name, "codec") || in_module(name, "frame")),
        &["crate::policy", "crate::monitor", "crate::sender", "crate::receiver", "crate::stream", "crate::transport"],
    );
}

#[test]
fn the_negotiation_stands_alone() {
    let others = ["policy", "monitor", "codec", "frame", "sender", "receiver", "stream", "transport", "pool", "sys"];
    let forbidden = others.map(|module| format!("crate::{module}"));
    check(&engine(|name| in_module(name, "upgrade")), &forbidden.each_ref().map(String::as_str));
}

#[test]
fn unsafe_code_lives_in_sys_and_codec_wrappers_only() {
    let wrappers = ["sys.rs", "codec/liblz4.rs", "codec/dictionary.rs", "codec/zstd.rs"];
    check(&engine(|name| !wrappers.contains(&name)), &["unsafe "]);
    check(&engine(|name| name != "codec/liblz4.rs"), &["LZ4_"]);
    let of_library = [
        "freestanding.rs",
        "hooks/connections.rs",
        "hooks/data.rs",
        "hooks/descriptors.rs",
        "hooks/names.rs",
        "hooks/options.rs",
        "next.rs",
        "receive.rs",
        "setup.rs",
        "spawn.rs",
        "sys.rs",
    ];
    let places: [(&str, &[&str]); 24] = [
        ("crates/narrows-array", &[]),
        ("crates/narrows-classic", &[]),
        ("crates/narrows-cli", &[]),
        ("crates/narrows-copy", &[]),
        ("crates/narrows-file", &[]),
        ("crates/narrows-forecast", &[]),
        ("crates/narrows-host", &["files/standard.rs", "idle.rs", "signals.rs"]),
        ("crates/narrows-object", &[]),
        ("crates/narrows-pack", &[]),
        ("crates/narrows-ping", &[]),
        ("crates/narrows-plan", &[]),
        ("crates/narrows-plot", &[]),
        ("crates/narrows-preload", &of_library),
        ("crates/narrows-run", &["sys.rs", "seccomp/sys.rs"]),
        ("crates/narrows-run-wire", &[]),
        ("crates/narrows-sim", &[]),
        ("crates/narrows-trust", &[]),
        ("crates/narrows-tunnel", &[]),
        ("crates/narrows-variables", &[]),
        ("crates/narrows-watch", &["sys.rs"]),
        // The interface of HDF5, and its functions as found at run time.
        ("bindings/hdf5", &["abi.rs", "host.rs"]),
        ("bindings/python", &["array/decoded.rs", "buffer.rs", "sys.rs"]),
        ("lab/narrows-lab", &[]),
        ("lab/narrows-link", &["sys.rs", "sys/fork.rs", "sys/process.rs"]),
    ];
    for (folder, allowed) in places {
        let mut files = sources(&workspace().join(folder).join("src"));
        assert!(!files.is_empty(), "the sources of {folder} were not found");
        files.retain(|s| !allowed.contains(&s.name.as_str()));
        check(&files, &["unsafe "]);
    }
    let mut face = sources(&workspace().join("bindings/c/src"));
    assert!(face.len() > 10, "the C face's sources were not found");
    face.retain(|s| !["memory.rs", "sys.rs"].contains(&s.name.as_str()) && !s.name.starts_with("abi/"));
    check(&face, &["unsafe "]);
    for folder in ["crates/narrows/src", "bindings/c/src", "bindings/hdf5/src"] {
        for source in sources(&workspace().join(folder)) {
            // Each unsafe block has an argument for its soundness beside it.
            let blocks = source.code.matches("unsafe {").count() + source.code.matches("unsafe impl").count();
            let text = fs::read_to_string(workspace().join(folder).join(&source.name)).unwrap();
            let arguments = text.matches("SAFETY:").count();
            assert!(arguments >= blocks, "{}: {blocks} unsafe blocks, {arguments} SAFETY arguments", source.name);
        }
    }
}

/// The library runs inside other programs: it must use no heap, thread, lock or other crate of
/// ours, and no libc function except those for finding symbols and setup.
#[test]
fn the_preloaded_library_brings_nothing_along() {
    let mut files = sources(&workspace().join("crates/narrows-preload/src"));
    files.extend(sources(&workspace().join("crates/narrows-run-wire/src")));
    assert!(files.len() >= 10, "the library's sources were not found");
    let forbidden =
        ["std::", "alloc::", "narrows::", "Vec<", "String", "Box<", "format!", "thread::", "Mutex", "println!"];
    check(&files, &forbidden);
    let mut others = files;
    others.retain(|s| s.name != "sys.rs");
    check(&others, &["libc::malloc", "libc::free", "libc::open(", "libc::read(", "libc::write(", "libc::close("]);
}

#[test]
fn the_documents_stand_and_the_format_names_this_version() {
    for name in ["ARCHITECTURE.md", "defaults.md", "format.md", "policy.md", "terms.md"] {
        assert!(workspace().join("docs").join(name).is_file(), "docs/{name}");
    }
    let format = fs::read_to_string(workspace().join("docs/format.md")).unwrap();
    let (_, versions) = format.split_once("Versions").expect("format.md has a table of versions");
    assert!(versions.contains(&format!("| {} | 0.", narrows::frame::VERSION)));
}

/// Pages whose blocks of Rust a test compiles: `policy.rs` that of CONTRIBUTING, `tests/driver.rs` and the tests of
/// narrows-array those of the crates. Another page with one needs such a test.
#[test]
fn no_page_has_rust_that_nobody_compiles() {
    const COMPILED: [&str; 3] = ["CONTRIBUTING.md", "crates/narrows/README.md", "crates/narrows-array/README.md"];
    let root = workspace();
    let mut folders: Vec<_> =
        ["docs", "crates", "bindings", "packaging", "fuzz", "lab"].map(|name| root.join(name)).into();
    let mut pages: Vec<_> = ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| root.join(name)).into();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                pages.push(path);
            }
        }
    }
    pages.retain(|page| fs::read_to_string(page).unwrap().contains("```rust"));
    let mut found: Vec<_> = pages.iter().map(|page| page.strip_prefix(&root).unwrap().to_str().unwrap()).collect();
    found.sort_unstable();
    let mut expected = COMPILED;
    expected.sort_unstable();
    assert_eq!(found, expected);
}

/// Cargo inherits nothing from one workspace to another. With other versions or profiles the laboratory would measure
/// another engine than the one that ships, and compile all of it again.
#[test]
fn the_laboratory_has_the_lints_profiles_and_versions_of_the_product() {
    let shared = |manifest: &str| -> BTreeMap<String, Vec<String>> {
        let mut sections = BTreeMap::<_, Vec<_>>::new();
        let mut name = String::new();
        for line in read(manifest).lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            match line.strip_prefix('[') {
                Some(section) => section.trim_end_matches(']').clone_into(&mut name),
                None => sections.entry(name.clone()).or_default().push(line.to_owned()),
            }
        }
        // The laboratory has no demo.
        sections.retain(|name, _| name != "workspace" && !name.starts_with("profile.demo"));
        sections
    };
    // What only codecs of the laboratory use, and its own packages.
    const OF_LAB: [&str; 5] = ["lzokay", "narrows-lab", "narrows-link", "narrows-older", "weezl"];
    let mut product = shared("Cargo.toml");
    // Cargo warns of a package that a workspace does not have.
    let lock = read("lab/Cargo.lock");
    let is_there =
        |line: &str| line.starts_with('"') || lock.contains(&format!("name = \"{}\"", line.split(' ').next().unwrap()));
    product.get_mut("profile.dev.package").expect("settings of dependencies").retain(|line| is_there(line));
    let mut lab = shared("lab/Cargo.toml");
    let of_lab = |line: &str| OF_LAB.contains(&line.split(' ').next().unwrap());
    lab.get_mut("profile.dev.package").expect("settings of dependencies").retain(|line| !of_lab(line));
    assert_eq!(lab, product);
    let packages = |lock: &str| -> BTreeMap<String, String> {
        let blocks = read(lock);
        let value = |block: &str, key: &str| {
            let found = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            found.unwrap_or_default().trim_matches('"').to_owned()
        };
        let package =
            |block: &str| (format!("{} {}", value(block, "name"), value(block, "version")), value(block, "name"));
        blocks.split("[[package]]").skip(1).map(package).collect()
    };
    let product = packages("Cargo.lock");
    let mut others = packages("lab/Cargo.lock");
    others.retain(|package, _| !product.contains_key(package));
    let others: BTreeSet<&str> = others.values().map(String::as_str).collect();
    let advice = "in lab/Cargo.lock only: `cp Cargo.lock lab/`, then `cd lab && cargo metadata >/dev/null`";
    assert_eq!(others, OF_LAB.into(), "{advice}");
}

fn read(path: &str) -> String {
    fs::read_to_string(workspace().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}

fn engine(pick: impl Fn(&str) -> bool) -> Vec<Source> {
    let all = sources(&workspace().join("crates/narrows/src"));
    assert!(all.len() > 15, "the engine's sources were not found");
    let picked: Vec<_> = all.into_iter().filter(|s| pick(&s.name)).collect();
    assert!(!picked.is_empty());
    picked
}

/// Whether the file is `module.rs` or lies under `module/`.
fn in_module(name: &str, module: &str) -> bool {
    name.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

fn sources(root: &Path) -> Vec<Source> {
    let mut found = Vec::new();
    let mut dirs = vec![root.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/");
                found.push(Source { name, code: code_of(&fs::read_to_string(&path).unwrap()) });
            }
        }
    }
    found
}

/// The code without comments and tests. Tests are at the end of a file, after the last
/// `#[cfg(test)] mod`.
fn code_of(text: &str) -> String {
    let code = text.find("#[cfg(test)]\nmod ").map_or(text, |at| &text[..at]);
    code.lines().map(|line| line.find("//").map_or(line, |at| &line[..at])).collect::<Vec<_>>().join("\n")
}

fn check(sources: &[Source], forbidden: &[&str]) {
    let mut found = Vec::new();
    for source in sources {
        for (i, line) in source.code.lines().enumerate() {
            found.extend(
                forbidden.iter().filter(|f| line.contains(*f)).map(|f| format!("{}:{}: '{f}'", source.name, i + 1)),
            );
        }
    }
    assert!(found.is_empty(), "forbidden here:\n{}", found.join("\n"));
}

/// Two modules that import each other are one module in two files. Looked at are a crate's modules and those of one folder.
#[test]
fn no_two_modules_import_each_other() {
    let mut found = Vec::new();
    for folder in ["crates", "bindings", "lab"] {
        for member in fs::read_dir(workspace().join(folder)).unwrap() {
            let member = member.unwrap().path();
            let all = if member.join("src").is_dir() { sources(&member.join("src")) } else { continue };
            for pair in circles(&all) {
                found.push(format!("{}: {pair}", member.file_name().unwrap().to_str().unwrap()));
            }
        }
    }
    found.sort();
    assert!(found.is_empty(), "import each other:\n{}", found.join("\n"));
}

/// Pairs of top-level modules of a crate, of which each names the other by its path.
fn circles(sources: &[Source]) -> Vec<String> {
    let module = |name: &str| name.split('/').next().unwrap_or(name).trim_end_matches(".rs").to_owned();
    let mut imports = BTreeSet::new();
    for source in sources {
        let own = module(&source.name);
        for (at, _) in source.code.match_indices("crate::") {
            let rest = &source.code[at + "crate::".len()..];
            let names = match rest.strip_prefix('{') {
                Some(list) => list.split('}').next().unwrap_or_default(),
                None => rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default(),
            };
            for name in names.split(',') {
                let other = name.trim().split("::").next().unwrap_or_default();
                if other != own && sources.iter().any(|s| module(&s.name) == other) {
                    imports.insert((own.clone(), other.to_owned()));
                }
            }
        }
        // Files directly under `src` reach their neighbours by `super` too.
        if !source.name.contains('/') {
            for (at, _) in source.code.match_indices("super::") {
                let rest = &source.code[at + "super::".len()..];
                let other = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
                if other != own && sources.iter().any(|s| module(&s.name) == other) {
                    imports.insert((own.clone(), other.to_owned()));
                }
            }
        }
    }
    let both = imports.iter().filter(|(a, b)| a < b && imports.contains(&(b.clone(), a.clone())));
    both.map(|(a, b)| format!("{a} and {b}")).collect()
}
