//! Knowledge of the methods before anything was measured in a flow.
//!
//! A prior is a text file that `narrows-lab prior` writes from measured tables, one row a line:
//!
//! ```text
//! narrows-prior 1
//! methods lz4:accel=64,lz4:accel=16,...      M methods; store and constant need no prior
//! bs|bc|bd  M x 20 numbers    log(raw/wire), log(encode s/byte), log(decode s/byte) as linear forms in the features
//! ss|sw     M x M numbers     covariance of the residuals of log(raw/wire): between streams, between blocks of one
//! cs|cw     M x M numbers     the same of log(encode s/byte)
//! ref_c|ref_d  M numbers      log seconds per byte on the calibration sample, on the machine that made the tables
//! ```

use std::sync::OnceLock;

use super::{METHODS_MAX, Matrix, PerMethod};
use crate::codec::{CodecId, Codecs, Method};
use crate::error::{Error, Result};
use crate::monitor::data::TERMS;

/// What a step before zstd changes, where its probe said yes: logs against zstd at the same level.
struct Step {
    /// Mean of the gain in log ratio, its variance between streams and between blocks of one.
    gain: f32,
    gain_between: f32,
    gain_within: f32,
    /// Times that it takes longer, and their variances.
    encode: f32,
    decode: f32,
    cost_between: f32,
    cost_within: f32,
}

/// docs/experiments/typed-bytes.md.
const SPLIT: Step = Step {
    gain: 0.15,
    gain_between: 0.06,
    gain_within: 0.02,
    encode: 0.35,
    decode: 0.45,
    cost_between: 0.04,
    cost_within: 0.01,
};
/// Decision 28: of blocks of mail that have base64.
const BASE64: Step = Step {
    gain: 0.1,
    gain_between: 0.03,
    gain_within: 0.02,
    encode: 0.2,
    decode: 0.5,
    cost_between: 0.04,
    cost_within: 0.01,
};

fn step(method: Method) -> Option<&'static Step> {
    match method.codec {
        CodecId::SPLIT => Some(&SPLIT),
        CodecId::BASE64 => Some(&BASE64),
        _ => None,
    }
}

const MAGIC: &str = "narrows-prior 1";
const SHIPPED: &str = include_str!("../../policy/prior.txt");
/// Methods of the shipped prior.
const SHIPPED_METHODS: usize = 10;
const SHIPPED_VALUES: usize = SHIPPED_METHODS * (3 * TERMS + 4 * SHIPPED_METHODS + 2);
/// All numbers of the shipped prior, read by the compiler: to read them took a third of the
/// instructions with which a short transfer starts.
static SHIPPED_NUMBERS: [f32; SHIPPED_VALUES] = numbers(SHIPPED.as_bytes());

/// Linear forms and covariances of a set of methods.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Prior {
    methods: Vec<Method>,
    size: Vec<f32>,
    encode: Vec<f32>,
    decode: Vec<f32>,
    size_between: Vec<f32>,
    size_within: Vec<f32>,
    cost_between: Vec<f32>,
    cost_within: Vec<f32>,
    reference_encode: Vec<f32>,
    reference_decode: Vec<f32>,
}

/// A prior for the methods of one policy, in fixed arrays: term by term, then method by method.
pub(super) struct Forms {
    pub(super) size: [PerMethod; TERMS],
    pub(super) encode: [PerMethod; TERMS],
    pub(super) decode: [PerMethod; TERMS],
    pub(super) size_between: Matrix,
    pub(super) size_within: Matrix,
    pub(super) cost_between: Matrix,
    pub(super) cost_within: Matrix,
}

