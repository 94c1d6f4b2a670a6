//! `narrows array`: .npy files and raw elements there and back, and what it says of wrong input.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn narrows(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_narrows"))
        .arg("array")
        .args(args)
        .current_dir(folder)
        .output()
        .expect("the program starts")
}

#[test]
fn arrays_come_back_exactly_or_within_the_bound() {
    let folder = tempfile::tempdir().unwrap();
    let values: Vec<f32> = (0..60_000).map(|i| (i as f32 / 300.0).sin() * 20.0 + (i % 7) as f32 / 9.0).collect();
    let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    fs::write(folder.path().join("a.f32"), &raw).unwrap();
    let run = |args: &[&str]| {
        let output = narrows(folder.path(), args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output
    };
    run(&["encode", "a.f32", "--type", "f32", "--shape", "200,300", "-o", "a.nra"]);
    assert_eq!(run(&["decode", "a.nra", "--raw"]).stdout, raw);
    let npy = run(&["decode", "a.nra"]).stdout;
    assert_eq!(npy.len(), 128 + raw.len());
    fs::write(folder.path().join("a.npy"), &npy).unwrap();
    let said = run(&["encode", "a.npy", "--abs", "0.01", "-o", "b.nra", "--chunk", "64K"]);
    assert!(String::from_utf8_lossy(&said.stderr).contains("worst error"));
    let decoded = run(&["decode", "b.nra", "--raw"]).stdout;
    for (x, y) in values.iter().zip(decoded.chunks_exact(4)) {
        let y = f32::from_le_bytes(y.try_into().unwrap());
        assert!((f64::from(*x) - f64::from(y)).abs() <= 0.01);
    }
    let sizes = ["a.nra", "b.nra"].map(|f| fs::metadata(folder.path().join(f)).unwrap().len());
    assert!(sizes[1] * 2 < sizes[0] && sizes[0] < raw.len() as u64, "{sizes:?}");
    let table = String::from_utf8(run(&["bench", "a.npy"]).stdout).unwrap();
    assert!(table.contains("(chosen)") && table.contains("pco 8"), "{table}");
}

#[test]
fn wrong_input_has_the_exit_status_of_its_kind_and_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("x"), [0; 50]).unwrap();
    let status = |args: &[&str]| narrows(folder.path(), args).status.code();
    assert_eq!(status(&["encode", "x", "--type", "f32", "-o", "y"]), Some(2));
    assert_eq!(status(&["encode", "x", "--type", "f32", "--shape", "3,3", "-o", "y"]), Some(2));
    assert_eq!(status(&["encode", "x", "--type", "f32", "--shape", "30", "-o", "y"]), Some(3));
    assert_eq!(status(&["encode", "x", "--type", "r50", "--abs", "-1", "-o", "y"]), Some(2));
    assert_eq!(status(&["encode", "x", "-o", "y"]), Some(3));
    assert_eq!(status(&["decode", "x", "-o", "y"]), Some(3));
    assert_eq!(status(&["encode", "gone", "-o", "y"]), Some(1));
    assert!(!folder.path().join("y").exists());
}

/// The worst error that `encode` printed.
fn printed(output: &Output) -> f64 {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let rest = text.split("worst error ").nth(1).unwrap_or_else(|| panic!("{text}"));
    rest.split([',', ' ']).next().unwrap().parse().unwrap()
}

