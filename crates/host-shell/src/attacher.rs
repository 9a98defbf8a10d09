//! Makes network devices in network namespaces for an opener, which passes their queues on.
//!
//! This enters namespaces, with a right by which a process could change all of a machine. So it
//! runs in a process that serves no guest, reads no file but those of namespaces and its own notes,
//! and follows the opener alone, which knows the host's description.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ringway_control::{AttacherEvent, AttacherOrder, DeviceWanted, Link, Received, RunDir};
use ringway_datapath::MacAddr;
use ringway_host::{
    HostDevice, Keeper, PortDevice, Purpose, Tap as _, delete_devices, open_port_device,
};
use ringway_sys::namespace::NetworkNamespace;
use ringway_sys::poll::{readable, wait};
use ringway_tap::TapFile;

use crate::kernel::HostKernel;
use crate::notes::NoteFiles;

/// The interval at which to check whether namespaces and devices have come or gone.
const CHECK_INTERVAL: Duration = Duration::from_secs(1); // not a limit: a pause of our own
/// The pause before a message is sent again for which the opener had no room.
const RESEND: Duration = Duration::from_millis(10);
/// Orders that are handled in one turn.
const ORDERS_MAX: usize = 256; // not a limit: a batch, the rest follows

/// The devices of one host in network namespaces.
pub struct Attacher<M> {
    link: Link,
    /// Where it is noted what was applied to each device.
    dir: RunDir,
    owner: String,
    /// The Ethernet address of a vif with this name and none of its own.
    mac_of: M,
    /// The namespace of this process.
    home: NetworkNamespace,
    vifs: BTreeMap<String, Vif>,
    unsent: VecDeque<(AttacherEvent, Vec<Arc<TapFile>>)>,
}

/// A vif, and its device if it has one.
struct Vif {
    wanted: DeviceWanted,
    made: Option<Made>,
    /// Why it has none, as last reported.
    reported: Option<String>,
}

/// A device in a namespace.
struct Made {
    namespace: NetworkNamespace,
    keeper: Keeper<HostKernel>,
    dir: RunDir,
    notes: NoteFiles,
    device: HostDevice<HostKernel>,
}

impl<M: Fn(&str) -> MacAddr> Attacher<M> {
    /// No devices yet. `owner` is that of the host's devices.
    ///
    /// # Errors
    /// This process cannot open its own namespace.
    pub fn new(link: Link, dir: &RunDir, owner: String, mac_of: M) -> io::Result<Attacher<M>> {
        let (home, dir) = (NetworkNamespace::current()?, dir.clone());
        let (vifs, unsent) = (BTreeMap::new(), VecDeque::new());
        Ok(Attacher { link, dir, owner, mac_of, home, vifs, unsent })
    }

    /// Carries out orders until the opener has ended. Devices stay for the next one.
    ///
    /// # Errors
    /// The link fails, or this process cannot return to its own namespace.
    pub fn run(mut self) -> io::Result<()> {
        let mut check = Instant::now();
        loop {
            for _ in 0..ORDERS_MAX {
                match self.link.receive()? {
                    Received::Message(order, _) => self.carry_out(order)?,
                    Received::Nothing => break,
                    Received::End => return Ok(()),
                }
            }
            let now = Instant::now();
            if check <= now {
                check = now + CHECK_INTERVAL;
                self.check()?;
            }
            let is_full = match self.flush() {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
                flushed => flushed?,
            };
            // Without vifs there is nothing to check.
            let pause = match is_full {
                true => Some(RESEND),
                false => (!self.vifs.is_empty()).then(|| check.saturating_duration_since(now)),
            };
            wait(&[readable((), &self.link)], pause)?;
        }
    }

