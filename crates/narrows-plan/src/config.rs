//! The file that describes a site, `site.toml`: read with one clear line for each mistake, and
//! written with a comment for each field.

use std::fmt::{self, Write};

use toml::{Table, Value};

use crate::interval::Interval;
use crate::method::{Method, NONE};
use crate::network::Link;
use crate::site::{FIELDS, Field, Site};

/// Limit on entries of methods: those of several classes of data.
pub const METHODS_MAX: usize = 512;
/// Limit on methods with a name of their own: more than all codecs at all levels that are worth
/// comparing. With all limits reached a plan still takes only seconds.
pub const NAMES_MAX: usize = 64;
/// Limit on links, each of which is a table of all methods.
pub const LINKS_MAX: usize = 16;
/// Limit on sizes of memory, each of which is a column.
pub const INSTALLED_MAX: usize = 4;
/// Limit on classes of data, each of which has every method.
pub const CLASSES_MAX: usize = 32;
/// Limit on letters of a name, which stands in tables of 100 columns.
pub const NAME_MAX: usize = 32;
/// Fastest speed of a method that is accepted in MB/s: hardware may be fast, but a larger number is
/// one in other units.
const SPEED_MAX: f64 = 1e7;
/// Greatest ratio that is accepted: zeros give a few thousand.
const RATIO_MAX: f64 = 1e6;
/// Edits after which a key does not resemble another one any more.
const EDITS_MAX: usize = 3;

/// What is wrong with a file, in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake(String);

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Mistake {}

type Result<T> = std::result::Result<T, Mistake>;

fn wrong<T>(text: impl Into<String>) -> Result<T> {
    Err(Mistake(text.into()))
}

/// Reads a file over the fields of `site`.
///
/// # Errors
/// A [`Mistake`] for text that is not TOML, unknown keys, and values that are not possible.
pub fn parse(text: &str, site: Site) -> Result<Site> {
    let table: Table = text.parse().map_err(|e: toml::de::Error| {
        let at = e.span().map_or(0, |s| s.start.min(text.len()));
        let line = text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count() + 1;
        Mistake(format!("line {line}: {}", e.message().lines().collect::<Vec<_>>().join(" ")))
    })?;
    let mut site = site;
    for (key, value) in &table {
        match key.as_str() {
            "currency" => site.currency = name("currency", value)?,
            "method" => site.methods = list(key, value, METHODS_MAX, method)?,
            "link" => site.links = list(key, value, LINKS_MAX, link)?,
            section if FIELDS.iter().any(|f| f.section == section) => read_section(&mut site, section, value)?,
            _ => {
                let sections = FIELDS.iter().map(|f| f.section);
                return unknown(key, ["currency", "method", "link"].into_iter().chain(sections));
            }
        }
    }
    check(&site)?;
    Ok(site)
}

