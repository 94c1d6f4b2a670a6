//! Arrays: ratios, speeds and bounds on the arrays of the corpus and on generated fields, with the
//! libraries that people use now in the same run, each array after the other.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use narrows_array::{ArrayView, BackEnd, Bound, Chooser, Coder, Dtype, Pipeline, RAW_MAX, Step, candidates, npy};
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use super::Args;
use crate::pools::Half;
use sphere::{Field, Grid};
use summary::{fastest, number, ratio, summary};

mod sphere;
mod summary;

/// Writes the arrays of the corpus.
const POOL: &str = include_str!("arrays/pool.py");
/// Encodes, decodes and compares by other libraries; `narrows array bench --peers` runs it too.
const PEERS: &str = include_str!("../../../../crates/narrows-cli/src/cmd/array/peers.py");

/// Bytes of a chunk of the lossless rows.
const CHUNK: usize = 256 << 10;
/// Whole arrays, as the prototypes had them: the lossy rows.
const WHOLE: usize = 64 << 20;
/// Shares of the range of values that lossy rows may be off by.
const SHARES: [f64; 3] = [1e-2, 1e-3, 1e-4];
/// Fill values of the corpus.
const FILLS: [f64; 3] = [1e20, 100_000_002_004_087_734_272.0, 9.969_209_968_386_869e36];
/// How often an array follows itself where choosing is timed: as on an array so many times as long.
const REPEATS: usize = 32;
/// Refinements of the icosahedron: 81,920 cells.
const REFINED: u32 = 6;

/// An array of the pool, as a file that Python reads too.
struct Item {
    name: String,
    path: PathBuf,
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
    generated: bool,
}

impl Item {
    fn read(path: PathBuf, generated: bool) -> Result<Self> {
        let bytes = fs::read(&path)?;
        let header = npy::parse(&bytes)?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        // Bytes of an unknown kind: the chooser has to find what they are.
        let dtype = if header.dtype == Dtype::U8 { Dtype::Record(1) } else { header.dtype };
        Ok(Self { name, path, dtype, shape: header.shape, data: bytes[header.data_at..].to_vec(), generated })
    }

    fn half(&self) -> Half {
        if xxh3_64(self.name.as_bytes()).is_multiple_of(2) { Half::Tuning } else { Half::Quoted }
    }

    /// Rows of the slowest axis, as in a file of chunks.
    fn chunks(&self, chunk_len: usize) -> Vec<(Vec<usize>, &[u8])> {
        let row = self.shape[1..].iter().product::<usize>() * self.dtype.bytes();
        let rows = (chunk_len / row).max(1);
        let shape = |bytes: &[u8]| [&[bytes.len() / row][..], &self.shape[1..]].concat();
        self.data.chunks(rows * row).map(|bytes| (shape(bytes), bytes)).collect()
    }

    fn values(&self) -> Vec<f64> {
        match self.dtype {
            Dtype::F32 => {
                self.data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into()).collect()
            }
            Dtype::F64 => {
                self.data.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap_or_default())).collect()
            }
            _ => Vec::new(),
        }
    }
}

pub(super) fn run(args: &Args) -> Result<Value> {
    let corpus = args.corpus.as_deref().context("`arrays` needs --corpus")?;
    let folder = crate::race::scratch::folder()?;
    python(&args.python, POOL, &[corpus.as_os_str(), folder.path().as_os_str()])?;
    let mut items = read_all(folder.path(), false)?;
    let made = folder.path().join("generated");
    fs::create_dir(&made)?;
    generate(&made)?;
    items.extend(read_all(&made, true)?);
    items.retain(|item| args.half == Half::Both || item.generated || item.half() == args.half);
    ensure!(!items.is_empty(), "the corpus has no arrays");
    let mut lossless = Vec::new();
    for item in &items {
        let ours = lossless_row(item, args.rounds)?;
        let peers = peers(args, item, CHUNK, None)?;
        print_lossless(&item.name, &ours, &peers);
        lossless.push(json!({ "array": item.name, "generated": item.generated, "half": item.half().name(),
            "raw": item.data.len(), "narrows": ours, "peers": peers }));
    }
    let mut lossy = Vec::new();
    for item in items.iter().filter(|item| item.dtype.is_float()) {
        for share in SHARES {
            let Some(abs) = absolute(item, share) else { continue };
            let ours = lossy_row(item, abs, args.rounds)?;
            let peers = peers(args, item, WHOLE, Some(abs))?;
            let over = sz3(&peers).map(|best| best / number(&ours, "wire"));
            println!("lossy {:<28} {share:e}: {:.2}, of SZ3 {:.3}", item.name, ratio(&ours), over.unwrap_or(f64::NAN));
            lossy.push(json!({ "array": item.name, "generated": item.generated, "half": item.half().name(),
                "share": share, "abs": abs, "over_sz3": over, "narrows": ours, "peers": peers }));
        }
    }
    let grids = grids()?;
    let summary = summary(&lossless, &lossy, &grids);
    let tables = summary.as_str().unwrap_or_default();
    print!("{tables}");
    if let Some(path) = &args.output {
        let head = "# Tables of `make bench-arrays`\n\nMachine, commit, command and all samples stand in the JSON file beside \
                    this one.\n[arrays.md](arrays.md) says what they mean.\n";
        fs::write(path.with_extension("md"), format!("{head}{tables}"))?;
    }
    Ok(json!({ "rounds": args.rounds, "chunk": CHUNK, "half": args.half.name(), "lossless": lossless, "lossy": lossy,
        "grids": grids, "summary": summary }))
}

