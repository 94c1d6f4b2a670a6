//! The plan as an HTML page: all tables, and Figures 4 to 8 of the text for this site.

use narrows_host::words::count;
use narrows_plan::archive::Archive;
use narrows_plan::interval::Interval;
use narrows_plan::memory::capacity_gb;
use narrows_plan::method::Method;
use narrows_plan::network::goodput;
use narrows_plan::report::{RATIOS, Way, grid};
use narrows_plan::sheet::Sheet;
use narrows_plan::site::Site;
use narrows_plan::threshold::{Cores, Model, multiplier, threshold};
use narrows_plot::{Axis, Colour, Figure, Heat, Plot, page};

/// Methods in a picture: more bars beside each other have no room for their names.
const METHODS_MAX: usize = 12;
/// Points of a line.
const POINTS: usize = 61;

/// The HTML page.
pub fn html(headline: &str, site: &Site, sheets: &[Sheet]) -> String {
    let tables: Vec<String> = sheets.iter().map(|s| s.text(true)).collect();
    let mut methods = site.choices();
    methods.truncate(METHODS_MAX + 1);
    let mut figures = vec![thresholds(site, &methods)];
    figures.extend([Model::Sequential, Model::Overlapped].map(|m| over_cores(site, &methods, m)));
    figures.extend(Way::ALL.map(|way| file_system(site, &methods, way)));
    figures.extend([memory_price(site), memory_offered(site, &methods), network(site, &methods)]);
    if site.links.iter().any(|l| l.price_per_port > 0.0) {
        figures.push(ports(site));
    }
    figures.extend(storage(site, &methods));
    figures.push(archive(site, &methods));
    page("What compression would do for this site", headline, tables.join("\n").trim_end(), &figures)
}

fn figure(svg: String, caption: &str) -> Figure {
    Figure { svg, caption: caption.into() }
}

/// A series of bars with their intervals.
fn bars(plot: Plot, name: &str, colour: Colour, values: &[Interval]) -> Plot {
    let points: Vec<(f64, f64)> = values.iter().enumerate().map(|(i, v)| (i as f64, v.value)).collect();
    let ends: Vec<Option<(f64, f64)>> = values.iter().map(|v| (v.low < v.high).then_some((v.low, v.high))).collect();
    plot.bars(name, colour, &points).whiskers(&ends)
}

fn names(methods: &[Method]) -> Vec<&str> {
    methods.iter().map(|m| m.name.as_str()).collect()
}

/// The i-th of several methods; no compression is grey.
fn colour(i: usize, methods: &[Method]) -> Colour {
    if methods[i].is_none() { Colour::Muted } else { Colour::Scale(i as f64 / methods.len().max(2) as f64) }
}

fn cores(site: &Site) -> String {
    count(site.node.cores_free, "core", "cores")
}

fn thresholds(site: &Site, methods: &[Method]) -> Figure {
    let methods: Vec<Method> = methods.iter().filter(|m| !m.is_none()).cloned().collect();
    let title = format!("Table 1: links below this gain, {} at each end", cores(site));
    let mut plot = Plot::new(&title, Axis::names("", &names(&methods)), Axis::log("MB/s of the link"));
    for (model, colour) in Model::ALL.into_iter().zip([Colour::Grey(0.2), Colour::Grey(0.8), Colour::Main]) {
        let values: Vec<Interval> = methods.iter().map(|m| threshold(model, m, site.cores())).collect();
        plot = bars(plot, model.name(), colour, &values);
    }
    figure(
        plot.svg(),
        "Rate of a link below which compression pays: one step after the other, with the two ends at the same time, and with \
         everything overlapped, which is how Narrows works.",
    )
}

