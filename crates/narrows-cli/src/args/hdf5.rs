//! Command-line definition of `narrows hdf5`.

use clap::Args as ClapArgs;

use super::array::Hints;

#[derive(ClapArgs)]
#[command(
    after_help = HDF5_HELP,
    after_long_help = HDF5_HELP,
    group = clap::ArgGroup::new("what").required(true)
)]
pub(crate) struct Hdf5Args {
    /// Print the folder of the filter, for HDF5_PLUGIN_PATH
    #[arg(long, group = "what")]
    pub(crate) path: bool,
    /// Print id and parameters as nccopy and NCO take them: ID,P,P,...
    #[arg(long, group = "what")]
    pub(crate) params: bool,
    /// Print id and parameters as h5repack takes them: UD=ID,1,COUNT,P,P,...
    #[arg(long, group = "what")]
    pub(crate) repack: bool,
    /// Each chunk is written whole and once, which shrinks more within a bound. Without it values that were
    /// rounded stay as they are when a part of their chunk is written later
    #[arg(long, conflicts_with = "path")]
    pub(crate) whole_chunks: bool,
    #[command(flatten)]
    pub(crate) hints: Hints,
}

const HDF5_HELP: &str = "\
The filter compresses the chunks of HDF5 and NetCDF-4 files, exactly or within the stated errors. Whoever writes or reads such \
a file needs it; programs find it by HDF5_PLUGIN_PATH. Its id is in the private range until one is registered.

EXAMPLES
  export HDF5_PLUGIN_PATH=$(narrows hdf5 --path)
  ncdump o.nc
  nccopy -F \"tas,$(narrows hdf5 --params --abs 0.01 --fill 1e20)\" i.nc o.nc
  h5repack -f \"tas:$(narrows hdf5 --repack --digits 3)\" i.h5 o.h5
  ncks -O --cmp=\"$(narrows hdf5 --params --mode archive)\" i.nc o.nc";