/// What no single field can show.
fn check(site: &Site) -> Result<()> {
    for (i, m) in site.methods.iter().enumerate() {
        if site.methods[..i].iter().any(|o| (&o.name, &o.class) == (&m.name, &m.class)) {
            return wrong(format!("method '{}' is there twice; a class makes the difference between two", m.name));
        }
        if m.is_none() {
            return wrong(format!("a method cannot have the name '{NONE}', which is that of no compression"));
        }
    }
    for (i, l) in site.links.iter().enumerate() {
        if site.links[..i].iter().any(|o| o.name == l.name) {
            return wrong(format!("link '{}' is there twice", l.name));
        }
    }
    if site.links.is_empty() {
        return wrong("link is empty; leave it out for the default links");
    }
    if !site.shares.is_empty() && site.shares.iter().map(|s| s.1).sum::<f64>() <= 0.0 {
        return wrong("work.shares are all 0; at least one class needs a share");
    }
    let mut names: Vec<&str> = site.methods.iter().map(|m| m.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    if names.len() > NAMES_MAX {
        return wrong(format!("there are {} methods; at most {NAMES_MAX} are compared", names.len()));
    }
    let mut classes: Vec<&str> = site.methods.iter().map(|m| m.class.as_str()).filter(|c| !c.is_empty()).collect();
    classes.sort_unstable();
    classes.dedup();
    if classes.len() > CLASSES_MAX {
        return wrong(format!("methods have more than {CLASSES_MAX} classes"));
    }
    Ok(())
}

/// Checks that every share is of a class that some method has.
///
/// # Errors
/// A [`Mistake`] that names the classes there are.
pub fn check_shares(site: &Site) -> Result<()> {
    let mut classes: Vec<&str> = site.methods.iter().map(|m| m.class.as_str()).filter(|c| !c.is_empty()).collect();
    classes.dedup();
    match site.shares.iter().find(|s| !classes.contains(&s.0.as_str())) {
        Some((class, _)) if !classes.is_empty() => {
            wrong(format!("work.shares has '{class}', but the classes of the data are {}", classes.join(", ")))
        }
        _ => Ok(()),
    }
}

/// Sets one number.
///
/// # Errors
/// As [`parse`].
pub fn set(section: &str, key: &str, value: f64, mut site: Site) -> Result<Site> {
    match FIELDS.iter().find(|f| (f.section, f.key) == (section, key)) {
        Some(field) => *(field.slot)(&mut site) = number(&field.name(), &Value::Float(value), field.range)?,
        None if FIELDS.iter().any(|f| f.section == section) => {
            return unknown(&format!("{section}.{key}"), FIELDS.iter().filter(|f| f.section == section).map(|f| f.key));
        }
        None => return unknown(section, FIELDS.iter().map(|f| f.section)),
    }
    Ok(site)
}

fn read_section(site: &mut Site, section: &str, value: &Value) -> Result<()> {
    let Value::Table(table) = value else { return wrong(format!("{section} must be a section: [{section}]")) };
    for (key, value) in table {
        let name = format!("{section}.{key}");
        match (section, key.as_str()) {
            ("node", "memory_installed_gb") => {
                let read = |name: &str, v: &Value| number(name, v, (1e-6, 1e12));
                site.memory_installed_gb = list(&name, value, INSTALLED_MAX, read)?;
                if site.memory_installed_gb.is_empty() {
                    return wrong(format!("{name} is empty; it needs at least one size"));
                }
            }
            ("work", "shares") => site.shares = shares(&name, value)?,
            _ => match FIELDS.iter().find(|f| f.section == section && f.key == key) {
                Some(field) => *(field.slot)(site) = number(&name, value, field.range)?,
                None => {
                    let own = FIELDS.iter().filter(|f| f.section == section).map(|f| f.key);
                    let more = match section {
                        "node" => Some("memory_installed_gb"),
                        "work" => Some("shares"),
                        _ => None,
                    };
                    return unknown(&name, own.chain(more));
                }
            },
        }
    }
    Ok(())
}

fn shares(name: &str, value: &Value) -> Result<Vec<(String, f64)>> {
    let Value::Table(table) = value else {
        return wrong(format!("{name} must be a table such as {{ logs = 0.7, images = 0.3 }}"));
    };
    if table.len() > CLASSES_MAX {
        return wrong(format!("{name} has {} classes; at most {CLASSES_MAX} are read", table.len()));
    }
    table
        .iter()
        .map(|(class, share)| Ok((checked_name(name, class)?, number(&format!("{name}.{class}"), share, (0.0, 1e12))?)))
        .collect()
}

fn method(what: &str, value: &Value) -> Result<Method> {
    const KEYS: [&str; 5] = ["name", "class", "encode_mb_per_s", "decode_mb_per_s", "ratio"];
    let table = keyed(what, value, &KEYS)?;
    let name = name(&format!("{what}.name"), table.get("name").unwrap_or(&Value::Integer(0)))?;
    let get = |key: &str, range| match table.get(key) {
        Some(value) => interval(&format!("{what} '{name}': {key}"), value, range),
        None => wrong(format!("{what} '{name}' has no {key}")),
    };
    let class = table.get("class").map(|v| self::name(&format!("{what}.class"), v)).transpose()?.unwrap_or_default();
    Ok(Method {
        class,
        encode_mb_per_s: get("encode_mb_per_s", (1e-6, SPEED_MAX))?,
        decode_mb_per_s: get("decode_mb_per_s", (1e-6, SPEED_MAX))?,
        ratio: get("ratio", (1.0, RATIO_MAX))?,
        name: name.clone(),
    })
}

fn link(what: &str, value: &Value) -> Result<Link> {
    const KEYS: [&str; 4] = ["name", "rate_mbit_per_s", "price_per_port", "price_per_tb"];
    let table = keyed(what, value, &KEYS)?;
    let name = name(&format!("{what}.name"), table.get("name").unwrap_or(&Value::Integer(0)))?;
    let get = |key: &str, range, default: Option<f64>| match (table.get(key), default) {
        (Some(value), _) => number(&format!("{what} '{name}': {key}"), value, range),
        (None, Some(default)) => Ok(default),
        (None, None) => wrong(format!("{what} '{name}' has no {key}")),
    };
    Ok(Link {
        rate_mbit_per_s: get("rate_mbit_per_s", (1e-6, 1e9), None)?,
        price_per_port: get("price_per_port", (0.0, 1e12), Some(0.0))?,
        price_per_tb: get("price_per_tb", (0.0, 1e12), Some(0.0))?,
        name: name.clone(),
    })
}

/// The table of an entry, which has no other keys.
fn keyed<'a>(what: &str, value: &'a Value, keys: &[&'static str]) -> Result<&'a Table> {
    let Value::Table(table) = value else { return wrong(format!("{what} must be a section: [[{what}]]")) };
    match table.keys().find(|k| !keys.contains(&k.as_str())) {
        Some(key) => unknown(&format!("{what}.{key}"), keys.iter().copied()),
        None => Ok(table),
    }
}

fn list<T>(what: &str, value: &Value, max: usize, read: impl Fn(&str, &Value) -> Result<T>) -> Result<Vec<T>> {
    let Value::Array(values) = value else { return wrong(format!("{what} must be a list")) };
    if values.len() > max {
        return wrong(format!("{what} has {} entries; at most {max} are read", values.len()));
    }
    values.iter().map(|v| read(what, v)).collect()
}

fn name(what: &str, value: &Value) -> Result<String> {
    match value {
        Value::String(text) => checked_name(what, text),
        _ => wrong(format!("{what} must be a name in quotes")),
    }
}

/// Whether a letter of a name can be seen. Others move the cursor of a terminal, turn the direction of
/// the text, or only make names differ.
pub fn is_visible(c: char) -> bool {
    let hidden = matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
        | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}');
    !c.is_control() && !hidden
}

fn checked_name(what: &str, text: &str) -> Result<String> {
    let len = text.chars().count();
    if len == 0 || len > NAME_MAX {
        return wrong(format!("{what} has {len} letters; a name has 1 to {NAME_MAX}"));
    }
    if !text.chars().all(is_visible) {
        return wrong(format!("{what} has invisible letters"));
    }
    Ok(text.to_owned())
}

/// A number, or its interval as [low, value, high].
fn interval(what: &str, value: &Value, range: (f64, f64)) -> Result<Interval> {
    let Value::Array(ends) = value else { return Ok(number(what, value, range)?.into()) };
    match &ends[..] {
        [low, middle, high] => {
            let [low, middle, high] =
                [number(what, low, range)?, number(what, middle, range)?, number(what, high, range)?];
            if low > middle || middle > high {
                return wrong(format!("{what}: an interval is [low, value, high], from the least to the greatest"));
            }
            Ok(Interval::new(low, middle, high))
        }
        _ => wrong(format!("{what} must be a number or [low, value, high]")),
    }
}

fn number(what: &str, value: &Value, (least, most): (f64, f64)) -> Result<f64> {
    let number = match value {
        Value::Integer(n) => *n as f64,
        Value::Float(n) => *n,
        other => return wrong(format!("{what} must be a number, not {}", kind(other))),
    };
    if (least..=most).contains(&number) {
        return Ok(number);
    }
    wrong(format!("{what} is {number}; it must be from {least} to {most}"))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a text",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list",
        Value::Table(_) => "a section",
        Value::Integer(_) | Value::Float(_) => "a number",
    }
}

