//! Command-line options of hints, shared by all commands that store.

use clap::Args as ClapArgs;
use narrows::hint::{Hint, parse_rate};

use super::file::ModeArg;

#[derive(ClapArgs, Clone)]
pub(crate) struct HintArgs {
    /// What a byte of the file is worth in time
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) mode: Option<ModeArg>,
    /// Encode at least so fast, such as 200MB/s, all threads together
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) encode_rate: Option<u64>,
    /// Use only methods of which one core decodes so fast, such as 500MB/s
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) decode_rate: Option<u64>,
    /// Recompress JPEG images without loss: 20 to 30 % smaller; a core writes some 4 MB/s of them and reads 8
    #[arg(long)]
    pub(crate) images: bool,
    /// The same as text: never, mode=MODE, encode_rate=RATE, decode_rate=RATE, images=true,
    /// methods=METHOD+METHOD, with commas between them [default: the attribute user.narrows.hint of the file, then .narrows.toml]
    #[arg(long, value_name = "HINT", value_parser = |text: &str| text.parse::<Hint>().map_err(|e| e.to_string()))]
    pub(crate) hint: Option<Hint>,
}

impl HintArgs {
    /// What the command line says: its options before its text.
    pub(crate) fn hint(&self) -> Hint {
        let options = Hint {
            mode: self.mode.map(ModeArg::mode),
            encode_rate: self.encode_rate,
            decode_rate: self.decode_rate,
            images: self.images.then_some(true),
            ..Hint::default()
        };
        options.or(self.hint.clone().unwrap_or_default())
    }
}

fn rate(text: &str) -> Result<u64, String> {
    parse_rate(text).map_err(|e| e.to_string())
}
