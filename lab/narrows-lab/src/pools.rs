//! Pools: a few megabytes of one kind of data, made from the files of a corpus, and streams that
//! mix the kinds.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use xxhash_rust::xxh3::xxh3_64;

use narrows_sim::rng::Rng;
use narrows_sim::table::CLASSES;

/// Raised when the same corpus gives different bytes, so that old tables and samples are not used.
const RECIPE: u32 = 1;
/// Bytes taken of a file at most, so that one large file is not the whole pool.
const FILE_MAX: usize = 700_000;
/// Length of the pool of noise; longer noise does not compress better.
const RANDOM_LEN: usize = 1 << 20;
/// Files that describe the corpus and are not part of it.
const SKIPPED: &[&str] = &["readme", "license", "manifest", "sha", "sources"];

/// A pool: bytes of one kind.
pub(crate) struct Pool {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

/// Identifies how the bytes are sampled, for names of stored results. Empty for the first recipe,
/// as results were stored before there was a second one.
pub(crate) fn recipe() -> String {
    if RECIPE == 1 { String::new() } else { format!(" pools {RECIPE}") }
}

/// One pool for each directory of the corpus, `random`, and two mixed streams: `mixfine` changes kind every 4 to 64 KiB,
/// `mixwide` every 4 KiB to 1 MiB. Of the files of one half only, if so wanted.
pub(crate) fn make(corpus: &Path, len: usize, half: Half) -> Result<Vec<Pool>> {
    let mut directories: Vec<PathBuf> = entries(corpus)?.into_iter().filter(|p| p.is_dir()).collect();
    directories.sort();
    let mut whole = Vec::new();
    for directory in directories {
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        whole.push(Pool { bytes: of_half(&directory, len, half)?, name });
    }
    if whole.is_empty() {
        bail!("{} has no directories with files", corpus.display());
    }
    let mut rng = Rng(5);
    let random = (0..len.max(RANDOM_LEN)).map(|_| rng.next_u64() as u8).collect();
    whole.push(Pool { name: "random".into(), bytes: random });
    let fine = mix(&whole, len, 64 << 10, &mut Rng(13));
    let wide = mix(&whole, len, 1 << 20, &mut Rng(14));
    whole.push(Pool { name: "mixfine".into(), bytes: fine });
    whole.push(Pool { name: "mixwide".into(), bytes: wide });
    for pool in &mut whole {
        let max = if pool.name == "random" { RANDOM_LEN.min(len) } else { len };
        // Whole blocks of every class, so that every repetition of a pool is cut the same way.
        let grain = CLASSES[CLASSES.len() - 1];
        let keep = pool.bytes.len().min(max) / grain * grain;
        if keep == 0 {
            bail!("pool {} has only {} bytes; {grain} are needed", pool.name, pool.bytes.len());
        }
        pool.bytes.truncate(keep);
    }
    Ok(whole)
}

/// The files of each kind: constants are tuned on one half and figures quoted from the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Half {
    Tuning,
    Quoted,
    Both,
}

/// A kind of data, with the name and the bytes of its files.
pub(crate) type Kind = (String, Vec<(PathBuf, Vec<u8>)>);

/// All kinds of data with their whole files of one half.
pub(crate) fn files_by_kind(corpus: &Path, half: Half) -> Result<Vec<Kind>> {
    let mut directories: Vec<PathBuf> = entries(corpus)?.into_iter().filter(|p| p.is_dir()).collect();
    directories.sort();
    let (first, step) = match half {
        Half::Both => (0, 1),
        Half::Tuning => (0, 2),
        Half::Quoted => (1, 2),
    };
    let mut kinds = Vec::new();
    for directory in directories {
        let mut files = Vec::new();
        for path in shuffled(&directory)?.into_iter().skip(first).step_by(step) {
            let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            files.push((path, bytes));
        }
        kinds.push((directory.file_name().unwrap_or_default().to_string_lossy().into_owned(), files));
    }
    Ok(kinds)
}

/// As [`folder_bytes`], from one half of the files.
pub(crate) fn half_bytes(directory: &Path, len: usize, half: Half) -> Result<Vec<u8>> {
    Ok(lengthen(&of_half(directory, len, half)?, len))
}

/// The beginnings of the files of one half. The only file of a kind is cut in two.
fn of_half(directory: &Path, len: usize, half: Half) -> Result<Vec<u8>> {
    let odd = match half {
        Half::Both => return concatenate(directory, len),
        Half::Tuning => 0,
        Half::Quoted => 1,
    };
    let files = shuffled(directory)?;
    if let [only] = &files[..] {
        let file = fs::read(only).with_context(|| format!("cannot read {}", only.display()))?;
        let middle = file.len() / 2;
        return Ok(if odd == 0 { file[..middle].to_vec() } else { file[middle..].to_vec() });
    }
    join(&files.into_iter().skip(odd).step_by(2).collect::<Vec<_>>(), len)
}

/// `len` bytes of the files of one kind, extended if there are fewer.
pub(crate) fn folder_bytes(directory: &Path, len: usize) -> Result<Vec<u8>> {
    Ok(lengthen(&concatenate(directory, len)?, len))
}

