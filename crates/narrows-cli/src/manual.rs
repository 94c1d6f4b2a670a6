//! Manual pages in roff, one for the program and one for each of its commands, from the definitions of
//! the command line.

use std::io;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

/// A page and the name of its file.
pub(crate) struct Page {
    pub(crate) name: String,
    pub(crate) text: String,
}

/// Longest indented line of a help text that is shown as it is: the commands and tables. What is longer
/// is a paragraph.
const AS_IS_MAX: usize = 100;
/// Longest line of the source, by the convention of manual pages.
const LINE_MAX: usize = 79;

/// The pages of `program` and of all its commands, its own first.
pub(crate) fn pages(program: Command, date: &str) -> io::Result<Vec<Page>> {
    let mut program = program.disable_help_subcommand(true);
    // Gives the commands their whole names.
    program.build();
    let mut pages = Vec::new();
    add(&program, None, date, &mut pages)?;
    Ok(pages)
}

fn add(command: &Command, parent: Option<&str>, date: &str, pages: &mut Vec<Page>) -> io::Result<()> {
    pages.push(page(command, parent, date)?);
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let mut shown = command.get_subcommands().filter(|c| !c.is_hide_set());
    shown.try_for_each(|below| add(below, Some(name), date, pages))
}

fn page(command: &Command, parent: Option<&str>, date: &str) -> io::Result<Page> {
    let version = concat!("narrows ", env!("CARGO_PKG_VERSION"));
    let title = command.get_display_name().unwrap_or_else(|| command.get_name()).to_uppercase();
    let man = Man::new(command.clone()).title(title).date(date).source(version).manual("Narrows");
    let help = command.get_after_long_help().or_else(|| command.get_after_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    let (begin, sections) = help.split_at(first_heading(&help));

    let mut text = Source::default();
    text.put(|to| man.render_title(to))?;
    text.put(|to| man.render_name_section(to))?;
    text.put(|to| synopsis(command).to_writer(to))?;
    text.put(|to| man.render_description_section(to))?;
    text.put(|to| roff_of_help(begin, true).to_writer(to))?;
    if command.get_arguments().any(|a| !a.is_hide_set()) {
        text.put(|to| man.render_options_section(to))?;
    }
    if command.get_subcommands().any(|c| !c.is_hide_set()) {
        text.put(|to| man.render_subcommands_section(to))?;
    }
    text.put(|to| roff_of_help(sections, false).to_writer(to))?;
    if let Some(parent) = parent {
        let mut see = Roff::new();
        see.control("SH", ["SEE ALSO"]).control("BR", [parent, "(1)"]);
        text.put(|to| see.to_writer(to))?;
    }
    Ok(Page { name: man.get_filename(), text: fold(&text.0) })
}

/// The source of a page. Each part of it comes with the same preamble, which only the first one keeps.
#[derive(Default)]
struct Source(String);

impl Source {
    fn put(&mut self, render: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> io::Result<()> {
        let mut part = Vec::new();
        render(&mut part)?;
        let part = String::from_utf8(part).map_err(io::Error::other)?;
        let preamble = Roff::new().render();
        let known = if self.0.is_empty() { "" } else { preamble.as_str() };
        self.0 += part.strip_prefix(known).unwrap_or(&part);
        Ok(())
    }
}

fn synopsis(command: &Command) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    for (at, line) in usage.trim_start_matches("Usage:").lines().enumerate() {
        if at > 0 {
            roff.control("br", []);
        }
        let line = line.trim();
        match line.strip_prefix(name) {
            Some(rest) => roff.text([bold(name), roman(rest)]),
            None => roff.text([roman(line)]),
        };
    }
    roff
}

/// A line of a help text.
enum Line<'a> {
    Blank,
    Heading(&'a str),
    /// Of a table: what it is about, and what it says of that.
    Row(&'a str, &'a str),
    AsIs(&'a str),
    Prose(&'a str),
}

impl<'a> Line<'a> {
    fn of(line: &'a str) -> Self {
        let inner = line.trim();
        if inner.is_empty() {
            return Self::Blank;
        }
        if !line.starts_with(' ') {
            let is_heading = inner.chars().all(|c| c.is_ascii_uppercase() || c == ' ');
            return if is_heading { Self::Heading(inner) } else { Self::Prose(inner) };
        }
        match inner.split_once("  ") {
            Some((about, says)) => Self::Row(about, says.trim_start()),
            // A long word could not be broken.
            None if line.len() <= AS_IS_MAX || !inner.contains(' ') => {
                Self::AsIs(line.trim_end().strip_prefix("  ").unwrap_or(line))
            }
            None => Self::Prose(inner),
        }
    }
}

/// Where the first section of a help text begins.
fn first_heading(help: &str) -> usize {
    let mut at = 0;
    for line in help.split_inclusive('\n') {
        if matches!(Line::of(line), Line::Heading(_)) {
            break;
        }
        at += line.len();
    }
    at
}

/// The text in roff; `goes_on` if it follows other paragraphs.
fn roff_of_help(help: &str, goes_on: bool) -> Roff {
    let mut roff = Roff::new();
    let mut as_is = false;
    let mut begins_paragraph = goes_on;
    for line in help.lines().map(Line::of) {
        if as_is && !matches!(line, Line::AsIs(_)) {
            roff.control("fi", []);
            as_is = false;
            begins_paragraph = true;
        }
        match line {
            Line::Blank => begins_paragraph = true,
            Line::Heading(name) => {
                roff.control("SH", [name]);
                begins_paragraph = false;
            }
            Line::Row(about, says) => {
                roff.control("TP", []).text([bold(about)]).text([roman(says)]);
                begins_paragraph = true;
            }
            Line::AsIs(text) => {
                if !as_is {
                    if begins_paragraph {
                        roff.control("PP", []);
                    }
                    roff.control("nf", []);
                    as_is = true;
                }
                roff.text([Inline::Roman(text.to_owned())]);
            }
            Line::Prose(text) => {
                if begins_paragraph {
                    roff.control("PP", []);
                    begins_paragraph = false;
                }
                roff.text([roman(text)]);
            }
        }
    }
    if as_is {
        roff.control("fi", []);
    }
    roff
}

/// Breaks long lines of running text, and drops what would only be more space before a list of values.
fn fold(source: &str) -> String {
    let mut out = String::with_capacity(source.len() + source.len() / 32);
    let mut filled = true;
    // The line after .TP is one argument.
    let mut is_tag = false;
    for line in source.lines() {
        match line {
            "" => continue,
            ".br" if out.ends_with("\n.br\n") => continue,
            ".nf" => filled = false,
            ".fi" => filled = true,
            _ => {}
        }
        if is_tag || !filled || line.starts_with('.') {
            out += line;
        } else {
            let mut len = 0;
            for word in line.split(' ') {
                if len > 0 && len + 1 + word.len() > LINE_MAX {
                    out.push('\n');
                    len = 0;
                    // At the begin of a line these would be commands.
                    if word.starts_with(['.', '\'']) {
                        out += "\\&";
                    }
                } else if len > 0 {
                    out.push(' ');
                    len += 1;
                }
                out += word;
                len += word.len();
            }
        }
        out.push('\n');
        is_tag = line == ".TP";
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roff(help: &str) -> String {
        fold(&roff_of_help(help, false).to_roff())
    }

    #[test]
    fn help_texts_keep_their_form() {
        let help = "Prose.\n\nEXIT STATUS\n  0  success\n  1  failure\n\nEXAMPLES\n  narrows a\n  narrows 'b'\nAfter.";
        let expected = "Prose.\n.SH \"EXIT STATUS\"\n.TP\n\\fB0\\fR\nsuccess\n.TP\n\\fB1\\fR\nfailure\n.SH EXAMPLES\n.nf\n\
                        narrows a\nnarrows 'b'\n.fi\n.PP\nAfter.\n";
        assert_eq!(roff(help), expected);
        assert_eq!(&help[first_heading(help)..][..11], "EXIT STATUS");
        assert_eq!(first_heading("no section\n"), 11);
    }

    #[test]
    fn long_lines_are_broken_and_words_never_become_commands() {
        let long = format!("{} .word 'quoted and the end", "x".repeat(LINE_MAX - 1));
        let lines: Vec<_> = roff(&long).lines().map(str::to_owned).collect();
        assert_eq!(lines[1], "\\&.word 'quoted and the end");
        let long = format!("  tag  {}", "word ".repeat(60));
        assert!(roff(&long).lines().all(|line| line.len() <= LINE_MAX));
        assert_eq!(fold("a\n.br\n\n.br\nb\n"), "a\n.br\nb\n");
    }
}
