//! The command `prior`: fits the prior, which predicts ratios and speeds before anything was
//! measured in a flow.
//!
//! For every method log(raw/wire), log(encode s/byte) and log(decode s/byte) are linear forms in
//! the features of a block, fitted by ridge regression over all blocks of all pools. Every pool has
//! the same weight, whatever its size. The residuals give two covariances over methods: between
//! pools, and between the blocks of one pool.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args as ClapArgs;
use narrows::codec::{DEFAULT_METHODS, Method};
use narrows::monitor::cost::{METHODS_MAX, Prior};
use narrows::monitor::data::{Features, TERMS};

use crate::measure::REFERENCE_FILE;
use crate::registry;
use narrows_sim::measure::measurable;
use narrows_sim::table::{self, CLASSES, Table};

/// Weight of one block by its class: small blocks are numerous, and 128 KiB matters most.
const CLASS_WEIGHTS: [f64; CLASSES.len()] = [0.06, 0.25, 1.0, 0.5];
/// The class whose residuals give the covariances.
const RESIDUAL_CLASS: usize = 2;
/// Ridge per pool; the constant term is hardly penalized.
const RIDGE: f64 = 0.001;
const RIDGE_CONSTANT: f64 = 1e-6;
/// A dozen pools give a poor estimate of the spread between streams, so it is widened by this
/// factor and by a part of the spread within pools.
const BETWEEN_WIDENED: f64 = 1.3;
const BETWEEN_FROM_WITHIN: f64 = 0.3;
/// Keeps covariances of methods that never vary invertible.
const VARIANCE_MIN: f64 = 1e-4;

/// Fit the prior that ships with the program from measured tables.
///
/// Uses all pools of DIR except the mixed streams. Writes FILE in the format described in
/// crates/narrows/src/monitor/cost/prior.rs. Quote figures of `balance` only with a prior that was fitted
/// without the pool they were measured on: --leave-out.
#[derive(ClapArgs)]
pub(crate) struct Args {
    /// Directory written by `tables`.
    #[arg(long, value_name = "DIR")]
    tables: PathBuf,
    /// File for the prior, for instance crates/narrows/src/policy/prior.txt.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Fit without this pool.
    #[arg(long, value_name = "POOL")]
    leave_out: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let tables = fitting(&table::load_all(&args.tables, &[], registry::codecs())?)?;
    if let Some(name) = &args.leave_out
        && !tables.iter().any(|t| t.pool == *name)
    {
        bail!("there is no pool '{name}' to leave out");
    }
    let text = fit(&tables, args.leave_out.as_deref(), &read_reference(&args.tables)?)?;
    fs::write(&args.output, &text).with_context(|| format!("cannot write {}", args.output.display()))?;
    let prior = Prior::parse_with(&text, registry::codecs())
        .map_err(|e| anyhow::anyhow!("the prior does not read back: {e}"))?;
    for t in tables.iter().filter(|t| is_training(&t.pool)) {
        println!("{:10} {}", t.pool, residuals(t, &text, &prior)?);
    }
    Ok(())
}

fn is_training(pool: &str) -> bool {
    !pool.starts_with("mix")
}

/// Nanoseconds per byte (encode, decode) of the calibration sample on the machine of the tables.
pub(crate) type Reference = Vec<(Method, f64, f64)>;

pub(crate) fn read_reference(directory: &Path) -> Result<Reference> {
    let path = directory.join(REFERENCE_FILE);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let row = |line: &str| -> Result<(Method, f64, f64)> {
        let mut words = line.split(' ');
        let mut next = || words.next().with_context(|| format!("'{line}' is not a valid row of {}", path.display()));
        Ok((registry::method(next()?)?, next()?.parse()?, next()?.parse()?))
    };
    text.lines().map(row).collect()
}

/// The tables with at most as many methods as a prior can have: if there are more, only those that
/// `balance` has by default.
pub(crate) fn fitting(tables: &[Table]) -> Result<Vec<Table>> {
    let all = tables.first().map_or(&[][..], |t| &t.methods);
    let default = measurable(DEFAULT_METHODS);
    let methods = if all.len() <= METHODS_MAX { all.to_vec() } else { default.clone() };
    if let Some(lacking) = methods.iter().find(|m| !all.contains(m)) {
        bail!(
            "a prior has {METHODS_MAX} methods at most and these tables have {}, so it is made of the default ones, but {lacking} is \
             not among them; measure that too: narrows-lab tables --methods '{},..'",
            all.len(),
            Method::print_list(&default)
        );
    }
    Ok(tables.iter().map(|t| t.only(&methods)).collect())
}