impl Prior {
    /// The prior that ships with the program.
    pub fn shipped() -> &'static Self {
        static PRIOR: OnceLock<Prior> = OnceLock::new();
        // A test parses it; if it is damaged all the same, the nominal speeds of the codecs still
        // work.
        PRIOR.get_or_init(|| Self::read_by_compiler().unwrap_or_default())
    }

    /// The shipped prior from the numbers that the compiler read. A test compares it with
    /// [`Self::parse`].
    fn read_by_compiler() -> Option<Self> {
        let list = SHIPPED.lines().find_map(|line| line.strip_prefix("methods "))?;
        let mut rest = &SHIPPED_NUMBERS[..];
        let mut row = |len: usize| {
            let (row, others) = rest.split_at_checked(len)?;
            rest = others;
            Some(row.to_vec())
        };
        let m = SHIPPED_METHODS;
        Some(Self {
            methods: Method::parse_list(list).ok()?,
            size: row(m * TERMS)?,
            encode: row(m * TERMS)?,
            decode: row(m * TERMS)?,
            size_between: row(m * m)?,
            size_within: row(m * m)?,
            cost_between: row(m * m)?,
            cost_within: row(m * m)?,
            reference_encode: row(m)?,
            reference_decode: row(m)?,
        })
    }

    /// Parses a prior of methods of this library. Any text gives a valid prior or an error.
    ///
    /// # Errors
    /// `Misuse` if the text is no prior.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_with(text, Codecs::shipped())
    }

    /// Parses a prior of methods of these codecs.
    ///
    /// # Errors
    /// As [`Prior::parse`].
    pub fn parse_with(text: &str, codecs: &Codecs) -> Result<Self> {
        let bad = |what: &str| Error::misuse(format!("this is not a prior of version 1: {what}"));
        let mut lines = text.lines();
        if lines.next().map(str::trim) != Some(MAGIC) {
            return Err(bad("the first line is wrong"));
        }
        let mut prior = Self::default();
        for line in lines.filter(|l| !l.trim().is_empty()) {
            let (key, rest) = line.split_once(' ').ok_or_else(|| bad("a row without values"))?;
            if key == "methods" {
                prior.methods = codecs.parse_list(rest)?;
                if prior.methods.len() >= METHODS_MAX {
                    return Err(bad("too many methods"));
                }
                continue;
            }
            let values: Vec<f32> = rest
                .split_whitespace()
                .take(METHODS_MAX * METHODS_MAX.max(TERMS) + 1)
                .map(|v| v.parse().ok().filter(|x: &f32| x.is_finite() && x.abs() < 1e6))
                .collect::<Option<_>>()
                .ok_or_else(|| bad("a value that is not a number"))?;
            *match key {
                "bs" => &mut prior.size,
                "bc" => &mut prior.encode,
                "bd" => &mut prior.decode,
                "ss" => &mut prior.size_between,
                "sw" => &mut prior.size_within,
                "cs" => &mut prior.cost_between,
                "cw" => &mut prior.cost_within,
                "ref_c" => &mut prior.reference_encode,
                "ref_d" => &mut prior.reference_decode,
                _ => return Err(bad("an unknown row")),
            } = values;
        }
        prior.check().map(|()| prior)
    }

    fn check(&self) -> Result<()> {
        let m = self.methods.len();
        let forms = [&self.size, &self.encode, &self.decode].iter().all(|v| v.len() == m * TERMS);
        let squares = [&self.size_between, &self.size_within, &self.cost_between, &self.cost_within];
        let positive = |v: &Vec<f32>| v.len() == m * m && (0..m).all(|i| v[i * m + i] > 0.0);
        let references = self.reference_encode.len() == m && self.reference_decode.len() == m;
        if forms && squares.into_iter().all(positive) && references {
            return Ok(());
        }
        Err(Error::misuse("the rows of the prior do not fit its methods"))
    }

    /// Methods that the prior covers.
    pub fn methods(&self) -> &[Method] {
        &self.methods
    }

    /// Log seconds per byte to (encode, decode) the calibration sample on the machine that made the
    /// tables.
    pub fn reference(&self, method: Method) -> Option<(f32, f32)> {
        let i = self.methods.iter().position(|m| *m == method)?;
        Some((self.reference_encode[i], self.reference_decode[i]))
    }

    /// The same prior for a host on which each method takes `shift(method)` = (encode, decode)
    /// longer, log.
    #[must_use]
    pub fn shifted(&self, shift: impl Fn(Method) -> (f32, f32)) -> Self {
        let mut prior = self.clone();
        for (i, &method) in self.methods.iter().enumerate() {
            let (encode, decode) = shift(method);
            prior.encode[i * TERMS] += encode;
            prior.decode[i * TERMS] += decode;
        }
        prior
    }

    pub(super) fn forms(&self, codecs: &Codecs, methods: &[Method]) -> Forms {
        let zero = [[0.0; METHODS_MAX]; TERMS];
        let mut forms = Forms {
            size: zero,
            encode: zero,
            decode: zero,
            size_between: diagonal(0.25),
            size_within: diagonal(0.05),
            cost_between: diagonal(0.25),
            cost_within: diagonal(0.05),
        };
        // A block with a step costs what zstd of the same level does, and what the step adds.
        let known = |m: &Method| m.without_step().unwrap_or(*m);
        let at: Vec<_> = methods.iter().map(|m| self.methods.iter().position(|p| *p == known(m))).collect();
        let count = self.methods.len();
        for (m, i) in at.iter().enumerate() {
            let Some(i) = *i else {
                forms.guess(m, codecs.nominal_ns_per_byte(methods[m]));
                continue;
            };
            for k in 0..TERMS {
                forms.size[k][m] = self.size[i * TERMS + k];
                forms.encode[k][m] = self.encode[i * TERMS + k];
                forms.decode[k][m] = self.decode[i * TERMS + k];
            }
            for (n, j) in at.iter().enumerate() {
                if let Some(j) = *j {
                    forms.size_between[m][n] = self.size_between[i * count + j];
                    forms.size_within[m][n] = self.size_within[i * count + j];
                    forms.cost_between[m][n] = self.cost_between[i * count + j];
                    forms.cost_within[m][n] = self.cost_within[i * count + j];
                    if let Some(step) = step(methods[m]).filter(|_| methods[m].codec == methods[n].codec) {
                        forms.size_between[m][n] += step.gain_between;
                        forms.size_within[m][n] += step.gain_within;
                        forms.cost_between[m][n] += step.cost_between;
                        forms.cost_within[m][n] += step.cost_within;
                    }
                }
            }
            if let Some(step) = step(methods[m]) {
                forms.size[0][m] += step.gain;
                forms.encode[0][m] += step.encode;
                forms.decode[0][m] += step.decode;
            }
        }
        forms
    }
}

