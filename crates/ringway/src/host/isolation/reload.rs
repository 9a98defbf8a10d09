//! A description that is read again: the supervisor checks it whole, and has each tenant's process
//! take over the tenant's vifs.
//!
//! A description with faults changes nothing. A tenant's process may still have reasons to refuse
//! its part, such as an address that another of its vifs keeps. Then this tenant stays as it was,
//! and no other waits for it. A process that ends or is silent meanwhile is replaced, and its
//! successor reads the description as it is by then.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use ringway_control::OpenerRequest;
use ringway_description::{Host, TenantName, Vhost};
use ringway_host::Purpose;

use super::additions::START_MAX;
use super::fanout::ask_within;
use super::{Isolation, TENANTS_MAX};
use crate::host::accepted::{Keep, log_kept, log_refusal};
use crate::host::claim::write_description;
use crate::vhosts;

/// How long the opener of a tenant may take.
const CHANGE_MAX: Duration = Duration::from_secs(20);
/// Openers that are asked at a time.
const THREADS_MAX: usize = 16; // not a limit: our own threads

/// A description that tenants are taking over.
pub(super) struct Reload {
    /// The virtio vifs before.
    before: Vec<Vhost>,
    keep: Keep,
    /// The tenants that have not taken over their parts.
    parts: BTreeMap<TenantName, Part>,
    outcomes: (Sender<Taken>, Receiver<Taken>),
    /// Whether a tenant has refused its part.
    is_refused: bool,
}

/// A tenant, and whether it has taken over its part.
type Taken = (TenantName, io::Result<()>);

/// The vifs of a tenant.
struct Part {
    described: Vec<Vhost>,
    progress: Progress,
}

#[derive(PartialEq, Eq)]
enum Progress {
    /// Its process does not serve yet, and may take until then.
    Starting(Instant),
    /// Its opener has the request.
    Asked,
}

impl Reload {
    /// When to look again, even if no descriptor is readable.
    pub(super) fn due(&self) -> Option<Instant> {
        let due = |part: &Part| match part.progress {
            Progress::Starting(until) => Some(until),
            Progress::Asked => None,
        };
        self.parts.values().filter_map(due).min()
    }
}

impl Isolation {
    /// Whether vifs are being added or removed, or a description is being taken over.
    pub(in crate::host) fn is_changing(&self) -> bool {
        self.reload.is_some() || self.additions.is_changing()
    }

    /// Reports that the description is read again.
    pub(in crate::host) fn reloading(&self) {
        self.reports.reloading();
    }

    /// Reports that a description changes nothing.
    pub(in crate::host) fn refuse_reload(&self, reason: &str) {
        log_refusal(reason);
        self.reports.reloaded();
    }

    /// Begins to take over a description without faults, which is kept once all of it is in force.
    pub(in crate::host) fn reload(&mut self, described: Host, keep: Keep) {
        let before = self.setup.host.vhosts.clone();
        let vhosts = in_force(&before, described.vhosts.clone());
        let next = Host { vhosts, refused: None, ..self.setup.host.clone() };
        let begun = self.refuse_description(&next).map_or(Ok(()), Err).and_then(|()| {
            write_description(&self.setup.dir, &next).map_err(|error| format!("{error:#}"))
        });
        if let Err(reason) = begun {
            return self.refuse_reload(&reason);
        }
        log_kept(&next, &described);
        let parts = parts(&before, &next.vhosts, described.vhosts);
        self.setup.host = next;
        for tenant in parts.keys() {
            self.prepare(tenant);
        }
        let (outcomes, is_refused) = (mpsc::channel(), false);
        self.reload = Some(Reload { before, keep, parts, outcomes, is_refused });
        self.serve_reload();
    }

