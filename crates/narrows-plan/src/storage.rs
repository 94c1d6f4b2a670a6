//! Storage in units of servers and disks that compress what they store: the text's section 2.2.3.

use crate::interval::Interval;
use crate::method::Method;

/// A unit of storage and what is needed of it. The text's unit is a pair of SSU and ESU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Storage {
    /// Capacity of a unit full of disks.
    pub unit_capacity_tb: f64,
    /// Raw gigabytes per second that a unit takes or gives at most.
    pub unit_rate_gb_per_s: f64,
    /// Price of a unit without disks.
    pub unit_base_price: f64,
    /// Price of a unit's disks.
    pub unit_disk_price: f64,
    /// Price of the CPUs that a unit gets for compression.
    pub unit_cpu_price: f64,
    /// Cores of these CPUs.
    pub unit_cores: f64,
    /// Raw terabytes to store.
    pub target_tb: f64,
    /// Units there are now, over which the second way spreads its disks.
    pub units_now: f64,
    /// Least share of the rate without compression that is still acceptable.
    pub rate_wanted_share: f64,
}

/// A system: its units, price and rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct System {
    /// Units that hold the data, not rounded.
    pub needed: Interval,
    /// Units to buy.
    pub units: Interval,
    /// Price of all.
    pub price: Interval,
    /// Raw gigabytes per second of all units.
    pub rate_gb_per_s: Interval,
}

impl Storage {
    /// S1 of the text: as few units as hold the data.
    pub fn fewest_units(&self, method: &Method) -> System {
        let needed = self.needed(method);
        // A rounding error must not cost a unit.
        let units = needed.growing(|n| (n - 1e-9).ceil().max(1.0));
        let price = units * (self.unit_base_price + self.unit_disk_price + self.cpu_price(method));
        System { needed, units, price, rate_gb_per_s: units * self.unit_rate(method) }
    }

    /// S2 of the text: the disks that hold the data, spread over the units there are now.
    pub fn fewest_disks(&self, method: &Method) -> System {
        let needed = self.needed(method);
        let price = needed * self.unit_disk_price + self.units_now * (self.unit_base_price + self.cpu_price(method));
        let rate_gb_per_s = self.unit_rate(method) * self.units_now;
        System { needed, units: self.units_now.into(), price, rate_gb_per_s }
    }

    /// Whether the rate of a system is acceptable beside that of the same system without
    /// compression.
    pub fn is_fast_enough(&self, system: &System, plain: &System) -> bool {
        system.rate_gb_per_s.value >= self.rate_wanted_share * plain.rate_gb_per_s.value
    }

    fn needed(&self, method: &Method) -> Interval {
        method.left() * self.target_tb / self.unit_capacity_tb
    }

    fn cpu_price(&self, method: &Method) -> f64 {
        if method.is_none() { 0.0 } else { self.unit_cpu_price }
    }

    fn unit_rate(&self, method: &Method) -> Interval {
        (method.encode_mb_per_s * self.unit_cores / 1e3).min(self.unit_rate_gb_per_s.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed;

    #[test]
    fn the_table_of_the_text() {
        let site = seed::climate_2016();
        let zstd = site.methods.iter().find(|m| m.name == "zstd").unwrap();
        let (s1, s2) = (site.storage.fewest_units(zstd), site.storage.fewest_disks(zstd));
        assert_eq!((s1.units.value, s1.price.value), (26.0, 2_639_000.0));
        assert!((s2.price.value / 3.01e6 - 1.0).abs() < 0.01 && (s2.rate_gb_per_s.value - 631.7).abs() < 0.1);
        let none = site.storage.fewest_disks(&Method::none());
        assert!((none.price.value / 6.0e6 - 1.0).abs() < 0.001 && none.rate_gb_per_s.value == 648.0);
        assert!(site.storage.is_fast_enough(&s2, &none) && !site.storage.is_fast_enough(&s1, &none));
    }

    #[test]
    fn whole_units_are_bought_and_at_least_one() {
        let storage = Storage { target_tb: 833.0, ..seed::climate_2016().storage };
        assert_eq!(storage.fewest_units(&Method::none()).units.value, 1.0);
        assert_eq!(Storage { target_tb: 0.0, ..storage }.fewest_units(&Method::none()).units.value, 1.0);
        assert_eq!(Storage { target_tb: 833.1, ..storage }.fewest_units(&Method::none()).units.value, 2.0);
    }
}