#[test]
fn all_hints_hold_at_once_and_the_printed_error_is_not_below_the_truth() {
    let folder = tempfile::tempdir().unwrap();
    let values: Vec<f64> = (0..20_000)
        .map(|i| if i % 50 == 3 { 1e20 } else { (f64::from(i) / 300.0).sin() * 20.0 + f64::from(i % 7) / 9.0 })
        .collect();
    let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    fs::write(folder.path().join("a"), &raw).unwrap();
    let input = ["encode", "a", "--type", "f64", "--shape", "200,100", "-o", "b"];
    for hints in [
        &["--abs", "0.013"][..],
        &["--abs", "0.013", "--fill", "1e20", "--exact=-5..-2", "--exact", "15.."],
        &["--rel", "1%", "--floor", "0.004", "--abs", "0.05", "--exact", "..-20"],
        &["--digits", "3", "--bits", "8", "--range-rel", "0.1%", "--fill", "1e20"],
        &["--abs", "0.013", "--encode-rate", "20MB/s", "--fill", "-1e+20", "--fill", "-inf"],
        &["--abs", "0.5", "--rel", "0.5", "--bits", "3"],
        &["--abs", "0.1", "--method", "linear + lorenzo 11z + split + zstd 1"],
    ] {
        let said = narrows(folder.path(), &[&input[..], hints].concat());
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let decoded = narrows(folder.path(), &["decode", "b", "--raw"]).stdout;
        assert_eq!(decoded.len(), raw.len());
        let has = |hint: &str| hints.iter().any(|h| h.starts_with(hint));
        let after = |hint: &str| {
            let at = hints.iter().position(|h| *h == hint)?;
            let (number, unit) = hints[at + 1].strip_suffix('%').map_or((hints[at + 1], 1.0), |n| (n, 100.0));
            Some(number.parse::<f64>().unwrap() / unit)
        };
        let (mut worst, mut changed) = (0f64, 0);
        for (x, y) in values.iter().zip(decoded.chunks_exact(8)) {
            let y = f64::from_le_bytes(y.try_into().unwrap());
            let error = (x - y).abs();
            worst = worst.max(error);
            changed += usize::from(error > 0.0);
            let within = |limit: Option<f64>| limit.is_none_or(|limit| error <= limit);
            assert!(within(after("--abs")), "{x} {y} {hints:?}");
            assert!(within(after("--rel").map(|r| (r * x.abs()).max(after("--floor").unwrap_or(0.0)))));
            assert!(within(after("--digits").map(|d| 0.5 * 10f64.powf(1.0 - d) * x.abs())));
            assert!(within(after("--bits").map(|b| 0.5f64.powf(b + 1.0) * x.abs())));
            assert!(within(after("--range-rel").map(|r| r * 42.0)));
            let kept = has("--exact=-5") && ((-5.0..=-2.0).contains(x) || *x >= 15.0)
                || has("..-20") && *x <= -20.0
                || *x == 1e20 && has("--fill");
            assert!(!kept || error == 0.0, "{x} was to be exact: {hints:?}");
        }
        assert!(changed > 5000, "{hints:?}");
        assert!(printed(&said) >= worst, "{worst:e} is worse than {:e}", printed(&said));
    }
    assert!(
        narrows(folder.path(), &["encode", "a", "--type", "f64", "--rel", "1%", "-o", "b"]).stderr.ends_with(b"\n")
    );
}

#[test]
fn hints_and_types_without_sense_are_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("x"), [0; 48]).unwrap();
    // An array of Python objects, one of structures, one of texts.
    for descr in ["'|O'", "[('a', '<f4')]", "'<U7'", "'<M8[s]'"] {
        let header = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (2,), }}\n");
        let mut npy = b"\x93NUMPY\x01\0".to_vec();
        npy.extend((header.len() as u16).to_le_bytes());
        npy.extend(header.bytes());
        npy.extend([0; 48]);
        fs::write(folder.path().join("o.npy"), npy).unwrap();
        let said = narrows(folder.path(), &["encode", "o.npy", "-o", "y"]);
        let text = String::from_utf8_lossy(&said.stderr);
        assert!(said.status.code() == Some(2) && text.lines().count() == 1, "{descr}: {text}");
        assert!(text.contains("cannot read o.npy: it holds"), "{descr}: {text}");
    }
    for hints in [
        &["--exact", "7..3"][..],
        &["--exact", "7"],
        &["--exact", "a.."],
        &["--rel", "1%%"],
        &["--floor", "1"],
        &["--method", "split"],
        &["--method", "lorenzo 2 + zstd 3"],
        &["--type", "q8"],
    ] {
        let mut args = vec!["encode", "x", "-o", "y"];
        if !hints.contains(&"--type") {
            args.extend(["--type", "f64"]);
        }
        args.extend(hints);
        assert_eq!(narrows(folder.path(), &args).status.code(), Some(2), "{hints:?}");
    }
    assert!(!folder.path().join("y").exists());
}

