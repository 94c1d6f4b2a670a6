//! The table of links.

use crate::method::Method;
use crate::network::{Limit, goodput};
use crate::sensitivity::Question;
use crate::sheet::{Cell, Sheet, number};
use crate::site::{MONTH_DAYS, Site};

/// Seconds of an hour, and of a day.
const HOUR_S: f64 = 3600.0;
/// Megabytes of a terabyte.
const TB_MB: f64 = 1e6;

pub(super) fn sheet(site: &Site, methods: &[Method]) -> Sheet {
    let columns = [
        ("link", "link"),
        ("method", "method"),
        ("goodput_mb_per_s", "raw MB/s"),
        ("times_plain", "/ plain"),
        ("limited_by", "limited by"),
        ("hours_per_day", "h a day"),
        ("price_per_month", "a month"),
        ("ports_price", ""),
    ];
    let mut sheet = Sheet::new("network", format!("Network, overlapped, in {}", site.currency), &columns);
    let moved_tb = site.work.written_tb_per_day + site.work.read_tb_per_day;
    let cores = site.cores();
    for (i, link) in site.links.iter().enumerate() {
        let question = Question::Link(i);
        let best = question.answer(site, methods).name.clone();
        let rivals: Vec<String> = question.rivals(site, methods).into_iter().map(|r| r.name).collect();
        for m in methods {
            let (rate, limit) = goodput(link.mb_per_s(), m, cores);
            let cpu_h = (m.encode_mb_per_s.inverse() + m.decode_mb_per_s.inverse()) * (moved_tb * TB_MB / HOUR_S);
            let day = m.left() * (moved_tb * link.price_per_tb) + cpu_h * site.core_price_per_hour();
            let name = if m.name == best { format!("* {}", m.name) } else { format!("  {}", m.name) };
            let cells: [Cell; 8] = [
                link.name.as_str().into(),
                name.into(),
                rate.into(),
                (rate / link.mb_per_s()).into(),
                limit.name().into(),
                (rate.inverse() * (moved_tb * TB_MB / HOUR_S)).into(),
                (day * MONTH_DAYS).into(),
                (link.price_per_port * site.node.count).into(),
            ];
            sheet.push_detail(cells, !(m.is_none() || m.name == best || rivals.contains(&m.name)));
        }
    }
    sheet.about = format!(
        "What one node sends with {} cores at each end, and what limits it: the link, encoding or decoding. * is the fastest; \
         methods that may be are shown too. `h a day` moves the {} TB that are written and read; `a month` is traffic and CPU \
         time for them.",
        number(site.node.cores_free),
        number(moved_tb)
    );
    replacements(site, methods, &mut sheet);
    sheet
}

/// Cheaper links that carry as much with compression as a dearer one without.
fn replacements(site: &Site, methods: &[Method], sheet: &mut Sheet) {
    for dear in site.links.iter().filter(|l| l.price_per_port > 0.0) {
        let enough = |i: &usize| {
            let link = &site.links[*i];
            let best = Question::Link(*i).answer(site, methods);
            link.price_per_port < dear.price_per_port
                && link.price_per_port > 0.0
                && goodput(link.mb_per_s(), best, site.cores()).0.value >= dear.mb_per_s()
        };
        let price = |i: &usize| site.links[*i].price_per_port;
        let Some(i) = (0..site.links.len()).filter(enough).min_by(|a, b| price(a).total_cmp(&price(b))) else {
            continue;
        };
        let best = Question::Link(i).answer(site, methods);
        sheet.notes.push(format!(
            "{} with {} carries what {} carries plain, and saves {} {} of ports",
            site.links[i].name,
            best.name,
            dear.name,
            number((dear.price_per_port - price(&i)) * site.node.count),
            site.currency
        ));
    }
    let ports: Vec<String> = site
        .links
        .iter()
        .filter(|l| l.price_per_port > 0.0)
        .map(|l| format!("{} {}", l.name, number(l.price_per_port * site.node.count)))
        .collect();
    if !ports.is_empty() {
        sheet.notes.push(format!("ports of all nodes: {}", ports.join(", ")));
    }
    let limits = |i: usize| goodput(site.links[i].mb_per_s(), Question::Link(i).answer(site, methods), site.cores()).1;
    let by_cpu: Vec<&str> =
        (0..site.links.len()).filter(|i| limits(*i) != Limit::Link).map(|i| site.links[i].name.as_str()).collect();
    if !by_cpu.is_empty() {
        sheet.notes.push(format!("more cores would make it faster on: {}", by_cpu.join(", ")));
    }
}
