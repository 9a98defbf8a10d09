//! What the programs of ringway share at the command line.
//!
//! [`options`]: what all verbs take. [`output`] and [`table`]: standard output. [`logging`]: lines
//! on standard error. [`stop`]: Ctrl-C.

pub mod completions;
pub mod logging;
pub mod options;
pub mod output;
pub mod stop;
pub mod table;

use std::process::ExitCode;

use crate::output::ReaderLeft;

/// The exit code of a program with this result, which it reports on standard error if it is an
/// error.
pub fn exit(result: anyhow::Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) if error.is::<ReaderLeft>() => ExitCode::SUCCESS,
        Err(error) => {
            logging::report(&error);
            ExitCode::FAILURE
        }
    }
}
