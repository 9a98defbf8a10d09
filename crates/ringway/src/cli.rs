//! The command line.

use clap::{Parser, Subcommand};
use ringway_terminal::completions;
use ringway_terminal::options::Common;

use crate::verb::{
    attacher, backend, broker, capture, companion, demo, guest, opener, plugger, run, stop, top,
    vif, xenstore,
};

/// Multi-queue paravirtual networking in user space
#[derive(Debug, Parser)]
#[command(name = "ringway", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Die with this process, which must be the parent
    #[arg(long, global = true, hide = true, value_name = "PID")]
    pub(crate) parent: Option<u32>,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Run(run::Run),
    Stop(stop::StopHost),
    Guest(guest::Guest),
    Vif(vif::Vif),
    Top(top::Top),
    Capture(capture::Capture),
    Xenstore(xenstore::Xenstore),
    Demo(demo::Demo),
    /// Find what slows the networking of this host and its guests, with evidence and advice
    #[command(disable_help_flag = true)]
    Doctor(companion::Words),
    /// Measure this machine: run studies of many queues, report and compare them
    #[command(disable_help_flag = true)]
    Lab(companion::Words),
    /// Predict throughput from the lab's records, and plan queues, CPUs and workers
    #[command(disable_help_flag = true)]
    Model(companion::Words),
    Completions(completions::Completions),
    Man(completions::Man),
    #[command(hide = true)]
    Broker(broker::Broker),
    #[command(hide = true)]
    Backend(backend::Backend),
    #[command(hide = true)]
    Attacher(attacher::Attacher),
    #[command(hide = true)]
    Opener(opener::Opener),
    #[command(hide = true)]
    Plugger(plugger::Plugger),
}

impl Verb {
    /// What the log calls this process.
    pub(crate) fn process_name(&self) -> String {
        match self {
            Verb::Broker(_) => "broker".to_owned(),
            Verb::Backend(backend) => backend.process_name(),
            Verb::Attacher(_) => "attacher".to_owned(),
            Verb::Opener(_) => "opener".to_owned(),
            Verb::Plugger(_) => "plugger".to_owned(),
            Verb::Guest(guest) => guest.process_name(),
            _ => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn an_error_about_a_number_names_flag_and_range() {
        for (value, flag) in [("0", "--workers"), ("1025", "--workers"), ("two", "--workers")] {
            let arguments = ["ringway", "run", flag, value];
            let error = Cli::try_parse_from(arguments).expect_err("refused").to_string();
            assert!(error.contains(flag) && error.contains("from 1 to 1024"), "{error}");
        }
    }

    #[test]
    fn every_number_is_parsed_as_the_type_of_its_field() {
        for line in [
            "run --workers 2 --max-queues 4",
            // Of an earlier version, without effect.
            "run --completion sent",
            "stop --remove-devices",
            "top --interval 2",
            "capture vif1.0 -w - --snaplen 96",
            "vif set vif1.0 max-queues 2",
            "vif set vif1.0 link down",
            "vif wait vm1 --timeout 10s",
            "vif wait vm1 --timeout 10",
            "guest set a queues 2 --vif 1",
            "demo --queues 2 --streams 3 --seconds 1",
            "capture vif1.0 -w file -s 96",
            "xenstore serve --socket /tmp/xs.sock",
        ] {
            let arguments = std::iter::once("ringway").chain(line.split(' '));
            assert!(Cli::try_parse_from(arguments).is_ok(), "{line}");
        }
    }

    /// Verbs that change, serve, record or run something, and those of other programs.
    const WITHOUT_STATE: [&str; 15] = [
        "capture",
        "completions",
        "doctor",
        "guest exec",
        "guest set",
        "lab",
        "man",
        "model",
        "stop",
        "vif add",
        "vif release",
        "vif remove",
        "vif set",
        "vif wait",
        "xenstore serve",
    ];

    #[test]
    fn every_verb_that_prints_state_prints_it_as_json() {
        let mut open = vec![(String::new(), Cli::command())];
        let mut without = Vec::new();
        while let Some((path, command)) = open.pop() {
            let below = command.get_subcommands().filter(|verb| !verb.is_hide_set());
            let below: Vec<(String, clap::Command)> = below
                .map(|verb| (format!("{path} {}", verb.get_name()).trim().to_owned(), verb.clone()))
                .collect();
            let has_json = command.get_arguments().any(|argument| argument.get_id() == "json");
            if below.is_empty() && !has_json {
                without.push(path);
            }
            open.extend(below);
        }
        without.sort();
        assert_eq!(without, WITHOUT_STATE);
    }

    #[test]
    fn arguments_of_other_programs_are_passed_as_they_are() {
        for line in ["doctor --help", "lab run a.toml --out dir --json", "doctor -v -- x --lower"] {
            let cli = Cli::try_parse_from(["ringway"].into_iter().chain(line.split(' ')));
            assert!(cli.is_ok(), "{line}: {cli:?}");
        }
    }
}
