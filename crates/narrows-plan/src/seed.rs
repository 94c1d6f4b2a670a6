//! The site of the text: Kuhn, Kunkel and Ludwig, *Data Compression for Climate Data*
//! (Supercomputing Frontiers and Innovations 3 (1), 2016, pp. 75-94, doi:10.14529/jsfi160105).

use crate::method::Method;
use crate::network::Link;
use crate::site::Site;

/// Name of the seed on the command line.
pub const NAME: &str = "climate-2016";

/// The figures that the text has for Mistral, the machine of DKRZ; what it does not say is as by
/// default.
pub fn climate_2016() -> Site {
    let link = |name: &str, gbit_per_s: f64| Link {
        name: name.into(),
        rate_mbit_per_s: gbit_per_s * 1e3,
        // Figure 7 has prices, but neither it nor the text prints them.
        price_per_port: 0.0,
        price_per_tb: 0.0,
    };
    let mut site = Site {
        currency: "EUR".into(),
        // Table 2.
        methods: vec![
            Method::exact("lz4fast", 2945.0, 6460.0, 1.825),
            Method::exact("lz4", 1796.0, 5178.0, 1.923),
            Method::exact("lz4hc", 258.0, 4333.0, 2.0),
            Method::exact("lzo", 380.0, 1938.0, 1.887),
            Method::exact("xz", 26.0, 97.0, 2.632),
            Method::exact("zlib", 95.0, 610.0, 2.326),
            Method::exact("zstd", 658.0, 2019.0, 2.326),
        ],
        // Section 2.2.2, and the Ethernets of Figure 7.
        links: vec![
            link("FDR InfiniBand", 54.54),
            link("EDR InfiniBand", 96.97),
            link("QDR InfiniBand", 32.0),
            link("10G Ethernet", 10.0),
            link("56G Ethernet", 56.0),
            link("100G Ethernet", 100.0),
        ],
        memory_installed_gb: vec![128.0, 96.0, 64.0],
        ..Site::default()
    };
    let node = &mut site.node;
    (node.count, node.cores_free) = (2500.0, 24.0);
    (node.memory_wanted_gb, node.memory_kept_gb, node.memory_price_per_gb) = (128.0, 4.0, 200.0 / 32.0);
    // Eleventh point that does not reproduce: the rates of Figure 5 are not given. Here the link is
    // the slowest part.
    (site.file_system.client_mb_per_s, site.file_system.server_mb_per_s) = (1e5, 1e5);
    site.file_system.server_cores = 16.0;
    let storage = &mut site.storage;
    (storage.unit_capacity_tb, storage.unit_rate_gb_per_s) = (833.0, 10.8);
    (storage.unit_base_price, storage.unit_disk_price, storage.unit_cpu_price) = (10_000.0, 90_000.0, 1500.0);
    (storage.unit_cores, storage.target_tb, storage.units_now) = (16.0, 50_000.0, 60.0);
    site
}
