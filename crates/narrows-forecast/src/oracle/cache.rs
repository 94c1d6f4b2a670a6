//! Cache of measurements, so that the same question is answered at once.
//!
//! A file is named by the hash of everything that its figures depend on: the data, the methods, the
//! version of this program, and the CPU. It contains the energy by method and the text of the
//! table, compressed. If a file is missing or invalid, the measurement is repeated.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use narrows::block::Block;
use narrows::codec::Method;
use narrows_host::calibration;
use narrows_host::files;
use narrows_sim::measure::linkable;
use narrows_sim::table::Table;

use super::energy::{self, Watts};

/// First line of a file, with the version. Version 2 has watts of CPU packages only, and none if
/// they cannot be distinguished from other load.
const MAGIC: &str = "narrows-oracle 2";
/// Maximum length of the cache: about sixty tables of 64 MiB of data, each of which takes 1 MiB.
const BYTES_MAX: u64 = 64 << 20;
/// Maximum length of the text: that of the longest input, 1 GiB, with sixteen methods.
const TEXT_MAX: u64 = 512 << 20;
/// zstd level. It reduces the text, mostly numbers, to a third; higher levels are not worth their
/// time.
const LEVEL: i32 = 3;
/// Age from which a temporary file belongs to a killed run, on a file system without nameless
/// files.
const STALE: Duration = Duration::from_secs(3600);

/// The cache entry of one question.
pub struct Cache {
    folder: PathBuf,
    name: String,
}

impl Cache {
    /// The entry for these figures; `None` without a home folder.
    pub fn new(bytes: &[u8], methods: &[Method]) -> Option<Self> {
        let folder = calibration::path()?.with_file_name("oracle");
        let mut hash = blake3::Hasher::new();
        let linked = format!("{:?}", linkable(methods));
        for part in [Method::print_list(methods).as_str(), &linked, env!("CARGO_PKG_VERSION"), &cpu_model()] {
            hash.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        hash.update_rayon(bytes);
        Some(Self { folder, name: format!("{}.table.zst", hash.finalize().to_hex()) })
    }

    /// Loads the figures. Figures without energy are ignored if energy can be measured
    /// (`has_energy`), as the permission may be new.
    pub fn load(&self, bytes: &Block, has_energy: bool) -> Option<(Table, Option<Watts>)> {
        let path = self.folder.join(&self.name);
        let file = fs::File::open(&path).ok()?;
        // The oldest files are removed first, so the time of a used file is updated.
        let _ = file.set_modified(SystemTime::now());
        let mut text = String::new();
        zstd::Decoder::new(file).ok()?.take(TEXT_MAX).read_to_string(&mut text).ok()?;
        let (energy, table) = text.strip_prefix(MAGIC)?.strip_prefix('\n')?.split_once('\n')?;
        let watts = Watts::parse(energy).ok()?;
        if has_energy && watts.is_none() {
            return None;
        }
        Some((Table::from_text(table, bytes.clone()).ok()?, watts))
    }

    /// Stores the text of the table as measured. The file appears complete or not at all.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn store(&self, text: &str, watts: Option<&Watts>) -> Result<()> {
        let about = || format!("cannot write into {}", self.folder.display());
        fs::create_dir_all(&self.folder).with_context(about)?;
        let whole = format!("{MAGIC}\n{}\n{text}", watts.map_or(energy::NONE.into(), Watts::to_text));
        let mut packed = zstd::Encoder::new(Vec::new(), LEVEL)?;
        packed.include_checksum(true)?;
        packed.write_all(whole.as_bytes())?;
        files::write_whole(&self.folder.join(&self.name), &packed.finish()?)?;
        self.shrink(BYTES_MAX);
        Ok(())
    }

    /// Removes the oldest files beyond `bytes_max`, and temporary files of killed runs.
    fn shrink(&self, bytes_max: u64) {
        let list = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut files: Vec<_> = list
            .filter_map(|e| e.metadata().ok().filter(fs::Metadata::is_file).map(|data| (e.path(), data)))
            .filter_map(|(path, data)| data.modified().ok().map(|at| (at, path, data.len())))
            .collect();
        files.sort_by_key(|f| std::cmp::Reverse(f.0));
        let mut sum = 0;
        for (at, path, len) in files {
            if is_temporary(&path) {
                if at.elapsed().is_ok_and(|age| age > STALE) {
                    let _ = fs::remove_file(path);
                }
                continue;
            }
            sum += len;
            if sum > bytes_max && !path.ends_with(&self.name) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

fn is_temporary(path: &Path) -> bool {
    path.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'))
}

/// The CPU model as reported by the kernel; figures of another model are not used.
pub fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|l| l.starts_with("model name") || l.starts_with("Model"));
    line.and_then(|l| l.split_once(':')).map_or("unknown".into(), |(_, name)| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_come_back_and_rubbish_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let table = narrows_sim::table::example();
        let cache = Cache { folder: folder.path().to_owned(), name: "x.table.zst".into() };
        assert!(cache.load(&table.bytes, false).is_none());
        let watts = Watts::parse("lz4=3.5,zstd=4.25").unwrap().unwrap();
        cache.store(&table.to_text(), Some(&watts)).unwrap();
        let (back, energy) = cache.load(&table.bytes, true).unwrap();
        assert_eq!((back.to_text(), energy), (table.to_text(), Some(watts)));
        assert!(cache.load(&Block::from_vec(vec![1; 1 << 20]), true).is_none(), "other data");
        let path = folder.path().join("x.table.zst");
        let whole = fs::read(&path).unwrap();
        for end in [0, 3, whole.len() / 2, whole.len() - 1] {
            fs::write(&path, &whole[..end]).unwrap();
            assert!(cache.load(&table.bytes, true).is_none(), "{end}");
        }
        cache.store(&table.to_text(), None).unwrap();
        assert!(cache.load(&table.bytes, false).is_some());
        assert!(cache.load(&table.bytes, true).is_none(), "energy can be measured by now");
    }

    #[test]
    fn the_oldest_go_first() {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        for (name, age_s) in [("old", 30), ("middle", 20), ("new", 10), (".tmp1", 5), (".tmp2", 7200)] {
            let file = fs::File::create(folder.path().join(name)).unwrap();
            file.set_len(1000).unwrap();
            file.set_modified(now - Duration::from_secs(age_s)).unwrap();
        }
        Cache { folder: folder.path().to_owned(), name: "new".into() }.shrink(2500);
        let is_there = |name: &str| folder.path().join(name).exists();
        assert_eq!(["old", "middle", "new", ".tmp1", ".tmp2"].map(is_there), [false, true, true, true, false]);
    }
}