fn over_cores(site: &Site, methods: &[Method], model: Model) -> Figure {
    let grid = grid(site, methods);
    let link = &site.links[grid.link];
    let title = format!("Figure 4, {}: speed-up on {} with {}", model.name(), link.name, grid.method.name);
    let times = |m: &Method, n: f64| multiplier(model, m, link.mb_per_s(), Cores::both(n)).value;
    figure(
        heat(&title, &grid.cores, &grid.method, times),
        match model {
            Model::Overlapped => {
                "The same with everything overlapped. Where a cell is below 1, Narrows sends plain instead."
            }
            _ => {
                "How many times as fast the link becomes, over the cores of each end and the ratio of the data: blue is slower \
                  than plain. One step after the other, as in the text."
            }
        },
    )
}

fn file_system(site: &Site, methods: &[Method], way: Way) -> Figure {
    let grid = grid(site, methods);
    let rate = site.file_system_mb_per_s(&site.links[grid.link]);
    let title = format!("Figure 5: {}, {}", way.title(), grid.method.name);
    let times = |m: &Method, n: f64| multiplier(Model::Sequential, m, rate, way.cores(site, n)).value;
    let caption = match way {
        Way::Write => "How many times as fast a client writes to its file system, which stores what it gets.",
        Way::Read => {
            "How many times as fast a client reads what is stored so. Decompression is faster than compression."
        }
        Way::ServerDecodes => "How many times as fast a client writes if the server decompresses before it stores.",
    };
    figure(heat(&title, &grid.cores, &grid.method, times), caption)
}

fn heat(title: &str, cores: &[f64], method: &Method, times: impl Fn(&Method, f64) -> f64) -> String {
    let columns: Vec<String> = cores.iter().map(f64::to_string).collect();
    let mut heat = Heat::new(title, "Cores of the node", &columns, "Ratio").middle(1.0);
    for ratio in RATIOS {
        let method = Method { ratio: ratio.into(), ..method.clone() };
        let row: Vec<Option<f64>> = cores.iter().map(|n| Some(times(&method, *n))).collect();
        heat = heat.row(&ratio.to_string(), &row);
    }
    heat.svg()
}

fn memory_price(site: &Site) -> Figure {
    let sizes: Vec<String> = site.memory_installed_gb.iter().map(|gb| format!("{gb} GB")).collect();
    let price = |gb: &f64| Interval::exact(site.node.count * gb * site.node.memory_price_per_gb / 1e3);
    let values: Vec<Interval> = site.memory_installed_gb.iter().map(price).collect();
    let y = Axis::linear(&format!("Price of all nodes, 1000 {}", site.currency));
    let plot = Plot::new("Figure 6: price of memory by size", Axis::names("Memory of a node", &sizes), y);
    figure(bars(plot, "", Colour::Main, &values).svg(), "Memory of all nodes for each size that a node may have.")
}

fn memory_offered(site: &Site, methods: &[Method]) -> Figure {
    let sizes: Vec<String> = site.memory_installed_gb.iter().map(|gb| format!("{gb} GB")).collect();
    let title = "Figure 6: what programs find of it";
    let mut plot =
        Plot::new(title, Axis::names("Memory of a node", &sizes), Axis::linear("GB")).level(site.node.memory_wanted_gb);
    for (i, m) in methods.iter().enumerate() {
        let offered = |gb: &f64| capacity_gb(site.memory(), *gb, m);
        let values: Vec<Interval> = site.memory_installed_gb.iter().map(offered).collect();
        plot = bars(plot, &m.name, colour(i, methods), &values);
    }
    figure(
        plot.svg(),
        "Memory that programs find if as much is compressed as would hold what they want; the dashed line is what they want. \
         Slow methods make such memory slow: see the table.",
    )
}

fn network(site: &Site, methods: &[Method]) -> Figure {
    let links: Vec<&str> = site.links.iter().map(|l| l.name.as_str()).collect();
    let title = format!("Figure 7: what a node sends, {}", cores(site));
    let mut plot = Plot::new(&title, Axis::names("", &links), Axis::log("Raw Gbit/s"));
    for (i, m) in methods.iter().enumerate() {
        let values: Vec<Interval> =
            site.links.iter().map(|l| goodput(l.mb_per_s(), m, site.cores()).0 * 8e-3).collect();
        plot = bars(plot, &m.name, colour(i, methods), &values);
    }
    figure(
        plot.svg(),
        "Raw bytes that cross each link by each method, overlapped. Where slow methods have lower bars than none, their speed \
         is the limit.",
    )
}

