//! `ringway-hostile backend`: against ringway's own frontend in this process, or in the place of a
//! backend that an author's frontend connects to.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use ringway_control::RunDir;
use ringway_emu::EmuHypervisor;
use ringway_hypervisor::Hypervisor;
use ringway_terminal::table::render;
use ringway_wire::DomId;
use ringway_xen::XenHypervisor;
use ringway_xenbus::Vif;
use ringway_xenstore::Client;

use crate::backend::Liar;
use crate::backend::catalogue::{ALL, Lie, find};
use crate::backend::place::{Ground, Meanwhile, Place};
use crate::backend::trial::{self, Verdict};
use crate::guest::wait;
use crate::machine::HypervisorKind;
use crate::place::Toolstack;
use crate::store_access::StoreAccess;

/// A pause in which a frontend works.
const PAUSE: Duration = Duration::from_millis(2);
/// How long it may take for a step; a part of this is spent behind each lie that it may survive.
const STEP_MAX: Duration = Duration::from_secs(20);

/// Be a hostile backend: of ringway's own frontend, or of any other
///
/// Without --vif, the frontend is ringway's, in this process, and everything that it may lose is
/// counted. With it, the frontend is one of yours: it must leave, or stay connected, as the list
/// says, and come back. Watch its memory, its other interfaces and its log yourself. Exit codes: 0
/// if all is well, 1 if not.
#[derive(Debug, Args)]
pub(crate) struct BackendArgs {
    /// The lies, or `all`
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// The vif: on an emulated host it is made for this guest, on Xen it exists
    #[arg(long, value_name = "GUEST/HANDLE", value_parser = vif_of)]
    vif: Option<(DomId, u32)>,
    /// Where the vif is
    #[arg(long, value_name = "KIND", default_value = "emulated", requires = "vif")]
    hypervisor: HypervisorKind,
    /// Run directory of an emulated host
    #[arg(long, value_name = "DIR", env = "RINGWAY_DIR")]
    dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn vif_of(text: &str) -> Result<(DomId, u32), String> {
    let vif = text
        .split_once('/')
        .and_then(|(guest, handle)| Some((DomId(guest.parse().ok()?), handle.parse().ok()?)));
    vif.ok_or_else(|| format!("{text:?}, expected such as 3/0"))
}

/// Does it. Returns false if a frontend did what it should not.
pub(crate) fn run(args: &BackendArgs) -> Result<bool> {
    let mut lies = Vec::new();
    for name in &args.names {
        match (name.as_str(), find(name)) {
            ("all", _) => lies.extend(ALL),
            (_, Some(lie)) => lies.push(lie),
            _ => bail!("there is no lie {name}: see `ringway-hostile list`"),
        }
    }
    let verdicts = match args.vif {
        None => lies.into_iter().map(trial::tell).collect(),
        Some((guest, handle)) => match (args.hypervisor, &args.dir) {
            (HypervisorKind::Xen, _) => on_xen(&lies, guest, handle)?,
            (HypervisorKind::Emulated, Some(dir)) => lie_on_host(&lies, dir, guest, handle)?,
            _ => bail!("no host is given: add --dir with the run directory of `ringway run`"),
        },
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&verdicts)?);
    } else {
        print!("{}", in_words(&verdicts));
    }
    Ok(verdicts.iter().all(|verdict| verdict.broken.is_empty()))
}

/// Lies to a guest of an emulated host as a driver domain of its own, which ends afterwards. The
/// guest must not have a vif with this handle.
///
/// # Errors
/// If the host cannot have another domain.
pub fn lie_on_host(lies: &[&Lie], dir: &Path, guest: DomId, handle: u32) -> Result<Vec<Verdict>> {
    let mut toolstack = Toolstack::join(dir)?;
    let vif = toolstack.make_backend(guest, handle)?;
    let socket = StoreAccess::Socket(RunDir::new(dir).xenstore_of(vif.backend.0));
    let verdicts = EmuHypervisor::connect(dir, vif.backend).map_err(Into::into).and_then(|host| {
        // The broker announces a new domain to the store with a short delay.
        let store = wait("XenStore", || Ok(socket.client().ok()))?;
        Ok(lie_to(lies, &mut Liar::new(place(host, store), vif, 1)))
    });
    toolstack.remove_backend(vif)?;
    verdicts
}

/// As this domain, whose kernel must not serve the vif.
fn on_xen(lies: &[&Lie], frontend: DomId, handle: u32) -> Result<Vec<Verdict>> {
    let mut store = Client::of_this_domain()?;
    // Domain 0 need not have the node.
    let domid = store.read("domid")?.map_or(Ok(0), |domid| domid.parse());
    let backend = DomId(domid.context("domid of this domain")?);
    let vif = Vif { backend, frontend, handle };
    let host = XenHypervisor::backend(backend)?;
    Ok(lie_to(lies, &mut Liar::new(place(host, store), vif, 1)))
}

fn place<H: Hypervisor<Event: 'static> + 'static>(hypervisor: H, store: Client) -> Box<dyn Place> {
    let meanwhile = Box::new(|how| match how {
        // waits: the frontend is another process, and the lie goes on when it is ready.
        Meanwhile::Pause => std::thread::sleep(PAUSE),
        Meanwhile::Restart => eprintln!("hostile: if the frontend has given up, start it again"),
    });
    let patience = u32::try_from(STEP_MAX.as_millis() / PAUSE.as_millis()).unwrap_or(u32::MAX);
    Box::new(Ground { hypervisor, store, meanwhile, patience })
}

fn lie_to(lies: &[&Lie], liar: &mut Liar<'_>) -> Vec<Verdict> {
    let lie_of = |lie: &&Lie| {
        eprintln!("hostile: {}", lie.name);
        let failed = (lie.act)(liar).err().map(|error| format!("{error:#}"));
        let account = std::mem::take(&mut liar.account);
        let broken = failed.into_iter().chain(trial::of_own(lie, &account)).collect();
        Verdict { lie: lie.name, account, reasons: Vec::new(), broken }
    };
    lies.iter().map(lie_of).collect()
}

fn in_words(verdicts: &[Verdict]) -> String {
    let rows = verdicts.iter().map(|Verdict { lie, account, reasons, broken }| {
        let verdict = match (broken.is_empty(), &account.skipped) {
            (true, Some(_)) => "skipped",
            (true, None) => "held",
            (false, _) => "broken",
        };
        let own = if account.is_served { "stays" } else { "leaves" };
        let why = reasons.iter().chain(&account.closed).next().cloned().unwrap_or_default();
        vec![(*lie).to_owned(), own.to_owned(), verdict.to_owned(), why]
    });
    let mut text = render(&["LIE", "THE FRONTEND", "VERDICT", "ITS FIRST REASON"], rows);
    for Verdict { lie, account, broken, .. } in verdicts {
        broken.iter().for_each(|why| text += &format!("broken: {lie}: {why}\n"));
        account.skipped.iter().for_each(|why| text += &format!("SKIPPED: {lie}: {why}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::Account;

    #[test]
    fn what_a_lie_cannot_do_has_a_line_of_its_own_for_scripts() {
        let skipped = Some("no control ring".to_owned());
        let account = Account { skipped, ..Account::default() };
        let verdict = Verdict { lie: "a-lie", account, reasons: Vec::new(), broken: Vec::new() };
        let text = in_words(&[verdict]);
        assert!(text.lines().any(|line| line == "SKIPPED: a-lie: no control ring"), "{text}");
    }
}