fn read_all(folder: &Path, generated: bool) -> Result<Vec<Item>> {
    let mut paths: Vec<_> = fs::read_dir(folder)?.map(|e| Ok(e?.path())).collect::<Result<_>>()?;
    paths.retain(|p| p.extension().is_some_and(|e| e == "npy"));
    paths.sort();
    paths.into_iter().map(|path| Item::read(path, generated)).collect()
}

fn save(folder: &Path, name: &str, shape: &[usize], values: &[f32]) -> Result<()> {
    let mut bytes = npy::header(Dtype::F32, Default::default(), Default::default(), shape);
    bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    Ok(fs::write(folder.join(format!("{name}.npy")), bytes)?)
}

fn generate(folder: &Path) -> Result<()> {
    let mut values = Vec::new();
    for level in 0..4 {
        let mut field = Field::new(level);
        values.extend(sphere::latitudes(180, 360).into_iter().map(|p| field.at(p)));
    }
    save(folder, "sphere_levels", &[4, 180, 360], &values)?;
    let mut field = Field::new(9);
    let cells: Vec<f32> = Grid::new(REFINED).centres().into_iter().map(|p| field.at(p)).collect();
    save(folder, "icosahedral_cells", &[cells.len()], &cells)
}

// --- lossless ---

fn lossless_row(item: &Item, rounds: usize) -> Result<Value> {
    let chunks = item.chunks(CHUNK);
    let mut coder = Coder::new();
    let (mut wire, mut full) = (0, 0);
    let (mut encode_s, mut decode_s) = (vec![Vec::new(); chunks.len()], vec![Vec::new(); chunks.len()]);
    let mut pipelines = Vec::new();
    for round in 0..rounds {
        let mut chooser = Chooser::new(Default::default(), Bound::default())?;
        for (i, (shape, bytes)) in chunks.iter().enumerate() {
            let view = ArrayView::new(item.dtype, shape, bytes);
            let begun = Instant::now();
            let chunk = chooser.encode(&view)?;
            encode_s[i].push(begun.elapsed().as_secs_f64());
            let mut out = vec![0; bytes.len()];
            let begun = Instant::now();
            coder.decode_into(&chunk, &mut out)?;
            decode_s[i].push(begun.elapsed().as_secs_f64());
            ensure!(out == *bytes, "{} came back different", item.name);
            if round == 0 {
                wire += chunk.len();
                pipelines.push(coder.decode_all(&chunk, RAW_MAX)?.2.to_string());
                let mut best = bytes.len();
                for pipeline in candidates(&view, &Default::default(), &Bound::default())? {
                    let made = coder.encode_with(&view, &pipeline, &Bound::default())?;
                    best = made.map_or(best, |made| best.min(made.len()));
                }
                full += best;
            }
        }
    }
    let (choosing, steady) = choosing_share(item, &chunks, &Bound::default())?;
    Ok(
        json!({ "raw": item.data.len(), "wire": wire, "full_trial_wire": full, "encode_s": encode_s, "decode_s": decode_s,
        "choosing_share": choosing, "steady_encode_s_per_byte": steady, "pipelines": pipelines }),
    )
}

