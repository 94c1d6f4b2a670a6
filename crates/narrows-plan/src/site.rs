//! A site: what is known about its nodes, links, storage, work and prices, and every field with its
//! default, unit and limits.

use crate::archive::Archive;
use crate::interval::Interval;
use crate::memory::Memory;
use crate::method::{Method, over_classes};
use crate::network::Link;
use crate::storage::Storage;
use crate::threshold::Cores;

/// Days of a mean month.
pub const MONTH_DAYS: f64 = 365.25 / 12.0;

/// A site.
#[derive(Debug, Clone, PartialEq)]
pub struct Site {
    /// Name of the currency of all prices.
    pub currency: String,
    /// Methods, perhaps several times with the figures of different classes of data.
    pub methods: Vec<Method>,
    /// The methods again, from resamples of the data that they were measured on: all methods and
    /// classes of one entry are of the same resample. Empty if nothing was measured.
    pub draws: Vec<Vec<Method>>,
    /// Links to compare.
    pub links: Vec<Link>,
    /// Compute nodes.
    pub node: Node,
    /// Sizes of memory to compare, in gigabytes.
    pub memory_installed_gb: Vec<f64>,
    /// The way from a node to the file system.
    pub file_system: FileSystem,
    /// Storage.
    pub storage: Storage,
    /// What is written and read.
    pub work: Work,
    /// Share of each class of data by name; empty: all alike.
    pub shares: Vec<(String, f64)>,
    /// Prices of CPU time.
    pub cpu: Cpu,
    /// Keeping and reading the archive.
    pub archive: Keeping,
}

/// Compute nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Node {
    /// Number of nodes.
    pub count: f64,
    /// Cores of a node that may encode or decode.
    pub cores_free: f64,
    /// Gigabytes of memory that programs should find.
    pub memory_wanted_gb: f64,
    /// Gigabytes that stay uncompressed.
    pub memory_kept_gb: f64,
    /// Price of a gigabyte of memory.
    pub memory_price_per_gb: f64,
}

/// The way from a node to the file system.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FileSystem {
    /// What a client can write or read at most.
    pub client_mb_per_s: f64,
    /// What the servers can take from or give to one client.
    pub server_mb_per_s: f64,
    /// Cores of a server for one client, where the server decompresses.
    pub server_cores: f64,
}

/// What is written and read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    /// Raw terabytes written in a day.
    pub written_tb_per_day: f64,
    /// Raw terabytes read in a day.
    pub read_tb_per_day: f64,
    /// Months that data stay on the storage.
    pub retention_months: f64,
}

/// Prices of CPU time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cpu {
    /// Power of a busy core beyond that of an idle one.
    pub core_watts: f64,
    /// Price of energy.
    pub price_per_kwh: f64,
    /// Price of a core for an hour besides its energy: rent, or 0 for cores that are idle anyway.
    pub core_price_per_hour: f64,
}

/// Keeping and reading the archive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Keeping {
    /// Months that data are kept.
    pub months_kept: f64,
    /// How often all of it is read in a month.
    pub reads_per_month: f64,
    /// Price of a stored terabyte for a month.
    pub price_per_tb_month: f64,
    /// Price of a terabyte that is read.
    pub egress_price_per_tb: f64,
}

/// A number of the site that can be typed.
pub struct Field {
    /// Section of the file.
    pub section: &'static str,
    /// Key in the section, with its unit last.
    pub key: &'static str,
    /// Value if nothing is said.
    pub default: f64,
    /// Least and greatest value that is accepted.
    pub range: (f64, f64),
    /// What it is.
    pub about: &'static str,
    /// Reads the field.
    pub get: fn(&Site) -> f64,
    /// Access to the field.
    pub slot: fn(&mut Site) -> &mut f64,
}

impl Field {
    /// `section.key`
    pub fn name(&self) -> String {
        format!("{}.{}", self.section, self.key)
    }
}

/// A limit beyond which a number must be a mistake in the unit: a million million of anything.
const LARGE: f64 = 1e12;
/// Least value of what must not be 0, such as a rate: a byte a second in MB/s.
const SMALL: f64 = 1e-6;

macro_rules! fields {
    ($($section:ident.$key:ident = $default:expr, $range:expr, $about:expr;)*) => {
        /// Every field, in the order of the file.
        pub const FIELDS: &[Field] = &[$(Field {
            section: stringify!($section),
            key: stringify!($key),
            default: $default,
            range: $range,
            about: $about,
            get: |s| s.$section.$key,
            slot: |s| &mut s.$section.$key,
        }),*];
    };
}

