//! What a supervisor and the process of a tenant say to each other: with what the process starts,
//! its orders, and how both call a vif.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ringway_control::{
    Link, MadeDevice, PassedDevice, Received, TenantOrder, TenantVif, TrunkRules,
};
use ringway_host::{Made, Purpose};
use ringway_tap::TapFile;
use ringway_trunk::End;
use ringway_wire::DomId;
use ringway_xenbus::Vif;

use crate::kernel::HostTap;

/// What the supervisor passes of the network device of a vif.
pub type Passed = ringway_host::Passed<HostTap>;

/// What a tenant's process is started with.
pub struct Tenancy {
    /// What follows.
    pub orders: Orders,
    /// Its end of the trunk to the switch process.
    pub trunk: End,
    /// What the trunk carries.
    pub carried: TrunkRules,
    /// Its vifs, and their network devices.
    pub vifs: BTreeMap<Purpose, Passed>,
}

/// The supervisor's orders to a tenant's process.
pub struct Orders {
    link: Arc<Link>,
    /// The domain of the process.
    backend: DomId,
    /// Queues of the device of the next order.
    queues: Vec<OwnedFd>,
}

impl Tenancy {
    /// Waits for the supervisor's first messages. `backend` is the domain of this process.
    ///
    /// # Errors
    /// If the supervisor sends something else, or has ended.
    pub fn wait(link: Arc<Link>, backend: DomId) -> io::Result<Tenancy> {
        let mut orders = Orders { link, backend, queues: Vec::new() };
        let next = |orders: &Orders| match orders.link.wait()? {
            Received::Message(order, fds) => Ok((order, fds)),
            Received::Nothing | Received::End => Err(ended()),
        };
        let (TenantOrder::Start { vifs: count, trunk: carried }, trunk) = next(&orders)? else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let trunk = End::from_fds(trunk)?;
        let (mut vifs, mut left) = (BTreeMap::new(), count);
        while left > 0 {
            match next(&orders)? {
                (TenantOrder::Queues, fds) => orders.queues.extend(fds),
                (TenantOrder::Serve { vif, device }, _) => {
                    vifs.insert(orders.purpose(vif), orders.passed(device));
                    left -= 1;
                }
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(Tenancy { orders, trunk, carried, vifs })
    }
}

impl Orders {
    /// The next order, if there is one. Queues of devices are collected for the one that follows.
    ///
    /// # Errors
    /// The supervisor has ended, or sends something else.
    pub fn next_order(&mut self) -> io::Result<Option<TenantOrder>> {
        loop {
            match self.link.receive()? {
                Received::Message(TenantOrder::Queues, fds) => self.queues.extend(fds),
                Received::Message(order, _) => return Ok(Some(order)),
                Received::Nothing => return Ok(None),
                Received::End => return Err(ended()),
            }
        }
    }

    /// What the supervisor calls so.
    pub fn purpose(&self, vif: TenantVif) -> Purpose {
        match vif {
            TenantVif::Xen { domid, handle } => {
                Purpose::Xen(Vif { backend: self.backend, frontend: DomId(domid), handle })
            }
            TenantVif::Virtio(name) => Purpose::Virtio(name),
        }
    }

    /// A device, with the queues that came before the order.
    pub fn passed(&mut self, device: Option<PassedDevice>) -> Passed {
        let queues = std::mem::take(&mut self.queues);
        match device {
            None => Passed::Nothing,
            Some(PassedDevice::NotMade { reason }) => Passed::NotMade(reason),
            Some(PassedDevice::Made(MadeDevice { queues: count, mtu, attached_to })) => {
                let files = queues.into_iter().map(|queue| TapFile::from_fd(queue).map(Arc::new));
                match files.collect() {
                    Ok(files) => Passed::Made(Made { queues: count, mtu, attached_to }, files),
                    // It was deleted meanwhile: its next queues follow.
                    Err(error) => Passed::NotMade(io::Error::to_string(&error)),
                }
            }
        }
    }
}

impl AsFd for Orders {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// What the process of a tenant calls a vif; `None` if tenants have none such.
pub fn for_tenant(purpose: &Purpose) -> Option<TenantVif> {
    match purpose {
        Purpose::Xen(vif) => Some(TenantVif::Xen { domid: vif.frontend.0, handle: vif.handle }),
        Purpose::Virtio(name) => Some(TenantVif::Virtio(name.clone())),
        Purpose::Uplink => None,
    }
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the supervisor has ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_supervisor_and_a_tenants_process_mean_the_same_vif() {
        let (link, _theirs) = Link::pair().expect("sockets");
        let backend = DomId(3);
        let mut orders = Orders { link: Arc::new(link), backend, queues: Vec::new() };
        let xen = Purpose::Xen(Vif { backend, frontend: DomId(7), handle: 1 });
        for purpose in [xen, Purpose::Virtio("vm1".to_owned())] {
            let named = for_tenant(&purpose).expect("tenants have it");
            assert_eq!(orders.purpose(named), purpose);
        }
        assert_eq!(for_tenant(&Purpose::Uplink), None);
        assert!(matches!(orders.passed(None), Passed::Nothing));
        let reason = "there is no bridge".to_owned();
        let not_made = orders.passed(Some(PassedDevice::NotMade { reason: reason.clone() }));
        assert!(matches!(not_made, Passed::NotMade(found) if found == reason));
    }

    #[test]
    fn queues_are_those_of_the_order_that_follows_them() {
        let (ours, theirs) = Link::pair().expect("sockets");
        let theirs = Link::new(theirs);
        let mut orders = Orders { link: Arc::new(ours), backend: DomId(0), queues: Vec::new() };
        assert!(orders.next_order().expect("it is there").is_none());
        let file = std::fs::File::open("/dev/null").expect("it is there");
        let fds = [file.as_fd()];
        for _ in 0..2 {
            theirs.send(&TenantOrder::Queues, &fds).expect("there is room");
        }
        let forget = TenantOrder::Forget(TenantVif::Virtio("vm1".to_owned()));
        theirs.send(&forget, &[]).expect("there is room");
        assert_eq!(orders.next_order().expect("it is there"), Some(forget));
        assert_eq!(orders.queues.len(), 2);
        drop(theirs);
        // A process that another test is just starting has it, too, until it executes its program.
        let ended = loop {
            if let Err(error) = orders.next_order() {
                break error.to_string();
            }
            std::thread::yield_now();
        };
        assert_eq!(ended, "the supervisor has ended");
    }
}
