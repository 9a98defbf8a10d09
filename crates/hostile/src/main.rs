//! `ringway-hostile`: everything is in the library, which tests use as well.

use std::process::ExitCode;

fn main() -> ExitCode {
    ringway_hostile::main()
}
