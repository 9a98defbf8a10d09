//! `ringway doctor`, `ringway lab` and `ringway model`, which programs of their own have. These may
//! be missing.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;
use ringway_terminal::options::{Common, LOG};

/// The arguments of another program.
#[derive(Debug, Args)]
pub(crate) struct Words {
    /// Its arguments, as they are
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    words: Vec<OsString>,
}

impl Words {
    /// These behind the verb that another program has for them.
    pub(crate) fn behind(self, verb: &str) -> Words {
        let words = std::iter::once(OsString::from(verb)).chain(self.words).collect();
        Words { words }
    }
}

/// Becomes the program `ringway-VERB`, beside this one or in `PATH`, as git and cargo do.
///
/// # Errors
/// There is no such program, or it does not start.
pub(crate) fn run(verb: &str, args: &Words, common: &Common) -> Result<Infallible> {
    let name = format!("ringway-{verb}");
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(&name));
    let program = beside.filter(|file| file.is_file()).unwrap_or_else(|| PathBuf::from(&name));
    let mut command = Command::new(&program);
    let error = command.args(&args.words).env(LOG, common.log_level.to_string()).exec();
    if error.kind() == io::ErrorKind::NotFound {
        bail!("{verb} is the program {name}, which is not installed: apt-get install {name}");
    }
    Err(error).with_context(|| format!("start {}", program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_stand_behind_the_other_programs_verb() {
        let words = Words { words: vec!["published".into(), "--json".into()] };
        assert_eq!(words.behind("model").words, ["model", "published", "--json"]);
    }
}