/// Extends data by repetitions, each XORed with a different value. This keeps local repeats and the
/// distribution of byte frequencies, but a method with a window longer than the pool does not find
/// the whole pool again, as it would not in real data.
fn lengthen(bytes: &[u8], len: usize) -> Vec<u8> {
    let times = len.div_ceil(bytes.len().max(1));
    (0..times).flat_map(|time| bytes.iter().map(move |b| b ^ time as u8)).take(len).collect()
}

/// The files of a folder in a fixed shuffled order; longer files are cut into pieces.
pub(crate) fn pieces(directory: &Path, piece_max: usize) -> Result<Vec<Vec<u8>>> {
    let mut pieces = Vec::new();
    for path in shuffled(directory)? {
        let file = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        pieces.extend(file.chunks(piece_max).map(<[u8]>::to_vec));
    }
    Ok(pieces)
}

/// `len` bytes of a folder or file of the corpus, of noise (`random`) or of zeros (`zero`).
pub(crate) fn named_bytes(corpus: &Path, name: &str, len: usize) -> Result<Vec<u8>> {
    match name {
        "random" => {
            let mut rng = Rng(5);
            Ok((0..len).map(|_| rng.next_u64() as u8).collect())
        }
        "zero" => Ok(vec![0; len]),
        _ if corpus.join(name).is_file() => {
            let path = corpus.join(name);
            let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            Ok(lengthen(&bytes, len))
        }
        _ => folder_bytes(&corpus.join(name), len),
    }
}

/// The beginnings of all files in a fixed shuffled order; whole files if those are not enough.
fn concatenate(directory: &Path, len: usize) -> Result<Vec<u8>> {
    join(&shuffled(directory)?, len)
}

fn join(files: &[PathBuf], len: usize) -> Result<Vec<u8>> {
    let join = |part_max: usize| -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for path in files {
            let file = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            bytes.extend_from_slice(&file[..file.len().min(part_max)]);
        }
        Ok(bytes)
    };
    let bytes = join(FILE_MAX)?;
    if bytes.len() < len { join(usize::MAX) } else { Ok(bytes) }
}

/// All files of a folder, in an order that is independent of their content.
fn shuffled(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    collect(directory, &mut files)?;
    let order = |p: &PathBuf| xxh3_64(p.strip_prefix(directory).unwrap_or(p).to_string_lossy().as_bytes());
    files.sort_by_cached_key(|p| (order(p), p.clone()));
    Ok(files)
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for path in entries(directory)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.is_file() && !SKIPPED.iter().any(|s| name.starts_with(s)) {
            files.push(path);
        }
    }
    Ok(())
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let list = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    list.map(|e| Ok(e?.path())).collect()
}

/// Concatenates pieces of random kinds and positions. Lengths are log-uniform from 4 KiB to
/// `piece_max`.
fn mix(pools: &[Pool], len: usize, piece_max: usize, rng: &mut Rng) -> Vec<u8> {
    let zeros = vec![0; piece_max];
    let mut bytes = Vec::with_capacity(len + piece_max);
    while bytes.len() < len {
        let piece = (4096.0 * (piece_max as f64 / 4096.0).powf(rng.unit())) as usize;
        // The last kind is runs of zeros, as in sparse files and fresh memory.
        let source = rng.below(pools.len() + 1);
        let source = pools.get(source).map_or(&zeros, |p| &p.bytes);
        let at = rng.below(source.len().saturating_sub(piece).max(1));
        bytes.extend_from_slice(&source[at..source.len().min(at + piece)]);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_whole_blocks_and_the_same_every_time() {
        let corpus = tempfile::tempdir().unwrap();
        let kind = corpus.path().join("kind");
        fs::create_dir_all(kind.join("deeper")).unwrap();
        fs::write(kind.join("a"), vec![b'a'; 900_000]).unwrap();
        fs::write(kind.join("deeper").join("b"), vec![b'b'; 400_000]).unwrap();
        fs::write(kind.join("README.md"), vec![b'r'; 100]).unwrap();
        let pools = make(corpus.path(), 1 << 20, Half::Both).unwrap();
        let names: Vec<_> = pools.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["kind", "random", "mixfine", "mixwide"]);
        assert!(pools.iter().all(|p| p.bytes.len() == 1 << 20));
        assert!(!pools[0].bytes.contains(&b'r') && pools[0].bytes.contains(&b'b'));
        let again = make(corpus.path(), 1 << 20, Half::Both).unwrap();
        assert!(pools.iter().zip(&again).all(|(a, b)| a.bytes == b.bytes));
    }

    #[test]
    fn what_is_lengthened_does_not_repeat_and_is_of_the_same_kind() {
        assert_eq!(lengthen(b"aab", 8), [b"aab".as_slice(), b"``c", b"cc"].concat());
        assert_eq!(lengthen(b"aab", 2), b"aa");
        assert!(lengthen(b"", 5).is_empty());
    }
}
