//! Rate of a link with each method, and its limit: the text's section 2.2.2, overlapped.

use crate::interval::Interval;
use crate::method::Method;
use crate::threshold::Cores;

/// A kind of link.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// Name, such as `1 Gbit/s`.
    pub name: String,
    /// Wire megabits per second for payload.
    pub rate_mbit_per_s: f64,
    /// Price of a node's port, with its part of switches and cables.
    pub price_per_port: f64,
    /// Price of a terabyte that crosses the link, where traffic is paid for.
    pub price_per_tb: f64,
}

impl Link {
    /// Wire megabytes per second.
    pub fn mb_per_s(&self) -> f64 {
        self.rate_mbit_per_s / 8.0
    }
}

/// What keeps a transfer from being faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The link.
    Link,
    /// The cores that encode.
    Encoding,
    /// The cores that decode.
    Decoding,
}

impl Limit {
    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Encoding => "encoding",
            Self::Decoding => "decoding",
        }
    }
}

/// Raw megabytes per second that cross the link, and what limits them.
pub fn goodput(link_mb_per_s: f64, method: &Method, cores: Cores) -> (Interval, Limit) {
    let by_link = method.ratio * link_mb_per_s;
    let encode = method.encode_mb_per_s * cores.encode;
    let decode = method.decode_mb_per_s * cores.decode;
    let all = by_link.min(encode).min(decode);
    let limit = match all.value {
        v if v == by_link.value => Limit::Link,
        v if v == encode.value => Limit::Encoding,
        _ => Limit::Decoding,
    };
    (all, limit)
}

/// As [`goodput`], where both ends are one host and share its cores, as in a laboratory or a copy
/// between two disks.
pub fn goodput_one_host(link_mb_per_s: f64, method: &Method, cores: f64) -> (Interval, Limit) {
    let (alone, limit) = goodput(link_mb_per_s, method, Cores::both(cores));
    let both = (method.encode_mb_per_s.inverse() + method.decode_mb_per_s.inverse()).inverse() * cores;
    if both.value < alone.value { (both, Limit::Encoding) } else { (alone.min(both), limit) }
}

/// Cores of one end that saturate a link of `link_mb_per_s` with this method.
pub fn cores_to_saturate(link_mb_per_s: f64, method: &Method) -> Interval {
    method.ratio * link_mb_per_s / method.encode_mb_per_s.min(method.decode_mb_per_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_three_rates_is_named() {
        let method = Method::exact("x", 100.0, 300.0, 2.0);
        assert_eq!(goodput(10.0, &method, Cores::both(1.0)), (20.0.into(), Limit::Link));
        assert_eq!(goodput(100.0, &method, Cores::both(1.0)), (100.0.into(), Limit::Encoding));
        assert_eq!(goodput(1e3, &method, Cores { encode: 8.0, decode: 1.0 }), (300.0.into(), Limit::Decoding));
        assert_eq!(goodput(10.0, &Method::none(), Cores::both(1.0)), (10.0.into(), Limit::Link));
        assert_eq!(cores_to_saturate(100.0, &method).value, 2.0);
    }

    #[test]
    fn ends_that_share_their_cores_share_their_speed() {
        let method = Method::exact("x", 100.0, 300.0, 2.0);
        assert_eq!(goodput_one_host(1e6, &method, 2.0).0.value, 150.0);
        assert_eq!(goodput_one_host(10.0, &method, 2.0), (20.0.into(), Limit::Link));
        assert_eq!(goodput_one_host(10.0, &Method::none(), 2.0), (10.0.into(), Limit::Link));
    }
}