    fn carry_out(&mut self, order: AttacherOrder) -> io::Result<()> {
        match order {
            AttacherOrder::Attach { name, device } => {
                let vif = Vif { wanted: device, made: None, reported: None };
                self.vifs.insert(name.clone(), vif);
                self.make(&name)
            }
            AttacherOrder::Again { name } => {
                // One that has gone is made again at the next check, and not sooner: others in the
                // namespace may delete it as often as they like.
                let made = self.vifs.get(&name).and_then(|vif| vif.made.as_ref());
                if let Some(made) = made.filter(|made| !made.device.tap.is_deleted()) {
                    self.unsent.push_back((AttacherEvent::Made { name }, made.files()));
                }
                Ok(())
            }
            AttacherOrder::Detach { name } => {
                if let Some(made) = self.vifs.remove(&name).and_then(|vif| vif.made) {
                    made.delete(&name);
                }
                Ok(())
            }
        }
    }

    /// Makes devices that are missing, and removes those whose namespaces have gone.
    fn check(&mut self) -> io::Result<()> {
        let names: Vec<String> = self.vifs.keys().cloned().collect();
        names.iter().try_for_each(|name| self.check_vif(name))
    }

    fn check_vif(&mut self, name: &str) -> io::Result<()> {
        let Some(vif) = self.vifs.get_mut(name) else { return Ok(()) };
        if vif.made.as_ref().is_some_and(|made| made.is_there(&vif.wanted.netns)) {
            return Ok(());
        }
        if let Some(gone) = vif.made.take() {
            tracing::debug!(vif = name, "the device in its namespace, or that namespace, has gone");
            // Otherwise this device, which a process has open, would keep the namespace.
            gone.delete(name);
        }
        self.make(name)
    }

    /// Makes a device, or takes over that of an earlier process, and reports about it.
    fn make(&mut self, name: &str) -> io::Result<()> {
        let Some(wanted) = self.vifs.get(name).map(|vif| vif.wanted.clone()) else {
            return Ok(());
        };
        let made = self.open(name, &wanted)?;
        let Some(vif) = self.vifs.get_mut(name) else { return Ok(()) };
        let name = name.to_owned();
        match made {
            Ok(made) => {
                self.unsent.push_back((AttacherEvent::Made { name }, made.files()));
                (vif.made, vif.reported) = (Some(made), None);
            }
            Err(error) => {
                let (reason, kind) = (error.to_string(), error.kind());
                if vif.reported.as_ref() != Some(&reason) {
                    vif.reported = Some(reason.clone());
                    let is_absence = kind == ErrorKind::NotFound;
                    let waits = AttacherEvent::Waiting { name, reason, is_absence };
                    self.unsent.push_back((waits, Vec::new()));
                }
            }
        }
        Ok(())
    }

    /// Opens a device in its namespace. Only of a missing namespace the inner error says that
    /// something is not found. The outer one is fatal: this process is elsewhere.
    fn open(&self, name: &str, wanted: &DeviceWanted) -> io::Result<io::Result<Made>> {
        let namespace = match self.namespace(&wanted.netns) {
            Ok(namespace) => namespace,
            Err(error) => return Ok(Err(error)),
        };
        if let Err(error) = namespace.enter() {
            return Ok(Err(not_entered(&wanted.netns, &error)));
        }
        let made = self.open_here(name, wanted);
        self.home.enter()?;
        let made = made.map_err(|error| {
            let DeviceWanted { name, netns, .. } = wanted;
            io::Error::other(format!("the device {name} in {}: {error}", netns.display()))
        });
        let dir = self.dir.namespace(name);
        Ok(made.map(|(keeper, notes, device)| Made { namespace, keeper, dir, notes, device }))
    }

