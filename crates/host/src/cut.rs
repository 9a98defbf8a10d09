//! Links while no backend serves their vifs: frontends that read `carrier` see that they are down.
//!
//! A host that is killed or started again leaves them up, because the next one continues soon. One
//! that was stopped for good does not, until another one serves its vifs.

use ringway_vif_shell::device;
use ringway_wire::DomId;
use ringway_xenbus::XenbusState::{Connected, Reconfigured};
use ringway_xenbus::{KeySet, Keys, Vif};
use ringway_xenstore::{Client, Lost, Transport, or_refusal, unless_refused};

use crate::scope::list;

/// Shows that the links of a domain's connected vifs are down, except those that are. Returns how
/// many it has changed.
///
/// # Errors
/// The loss of XenStore.
pub fn cut_links<T: Transport>(store: &mut Client<T>, backend: DomId) -> Result<usize, Lost> {
    let root = Vif::backend_root(backend);
    let mut cut = 0;
    for guest in list(store, &root)? {
        for handle in list(store, &format!("{root}/{guest}"))? {
            let found = Vif::from_backend_path(&format!("{root}/{guest}/{handle}"));
            let Some(vif) = found else { continue };
            let dir = vif.backend_dir();
            let keys = device::read_keys_apart(store, &dir, KeySet::Offer);
            let is_up = |keys: &Keys| {
                matches!(keys.state(), Connected | Reconfigured) && keys.has_carrier()
            };
            if let Some(keys) = unless_refused(keys, None)?.filter(is_up) {
                let done = or_refusal(device::change(store, &dir, &keys.cut_link()))?;
                cut += usize::from(done.is_ok());
            }
        }
    }
    Ok(cut)
}

/// Shows that the link of a vif is as it was before it was [cut](cut_links), if it was: this
/// process serves the vif, in whose directory these keys are.
pub(crate) fn restore<T: Transport>(
    vif: Vif,
    keys: &Keys,
    store: &mut Client<T>,
) -> Result<(), Lost> {
    let Some(changes) = keys.restore_link() else { return Ok(()) };
    unless_refused(device::change(store, &vif.backend_dir(), &changes), ())
}

#[cfg(test)]
mod tests {
    use ringway_datapath::MacAddr;
    use ringway_xenbus::Device;
    use ringway_xenstore::{LocalStore, LocalTransport, Quota};

    use super::*;

    fn read(store: &mut Client<LocalTransport>, vif: Vif) -> Keys {
        let keys = device::read_keys(store, &vif.backend_dir(), KeySet::BackendDevice);
        keys.expect("domain 0 may").expect("it is there")
    }

    #[test]
    fn the_links_of_connected_vifs_are_cut_and_restored_as_they_were() {
        let store = LocalStore::new(Quota::default());
        let mut host = store.connect(DomId(0)).expect("few sessions");
        let vif = |guest| Vif { backend: DomId(0), frontend: DomId(guest), handle: 1 };
        for (guest, state, carrier) in
            [(1, "4", None), (2, "4", Some("1")), (3, "4", Some("0")), (4, "2", None)]
        {
            let made = Device::new(vif(guest), MacAddr([2; 6]));
            host.transaction(|tx| device::make(tx, &made)).expect("domain 0 may");
            let dir = vif(guest).backend_dir();
            host.write(&format!("{dir}/state"), state).expect("domain 0 may");
            if let Some(carrier) = carrier {
                host.write(&format!("{dir}/carrier"), carrier).expect("domain 0 may");
            }
        }
        let links = |host: &mut Client<LocalTransport>| {
            [1, 2, 3, 4].map(|guest| read(host, vif(guest)).has_carrier())
        };
        //= netif.h:carrier-stopped
        assert_eq!(cut_links(&mut host, DomId(0)).expect("it is there"), 2);
        assert_eq!(links(&mut host), [false, false, false, true]);
        assert_eq!(cut_links(&mut host, DomId(0)).expect("it is there"), 0, "nothing is left");
        for guest in 1..=4 {
            let keys = read(&mut host, vif(guest));
            restore(vif(guest), &keys, &mut host).expect("it is there");
        }
        assert_eq!(links(&mut host), [true, true, false, true]);
    }
}