impl Forms {
    /// Guesses a method that is not in the prior: nominal speeds, and a ratio from entropy and
    /// repetition, both with a large variance.
    fn guess(&mut self, m: usize, (encode, decode): (f32, f32)) {
        self.encode[0][m] = (encode.max(1e-3) * 1e-9).ln();
        self.decode[0][m] = (decode.max(1e-3) * 1e-9).ln();
        // Terms 0, 1 and 3: constant, entropy, repeats. Text (0.6, 0.3) gets a ratio of 2.1, noise
        // none.
        (self.size[0][m], self.size[1][m], self.size[3][m]) = (1.0, -1.0, 1.2);
    }
}

/// The numbers of a prior, row by row: on each line but the first two, all words but the first.
/// Digits and a point, with or without a sign, as `narrows-lab prior` writes them.
const fn numbers(text: &[u8]) -> [f32; SHIPPED_VALUES] {
    let mut values = [0.0; SHIPPED_VALUES];
    let (mut at, mut line, mut count) = (0, 0, 0);
    while at < text.len() {
        // The first word of a line, or all of a line without numbers.
        while at < text.len() && text[at] != b'\n' && (line < 2 || text[at] != b' ') {
            at += 1;
        }
        while at < text.len() && text[at] == b' ' {
            at += 1;
            let negative = text[at] == b'-';
            at += negative as usize;
            let (mut digits, mut scale, mut behind_point) = (0u64, 1.0, false);
            while at < text.len() && text[at] != b' ' && text[at] != b'\n' {
                if text[at] == b'.' {
                    behind_point = true;
                } else {
                    assert!(text[at].is_ascii_digit(), "the prior has a number in another notation");
                    digits = 10 * digits + (text[at] - b'0') as u64;
                    scale *= if behind_point { 10.0 } else { 1.0 };
                }
                at += 1;
            }
            let value = digits as f64 / scale;
            values[count] = if negative { -value } else { value } as f32;
            count += 1;
        }
        at += 1;
        line += 1;
    }
    assert!(count == SHIPPED_VALUES, "the prior has another number of values");
    values
}

fn diagonal(variance: f32) -> Matrix {
    let mut matrix = [[0.0; METHODS_MAX]; METHODS_MAX];
    for (i, row) in matrix.iter_mut().enumerate() {
        row[i] = variance;
    }
    matrix
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::DEFAULT_METHODS;

    #[test]
    fn the_shipped_prior_covers_the_default_methods() {
        let prior = Prior::parse(SHIPPED).unwrap();
        assert_eq!(*Prior::shipped(), prior, "the compiler read other numbers");
        let measured = |m: &&Method| **m != Method::STORE && **m != Method::CONSTANT && m.without_step().is_none();
        for method in DEFAULT_METHODS.iter().filter(measured) {
            assert!(prior.reference(*method).is_some(), "{method}");
        }
    }

    #[test]
    fn rubbish_is_an_error() {
        for text in [
            "",
            "narrows-prior 2\n",
            "narrows-prior 1\nmethods nope\n",
            "narrows-prior 1\nmethods lz4\nbs 1 2 3\n",
            "narrows-prior 1\nmethods lz4\nbs nan\n",
            "narrows-prior 1\nwhat 1\n",
            "narrows-prior 1\nmethods",
        ] {
            assert!(Prior::parse(text).is_err(), "{text}");
        }
        for end in (0..SHIPPED.len()).step_by(997) {
            let _ = Prior::parse(&SHIPPED[..end]);
        }
    }
}