    fn namespace(&self, path: &Path) -> io::Result<NetworkNamespace> {
        let shown = path.display();
        let namespace = NetworkNamespace::open(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                let what = format!(
                    "there is no network namespace {shown}: make it, as by `ip netns add`, or \
                     correct `netns`"
                );
                io::Error::new(ErrorKind::NotFound, what)
            }
            _ => error,
        })?;
        if namespace.is_same(&self.home)? {
            let what = format!("{shown} is that of the host itself: use [uplink] for that");
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        }
        Ok(namespace)
    }

    /// Opens a device in the namespace where this thread is.
    fn open_here(
        &self,
        name: &str,
        wanted: &DeviceWanted,
    ) -> io::Result<(Keeper<HostKernel>, NoteFiles, HostDevice<HostKernel>)> {
        let dir = self.dir.namespace(name);
        dir.make()?;
        fs::write(dir.netns(), wanted.netns.as_os_str().as_bytes())?;
        let mut notes = NoteFiles::new(&dir);
        let mut keeper = Keeper::new(HostKernel::open()?, &self.owner, &mut notes);
        let device = PortDevice {
            name: wanted.name.clone(),
            mac: wanted.mac.map_or_else(|| (self.mac_of)(name), MacAddr),
            addresses: wanted.addresses.clone(),
            queues: wanted.queues,
            mtu: wanted.mtu.into(),
        };
        let purpose = Purpose::Virtio(name.to_owned());
        // Another interface in the namespace may keep that name: others need this thread.
        keeper.check_name(&wanted.name, &purpose)?;
        let device = open_port_device(&mut keeper, purpose, &device, &mut notes)?;
        Ok((keeper, notes, device))
    }

    /// Sends what has happened; returns whether there was no room for all of it.
    fn flush(&mut self) -> io::Result<bool> {
        while let Some((event, files)) = self.unsent.front() {
            let files: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
            match self.link.send(event, &files) {
                Ok(()) => drop(self.unsent.pop_front()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

impl Made {
    fn files(&self) -> Vec<Arc<TapFile>> {
        self.device.tap.0.files().map(Arc::clone).collect()
    }

    /// Whether the device exists, in the namespace that is at this path.
    fn is_there(&self, path: &Path) -> bool {
        let is_at = |it: NetworkNamespace| it.is_same(&self.namespace).unwrap_or(false);
        !self.device.tap.is_deleted() && NetworkNamespace::open(path).is_ok_and(is_at)
    }

    /// Deletes it at once, whichever process has queues of it.
    fn delete(mut self, name: &str) {
        if let Err(error) = self.device.delete(&mut self.keeper, &mut self.notes) {
            tracing::debug!(vif = name, "the device in its namespace: {error}");
        }
        let _ = fs::remove_file(self.dir.netns()).and_then(|()| fs::remove_dir(self.dir.path()));
    }
}

/// Deletes the devices of the hosts with this run directory in network namespaces.
pub fn delete_in_namespaces(dir: &RunDir, owner: &str) {
    for place in dir.namespaces() {
        let Ok(path) = fs::read(place.netns()) else { continue };
        let path = PathBuf::from(OsString::from_vec(path));
        let delete = || -> io::Result<()> {
            NetworkNamespace::open(&path)?.enter()?;
            delete_devices(&mut HostKernel::open()?, owner, |_, _| false);
            Ok(())
        };
        // The thread does not return to its own namespace.
        let deleted = thread::scope(|scope| scope.spawn(delete).join());
        match deleted.unwrap_or_else(|_| Err(ErrorKind::Other.into())) {
            Ok(()) => {
                let _ = fs::remove_file(place.netns());
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => tracing::warn!("{}: a device may stay there: {error}", path.display()),
        }
    }
}

/// Why a namespace cannot be entered, with the remedy.
fn not_entered(path: &Path, error: &io::Error) -> io::Error {
    let shown = path.display();
    let what = match error.kind() {
        ErrorKind::PermissionDenied => format!(
            "the network namespace {shown} cannot be entered: that takes CAP_SYS_ADMIN where it \
             was made, so start the host as root, or in the user namespace that it belongs to"
        ),
        ErrorKind::InvalidInput => format!("{shown} is not the file of a network namespace"),
        _ => format!("the network namespace {shown}: {error}"),
    };
    io::Error::other(what)
}

#[cfg(test)]
mod tests;