/// The text of a prior fitted on all training pools except `leave_out`. The tables must come from
/// [`fitting`].
pub(crate) fn fit(tables: &[Table], leave_out: Option<&str>, reference: &Reference) -> Result<String> {
    let samples: Vec<Sample> =
        tables.iter().filter(|t| is_training(&t.pool) && Some(t.pool.as_str()) != leave_out).map(Sample::of).collect();
    let Some(first) = samples.first() else { bail!("there are no pools to fit a prior on") };
    let methods = &tables[0].methods;
    let count = first.targets[0][0].len();
    let mut forms = Vec::new();
    for target in 0..3 {
        let form = |m| solve_form(&samples, target, m);
        forms.push((0..count).map(form).collect::<Result<Vec<_>>>()?);
    }
    let mut text = String::from("narrows-prior 1\n");
    writeln!(text, "methods {}", registry::codecs().print_list(methods))?;
    for (key, form) in ["bs", "bc", "bd"].iter().zip(&forms) {
        row(&mut text, key, form.iter().flatten().copied());
    }
    for (target, between_key, within_key) in [(RATIO, "ss", "sw"), (ENCODE, "cs", "cw")] {
        let (between, within) = covariances(&samples, &forms[target], target, count);
        row(&mut text, between_key, between.iter().flatten().copied());
        row(&mut text, within_key, within.iter().flatten().copied());
    }
    let find = |m: &Method| reference.iter().find(|r| r.0 == *m).with_context(|| format!("no reference for {m}"));
    let found: Vec<_> = methods.iter().map(find).collect::<Result<_>>()?;
    let log = |ns: f64| (ns.max(1e-3) * 1e-9).ln();
    row(&mut text, "ref_c", found.iter().map(|r| log(r.1)));
    row(&mut text, "ref_d", found.iter().map(|r| log(r.2)));
    Ok(text)
}

fn row(text: &mut String, key: &str, values: impl Iterator<Item = f64>) {
    text.push_str(key);
    for v in values {
        // Five digits are far more precise than the fit.
        let _ = write!(text, " {}", format!("{v:.5}").trim_end_matches('0').trim_end_matches('.'));
    }
    text.push('\n');
}

/// Targets of the regression.
const RATIO: usize = 0;
const ENCODE: usize = 1;
const DECODE: usize = 2;

/// The data of one pool for the regression.
struct Sample {
    terms: Vec<[f64; TERMS]>,
    /// By target (ratio, encode, decode), then block, then method; natural logarithms.
    targets: [Vec<Vec<f64>>; 3],
    weights: Vec<f64>,
    /// Blocks of [`RESIDUAL_CLASS`].
    residual_blocks: std::ops::Range<usize>,
}

impl Sample {
    fn of(table: &Table) -> Self {
        let mut sample =
            Self { terms: Vec::new(), targets: Default::default(), weights: Vec::new(), residual_blocks: 0..0 };
        for (class, class_len) in CLASSES.into_iter().enumerate() {
            let begin = sample.terms.len();
            for (block, costs) in table.bytes.chunks_exact(class_len).zip(table.blocks(class)) {
                let n = class_len as f64;
                sample.terms.push(Features::sample(block).terms().map(f64::from));
                sample.weights.push(CLASS_WEIGHTS[class]);
                sample.targets[RATIO].push(costs.iter().map(|c| (n / c.wire_len).ln().max(0.0)).collect());
                sample.targets[ENCODE].push(costs.iter().map(|c| (c.encode_ns.max(10.0) * 1e-9 / n).ln()).collect());
                sample.targets[DECODE].push(costs.iter().map(|c| (c.decode_ns.max(10.0) * 1e-9 / n).ln()).collect());
            }
            if class == RESIDUAL_CLASS {
                sample.residual_blocks = begin..sample.terms.len();
            }
        }
        let sum: f64 = sample.weights.iter().sum();
        sample.weights.iter_mut().for_each(|w| *w /= sum);
        sample
    }
}

type Square = [[f64; TERMS]; TERMS];

/// Whether a block is data for a target of a method: a block that did not shrink is never decoded.
fn counts(sample: &Sample, target: usize, block: usize, m: usize) -> bool {
    target != DECODE || sample.targets[RATIO][block][m] > 0.0
}

