//! Where a hostile backend works: its domain, its XenStore, and a frontend that works meanwhile.

use std::io;

use anyhow::Result;
use ringway_hypervisor::{Access, EventChannel, ForeignMemory, ForeignPage, Hypervisor};
use ringway_vif_shell::device;
use ringway_wire::{DomId, EvtchnPort, GrantRef};
use ringway_xenbus::{KeySet, Keys};
use ringway_xenstore::{Client, Socket, Transport};

/// The rights of a backend, and no others.
pub trait Place {
    /// Maps a page of the frontend.
    ///
    /// # Errors
    /// As [`ForeignMemory::map`].
    fn map(&mut self, peer: DomId, gref: GrantRef, access: Access) -> io::Result<ForeignPage>;

    /// Binds to a port of the frontend.
    ///
    /// # Errors
    /// As [`Hypervisor::bind_interdomain`].
    fn bind(&mut self, peer: DomId, port: EvtchnPort) -> io::Result<Box<dyn EventChannel>>;

    /// The bytes of a node; `None` if it does not exist.
    ///
    /// # Errors
    /// What the store refuses.
    fn read(&mut self, node: &str) -> Result<Option<Vec<u8>>>;

    /// Writes a node, or removes it.
    ///
    /// # Errors
    /// What the store refuses.
    fn write(&mut self, node: &str, value: Option<&[u8]>) -> Result<()>;

    /// The keys with which the frontend in this directory connects.
    ///
    /// # Errors
    /// What the store refuses.
    fn frontend_keys(&mut self, dir: &str, queues_max: u16) -> Result<Keys>;

    /// Lets the frontend work.
    fn let_work(&mut self, how: Meanwhile);

    /// How many pauses the frontend may take for a step of the handshake.
    fn patience(&self) -> u32;
}

/// What happens while the backend does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meanwhile {
    /// The frontend has time to work.
    Pause,
    /// Its user starts it again, after it has refused this backend.
    Restart,
}

/// A place on any hypervisor and any XenStore.
pub struct Ground<'a, H, T = Socket> {
    /// The backend's domain.
    pub hypervisor: H,
    /// Its session.
    pub store: Client<T>,
    /// Makes the frontend work, or waits while it does.
    pub meanwhile: Box<dyn FnMut(Meanwhile) + 'a>,
    /// See [`Place::patience`].
    pub patience: u32,
}

impl<H: Hypervisor<Event: 'static>, T: Transport> Place for Ground<'_, H, T> {
    fn map(&mut self, peer: DomId, gref: GrantRef, access: Access) -> io::Result<ForeignPage> {
        self.hypervisor.memory()?.map(peer, gref, access)
    }

    fn bind(&mut self, peer: DomId, port: EvtchnPort) -> io::Result<Box<dyn EventChannel>> {
        Ok(Box::new(self.hypervisor.bind_interdomain(peer, port)?))
    }

    fn read(&mut self, node: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.store.read_bytes(node)?)
    }

    fn write(&mut self, node: &str, value: Option<&[u8]>) -> Result<()> {
        Ok(match value {
            Some(value) => self.store.write(node, value),
            None => self.store.remove(node),
        }?)
    }

    fn frontend_keys(&mut self, dir: &str, queues_max: u16) -> Result<Keys> {
        let keys = device::read_keys(&mut self.store, dir, KeySet::FrontendKeys { queues_max })?;
        Ok(keys.unwrap_or_else(|| Keys::new(dir, [])))
    }

    fn let_work(&mut self, how: Meanwhile) {
        (self.meanwhile)(how);
    }

    fn patience(&self) -> u32 {
        self.patience
    }
}