    /// Why a description cannot be in force beside what was added while the host ran, if so.
    fn refuse_description(&self, next: &Host) -> Option<String> {
        let added = self.additions.added();
        let of_added = || {
            added.values().find_map(|vhost| {
                let others = added.values().filter(|other| other.name != vhost.name);
                let reason = next.obstacle_to_addition(others, vhost)?;
                Some(format!("{} was added while the host ran: {reason}", vhost.name))
            })
        };
        let too_many = || {
            let tenants = next.vhosts.iter().filter_map(Vhost::tenant);
            let all: BTreeSet<TenantName> = tenants.chain(self.tenants.keys().cloned()).collect();
            (all.len() > TENANTS_MAX).then(|| {
                format!("there would be {} tenants, and {TENANTS_MAX} is the limit", all.len())
            })
        };
        let before = &self.setup.host.vhosts;
        vhosts::refuse_described(before, &next.vhosts, added).or_else(of_added).or_else(too_many)
    }

    /// Gives a tenant the process, rules and network devices for its vifs of the description.
    fn prepare(&mut self, tenant: &TenantName) {
        let own = vhosts::of_tenant(&self.setup.host.vhosts, &tenant.0);
        let mut new = Vec::new();
        for vhost in &own {
            let vif = Purpose::Virtio(vhost.name.0.clone());
            let is_known = self.roster.tenant(&vif).is_some();
            self.roster.add_vhost(vhost);
            if !is_known {
                self.devices.make_virtio(&vhosts::config(vhost));
                new.push(vif);
            }
        }
        if !own.is_empty() {
            self.begin_tenant(tenant);
        }
        new.retain(|vif| self.devices.wants_device(vif));
        new.iter().for_each(|vif| self.serve(tenant, vif));
    }

    /// Asks tenants that serve, and takes what they say.
    pub(super) fn serve_reload(&mut self) {
        let Some(mut reload) = self.reload.take() else { return };
        while let Ok((tenant, outcome)) = reload.outcomes.1.try_recv() {
            reload.parts.remove(&tenant);
            self.finish_part(&tenant, outcome, &mut reload);
        }
        let is_asked = |part: &&Part| part.progress == Progress::Asked;
        let mut free = THREADS_MAX.saturating_sub(reload.parts.values().filter(is_asked).count());
        let mut late = Vec::new();
        for (tenant, part) in &mut reload.parts {
            let Progress::Starting(until) = part.progress else { continue };
            if self.tenants.get(tenant).is_some_and(|tenant| tenant.child.is_ready()) {
                if free > 0 {
                    free -= 1;
                    self.ask(tenant, part.described.clone(), &reload.outcomes.0);
                    part.progress = Progress::Asked;
                }
            } else if until <= Instant::now() {
                late.push(tenant.clone());
            }
        }
        for tenant in late {
            reload.parts.remove(&tenant);
            let error = io::Error::new(io::ErrorKind::TimedOut, "its process does not serve");
            self.finish_part(&tenant, Err(error), &mut reload);
        }
        if reload.parts.is_empty() {
            self.end_reload(&reload);
        } else {
            self.reload = Some(reload);
        }
    }

    /// Asks the opener of a tenant, on a thread of its own.
    fn ask(&self, tenant: &TenantName, described: Vec<Vhost>, outcomes: &Sender<Taken>) {
        let (socket, tenant) = (self.setup.dir.opener_of(&tenant.0), tenant.clone());
        let (outcomes, bell) = (outcomes.clone(), Arc::clone(self.additions.bell()));
        thread::spawn(move || {
            let vhosts = described.iter().map(serde_json::to_value).collect::<Result<_, _>>();
            let asked = vhosts.map_err(io::Error::from).and_then(|vhosts| {
                ask_within(&socket, &OpenerRequest::Describe { vhosts }, CHANGE_MAX)
            });
            let _ = outcomes.send((tenant, asked));
            bell.ring();
        });
    }