/// Fits the linear form of one method. The ridge shrinks towards the mean, not towards zero.
fn solve_form(samples: &[Sample], target: usize, m: usize) -> Result<[f64; TERMS]> {
    let rows = || {
        samples
            .iter()
            .flat_map(move |s| (0..s.terms.len()).filter(move |b| counts(s, target, *b, m)).map(move |b| (s, b)))
    };
    let number = rows().count().max(1) as f64;
    let mean = rows().map(|(s, b)| s.targets[target][b][m]).sum::<f64>() / number;
    let mut normal = [[0.0; TERMS]; TERMS];
    let mut right = [0.0; TERMS];
    for (sample, block) in rows() {
        let (x, w, y) = (&sample.terms[block], sample.weights[block], sample.targets[target][block][m] - mean);
        for i in 0..TERMS {
            right[i] += w * x[i] * y;
            for j in 0..TERMS {
                normal[i][j] += w * x[i] * x[j];
            }
        }
    }
    for (i, row) in normal.iter_mut().enumerate() {
        row[i] += samples.len() as f64 * if i == 0 { RIDGE_CONSTANT } else { RIDGE };
    }
    let factor = cholesky(&normal).context("the features of these pools do not determine a fit")?;
    let mut form = solve(&factor, right);
    form[0] += mean;
    Ok(form)
}

/// Covariances of the residuals over methods: (between pools, within pools).
fn covariances(
    samples: &[Sample],
    forms: &[[f64; TERMS]],
    target: usize,
    count: usize,
) -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
    let zero = vec![vec![0.0; count]; count];
    let (mut between, mut within) = (zero.clone(), zero);
    let pools = samples.len() as f64;
    for sample in samples {
        let residuals: Vec<Vec<f64>> =
            sample.residual_blocks.clone().map(|b| residual(sample, forms, target, b)).collect();
        let blocks = residuals.len() as f64;
        let mean: Vec<f64> = (0..count).map(|m| residuals.iter().map(|r| r[m]).sum::<f64>() / blocks).collect();
        for i in 0..count {
            for j in 0..count {
                let spread = |r: &Vec<f64>| (r[i] - mean[i]) * (r[j] - mean[j]);
                between[i][j] += mean[i] * mean[j] / pools;
                within[i][j] += residuals.iter().map(spread).sum::<f64>() / blocks / pools;
            }
        }
    }
    for i in 0..count {
        for j in 0..count {
            let least = if i == j { VARIANCE_MIN } else { 0.0 };
            between[i][j] = BETWEEN_WIDENED * between[i][j] + BETWEEN_FROM_WITHIN * within[i][j] + least;
            within[i][j] += least;
        }
    }
    (between, within)
}

fn residual(sample: &Sample, forms: &[[f64; TERMS]], target: usize, block: usize) -> Vec<f64> {
    let x = &sample.terms[block];
    forms.iter().zip(&sample.targets[target][block]).map(|(form, y)| y - dot(form, x)).collect()
}