fields! {
    node.count = 10.0, (1.0, 1e9), "number of nodes";
    node.cores_free = 4.0, (0.01, 1e6), "cores of a node that may encode or decode";
    node.memory_wanted_gb = 128.0, (SMALL, LARGE), "memory that programs on a node should find";
    node.memory_kept_gb = 4.0, (0.0, LARGE), "memory of a node that stays uncompressed, for fast access";
    node.memory_price_per_gb = 5.0, (0.0, LARGE), "price of a gigabyte of memory";
    file_system.client_mb_per_s = 5000.0, (SMALL, LARGE), "what a client can write or read at most, raw";
    file_system.server_mb_per_s = 1000.0, (SMALL, LARGE), "what the servers can take from or give to one client, raw";
    file_system.server_cores = 4.0, (0.01, 1e6), "cores of a server for one client, where the server decompresses";
    storage.target_tb = 1000.0, (SMALL, LARGE), "raw data to store";
    storage.unit_capacity_tb = 200.0, (SMALL, LARGE), "capacity of a unit (servers and disks that are bought together)";
    storage.unit_rate_gb_per_s = 2.0, (SMALL, LARGE), "what a unit takes or gives at most, raw";
    storage.unit_base_price = 8000.0, (0.0, LARGE), "price of a unit without disks";
    storage.unit_disk_price = 6000.0, (0.0, LARGE), "price of the disks of a unit";
    storage.unit_cpu_price = 800.0, (0.0, LARGE), "price of the CPUs that a unit gets for compression";
    storage.unit_cores = 8.0, (0.01, 1e6), "cores of these CPUs";
    storage.units_now = 5.0, (1.0, 1e9), "units over which S2 spreads the disks";
    storage.rate_wanted_share = 0.95, (0.0, 1.0), "share of the rate without compression that must remain";
    work.written_tb_per_day = 1.0, (SMALL, LARGE), "raw data written in a day";
    work.read_tb_per_day = 1.0, (0.0, LARGE), "raw data read in a day";
    work.retention_months = 12.0, (0.0, 12_000.0), "how long data stay on the storage";
    cpu.core_watts = 5.0, (0.0, 1e6), "power of a busy core beyond that of an idle one";
    cpu.price_per_kwh = 0.3, (0.0, LARGE), "price of energy";
    cpu.core_price_per_hour = 0.01, (0.0, LARGE), "price of a core besides its energy; 0 for cores that are idle anyway";
    archive.months_kept = 60.0, (0.0, 12_000.0), "how long the data of one month are kept";
    archive.reads_per_month = 0.02, (0.0, LARGE), "how often all of them are read in a month; 0.1 is a tenth of them";
    archive.price_per_tb_month = 5.0, (0.0, LARGE), "price of a stored terabyte for a month";
    archive.egress_price_per_tb = 10.0, (0.0, LARGE), "price of a terabyte that is read, as stored";
}

impl Default for Site {
    fn default() -> Self {
        let link = |name: &str, rate_mbit_per_s, price_per_port, price_per_tb| Link {
            name: name.into(),
            rate_mbit_per_s,
            price_per_port,
            price_per_tb,
        };
        let mut site = Self {
            currency: "EUR".into(),
            methods: Vec::new(),
            draws: Vec::new(),
            links: vec![
                link("WAN 100 Mbit/s", 100.0, 0.0, 10.0),
                link("1 Gbit/s", 1e3, 20.0, 0.0),
                link("10 Gbit/s", 1e4, 150.0, 0.0),
                link("100 Gbit/s", 1e5, 800.0, 0.0),
            ],
            node: Node {
                count: 0.0,
                cores_free: 0.0,
                memory_wanted_gb: 0.0,
                memory_kept_gb: 0.0,
                memory_price_per_gb: 0.0,
            },
            memory_installed_gb: vec![128.0, 96.0, 64.0],
            file_system: FileSystem { client_mb_per_s: 0.0, server_mb_per_s: 0.0, server_cores: 0.0 },
            storage: Storage {
                unit_capacity_tb: 0.0,
                unit_rate_gb_per_s: 0.0,
                unit_base_price: 0.0,
                unit_disk_price: 0.0,
                unit_cpu_price: 0.0,
                unit_cores: 0.0,
                target_tb: 0.0,
                units_now: 0.0,
                rate_wanted_share: 0.0,
            },
            work: Work { written_tb_per_day: 0.0, read_tb_per_day: 0.0, retention_months: 0.0 },
            shares: Vec::new(),
            cpu: Cpu { core_watts: 0.0, price_per_kwh: 0.0, core_price_per_hour: 0.0 },
            archive: Keeping {
                months_kept: 0.0,
                reads_per_month: 0.0,
                price_per_tb_month: 0.0,
                egress_price_per_tb: 0.0,
            },
        };
        for field in FIELDS {
            *(field.slot)(&mut site) = field.default;
        }
        site
    }
}

impl Site {
    /// Methods over all classes of data, with [`Method::none`] first.
    pub fn choices(&self) -> Vec<Method> {
        with_none(&self.methods, &self.shares)
    }