fn ports(site: &Site) -> Figure {
    let links: Vec<&str> = site.links.iter().map(|l| l.name.as_str()).collect();
    let values: Vec<Interval> =
        site.links.iter().map(|l| Interval::exact(l.price_per_port * site.node.count / 1e3)).collect();
    let y = Axis::linear(&format!("Ports of all nodes, 1000 {}", site.currency));
    let plot = Plot::new("Figure 7: price of the network", Axis::names("", &links), y);
    figure(bars(plot, "", Colour::Main, &values).svg(), "What the ports of all nodes cost by kind of link.")
}

fn storage(site: &Site, methods: &[Method]) -> [Figure; 2] {
    let s = &site.storage;
    let systems: Vec<_> = methods.iter().map(|m| (s.fewest_units(m), s.fewest_disks(m))).collect();
    let of = |title: &str, y: &str, first: &[Interval], second: &[Interval]| {
        let plot = Plot::new(title, Axis::names("", &names(methods)), Axis::linear(y));
        bars(bars(plot, "S1, fewest units", Colour::Grey(0.6), first), "S2, fewest disks", Colour::Main, second).svg()
    };
    let prices = |f: fn(&(narrows_plan::storage::System, narrows_plan::storage::System)) -> Interval, by: f64| {
        systems.iter().map(|s| f(s) / by).collect::<Vec<_>>()
    };
    let price = of(
        "Figure 8: price of storage",
        &format!("1000 {}", site.currency),
        &prices(|s| s.0.price, 1e3),
        &prices(|s| s.1.price, 1e3),
    );
    let rate = of(
        "Figure 8: throughput of storage",
        "Raw GB/s",
        &prices(|s| s.0.rate_gb_per_s, 1.0),
        &prices(|s| s.1.rate_gb_per_s, 1.0),
    );
    [
        figure(
            price,
            "Storage for the same data: as few units as hold it, or its disks spread over the units there are.",
        ),
        figure(rate, "What these systems take or give in a second. Slow methods keep their units below their rate."),
    ]
}

fn archive(site: &Site, methods: &[Method]) -> Figure {
    let archive = site.archive();
    let title =
        format!("Archive: what a month's data cost, read {} a month", count(archive.reads_per_month, "time", "times"));
    let y = Axis::linear(&format!("{} since the beginning", site.currency));
    let mut plot = Plot::new(&title, Axis::linear("Months"), y);
    for (i, m) in methods.iter().enumerate() {
        let at = |k: usize| archive.months_kept * k as f64 / (POINTS - 1) as f64;
        let total = |months_kept| Archive { months_kept, ..archive }.bill(m).total_price.value;
        let points: Vec<(f64, f64)> = (0..POINTS).map(|k| (at(k), total(at(k)))).collect();
        plot = plot.line(&m.name, colour(i, methods), &points);
    }
    figure(
        plot.svg(),
        "Each line begins with the price of encoding and grows with storage, reads and decoding. A method pays from where its \
         line crosses another one.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use narrows_plan::{report, seed, site};

    #[test]
    fn the_page_has_every_picture_and_no_number_that_is_none() {
        for site in
            [seed::climate_2016(), Site { methods: site::default_methods(), ..Site::default() }, Site::default()]
        {
            let page = html("head", &site, &report::sheets(&site, "words"));
            let has_ports = site.links.iter().any(|l| l.price_per_port > 0.0);
            assert_eq!(page.matches("<svg ").count(), 12 + usize::from(has_ports));
            assert!(!page.contains("NaN") && !page.contains("=\"inf"), "a picture has a number that is none");
            assert!(!page.contains("<script") && !page.contains("src="));
        }
    }
}
