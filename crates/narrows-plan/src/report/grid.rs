//! Multipliers over cores and ratio: Figures 4 and 5 of the text.

use crate::method::Method;
use crate::sheet::{Cell, Row, Sheet, number};
use crate::site::Site;
use crate::threshold::{Cores, Model, multiplier};

/// Ratios of the grid: those of the text's axis (inverse ratios 0.9 to 0.3), and what logs reach.
pub const RATIOS: [f64; 8] = [1.11, 1.25, 1.5, 1.825, 2.0, 2.5, 3.33, 10.0];
/// Columns of the grid, so that it fits a terminal.
const COLUMNS: usize = 9;

/// The grid of one link and one method.
pub struct Grid {
    /// Position of the link.
    pub link: usize,
    /// The method, whose ratio is replaced by those of the grid.
    pub method: Method,
    /// Cores at each end.
    pub cores: Vec<f64>,
}

/// The grid of a site: its fastest method, on the first link that is too fast for the whole ratio
/// of one core, or else on the last.
pub fn grid(site: &Site, methods: &[Method]) -> Grid {
    let fastest = methods
        .iter()
        .filter(|m| !m.is_none())
        .max_by(|a, b| a.encode_mb_per_s.value.total_cmp(&b.encode_mb_per_s.value))
        .cloned()
        .unwrap_or_else(Method::none);
    let one_core = fastest.encode_mb_per_s.min(fastest.decode_mb_per_s).value / fastest.ratio.value;
    let link = site.links.iter().position(|l| l.mb_per_s() > one_core).unwrap_or(site.links.len().saturating_sub(1));
    Grid { link, method: fastest, cores: cores(site.node.cores_free) }
}

/// Powers of two up to twice the cores of a node, with that number itself, and 17 of the text's 24.
fn cores(free: f64) -> Vec<f64> {
    let most = (2.0 * free).max(4.0);
    let mut cores: Vec<f64> = std::iter::successors(Some(1.0), |n| Some(2.0 * n)).take_while(|n| *n <= most).collect();
    cores.push(free);
    if free == 24.0 {
        cores.push(17.0);
    }
    cores.sort_by(f64::total_cmp);
    cores.dedup();
    // The most cores matter most.
    cores.split_off(cores.len().saturating_sub(COLUMNS))
}

/// The table: rows are link, model and ratio.
pub(super) fn sheet(site: &Site, methods: &[Method]) -> Sheet {
    let grid = grid(site, methods);
    let mut keys =
        vec![("link".into(), "link".into()), ("model".into(), "model".into()), ("ratio".into(), "ratio".into())];
    keys.extend(grid.cores.iter().map(|n| (format!("times_on_{n}_cores"), format!("n={n}"))));
    let columns: Vec<(&str, &str)> = keys.iter().map(|(k, h): &(String, String)| (k.as_str(), h.as_str())).collect();
    let title = format!("Speed-up of a link over cores and ratio, with the speed of {}", grid.method.name);
    let mut sheet = Sheet::new("multiplier", title, &columns);
    for (i, link) in site.links.iter().enumerate() {
        for model in Model::ALL {
            for ratio in RATIOS {
                let method = Method { ratio: ratio.into(), ..grid.method.clone() };
                let times = |n: &f64| Cell::Narrow(multiplier(model, &method, link.mb_per_s(), Cores::both(*n)));
                let times = grid.cores.iter().map(times);
                let cells = [link.name.as_str().into(), model.name().into(), ratio.into()].into_iter().chain(times);
                let is_detail = i != grid.link || model == Model::Pipelined;
                sheet.rows.push(Row { cells: cells.collect(), is_detail });
            }
        }
    }
    sheet.about =
        "Below 1 the link becomes slower than plain. Narrows is the model `overlapped`, and never goes below 1: \
                   where compression does not pay it sends plain."
            .into();
    sheet
}