fn dot(a: &[f64; TERMS], b: &[f64; TERMS]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Lower triangle L with L L^T = `a`; `None` if `a` is not positive definite.
fn cholesky(a: &Square) -> Option<Square> {
    let mut l = [[0.0; TERMS]; TERMS];
    for i in 0..TERMS {
        for j in 0..=i {
            let rest = a[i][j] - (0..j).map(|k| l[i][k] * l[j][k]).sum::<f64>();
            if i == j {
                if rest <= 0.0 {
                    return None;
                }
                l[i][i] = rest.sqrt();
            } else {
                l[i][j] = rest / l[j][j];
            }
        }
    }
    Some(l)
}

/// Solves L L^T x = b.
fn solve(l: &Square, mut b: [f64; TERMS]) -> [f64; TERMS] {
    for i in 0..TERMS {
        b[i] = (b[i] - (0..i).map(|k| l[i][k] * b[k]).sum::<f64>()) / l[i][i];
    }
    for i in (0..TERMS).rev() {
        b[i] = (b[i] - (i + 1..TERMS).map(|k| l[k][i] * b[k]).sum::<f64>()) / l[i][i];
    }
    b
}

/// Bias and spread of the prior on one pool's blocks of 128 KiB, for zstd 1 or the first method.
fn residuals(table: &Table, text: &str, prior: &Prior) -> Result<String> {
    let m = prior.methods().iter().position(|m| *m == Method::zstd(1)).unwrap_or(0);
    let sample = Sample::of(table);
    let mut parts = Vec::new();
    for (target, key, name) in
        [(RATIO, "bs ", "log ratio"), (ENCODE, "bc ", "log encode time"), (DECODE, "bd ", "log decode time")]
    {
        let line = text.lines().find_map(|l| l.strip_prefix(key)).context("a row is missing")?;
        let numbers: Vec<f64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let mut form = [0.0; TERMS];
        form.copy_from_slice(&numbers[m * TERMS..(m + 1) * TERMS]);
        let left: Vec<f64> = sample
            .residual_blocks
            .clone()
            .filter(|b| counts(&sample, target, *b, m))
            .map(|b| {
                let guess = dot(&form, &sample.terms[b]);
                sample.targets[target][b][m] - if target == RATIO { guess.max(0.0) } else { guess }
            })
            .collect();
        let mean = left.iter().sum::<f64>() / left.len().max(1) as f64;
        let deviation = (left.iter().map(|e| (e - mean).powi(2)).sum::<f64>() / left.len().max(1) as f64).sqrt();
        parts.push(format!("{name} {mean:+.2} sd {deviation:.2}"));
    }
    Ok(format!("{}: {}", prior.methods()[m], parts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use narrows_sim::table::example;

    #[test]
    fn a_linear_system_is_solved() {
        let mut a = [[0.0; TERMS]; TERMS];
        for (i, row) in a.iter_mut().enumerate() {
            for (j, x) in row.iter_mut().enumerate() {
                *x = 1.0 / (1.0 + i.abs_diff(j) as f64) + if i == j { 2.0 } else { 0.0 };
            }
        }
        let x: [f64; TERMS] = std::array::from_fn(|i| i as f64 - 5.0);
        let b: [f64; TERMS] = std::array::from_fn(|i| dot(&a[i], &x));
        let found = solve(&cholesky(&a).unwrap(), b);
        assert!(found.iter().zip(&x).all(|(f, x)| (f - x).abs() < 1e-9));
        assert!(cholesky(&[[1.0; TERMS]; TERMS]).is_none());
    }

    #[test]
    fn a_prior_of_many_methods_is_of_the_default_ones() {
        let with = |methods: Vec<Method>| {
            let mut table = Table::new("many", narrows::block::Block::zeros(512 << 10), methods);
            let count = table.methods.len();
            for (class, class_len) in CLASSES.into_iter().enumerate() {
                let n = class_len as f64;
                let cost = |m: usize| table::Cost { encode_ns: n * (m + 1) as f64, decode_ns: n, wire_len: n / 2.0 };
                for _ in 0..(512 << 10) / class_len {
                    table.push(class, (0..count).map(cost).collect());
                }
            }
            table
        };
        let more: Vec<Method> = (1..=METHODS_MAX as i32).map(Method::zstd).collect();
        let default = measurable(DEFAULT_METHODS);
        let many: Vec<Method> =
            default.iter().copied().chain(more.clone().into_iter().filter(|m| !default.contains(m))).collect();
        assert!(many.len() > METHODS_MAX);
        let reference = many.iter().map(|m| (*m, 2.0, 1.0)).collect();
        let fitted = fitting(&[with(many)]).unwrap();
        assert_eq!(Prior::parse(&fit(&fitted, None, &reference).unwrap()).unwrap().methods(), default);
        let few = fitting(&[with(more[..3].to_vec())]).unwrap();
        assert_eq!(few[0].methods, more[..3]);
        let lacking = (1..=METHODS_MAX as i32 + 1).map(Method::zstd).collect();
        let error = fitting(&[with(lacking)]).err().unwrap().to_string();
        assert!(error.contains("narrows-lab tables --methods"), "{error}");
    }

    #[test]
    fn a_prior_is_written_as_the_engine_reads_it() {
        let table = example();
        let reference = table.methods.iter().map(|m| (*m, 2.0, 1.0)).collect();
        let text = fit(std::slice::from_ref(&table), None, &reference).unwrap();
        let prior = Prior::parse(&text).unwrap();
        assert_eq!(prior.methods(), table.methods);
        let (encode, _) = prior.reference(table.methods[0]).unwrap();
        assert!((encode - 2e-9f32.ln()).abs() < 1e-3);
        // All blocks have the same features, so the forms give the mean.
        let form = |key: &str| -> Vec<f64> {
            let line = text.lines().find_map(|l| l.strip_prefix(key)).unwrap();
            line.split(' ').map(|v| v.parse().unwrap()).collect()
        };
        let x = Features::sample(&[0; 128 << 10]).terms().map(f64::from);
        let guess: f64 = form("bc ")[..TERMS].iter().zip(&x).map(|(a, b)| a * b).sum();
        assert!((guess - 2e-9f64.ln()).abs() < 0.01, "{guess}");
        assert!(fit(&[table], Some("small"), &reference).is_err(), "nothing is left to fit");
    }
}
