//! Command-line definition of `narrows doctor`.

use clap::Args as ClapArgs;

#[derive(ClapArgs)]
#[command(after_long_help = DOCTOR_HELP)]
pub(crate) struct DoctorArgs {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

const DOCTOR_HELP: &str = "\
Each line says what a part of the program finds here:

  ok       it works
  limited  it works, with less than it could use
  missing  it does not work here; the line below says what to do

Nothing is changed, stored or sent. Ports are tried on the loopback, for a moment.

EXIT STATUS
  0  the plain program works, whatever is limited or missing
  1  something fails that everything needs

EXAMPLES
  narrows doctor
  narrows doctor --json | jq -r '.checks[] | select(.state != \"ok\") | .name'";
