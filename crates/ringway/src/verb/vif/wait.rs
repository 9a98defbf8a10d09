//! `ringway vif wait`: returns when a vif works.

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use ringway_terminal::options::seconds;
use ringway_terminal::stop::Stop;

use crate::target::Target;
use crate::vsctl::vsctl;

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub(crate) struct Wait {
    #[command(flatten)]
    target: Target,
    /// The vif, such as vif1.0
    vif: String,
    /// Wait also until OVN has installed the vif's port on Open vSwitch
    #[arg(long)]
    installed: bool,
    /// Give up after so many seconds, or such as 2min
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = seconds::<u32>(1..=86_400))]
    timeout: u32,
}

pub(crate) fn run(args: &Wait) -> Result<()> {
    let stop = Stop::on_signals()?;
    let deadline = Instant::now() + Duration::from_secs(args.timeout.into());
    loop {
        let Some(missing) = args.missing()? else { return Ok(()) };
        if Instant::now() >= deadline {
            bail!("{}: {missing}, after {} s", args.vif, args.timeout);
        }
        if stop.wait(PAUSE)? {
            bail!("{}: {missing}", args.vif);
        }
    }
}

impl Wait {
    /// What the vif lacks, if anything.
    fn missing(&self) -> Result<Option<String>> {
        // It may yet be made, and the backend may just be starting again.
        let status = self.target.backend_now();
        let vifs = status.map(|status| status.vifs).unwrap_or_default();
        let Some(vif) = vifs.into_iter().find(|vif| vif.name == self.vif) else {
            return Ok(Some("there is no such vif".to_owned()));
        };
        if vif.error.is_some() {
            return Ok(vif.error);
        }
        if vif.state != "Connected" {
            return Ok(Some("its guest is not connected".to_owned()));
        }
        if !self.installed {
            return Ok(None);
        }
        let Some(port) = vif.ovs else {
            return Ok(Some("it has no port on Open vSwitch".to_owned()));
        };
        let key = "external_ids:ovn-installed";
        let words = ["--if-exists", "get", "Interface", &port.port, key].map(str::to_owned);
        let nothing = File::open("/dev/null").context("/dev/null")?;
        Ok(match vsctl(&words, &nothing) {
            Ok(installed) if installed.trim().trim_matches('"') == "true" => None,
            Ok(_) => Some(format!("OVN has not installed its port {}", port.port)),
            Err(reason) => Some(reason),
        })
    }
}