/// Share of the time that goes into choosing, on an array that is so many times as long, and seconds for
/// each byte there: each chunk is encoded by the chooser and at once by what it chose, in turn.
fn choosing_share(item: &Item, chunks: &[(Vec<usize>, &[u8])], bound: &Bound) -> Result<(f64, f64)> {
    let mut chooser = Chooser::new(Default::default(), bound.clone())?;
    let mut coder = Coder::new();
    let (mut all_s, mut winner_s) = (0.0, 0.0);
    for _ in 0..REPEATS {
        for (shape, bytes) in chunks {
            let view = ArrayView::new(item.dtype, shape, bytes);
            let begun = Instant::now();
            chooser.encode(&view)?;
            let chosen = Instant::now();
            if let Some(winner) = chooser.pipeline() {
                coder.encode_with(&view, winner, bound)?;
            }
            winner_s += chosen.elapsed().as_secs_f64();
            all_s += (chosen - begun).as_secs_f64();
        }
    }
    Ok(((1.0 - winner_s / all_s).max(0.0), all_s / (REPEATS * item.data.len()) as f64))
}

fn print_lossless(name: &str, ours: &Value, peers: &[Value]) {
    let line = |row: &Value| {
        let rate = |key| number(row, "raw") / fastest(&row[key]) / 1e6;
        format!("{:.3} ({:.0} in, {:.0} out)", ratio(row), rate("encode_s"), rate("decode_s"))
    };
    let peer = |row: &Value| format!("; {} {}", row["peer"].as_str().unwrap_or_default(), line(row));
    println!("lossless {name:<28} {}{}", line(ours), peers.iter().map(peer).collect::<String>());
}

// --- within a bound ---

/// The share of the range of what is no fill.
fn absolute(item: &Item, share: f64) -> Option<f64> {
    let values = item.values();
    let values = values.iter().filter(|v| v.is_finite() && !FILLS.contains(v));
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(*v), high.max(*v)));
    (low < high).then_some(share * (high - low))
}

fn lossy_row(item: &Item, abs: f64, rounds: usize) -> Result<Value> {
    let bound = Bound { abs: Some(abs), fills: FILLS.to_vec(), ..Bound::default() };
    let chunks = item.chunks(WHOLE);
    let mut coder = Coder::new();
    let (mut wire, mut violations, mut worst) = (0, 0, 0f64);
    let (mut encode_s, mut decode_s, mut winner_s) = (Vec::new(), Vec::new(), Vec::new());
    let mut pipeline = String::new();
    for (shape, bytes) in &chunks {
        let view = ArrayView::new(item.dtype, shape, bytes);
        let (mut times, mut winner) = ((Vec::new(), Vec::new()), Vec::new());
        for round in 0..rounds {
            let mut chooser = Chooser::new(Default::default(), bound.clone())?;
            let begun = Instant::now();
            let chunk = chooser.encode(&view)?;
            times.0.push(begun.elapsed().as_secs_f64());
            if let Some(chosen) = chooser.pipeline() {
                let begun = Instant::now();
                coder.encode_with(&view, chosen, &bound)?;
                winner.push(begun.elapsed().as_secs_f64());
                pipeline = chosen.to_string();
            }
            let mut out = vec![0; bytes.len()];
            let begun = Instant::now();
            coder.decode_into(&chunk, &mut out)?;
            times.1.push(begun.elapsed().as_secs_f64());
            if round == 0 {
                wire += chunk.len();
                let decoded =
                    Item { data: out, shape: shape.clone(), name: String::new(), path: PathBuf::new(), ..*item };
                let raw = Item {
                    data: bytes.to_vec(),
                    shape: shape.clone(),
                    name: String::new(),
                    path: PathBuf::new(),
                    ..*item
                };
                for (x, y) in raw.values().into_iter().zip(decoded.values()) {
                    let keep = !x.is_finite() || FILLS.contains(&x);
                    violations += usize::from(if keep { x.to_bits() != y.to_bits() } else { (x - y).abs() > abs });
                    worst = if keep { worst } else { worst.max((x - y).abs()) };
                }
            }
        }
        encode_s.push(times.0);
        decode_s.push(times.1);
        winner_s.push(winner);
    }
    ensure!(violations == 0, "{violations} values of {} are outside {abs:e}", item.name);
    Ok(
        json!({ "raw": item.data.len(), "wire": wire, "encode_s": encode_s, "decode_s": decode_s, "winner_encode_s": winner_s,
        "violations": violations, "worst": worst, "pipeline": pipeline }),
    )
}

