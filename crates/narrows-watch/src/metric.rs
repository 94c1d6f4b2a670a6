//! Metrics as plain data: families of samples.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a family counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A total that only grows while its process lives.
    Counter,
    /// A present number.
    Gauge,
    Histogram,
}

/// Samples of one name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Family {
    /// With the unit, and `_total` for a counter, as Prometheus wants it.
    pub name: String,
    pub help: String,
    pub kind: Kind,
    #[serde(default)]
    pub samples: Vec<Sample>,
}

/// A value with the labels that tell it from the others of its family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(flatten)]
    pub value: Value,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Value {
    Value(f64),
    Histogram(Buckets),
}

/// A histogram.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Buckets {
    /// Upper bounds, ascending; a last bucket has none.
    pub bounds: Vec<f64>,
    /// Observations in each bucket, one more than bounds. Not cumulative.
    pub counts: Vec<u64>,
    /// Sum of all observations.
    pub sum: f64,
}

/// Families in the order in which they are shown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Families(pub Vec<Family>);

impl Families {
    pub fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.add(name, help, Kind::Counter, [sample("", "", value)]);
    }

    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.add(name, help, Kind::Gauge, [sample("", "", value)]);
    }

    /// A counter for each value of a label.
    pub fn counters<L: AsRef<str>>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (L, f64)>,
    ) {
        self.add(name, help, Kind::Counter, values.into_iter().map(|(of, value)| sample(label, of.as_ref(), value)));
    }

    /// A gauge for each value of a label.
    pub fn gauges<L: AsRef<str>>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (L, f64)>,
    ) {
        self.add(name, help, Kind::Gauge, values.into_iter().map(|(of, value)| sample(label, of.as_ref(), value)));
    }

    pub fn histogram(&mut self, name: &str, help: &str, buckets: Buckets) {
        let sample = Sample { labels: BTreeMap::new(), value: Value::Histogram(buckets) };
        self.add(name, help, Kind::Histogram, [sample]);
    }

    fn add(&mut self, name: &str, help: &str, kind: Kind, samples: impl IntoIterator<Item = Sample>) {
        debug_assert!(is_name(name), "{name}");
        debug_assert_eq!(kind == Kind::Counter, name.ends_with("_total"), "{name}");
        let samples = samples.into_iter().collect();
        self.0.push(Family { name: name.into(), help: help.into(), kind, samples });
    }

    /// The family of this name.
    pub fn get(&self, name: &str) -> Option<&Family> {
        self.0.iter().find(|family| family.name == name)
    }
}

impl Family {
    /// The sum of its samples' values.
    pub fn sum(&self) -> f64 {
        let values = self.samples.iter().filter_map(|s| if let Value::Value(v) = s.value { Some(v) } else { None });
        values.sum()
    }
}

/// A sample with a label, or without one if its name is empty.
fn sample(label: &str, of: &str, value: f64) -> Sample {
    let labels = (!label.is_empty()).then(|| (label.to_owned(), of.to_owned()));
    // JSON has no other numbers.
    let value = if value.is_finite() { value } else { 0.0 };
    Sample { labels: labels.into_iter().collect(), value: Value::Value(value) }
}

/// Whether Prometheus takes this as the name of a metric; without colons, which are for rules.
pub fn is_name(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_survive_json() {
        let mut families = Families::default();
        families.counter("narrows_a_total", "A.", 3.0);
        families.gauges("narrows_b", "B.", "way", [("out", 1.5), ("in", f64::NAN)]);
        let buckets = Buckets { bounds: vec![1.0], counts: vec![2, 1], sum: 4.5 };
        families.histogram("narrows_c_seconds", "C.", buckets);
        let json = serde_json::to_string(&families).unwrap();
        assert_eq!(serde_json::from_str::<Families>(&json).unwrap(), families);
        assert!(json.contains(r#"{"labels":{"way":"out"},"value":1.5}"#), "{json}");
        assert!(json.contains(r#""kind":"counter","samples":[{"value":3.0}]"#), "{json}");
        assert_eq!(families.get("narrows_b").unwrap().sum(), 1.5);
    }

    #[test]
    fn names_are_those_of_prometheus() {
        assert!(["a", "narrows_wire_bytes_total", "_x9"].iter().all(|n| is_name(n)));
        assert!(["", "9a", "a-b", "a b", "a:b", "ä"].iter().all(|n| !is_name(n)));
    }
}
