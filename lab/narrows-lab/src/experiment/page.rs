//! `index.html`: all results of a folder on one self-contained page.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use narrows_plot::{PAGE_STYLE, escape};
use serde_json::Value;

use super::pictures::{self, Drawn};
use super::plan::Plan;
use super::summary::{Figures, short};

/// CSS of tables and verdicts. The colours have medium lightness, so that they work in light and
/// dark.
const STYLE: &str = "body{max-width:60rem}figure{margin:1.5rem 0}table{border-collapse:collapse;margin:1rem 0}\
th,td{border:1px solid #8a8f9666;padding:.2rem .6rem;text-align:left;vertical-align:top}th{background:#8a8f9622}\
.agrees{color:#0a8f5d}.differs{color:#d0453b}.about{color:#7b828a;font-size:.85rem}details{overflow-x:auto}\
details table{font-size:.85rem}h2{margin-top:3rem;border-top:1px solid #8a8f9666;padding-top:1rem}a{color:#2f86c9}";

/// Limit on rows of a table on the page; `summary.json` has all of them.
const ROWS_SHOWN: usize = 400;

/// The section of one plan, kept beside its results, so that the joint page can be made from
/// sections alone.
pub(crate) fn section(plan: &Plan, figures: &Figures, about: &Value, drawn: &[Drawn]) -> String {
    let mut html = format!(
        "<section id=\"{}\">\n<h2>{}</h2>\n<p><b>{}</b> ({}). {}</p>\n",
        escape(&plan.name),
        escape(&plan.title),
        escape(&plan.figure),
        escape(&plan.publication),
        escape(&plan.shows)
    );
    if figures.missing > 0 {
        let _ = writeln!(html, "<p><b>Not complete: {} runs are missing.</b></p>", figures.missing);
    }
    for (cell, round, error) in &figures.failed {
        let _ = writeln!(
            html,
            "<p class=\"differs\">Failed: {}, round {round}: {}</p>",
            escape(&cell.name(plan)),
            escape(error)
        );
    }
    for picture in drawn {
        let _ = writeln!(html, "<figure>{}<figcaption>{}</figcaption></figure>", picture.svg, escape(&picture.caption));
    }
    let points = figures.points(plan);
    if !points.is_empty() {
        html.push_str("<table>\n<tr><th>published</th><th>says</th><th>ours</th><th></th><th>why</th></tr>\n");
        for p in &points {
            let verdict = p.verdict();
            let _ = writeln!(
                html,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"{verdict}\">{verdict}</td><td>{}</td></tr>",
                escape(&p.published.what),
                escape(&p.says()),
                pictures::ours(p.ours),
                escape(p.why())
            );
        }
        html.push_str("</table>\n");
    }
    for worst in &plan.worst {
        let which = if worst.greatest { "Greatest" } else { "Least" };
        let _ = writeln!(html, "<p>{which} <code>{}</code>:</p>\n<ol>", escape(&worst.value));
        for (name, s) in figures.worst(plan, worst) {
            let _ = writeln!(html, "<li>{}: {}</li>", short(s.median), escape(&name));
        }
        html.push_str("</ol>\n");
    }
    if !plan.notes.is_empty() {
        html.push_str("<ul>\n");
        plan.notes.iter().for_each(|n| html.push_str(&format!("<li>{}</li>\n", escape(n))));
        html.push_str("</ul>\n");
    }
    for table in &plan.table {
        let filled = table.fill(plan, figures);
        let _ = writeln!(html, "<p>{}</p>", escape(&table.caption));
        rows_of(&mut html, &filled.head, &filled.rows);
        if !filled.counts.is_empty() {
            let _ = writeln!(html, "<p>Cells: {}.</p>", escape(&filled.counts));
        }
    }
    table(&mut html, plan, figures);
    let said = |key: &str| escape(about[key].as_str().unwrap_or_default());
    let _ = writeln!(
        html,
        "<p class=\"about\">{} samples; {} ({} cores, Linux {}); commit {}; {}; <code>{}</code>; plan {}</p>\n</section>",
        figures.samples,
        said("machine"),
        said("cores"),
        said("kernel"),
        said("commit"),
        said("date"),
        said("command"),
        said("plan_hash")
    );
    html
}

