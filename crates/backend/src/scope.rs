//! What a supervisor orders the process of a tenant.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ringway_control::{Link, PassedDevice, Received, TenantOrder, TenantVif, TrunkRules};
use ringway_host::Purpose;
use ringway_trunk::End;
use ringway_wire::DomId;
use ringway_xenbus::Vif;

use crate::passed::{Passed, received};
use crate::purpose::of_tenant;

/// What a tenant's process is started with.
pub struct Tenancy {
    /// The link to its supervisor.
    pub(crate) link: Arc<Link>,
    /// Its end of the trunk to the switch process.
    pub(crate) trunk: End,
    /// What the trunk carries.
    pub(crate) carried: TrunkRules,
    /// The vifs that it serves, and their network devices.
    pub(crate) vifs: Vec<(TenantVif, Passed)>,
}

impl Tenancy {
    /// Waits for the supervisor's first messages.
    ///
    /// # Errors
    /// If the supervisor sends something else, or has ended.
    pub fn wait(link: Arc<Link>) -> io::Result<Tenancy> {
        let mut queues = Vec::new();
        let next = || match link.wait()? {
            Received::Message(order, fds) => Ok((order, fds)),
            Received::Nothing | Received::End => Err(ended()),
        };
        let (TenantOrder::Start { vifs: count, trunk: carried }, trunk) = next()? else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let trunk = End::from_fds(trunk)?;
        let mut vifs = Vec::new();
        while vifs.len() < count {
            match next()? {
                (TenantOrder::Queues, fds) => queues.extend(fds),
                (TenantOrder::Serve { vif, device }, _) => {
                    vifs.push((vif, received(device, std::mem::take(&mut queues))));
                }
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(Tenancy { link, trunk, carried, vifs })
    }
}

/// The orders of the supervisor of a tenant's process.
pub(crate) struct Orders {
    link: Arc<Link>,
    /// Queues of the device of the next order.
    queues: Vec<OwnedFd>,
}

impl Orders {
    pub(crate) fn of(link: Arc<Link>) -> Orders {
        Orders { link, queues: Vec::new() }
    }

    /// The next order of the supervisor.
    pub(crate) fn next(&mut self, backend: DomId) -> io::Result<Option<Order>> {
        let Orders { link, queues } = self;
        loop {
            let (order, fds) = match link.receive()? {
                Received::Message(order, fds) => (order, fds),
                Received::Nothing => return Ok(None),
                Received::End => return Err(ended()),
            };
            return Ok(Some(match order {
                TenantOrder::Queues => {
                    queues.extend(fds);
                    continue;
                }
                TenantOrder::Serve { vif, device } => {
                    let passed = received(device, std::mem::take(queues));
                    match of_tenant(vif, backend) {
                        Purpose::Xen(vif) => Order::Serve(vif, passed),
                        vif => Order::Renew(vif, passed),
                    }
                }
                TenantOrder::Renew { vif, device } => {
                    let made = Some(PassedDevice::Made(device));
                    let passed = received(made, std::mem::take(queues));
                    Order::Renew(of_tenant(vif, backend), passed)
                }
                TenantOrder::Mtu { vif, mtu } => Order::Mtu(of_tenant(vif, backend), mtu),
                TenantOrder::Forget(vif) => Order::Forget(of_tenant(vif, backend)),
                TenantOrder::Trunk(carried) => Order::Trunk(carried),
                TenantOrder::Start { .. } => return Err(io::ErrorKind::InvalidData.into()),
            }));
        }
    }
}

impl AsFd for Orders {
    /// Readable when there is an order.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// An order of the supervisor.
#[derive(Debug)]
pub(crate) enum Order {
    /// Serve a Xen vif. One that is served was made again.
    Serve(Vif, Passed),
    /// The device of a vif was made again, or that of a virtio vif at last.
    Renew(Purpose, Passed),
    /// The MTU of the device of a vif.
    Mtu(Purpose, u32),
    /// Stop serving a Xen vif, and forget the device of a vif of either kind.
    Forget(Purpose),
    /// The trunk carries this from now on.
    Trunk(TrunkRules),
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the supervisor has ended")
}