    /// The choices of every resample. Typed methods have no draws and are taken as they are.
    pub fn drawn_choices(&self) -> impl Iterator<Item = Vec<Method>> {
        self.draws.iter().map(|draw| {
            let drawn =
                |m: &Method| draw.iter().find(|d| (&d.name, &d.class) == (&m.name, &m.class)).unwrap_or(m).clone();
            let methods: Vec<Method> = self.methods.iter().map(drawn).collect();
            with_none(&methods, &self.shares)
        })
    }

    /// Cores of two nodes that exchange data.
    pub fn cores(&self) -> Cores {
        Cores::both(self.node.cores_free)
    }

    /// Memory of a node.
    pub fn memory(&self) -> Memory {
        Memory { wanted_gb: self.node.memory_wanted_gb, kept_gb: self.node.memory_kept_gb }
    }

    /// Price of a core for an hour, with its energy.
    pub fn core_price_per_hour(&self) -> f64 {
        self.cpu.core_watts / 1e3 * self.cpu.price_per_kwh + self.cpu.core_price_per_hour
    }

    /// The data of one month in the archive.
    pub fn archive(&self) -> Archive {
        Archive {
            raw_tb: self.work.written_tb_per_day * MONTH_DAYS,
            months_kept: self.archive.months_kept,
            reads_per_month: self.archive.reads_per_month,
            price_per_tb_month: self.archive.price_per_tb_month,
            egress_price_per_tb: self.archive.egress_price_per_tb,
            core_price_per_hour: self.core_price_per_hour(),
        }
    }

    /// Rate between a client and the file system over a link: equation 4 of the text.
    pub fn file_system_mb_per_s(&self, link: &Link) -> f64 {
        self.file_system.client_mb_per_s.min(link.mb_per_s()).min(self.file_system.server_mb_per_s)
    }
}

fn with_none(methods: &[Method], shares: &[(String, f64)]) -> Vec<Method> {
    let (methods, _) = over_classes(methods, shares);
    std::iter::once(Method::none()).chain(methods.into_iter().filter(|m| !m.is_none())).collect()
}

/// Methods for when nothing was measured or typed: the mean over 14 kinds of data, on one core of
/// an AMD EPYC, in blocks of 128 KiB (`docs/experiments/results/climate-2016-table-2`), with the
/// intervals of that result. The interval of a ratio is a fifth to each side: other data differ by
/// far more than the mean over many kinds.
pub fn default_methods() -> Vec<Method> {
    let row = |name: &str, encode: [f64; 3], decode: [f64; 3], ratio: f64| Method {
        name: name.into(),
        class: String::new(),
        encode_mb_per_s: Interval::new(encode[0], encode[1], encode[2]),
        decode_mb_per_s: Interval::new(decode[0], decode[1], decode[2]),
        ratio: Interval::new((ratio * 0.8).max(1.0), ratio, ratio * 1.2),
    };
    vec![
        row("lz4:accel=16", [1645.0, 1854.0, 1894.0], [7751.0, 8590.0, 8697.0], 1.583),
        row("lz4", [1035.0, 1182.0, 1256.0], [6754.0, 7534.0, 7804.0], 1.992),
        row("zstd:level=3", [377.5, 499.1, 501.9], [3439.0, 5006.0, 5077.0], 2.762),
        row("zlib:level=6", [70.26, 78.67, 79.27], [731.2, 851.3, 854.7], 2.816),
        row("xz", [5.182, 5.488, 5.697], [149.7, 153.7, 156.0], 3.266),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_within_its_limits_and_every_field_its_own() {
        let mut site = Site::default();
        for (i, field) in FIELDS.iter().enumerate() {
            assert!((field.range.0..=field.range.1).contains(&field.default), "{}", field.name());
            assert_eq!((field.get)(&site), field.default);
            *(field.slot)(&mut site) = i as f64;
        }
        for (i, field) in FIELDS.iter().enumerate() {
            assert_eq!((field.get)(&site), i as f64, "{} is another field too", field.name());
        }
    }

    #[test]
    fn the_rate_to_a_file_system_is_that_of_its_slowest_part() {
        let mut site = Site::default();
        let links = site.links.clone();
        assert_eq!(site.file_system_mb_per_s(&links[1]), 125.0);
        assert_eq!(site.file_system_mb_per_s(&links[3]), 1000.0);
        site.file_system.client_mb_per_s = 7.0;
        assert_eq!(site.file_system_mb_per_s(&links[3]), 7.0);
    }

    #[test]
    fn the_first_choice_is_none() {
        let site = Site { methods: default_methods(), ..Site::default() };
        let choices = site.choices();
        assert!(choices[0].is_none() && choices.len() == 6);
        assert!((site.core_price_per_hour() - 0.0115).abs() < 1e-12);
    }
}