fn table(html: &mut String, plan: &Plan, figures: &Figures) {
    let (axes, values, rows) = figures.table(plan);
    let _ = writeln!(html, "<details><summary>All {} cells: median [95 % interval of the mean]</summary>", rows.len());
    let (all, head) = (rows, [axes, values].concat());
    rows_of(html, &head, &all[..all.len().min(ROWS_SHOWN)]);
    if all.len() > ROWS_SHOWN {
        let _ = writeln!(html, "<p>{} more are in summary.json.</p>", all.len() - ROWS_SHOWN);
    }
    html.push_str("</details>\n");
}

fn rows_of(html: &mut String, head: &[String], rows: &[Vec<String>]) {
    html.push_str("<table>\n<tr>");
    head.iter().for_each(|name| html.push_str(&format!("<th>{}</th>", escape(name))));
    html.push_str("</tr>\n");
    for row in rows {
        html.push_str("<tr>");
        row.iter().for_each(|field| html.push_str(&format!("<td>{}</td>", escape(&field.replace("**", "")))));
        html.push_str("</tr>\n");
    }
    html.push_str("</table>\n");
}

/// Joins the sections of all plans in `folder`.
pub(crate) fn join(folder: &Path) -> Result<PathBuf> {
    let list = std::fs::read_dir(folder)?.filter_map(|e| e.ok().map(|e| e.path().join("section.html")));
    let mut sections: Vec<PathBuf> = list.filter(|p| p.is_file()).collect();
    sections.sort();
    let (mut contents, mut body) = (String::new(), String::new());
    for path in &sections {
        let section = std::fs::read_to_string(path)?;
        let between =
            |from: &str, to: &str| section.split_once(from).and_then(|s| s.1.split_once(to)).map_or("", |s| s.0);
        let (id, title) = (between("id=\"", "\""), between("<h2>", "</h2>"));
        let _ = writeln!(contents, "<li><a href=\"#{id}\">{title}</a> ({id})</li>");
        body.push_str(&section);
    }
    let html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>Experiments of Narrows</title>\
         <style>{PAGE_STYLE}{STYLE}</style></head>\n<body>\n<h1>Experiments of Narrows</h1>\n<ul>\n{contents}</ul>\n{body}</body>\n</html>\n"
    );
    let path = folder.join("index.html");
    narrows_host::whole::write_whole(&path, html.as_bytes())?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::cells::cells;
    use crate::experiment::plan::tests::SMALL;
    use serde_json::json;

    #[test]
    fn the_page_joins_sections_and_is_well_formed() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["one", "two"] {
            let mut plan = Plan::parse(name, SMALL, false).unwrap();
            plan.title = "a <b> & \"c\"".into();
            let figures = Figures::of(&plan, &cells(&plan), &[]);
            let html = section(&plan, &figures, &json!({ "machine": "m" }), &[]);
            std::fs::create_dir(folder.path().join(name)).unwrap();
            std::fs::write(folder.path().join(name).join("section.html"), html).unwrap();
        }
        let html = std::fs::read_to_string(join(folder.path()).unwrap()).unwrap();
        assert!(html.contains("<a href=\"#two\">a &lt;b&gt; &amp; &quot;c&quot;</a>"), "{html}");
        for element in ["section", "table", "tr", "td", "th", "p", "ul", "li", "details", "h2"] {
            let opened = html.matches(&format!("<{element}>")).count() + html.matches(&format!("<{element} ")).count();
            assert_eq!(opened, html.matches(&format!("</{element}>")).count(), "{element}");
        }
        assert!(!html.contains("src=") && !html.contains("http"), "it needs nothing else");
    }
}