fn unknown<T>(name: &str, known: impl Iterator<Item = &'static str>) -> Result<T> {
    let key = name.rsplit_once('.').map_or(name, |n| n.1);
    let known: Vec<&str> = known.collect();
    // Names from the file may hold anything.
    let shown: String = name.chars().take(2 * NAME_MAX).map(|c| if is_visible(c) { c } else { '?' }).collect();
    match nearest(key, &known) {
        Some(near) => wrong(format!("'{shown}' is not known; did you mean {near}?")),
        None => {
            let mut known = known;
            known.dedup();
            wrong(format!("'{shown}' is not known; known are {}", known.join(", ")))
        }
    }
}

/// The known key that was probably meant.
fn nearest<'a>(key: &str, known: &[&'a str]) -> Option<&'a str> {
    let nearest = known.iter().map(|k| (edits(key, k), *k)).min();
    // Of a short key every letter counts.
    nearest.filter(|(n, _)| *n <= EDITS_MAX.min(key.chars().count() / 2)).map(|(_, near)| near)
}

/// Levenshtein distance; at most [`NAME_MAX`] letters of each are compared.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(NAME_MAX).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(NAME_MAX).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

const HEAD: &str = "\
# A site for `narrows plan --config FILE`. Every value below is the default: round figures to replace
# with your own, no quotes. What you do not change may be removed. MB, GB and TB are powers of 1000.
# Raw means before compression, a ratio is raw / compressed bytes.
";