/// The fewest bytes that SZ3 took, of raw and filled input, if it kept the bound.
fn sz3(peers: &[Value]) -> Option<f64> {
    let rows = peers.iter().filter(|p| p["peer"].as_str().is_some_and(|name| name.starts_with("SZ3")));
    rows.filter(|p| p["violations"] == 0).map(|p| number(p, "wire")).reduce(f64::min)
}

// --- unstructured grids ---

/// Bytes by one-dimensional differences in the order of the grid and along a curve, and the share of
/// neighbours in the order that are neighbours on the sphere.
fn grids() -> Result<Value> {
    let grid = Grid::new(REFINED);
    let centres = grid.centres();
    let neighbours = grid.neighbours();
    let cells = |order: &[usize]| {
        let near = order.windows(2).filter(|pair| neighbours[pair[0]].contains(&pair[1])).count();
        near as f64 / order.len() as f64
    };
    let mut rows = Vec::new();
    for (what, points, adjacent) in
        [("cells, as refined", &centres, true), ("corners, as they arise", &grid.corners, false)]
    {
        let natural: Vec<usize> = (0..points.len()).collect();
        let curve = sphere::along_curve(points);
        let mut field = Field::new(9);
        let values: Vec<f32> = points.iter().map(|p| field.at(*p)).collect();
        let mut wires = Vec::new();
        for order in [&natural, &curve] {
            let bytes: Vec<u8> = order.iter().flat_map(|&i| values[i].to_le_bytes()).collect();
            wires.push([grid_wire(&bytes, None)?, grid_wire(&bytes, Some(0.01))?]);
        }
        let gain = [0, 1].map(|i| wires[0][i] as f64 / wires[1][i] as f64);
        println!("grid   {what}: along a curve {:.3} lossless, {:.3} within 0.01", gain[0], gain[1]);
        let near = adjacent.then(|| [cells(&natural), cells(&curve)]);
        rows.push(json!({ "points": what, "raw": 4 * values.len(), "natural_wire": wires[0], "curve_wire": wires[1],
            "gain_lossless": gain[0], "gain_lossy": gain[1], "adjacent_natural_and_curve": near }));
    }
    Ok(Value::Array(rows))
}

fn grid_wire(bytes: &[u8], abs: Option<f64>) -> Result<usize> {
    let shape = [bytes.len() / 4];
    let difference = Step::Lorenzo { axes: 1, zigzag: false };
    let steps = if abs.is_some() { vec![Step::Linear, difference] } else { vec![difference] };
    let bound = abs.map(Bound::abs).unwrap_or_default();
    let view = ArrayView::new(Dtype::F32, &shape, bytes);
    let made = Coder::new().encode_with(&view, &Pipeline::new(steps, BackEnd::Pco(8)), &bound)?;
    Ok(made.context("differences always apply")?.len())
}

// --- other libraries ---

fn python(program: &Path, script: &str, args: &[&std::ffi::OsStr]) -> Result<String> {
    let mut command = Command::new(program);
    command.arg("-c").arg(script).args(args).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().with_context(|| format!("cannot run {}", program.display()))?;
    ensure!(output.status.success(), "{} failed; it needs numpy and netCDF4", program.display());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn peers(args: &Args, item: &Item, chunk_len: usize, abs: Option<f64>) -> Result<Vec<Value>> {
    let (chunk_len, rounds) = (chunk_len.to_string(), args.rounds.to_string());
    let abs = abs.map(|abs| format!("{abs:e}"));
    let fills = FILLS.map(|f| format!("{f:e}")).join(",");
    let mut rows = Vec::new();
    // A wheel of zfp keeps others from loading.
    for (program, only) in [(Some(&args.python), None), (args.zfp_python.as_ref(), Some("zfp"))] {
        let Some(program) = program else { continue };
        let mut words =
            vec![item.path.as_os_str(), chunk_len.as_ref(), rounds.as_ref(), "--fill".as_ref(), fills.as_ref()];
        if let Some(abs) = &abs {
            words.extend(["--abs".as_ref(), std::ffi::OsStr::new(abs)]);
        }
        if let Some(only) = only {
            words.extend(["--only".as_ref(), std::ffi::OsStr::new(only)]);
        }
        for line in python(program, PEERS, &words)?.lines() {
            rows.push(serde_json::from_str(line)?);
        }
    }
    Ok(rows)
}