/// The way to a file system, as Figure 5: writing, reading, and writing with decompression at the
/// server.
pub(super) fn file_system(site: &Site, methods: &[Method]) -> Sheet {
    let columns = [
        ("method", "method"),
        ("write_sequential", "write, seq."),
        ("write_overlapped", "overl."),
        ("read_sequential", "read, seq."),
        ("read_overlapped", "overl."),
        ("server_decodes_sequential", "server decodes, seq."),
        ("server_decodes_overlapped", "overl."),
    ];
    let grid = grid(site, methods);
    let link = &site.links[grid.link];
    let rate = site.file_system_mb_per_s(link);
    let mut sheet = Sheet::new("file_system", "File system: times as fast as plain", &columns);
    for m in methods.iter().filter(|m| !m.is_none()) {
        let pair = |cores| [Model::Sequential, Model::Overlapped].map(|model| multiplier(model, m, rate, cores).into());
        let [[w1, w2], [r1, r2], [s1, s2]] = Way::ALL.map(|way| pair(way.cores(site, site.node.cores_free)));
        sheet.push([m.name.as_str().into(), w1, w2, r1, r2, s1, s2]);
    }
    sheet.about = format!(
        "A client with {} cores, over {}: {} MB/s, the least of client, link and servers (equation 4). Stored as sent; in the \
         last pair the server decompresses first, with {} cores.",
        number(site.node.cores_free),
        link.name,
        number(rate),
        number(site.file_system.server_cores)
    );
    sheet
}

/// A way of data between a client and its file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The client encodes, the server stores as it is: equation 5a.
    Write,
    /// The client decodes what is stored: 5b.
    Read,
    /// The client encodes, the server decodes and stores raw: 5c.
    ServerDecodes,
}

impl Way {
    /// All ways, in the order of the figure.
    pub const ALL: [Self; 3] = [Self::Write, Self::Read, Self::ServerDecodes];

    /// Heading of its picture.
    pub fn title(self) -> &'static str {
        match self {
            Self::Write => "Write: the client compresses",
            Self::Read => "Read: the client decompresses",
            Self::ServerDecodes => "Write, decompressed by the server",
        }
    }

    /// Who has how many cores to work with.
    pub fn cores(self, site: &Site, client: f64) -> Cores {
        match self {
            Self::Write => Cores { encode: client, decode: f64::INFINITY },
            Self::Read => Cores { encode: f64::INFINITY, decode: client },
            Self::ServerDecodes => Cores { encode: client, decode: site.file_system.server_cores },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::climate_2016;

    #[test]
    fn the_grid_of_the_text() {
        let site = climate_2016();
        let grid = grid(&site, &site.choices());
        assert_eq!((grid.link, grid.method.name.as_str()), (0, "lz4fast"));
        assert!(grid.cores.contains(&17.0) && grid.cores.contains(&24.0) && grid.cores.len() <= COLUMNS);
        // Of storage.md 5.2, recomputed by equation 2.
        let rate = site.links[0].mb_per_s();
        let at = |n: f64, left: f64, model| {
            let method = Method { ratio: (1.0 / left).into(), ..grid.method.clone() };
            (multiplier(model, &method, rate, Cores::both(n)).value * 100.0).round() / 100.0
        };
        for (n, values) in [
            (1.0, [0.27, 0.26, 0.23]),
            (8.0, [1.39, 1.09, 0.76]),
            (17.0, [2.01, 1.43, 0.91]),
            (24.0, [2.27, 1.56, 0.96]),
        ] {
            assert_eq!([0.3, 0.5, 0.9].map(|left| at(n, left, Model::Sequential)), values, "{n} cores");
        }
        assert_eq!(at(17.0, 0.5, Model::Pipelined), 1.57);
    }

    #[test]
    fn reading_needs_fewer_cores_than_writing_and_the_server_costs_extra() {
        let site = climate_2016();
        let (method, rate) = (&site.methods[0], site.links[0].mb_per_s());
        let times = Way::ALL.map(|way| multiplier(Model::Sequential, method, rate, way.cores(&site, 8.0)).value);
        assert!(times[1] > times[0] && times[0] > times[2], "{times:?}");
    }
}
