//! `ringway-hostile`: everything is in the library, which tests also use.

use std::process::ExitCode;

fn main() -> ExitCode {
    ringway_hostile::main()
}