#[test]
fn bounds_that_nothing_can_keep_are_refused_in_words() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("x"), [0; 48]).unwrap();
    let said = |command: &str, hints: &[&str]| {
        let args = [&[command, "x", "--type", "f64", "-o", "y"], hints].concat();
        let output = narrows(folder.path(), &args);
        assert!(!folder.path().join("y").exists(), "{hints:?}");
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (hints, part) in [
        (&["--abs", "-1"][..], "a bound must be positive"),
        (&["--abs", "nan"], "a bound must be positive"),
        (&["--abs", "inf"], "a bound must be positive"),
        (&["--rel", "-1%"], "a bound must be positive"),
        (&["--rel", "1%", "--floor", "-1e-3"], "a bound must be positive"),
        (&["--range-rel", "-.1"], "a bound must be positive"),
        (&["--rel", "200%"], "below 1 or 100 %"),
        (&["--rel", "1"], "below 1 or 100 %"),
        (&["--range-rel", "100%"], "below 1 or 100 %"),
        (&["--digits", "-1"], "'--digits <N>'"),
        (&["--chunk", "0"], "at least a byte"),
    ] {
        let (status, text) = said("encode", hints);
        assert!(status == Some(2) && text.contains(part), "{hints:?}: {status:?}: {text}");
        assert!(!text.contains("unexpected argument"), "{hints:?}: {text}");
    }
    let most = narrows(folder.path(), &["encode", "x", "--type", "f64", "--rel", "99%", "-o", "y", "-q"]);
    assert!(most.status.success());
    let decoded = narrows(folder.path(), &["decode", "y", "-q", "--raw"]);
    assert_eq!((decoded.status.code(), decoded.stdout, decoded.stderr), (Some(0), vec![0; 48], vec![]));
}

#[test]
fn types_of_npy_come_back_or_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let npy = |descr: &str, elements: &[u8]| {
        let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2,), }}");
        while (text.len() + 11) % 64 != 0 {
            text.push(' ');
        }
        text.push('\n');
        [&b"\x93NUMPY\x01\0"[..], &(text.len() as u16).to_le_bytes(), text.as_bytes(), elements].concat()
    };
    let round_trip = |descr: &str| {
        let bytes = npy(descr, b"abcdef");
        fs::write(folder.path().join("a.npy"), &bytes).unwrap();
        let encoded = narrows(folder.path(), &["encode", "a.npy", "-o", "a.nra"]);
        let text = String::from_utf8(encoded.stderr).unwrap();
        let decoded = encoded.status.success().then(|| narrows(folder.path(), &["decode", "a.nra"]).stdout);
        (encoded.status.code(), text, decoded.map(|found| found == bytes))
    };
    assert_eq!(round_trip("|V3").2, Some(true));
    let (status, text, decoded) = round_trip("|S3");
    assert!(status == Some(2) && decoded.is_none() && text.lines().count() == 1, "{text}");
    assert!(text.starts_with("narrows: cannot read a.npy: it holds byte strings"), "{text}");
    assert!(text.contains("--type r3"), "it says what to do: {text}");
    fs::write(folder.path().join("a.npy"), b"no array").unwrap();
    let text = String::from_utf8(narrows(folder.path(), &["encode", "a.npy", "-o", "a.nra"]).stderr).unwrap();
    let decode = String::from_utf8(narrows(folder.path(), &["decode", "a.npy"]).stderr).unwrap();
    assert!(decode.starts_with("narrows: a.npy: this is no file of chunks"), "{decode}");
    assert!(text.starts_with("narrows: cannot read a.npy: ") && text.matches("cannot").count() == 1, "{text}");
}
