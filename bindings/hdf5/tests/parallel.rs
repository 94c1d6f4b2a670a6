//! Four ranks of parallel HDF5 write one dataset through the filter and read it. Needs the MPI build of
//! HDF5 (Debian: libhdf5-openmpi-dev, openmpi-bin), which continuous integration does not install.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use narrows_test::{skip, which};

fn plugin() -> PathBuf {
    let deps = env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let places = [deps.clone(), deps.parent().unwrap().to_path_buf()];
    let found = places.iter().map(|p| p.join("libnarrows_hdf5.so")).filter(|p| p.is_file());
    found.max_by_key(|p| p.metadata().unwrap().modified().unwrap()).expect("cargo built no plug-in")
}

#[test]
fn ranks_write_one_dataset_together() {
    let compiler = ["h5pcc", "h5pcc.openmpi"].into_iter().find(|c| which(c).is_some());
    let (Some(compiler), true) = (compiler, which("mpirun").is_some()) else {
        return skip("there is no parallel HDF5: h5pcc, mpirun");
    };
    let folder = tempfile::tempdir().unwrap();
    // HDF5 loads every library of a folder.
    fs::copy(plugin(), folder.path().join("libnarrows_hdf5.so")).unwrap();
    let (program, file) = (folder.path().join("parallel"), folder.path().join("o.h5"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parallel.c");
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{command:?}: {text}");
        String::from_utf8(output.stdout).unwrap()
    };
    // Debian links HDF5 statically without -shlib, and then the filter cannot ask it for anything.
    run(Command::new(compiler).current_dir(&folder).args(["-shlib", "-O1", "-o"]).arg(&program).arg(source).arg("-lm"));
    let mut ranks = Command::new("mpirun");
    ranks.args(["-n", "4", "--oversubscribe"]).arg(&program).arg(&file);
    // More than root or cores may hinder it in a container; the file is on a local disk.
    for (name, value) in [
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_btl_vader_single_copy_mechanism", "none"),
    ] {
        ranks.env(name, value);
    }
    let said = run(ranks.env("HDF5_PLUGIN_PATH", folder.path()).current_dir(&folder));
    let sizes: Vec<usize> = said.lines().map(|line| line.split(' ').nth(1).unwrap().parse().unwrap()).collect();
    assert!(sizes.len() == 2 && sizes[1] * 4 < sizes[0] * 3 && sizes[0] * 4 < 1_200_000, "{said}");
}
