//! Tables of the bench of arrays, as they stand on its page.

use serde_json::Value;

use super::{REPEATS, SHARES};

pub(super) fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or(f64::NAN)
}

pub(super) fn ratio(row: &Value) -> f64 {
    number(row, "raw") / number(row, "wire")
}

/// The fastest round of each chunk, added up.
pub(super) fn fastest(times: &Value) -> f64 {
    let least =
        |rounds: &Value| rounds.as_array().into_iter().flatten().filter_map(Value::as_f64).fold(f64::MAX, f64::min);
    times.as_array().into_iter().flatten().map(least).sum()
}

/// Tables in Markdown, as they stand on the page.
pub(super) fn summary(lossless: &[Value], lossy: &[Value], grids: &Value) -> Value {
    let mut text =
        String::from("\n| lossless, 256 KiB chunks | ratio | MB/s in | MB/s out |\n| --- | --- | --- | --- |\n");
    for (title, half) in [("corpus", None), ("corpus, quoted half", Some("quoted")), ("generated", Some("generated"))] {
        let of = |row: &&Value| match half {
            Some("generated") => row["generated"] == true,
            Some(half) => row["generated"] == false && row["half"] == half,
            None => row["generated"] == false,
        };
        let rows: Vec<&Value> = lossless.iter().filter(of).collect();
        let sum = |values: &[&Value]| {
            let (raw, wire): (f64, f64) = values
                .iter()
                .map(|r| (number(r, "raw"), number(r, "wire")))
                .fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
            let rate = |key: &str| raw / values.iter().map(|r| fastest(&r[key])).sum::<f64>() / 1e6;
            format!("{:.3} | {:.0} | {:.0}", raw / wire, rate("encode_s"), rate("decode_s"))
        };
        let ours: Vec<&Value> = rows.iter().map(|r| &r["narrows"]).collect();
        if ours.is_empty() {
            continue;
        }
        text += &format!("| {title}: Narrows, trials included | {} |\n", sum(&ours));
        let total = |key: &str| ours.iter().map(|r| number(r, key)).sum::<f64>();
        let long = total("raw")
            / ours.iter().map(|r| number(r, "steady_encode_s_per_byte") * number(r, "raw")).sum::<f64>()
            / 1e6;
        let share = ours
            .iter()
            .map(|r| number(r, "choosing_share") * number(r, "steady_encode_s_per_byte") * number(r, "raw"))
            .sum::<f64>()
            / ours.iter().map(|r| number(r, "steady_encode_s_per_byte") * number(r, "raw")).sum::<f64>();
        text += &format!(
            "| {title}: the same, arrays {REPEATS} times as long; {:.0} % of the time chooses | | {long:.0} | |\n",
            100.0 * share
        );
        text += &format!("| {title}: choice over full trial | {:.4} | | |\n", total("full_trial_wire") / total("wire"));
        for peer in ["zstd 3", "xz 6", "Blosc2 zstd 5, shuffle", "pco 8", "fpzip", "zfp"] {
            let all: Vec<&Value> = rows
                .iter()
                .flat_map(|r| r["peers"].as_array().into_iter().flatten())
                .filter(|p| p["peer"] == peer && p["error"].is_null())
                .collect();
            if !all.is_empty() {
                let broken: f64 = all.iter().map(|r| number(r, "violations")).sum();
                let some = if all.len() < rows.len() {
                    format!(", {} of {} arrays", all.len(), rows.len())
                } else {
                    String::new()
                };
                let broken = if broken > 0.0 { format!(", {broken} values changed") } else { String::new() };
                text += &format!("| {title}: {peer}{some}{broken} | {} |\n", sum(&all));
            }
        }
    }
    if let Some(row) = lossless.iter().find(|r| r["array"] == "etth1_rec32") {
        text += &format!("| 32-byte sensor records without metadata | {:.3} | | |\n", ratio(&row["narrows"]));
    }
    text += "\n| lossy, share of the range | over SZ3, geometric mean | least | arrays | MB/s in: choosing, chosen, SZ3 | MB/s out: ours, SZ3 | zfp, filled: over it |\n| --- | --- | --- | --- | --- | --- | --- |\n";
    for share in SHARES {
        for half in ["both", "quoted"] {
            let rows: Vec<&Value> = lossy
                .iter()
                .filter(|r| {
                    number(r, "share") == share && r["generated"] == false && (half == "both" || r["half"] == half)
                })
                .collect();
            let over: Vec<(f64, &str)> =
                rows.iter().filter_map(|r| Some((r["over_sz3"].as_f64()?, r["array"].as_str()?))).collect();
            if over.is_empty() {
                continue;
            }
            let mean = |values: &[f64]| (values.iter().map(|v| v.ln()).sum::<f64>() / values.len() as f64).exp();
            let least = over.iter().min_by(|a, b| a.0.total_cmp(&b.0)).copied().unwrap_or((f64::NAN, ""));
            let raw: f64 = rows.iter().map(|r| number(r, "raw").max(number(&r["narrows"], "raw"))).sum();
            let ours = |key: &str| raw / rows.iter().map(|r| fastest(&r["narrows"][key])).sum::<f64>() / 1e6;
            let peer = |name: &str| {
                rows.iter()
                    .filter_map(|r| r["peers"].as_array()?.iter().find(|p| p["peer"] == name && p["error"].is_null()))
                    .collect::<Vec<_>>()
            };
            let theirs = |key: &str| {
                let all = peer("SZ3");
                all.iter().map(|p| number(p, "raw")).sum::<f64>()
                    / all.iter().map(|p| fastest(&p[key])).sum::<f64>()
                    / 1e6
            };
            let zfp: Vec<f64> = rows
                .iter()
                .filter_map(|r| {
                    let all = r["peers"].as_array()?;
                    let row = all
                        .iter()
                        .find(|p| p["peer"] == "zfp filled")
                        .or_else(|| all.iter().find(|p| p["peer"] == "zfp"))?;
                    Some(number(row, "wire") / number(&r["narrows"], "wire"))
                })
                .collect();
            text += &format!(
                "| {share:e}, {half} | {:.3} | {:.3} ({}) | {} | {:.0}, {:.0}, {:.0} | {:.0}, {:.0} | {:.2} |\n",
                mean(&over.iter().map(|o| o.0).collect::<Vec<_>>()),
                least.0,
                least.1,
                over.len(),
                ours("encode_s"),
                ours("winner_encode_s"),
                theirs("encode_s"),
                ours("decode_s"),
                theirs("decode_s"),
                mean(&zfp)
            );
        }
    }
    let broken = |name: &str| {
        let rows: Vec<f64> = lossy
            .iter()
            .flat_map(|r| r["peers"].as_array().into_iter().flatten())
            .filter(|p| p["peer"] == name)
            .map(|p| number(p, "violations"))
            .filter(|v| *v > 0.0)
            .collect();
        format!("{name}: {} values in {} runs", rows.iter().sum::<f64>() + 0.0, rows.len())
    };
    text += &format!(
        "\nValues outside the bound: Narrows 0 (a run with any fails); {}; {}.\n",
        broken("SZ3"),
        broken("zfp")
    );
    for row in grids.as_array().into_iter().flatten() {
        text += &format!(
            "Icosahedral {}: along a curve {:.3} lossless, {:.3} within 0.01.\n",
            row["points"].as_str().unwrap_or_default(),
            number(row, "gain_lossless"),
            number(row, "gain_lossy")
        );
    }
    Value::String(text)
}