    fn finish_part(&mut self, tenant: &TenantName, outcome: io::Result<()>, reload: &mut Reload) {
        match outcome {
            // In the opener's own words.
            Err(error) if error.kind() == io::ErrorKind::Other => {
                tracing::error!("tenant {tenant} stays as it was: {error}");
                reload.is_refused = true;
                self.restore(tenant, &reload.before);
            }
            outcome => {
                let left = vhosts::of_tenant(&reload.before, &tenant.0);
                let stay = vhosts::of_tenant(&self.setup.host.vhosts, &tenant.0);
                self.drop_others(tenant, &left, &stay);
                if let Err(error) = outcome {
                    tracing::warn!("tenant {tenant}: {error}; replacing its process");
                    self.replace(tenant);
                }
            }
        }
    }

    /// Has a tenant be as it was before the description.
    fn restore(&mut self, tenant: &TenantName, before: &[Vhost]) {
        let new = vhosts::of_tenant(&self.setup.host.vhosts, &tenant.0);
        let stay = vhosts::of_tenant(before, &tenant.0);
        let vhosts = &mut self.setup.host.vhosts;
        vhosts.retain(|vhost| vhost.tenant().as_ref() != Some(tenant));
        vhosts.extend(stay.iter().cloned());
        self.drop_others(tenant, &new, &stay);
        for vhost in &stay {
            self.roster.add_vhost(vhost);
        }
        self.allow(tenant);
        if let Err(error) = write_description(&self.setup.dir, &self.setup.host) {
            tracing::warn!("{error:#}: the next process of {tenant} takes over what this refused");
        }
    }

    /// Forgets those virtio vifs of a tenant that do not stay.
    fn drop_others(&mut self, tenant: &TenantName, all: &[Vhost], stay: &[Vhost]) {
        let stays = |vhost: &&Vhost| stay.iter().any(|it| it.name == vhost.name);
        for vhost in all.iter().filter(|vhost| !stays(vhost)) {
            self.drop_vhost(tenant, &vhost.name.0);
        }
    }

    fn end_reload(&mut self, reload: &Reload) {
        if reload.is_refused {
            tracing::error!(
                "the description was read again, and is in force for all tenants but those named \
                 above: correct it, and reload"
            );
        } else {
            reload.keep.keep();
            tracing::info!("the description was read again, and all tenants have taken it over");
        }
        self.reports.described();
        self.reports.reloaded();
    }
}

/// As [`vhosts::in_force`]. Here network devices outlive the processes that serve them, and so do
/// their bridges and the rules for these; the switch process knows the addresses of tenants.
fn in_force(before: &[Vhost], described: Vec<Vhost>) -> Vec<Vhost> {
    let in_force = |vhost: Vhost| match before.iter().find(|it| it.name == vhost.name) {
        Some(before) if before.vif.bridge != vhost.vif.bridge => before.clone(),
        Some(before) => Vhost { mac: before.mac, ..vhost },
        None => vhost,
    };
    vhosts::in_force(before, described).into_iter().map(in_force).collect()
}

/// The tenants whose vifs are described in another way than they were, each with its vifs.
fn parts(before: &[Vhost], next: &[Vhost], described: Vec<Vhost>) -> BTreeMap<TenantName, Part> {
    let until = Instant::now() + START_MAX;
    let mut parts: BTreeMap<TenantName, Part> = BTreeMap::new();
    let of_before = before.iter().filter_map(Vhost::tenant);
    let of_next = next.iter().zip(described).filter_map(|(next, described)| {
        // A vif stays with its tenant.
        Some((next.tenant()?, Some(described)))
    });
    for (tenant, vhost) in of_before.map(|tenant| (tenant, None)).chain(of_next) {
        let new = || Part { described: Vec::new(), progress: Progress::Starting(until) };
        parts.entry(tenant).or_insert_with(new).described.extend(vhost);
    }
    parts.retain(|tenant, part| {
        let text = |vhosts: &[Vhost]| serde_json::to_string(vhosts).unwrap_or_default();
        text(&vhosts::of_tenant(before, &tenant.0)) != text(&part.described)
    });
    parts
}
