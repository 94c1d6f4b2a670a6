//! Cost of an archive with each method: encoding once, storage every month, decoding and
//! transfer at every read. Ours: the text names archives, but has no model of them.

use crate::interval::Interval;
use crate::method::Method;

/// Seconds of an hour.
const HOUR_S: f64 = 3600.0;
/// Megabytes of a terabyte.
const TB_MB: f64 = 1e6;

/// Prices and use of an archive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Archive {
    /// Raw terabytes that are archived at once.
    pub raw_tb: f64,
    /// Months that they are kept.
    pub months_kept: f64,
    /// How often all of it is read in a month; 0.1 is a tenth of it, or all of it every tenth month.
    pub reads_per_month: f64,
    /// Price of a stored terabyte for a month.
    pub price_per_tb_month: f64,
    /// Price of a terabyte that is read.
    pub egress_price_per_tb: f64,
    /// Price of a core for an hour, energy included.
    pub core_price_per_hour: f64,
}

/// What a method costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bill {
    /// Core hours to encode all.
    pub encode_core_h: Interval,
    /// Their price, once.
    pub encode_price: Interval,
    /// Terabytes stored.
    pub stored_tb: Interval,
    /// Price of storage, reading and decoding in a month.
    pub price_per_month: Interval,
    /// Everything, over the months kept.
    pub total_price: Interval,
}

impl Archive {
    /// The bill of a method.
    pub fn bill(&self, method: &Method) -> Bill {
        let core_h = |speed: Interval| speed.inverse() * (self.raw_tb * TB_MB / HOUR_S);
        let encode_core_h = core_h(method.encode_mb_per_s);
        let encode_price = encode_core_h * self.core_price_per_hour;
        let stored_tb = method.left() * self.raw_tb;
        let decode = core_h(method.decode_mb_per_s) * (self.core_price_per_hour * self.reads_per_month);
        // The terabytes occur once, with the sum of the prices that they have.
        let of_stored = stored_tb * (self.price_per_tb_month + self.egress_price_per_tb * self.reads_per_month);
        let price_per_month = of_stored + decode;
        let total_price = price_per_month * self.months_kept + encode_price;
        Bill { encode_core_h, encode_price, stored_tb, price_per_month, total_price }
    }

    /// Months after which a method has paid for its encoding, against another one: 0 if it costs
    /// less from the beginning, `None` if never.
    pub fn payback_months(&self, method: &Method, against: &Method) -> Option<f64> {
        let (a, b) = (self.bill(method), self.bill(against));
        let (invested, saved) =
            (a.encode_price.value - b.encode_price.value, b.price_per_month.value - a.price_per_month.value);
        match (invested, saved) {
            (invested, saved) if invested <= 0.0 && saved >= 0.0 => Some(0.0),
            (_, saved) if saved <= 0.0 => None,
            (invested, saved) => Some((invested / saved).max(0.0)),
        }
    }

    /// The method with the lowest total; the first of several.
    pub fn winner<'a>(&self, methods: &'a [Method]) -> Option<&'a Method> {
        let total = |m: &Method| self.bill(m).total_price.value;
        methods.iter().min_by(|a, b| total(a).total_cmp(&total(b)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARCHIVE: Archive = Archive {
        raw_tb: 36.0,
        months_kept: 10.0,
        reads_per_month: 0.0,
        price_per_tb_month: 4.0,
        egress_price_per_tb: 0.0,
        core_price_per_hour: 0.1,
    };

    #[test]
    fn a_bill_adds_up() {
        let method = Method::exact("x", 10.0, 100.0, 2.0);
        // 36 TB at 10 MB/s are 1,000 core hours.
        let bill = ARCHIVE.bill(&method);
        assert!((bill.encode_core_h.value - 1000.0).abs() < 1e-9 && (bill.encode_price.value - 100.0).abs() < 1e-9);
        assert!((bill.total_price.value - (100.0 + 18.0 * 4.0 * 10.0)).abs() < 1e-9);
        let read = Archive { reads_per_month: 2.0, egress_price_per_tb: 5.0, ..ARCHIVE }.bill(&method);
        assert!((read.price_per_month.value - (72.0 + 2.0 * (100.0 * 0.1 + 18.0 * 5.0))).abs() < 1e-9, "{read:?}");
    }

    #[test]
    fn slow_methods_pay_back_late_and_with_many_reads_never() {
        let (fast, slow) = (Method::exact("fast", 1000.0, 1000.0, 2.0), Method::exact("slow", 2.0, 20.0, 3.0));
        let none = Method::none();
        // 500 - 1 invested, 72 - 48 saved.
        assert!((ARCHIVE.payback_months(&slow, &fast).unwrap() - 499.0 / 24.0).abs() < 1e-9);
        assert_eq!(ARCHIVE.payback_months(&none, &none), Some(0.0));
        assert_eq!(ARCHIVE.payback_months(&none, &fast), None, "it is dearer every month");
        let often = Archive { reads_per_month: 1.0, ..ARCHIVE };
        assert_eq!(often.payback_months(&slow, &fast), None);
        let methods = [none, fast, slow];
        assert_eq!(ARCHIVE.winner(&methods).unwrap().name, "fast");
        assert_eq!(Archive { months_kept: 36.0, ..ARCHIVE }.winner(&methods).unwrap().name, "slow");
    }
}