const METHODS: &str = "
# Methods: speeds of one core, and the ratio on your data. `narrows plan PATH...` measures them
# instead, and `narrows plan --init PATH...` writes what it measured. A figure is a number or an
# interval [low, value, high]. With `class` it holds for one class of data (work.shares).
";

const METHOD_EXAMPLE: &str = "\
# [[method]]
# name = \"zstd:level=3\"
# class = \"logs\"
# encode_mb_per_s = [377, 499, 502]
# decode_mb_per_s = 5006
# ratio = 2.76
";

/// The file for a site, with a comment for each field. [`parse`] reads it as the same site.
pub fn write(site: &Site) -> String {
    let mut out = format!("{HEAD}\ncurrency = {}\n", quoted(&site.currency));
    let mut section = "";
    let fields: Vec<(&Field, f64)> = FIELDS.iter().map(|f| (f, (f.get)(site))).collect();
    for (i, (field, value)) in fields.iter().enumerate() {
        if field.section != section {
            section = field.section;
            let _ = writeln!(out, "\n[{section}]");
        }
        let (least, most) = field.range;
        let _ = writeln!(out, "# {} ({least} to {most})\n{} = {value}", field.about, field.key);
        let is_last = fields.get(i + 1).is_none_or(|next| next.0.section != section);
        if is_last && section == "node" {
            let sizes: Vec<String> = site.memory_installed_gb.iter().map(f64::to_string).collect();
            let _ = writeln!(
                out,
                "# sizes of memory to compare, at most {INSTALLED_MAX}\nmemory_installed_gb = [{}]",
                sizes.join(", ")
            );
        }
        if is_last && section == "work" {
            let shares: Vec<String> = site.shares.iter().map(|(c, s)| format!("{} = {s}", quoted(c))).collect();
            let _ = writeln!(
                out,
                "# share of each class of data, by the name of a PATH or the class of a method; empty: all alike\n\
                 # shares = {{ logs = 0.7, images = 0.3 }}\nshares = {{ {} }}",
                shares.join(", ")
            );
        }
    }
    out.push_str(
        "\n# Links: the rate is that of payload. The price of a port includes its part of switches and cables.\n\
         # Where traffic is paid for, price_per_tb is the price of a terabyte on the wire.\n",
    );
    for link in &site.links {
        let _ = writeln!(
            out,
            "[[link]]\nname = {}\nrate_mbit_per_s = {}\nprice_per_port = {}\nprice_per_tb = {}\n",
            quoted(&link.name),
            link.rate_mbit_per_s,
            link.price_per_port,
            link.price_per_tb
        );
    }
    out.push_str(METHODS.trim_start());
    if site.methods.is_empty() {
        out.push_str(METHOD_EXAMPLE);
    }
    for m in &site.methods {
        let interval = |i: Interval| {
            if i == Interval::exact(i.value) {
                i.value.to_string()
            } else {
                format!("[{}, {}, {}]", i.low, i.value, i.high)
            }
        };
        let class = if m.class.is_empty() { String::new() } else { format!("class = {}\n", quoted(&m.class)) };
        let _ = writeln!(
            out,
            "[[method]]\nname = {}\n{class}encode_mb_per_s = {}\ndecode_mb_per_s = {}\nratio = {}\n",
            quoted(&m.name),
            interval(m.encode_mb_per_s),
            interval(m.decode_mb_per_s),
            interval(m.ratio)
        );
    }
    out
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed;
    use crate::site::default_methods;

    #[test]
    fn what_is_written_reads_as_the_same_site() {
        let mut odd = seed::climate_2016();
        odd.methods = default_methods();
        odd.methods[0].class = "a \"b\" \\".into();
        odd.shares = vec![("a \"b\" \\".into(), 0.5), ("c".into(), 2.0)];
        for site in [Site::default(), seed::climate_2016(), odd] {
            let text = write(&site);
            // Over another site, so that a field that was not written shows.
            let other = Site { methods: Vec::new(), ..seed::climate_2016() };
            assert_eq!(parse(&text, other), Ok(site), "{text}");
            assert!(text.lines().filter(|l| !l.contains('=')).all(|l| l.chars().count() <= 120), "{text}");
        }
        assert_eq!(parse("", Site::default()), Ok(Site::default()));
    }

    #[test]
    fn every_mistake_is_one_line_that_names_the_place() {
        let method = |line: &str| {
            format!("[[method]]\nname = \"a\"\nencode_mb_per_s = 1\ndecode_mb_per_s = 1\nratio = 2\n{line}")
        };
        let many = "[[link]]\nname=\"x\"\nrate_mbit_per_s=1\n".repeat(LINKS_MAX + 1);
        let cases = [
            ("[storage]\nunit_disk_price = -5", "storage.unit_disk_price is -5; it must be from 0 to"),
            ("[storage]\nunit_disk_prise = 5", "'storage.unit_disk_prise' is not known; did you mean unit_disk_price?"),
            ("[sotrage]\nx = 5", "'sotrage' is not known; did you mean storage?"),
            ("[zoo]\nx = 5", "'zoo' is not known; known are currency"),
            ("[node]\ncount = nan", "node.count is NaN"),
            ("[node]\ncount = inf", "node.count is inf"),
            ("[node]\ncount = \"5\"", "node.count must be a number, not a text"),
            ("[node]\ncount = 0", "node.count is 0"),
            ("node = 5", "node must be a section: [node]"),
            ("[node]\nmemory_installed_gb = [1,2,3,4,5]", "node.memory_installed_gb has 5 entries; at most 4"),
            ("[node]\nmemory_installed_gb = []", "needs at least one"),
            ("link = []", "link is empty"),
            ("link = 5", "link must be a list"),
            ("[[link]]\nname = \"a\"\nrate_mbit_per_s = 0", "link 'a': rate_mbit_per_s is 0"),
            ("[[link]]\nname = \"a\"", "link 'a' has no rate_mbit_per_s"),
            ("[[link]]\nrate_mbit_per_s = 1", "link.name must be a name in quotes"),
            (many.as_str(), "link has 17 entries; at most 16"),
            ("[[method]]\nname = \"a\"\nratio = 0.5", "method 'a' has no encode_mb_per_s"),
            ("[work]\nshares = { a = -1 }", "work.shares.a is -1"),
            ("[work]\nshares = { a = 0 }", "work.shares are all 0"),
            ("currency = \"a\\u001b[2J\"", "currency has invisible letters"),
            ("currency = \"a\\u202eb\"", "currency has invisible letters"),
            ("currency = \"a\\u3164b\"", "currency has invisible letters"),
            ("currency = \"\"", "a name has 1 to 32"),
            ("a = = 1", "line 1:"),
            ("[node]\n\ncount = 1\ncount = 2", "line 4:"),
        ];
        let low = method("").replace("ratio = 2", "ratio = 0.9");
        let order = method("").replace("ratio = 2", "ratio = [3, 2, 4]");
        let two = method("").replace("ratio = 2", "ratio = [3, 2]");
        let twice = method("") + &method("");
        let none = method("").replace("\"a\"", "\"none\"");
        let more = [
            (low.as_str(), "method 'a': ratio is 0.9; it must be from 1 to"),
            (order.as_str(), "from the least to the greatest"),
            (two.as_str(), "must be a number or [low, value, high]"),
            (twice.as_str(), "method 'a' is there twice"),
            (none.as_str(), "cannot have the name 'none'"),
        ];
        for (text, expected) in cases.into_iter().chain(more) {
            let mistake = parse(text, Site::default()).expect_err(text).to_string();
            assert!(mistake.contains(expected) && !mistake.contains('\n'), "{text}: {mistake}");
        }
    }

    #[test]
    fn keys_that_resemble_each_other_are_few_edits_apart() {
        assert_eq!((edits("count", "count"), edits("cuont", "count"), edits("", "abc")), (0, 2, 3));
    }
}
