//! The network devices of a simulated host, as Linux has them: links, bridges and TAP devices.
//!
//! A kernel outlives the processes that use it. The host's administrator uses it as well, and it
//! may refuse any call of a process, apart from those for open files.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use ringway_datapath::{OffloadCaps, QueueCounters, Side};
use ringway_host::{Kernel, Link, LinkKind, LinkSetting, Tap};

/// Ethernet's MTU: that of a new link, and of a bridge without ports.
const MTU: u32 = 1500;
/// Frames that may wait in a new link.
const TX_QUEUE_LEN: u32 = 1000;
/// The most queues of a TAP device.
const QUEUES_MAX: u16 = 256;

/// A kernel. Clones are handles of one.
pub struct SimKernel<W: Wire>(Rc<RefCell<State<W>>>);

/// What frames of a TAP device pass through; one without frames has only queues. Clones are handles
/// of one.
pub trait Wire: Clone {
    /// A queue, at the side of the process that has opened the device.
    type Queue;

    /// A process has opened the device, or enables another number of queues.
    fn enable(&self, _queues: u16) {}

    /// Whether there is anything at the far end.
    fn connect(&self, _is_connected: bool) {}

    /// The device was deleted.
    fn cut(&self) {}

    /// Whether what is marked valid leaves with its checksum.
    fn set_plain(&self, _is_plain: bool) {}

    /// Why it refuses another number of queues, if it does.
    fn take_refusal(&self) -> Option<io::Error> {
        None
    }

    /// The enabled queues.
    fn queues(&self, counters: &[Arc<QueueCounters>]) -> Vec<Self::Queue>;
}

/// Without frames.
impl Wire for () {
    type Queue = ();

    fn queues(&self, counters: &[Arc<QueueCounters>]) -> Vec<()> {
        vec![(); counters.len()]
    }
}

struct State<W> {
    make_wire: Box<dyn Fn(&str) -> W>,
    links: BTreeMap<u32, SimLink<W>>,
    index_last: u32,
    /// Links that go during the next pause.
    vanishing: Vec<String>,
    /// The calls until one is refused, that one included.
    refusal: Option<u32>,
    has_refused: bool,
    version: u64,
    opened: u64,
}

struct SimLink<W> {
    link: Link,
    /// Its settings as a port.
    port: PortFlags,
    addresses: Vec<(IpAddr, u8)>,
    /// That of a TAP device.
    wire: Option<W>,
    /// Whether it outlives its files.
    is_persistent: bool,
    /// How often processes have opened it.
    files: usize,
}

/// How a bridge treats a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PortFlags {
    /// Whether it reaches no other isolated port.
    pub is_isolated: bool,
}

impl<W: Wire> Clone for SimKernel<W> {
    fn clone(&self) -> Self {
        SimKernel(Rc::clone(&self.0))
    }
}

impl<W: Wire + Default + 'static> Default for SimKernel<W> {
    fn default() -> Self {
        SimKernel::new(|_| W::default())
    }
}

/// For the administrator.
impl<W: Wire> SimKernel<W> {
    /// A kernel without links. Each new TAP device gets a wire by its name.
    pub fn new(make_wire: impl Fn(&str) -> W + 'static) -> SimKernel<W> {
        SimKernel(Rc::new(RefCell::new(State {
            make_wire: Box::new(make_wire),
            links: BTreeMap::new(),
            index_last: 0,
            vanishing: Vec::new(),
            refusal: None,
            has_refused: false,
            version: 0,
            opened: 0,
        })))
    }

    /// Has the call of a process that is so many from now refused: 1 is the next one.
    pub fn refuse(&self, call: u32) {
        self.0.borrow_mut().refusal = Some(call);
    }

    /// Whether any call was refused.
    pub fn has_refused(&self) -> bool {
        self.0.borrow().has_refused
    }

    /// Whether a call is still to be refused.
    pub fn will_refuse(&self) -> bool {
        self.0.borrow().refusal.is_some()
    }

    /// Takes back what was asked of [`refuse`](SimKernel::refuse), and returns whether it was still
    /// to come.
    pub fn refuse_nothing(&self) -> bool {
        self.0.borrow_mut().refusal.take().is_some()
    }

    /// Counts changes of links, and refusals.
    pub fn version(&self) -> u64 {
        self.0.borrow().version
    }

    /// Counts how often processes have opened TAP devices, new ones and others.
    pub fn opened(&self) -> u64 {
        self.0.borrow().opened
    }

    /// Adds a bridge, which is up.
    ///
    /// # Errors
    /// `AlreadyExists`
    pub fn add_bridge(&self, name: &str) -> io::Result<()> {
        self.0.borrow_mut().add(name, LinkKind::Bridge, None).map(|_| ())
    }

    /// Adds a bridge of Open vSwitch, which is up.
    ///
    /// # Errors
    /// `AlreadyExists`
    pub fn add_ovs_bridge(&self, name: &str) -> io::Result<()> {
        self.0.borrow_mut().add(name, LinkKind::OpenVswitch, None).map(|_| ())
    }

    /// Adds a link of another kind, which is up.
    ///
    /// # Errors
    /// `AlreadyExists`
    pub fn add_other(&self, name: &str) -> io::Result<()> {
        self.0.borrow_mut().add(name, LinkKind::Other, None).map(|_| ())
    }

    /// Gives a link another name.
    ///
    /// # Errors
    /// There is no such link, or the name is taken.
    pub fn rename(&self, name: &str, to: &str) -> io::Result<()> {
        let state = &mut *self.0.borrow_mut();
        if state.named(to).is_ok() {
            return Err(error(ErrorKind::AlreadyExists, format!("link {to}: File exists")));
        }
        state.change(name, |link| to.clone_into(&mut link.link.name))
    }

    /// Sets a link up or down.
    ///
    /// # Errors
    /// There is no such link.
    pub fn set_up(&self, name: &str, is_up: bool) -> io::Result<()> {
        self.0.borrow_mut().change(name, |link| link.link.is_up = is_up)
    }

    /// Makes a link a port of this bridge, or of none.
    ///
    /// # Errors
    /// There is no such link.
    pub fn set_master(&self, name: &str, bridge: Option<&str>) -> io::Result<()> {
        self.0.borrow_mut().set_master(name, bridge)
    }

    /// Sets how the bridge of a port treats it.
    ///
    /// # Errors
    /// There is no such link.
    pub fn set_flags(&self, name: &str, flags: PortFlags) -> io::Result<()> {
        self.0.borrow_mut().change(name, |link| link.port = flags)
    }

    /// Deletes a link.
    ///
    /// # Errors
    /// No link has this name.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        self.0.borrow_mut().remove(name)
    }

    /// Deletes a link when a process waits for its name.
    pub fn remove_later(&self, name: &str) {
        self.0.borrow_mut().vanishing.push(name.to_owned());
    }

    /// A link, if there is one of this name.
    pub fn find(&self, name: &str) -> Option<Link> {
        self.0.borrow().named(name).ok().map(|link| link.link.clone())
    }

    /// All links.
    pub fn all(&self) -> Vec<Link> {
        self.0.borrow().links.values().map(|link| link.link.clone()).collect()
    }

    /// The addresses of a link.
    pub fn addresses_of(&self, name: &str) -> Vec<(IpAddr, u8)> {
        self.0.borrow().named(name).map(|link| link.addresses.clone()).unwrap_or_default()
    }

    /// The wire of the open TAP device that is on one bridge with a link of another kind, if one is
    /// and both are up.
    pub fn opposite(&self, name: &str) -> Option<W> {
        let state = self.0.borrow();
        let far = &state.named(name).ok()?.link;
        let (bridge, true) = (far.master?, far.is_up) else { return None };
        let is_opposite =
            |it: &&SimLink<W>| it.link.is_up && it.files > 0 && it.link.master == Some(bridge);
        state.links.values().filter(is_opposite).find_map(|it| it.wire.clone())
    }
}

impl<W: Wire> State<W> {
    /// Whether a call of a process may be done.
    fn admit(&mut self, what: &str) -> io::Result<()> {
        let Some(left) = &mut self.refusal else { return Ok(()) };
        *left -= 1;
        if *left > 0 {
            return Ok(());
        }
        (self.refusal, self.has_refused) = (None, true);
        self.version += 1;
        Err(error(ErrorKind::ResourceBusy, format!("{what}: the kernel is busy")))
    }

    fn named(&self, name: &str) -> io::Result<&SimLink<W>> {
        let found = self.links.values().find(|link| link.link.name == name);
        found.ok_or_else(|| missing(name))
    }

    fn named_mut(&mut self, name: &str) -> io::Result<&mut SimLink<W>> {
        let found = self.links.values_mut().find(|link| link.link.name == name);
        found.ok_or_else(|| missing(name))
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut SimLink<W>)) -> io::Result<()> {
        change(self.named_mut(name)?);
        self.changed();
        Ok(())
    }

    /// What follows from a change: the MTU of a bridge is the least of its ports, and a TAP device
    /// has a far end if its bridge leads elsewhere.
    fn changed(&mut self) {
        self.version += 1;
        let links = self.links.values();
        let ports = links.filter_map(|it| Some((it.link.master?, it.link.mtu, it.link.kind)));
        let ports: Vec<(u32, u32, LinkKind)> = ports.collect();
        for (index, link) in &mut self.links {
            if link.link.kind == LinkKind::Bridge {
                let own = ports.iter().filter(|(bridge, ..)| bridge == index);
                link.link.mtu = own.map(|(_, mtu, _)| *mtu).min().unwrap_or(MTU);
            }
            let leads_on =
                |bridge| ports.iter().any(|it| (it.0, it.2) == (bridge, LinkKind::Other));
            let is_connected = link.link.is_up && link.link.master.is_some_and(leads_on);
            link.wire.iter().for_each(|wire| wire.connect(is_connected));
        }
    }

    fn add(&mut self, name: &str, kind: LinkKind, wire: Option<W>) -> io::Result<u32> {
        if self.named(name).is_ok() {
            return Err(error(ErrorKind::AlreadyExists, format!("link {name}: File exists")));
        }
        self.index_last += 1;
        let index = self.index_last;
        let link = Link {
            index,
            name: name.to_owned(),
            kind,
            is_up: kind != LinkKind::Tap,
            address: Some([2, 0, 0, 0, 0, index.to_le_bytes()[0]]),
            mtu: MTU,
            master: None,
            tx_queue_len: TX_QUEUE_LEN,
            alias: None,
        };
        let (port, addresses) = (PortFlags::default(), Vec::new());
        let link = SimLink { link, port, addresses, wire, is_persistent: false, files: 0 };
        self.links.insert(index, link);
        self.changed();
        Ok(index)
    }

    fn set_master(&mut self, name: &str, bridge: Option<&str>) -> io::Result<()> {
        let master = bridge.map(|bridge| self.named(bridge)).transpose()?;
        if let Some(other) = master.filter(|it| it.link.kind != LinkKind::Bridge) {
            let what = format!("link {name}: {} is not a bridge", other.link.name);
            return Err(error(ErrorKind::InvalidInput, what));
        }
        let master = master.map(|master| master.link.index);
        self.change(name, |link| {
            if link.link.master != master {
                (link.link.master, link.port) = (master, PortFlags::default());
            }
        })
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        let index = self.named(name)?.link.index;
        let gone = self.links.remove(&index);
        gone.and_then(|gone| gone.wire).iter().for_each(Wire::cut);
        for port in self.links.values_mut().filter(|port| port.link.master == Some(index)) {
            (port.link.master, port.port) = (None, PortFlags::default());
        }
        self.changed();
        Ok(())
    }

    fn set(&mut self, name: &str, setting: LinkSetting<'_>) -> io::Result<()> {
        if let LinkSetting::Master(bridge) = setting {
            return self.set_master(name, Some(bridge));
        }
        self.change(name, |link| match setting {
            LinkSetting::Up => link.link.is_up = true,
            LinkSetting::Mtu(mtu) => link.link.mtu = mtu,
            LinkSetting::Address(address) => link.link.address = Some(address),
            LinkSetting::TxQueueLen(len) => link.link.tx_queue_len = len,
            LinkSetting::Alias(alias) => link.link.alias = Some(alias.to_owned()),
            LinkSetting::Master(_)
            | LinkSetting::GsoMaxSize(_)
            | LinkSetting::NoLinkLocalAddress => {}
        })
    }
}

impl<W: Wire> Kernel for SimKernel<W> {
    type Tap = SimTap<W>;
    type Port = PortFlags;

    fn links(&mut self) -> io::Result<Vec<Link>> {
        self.0.borrow_mut().admit("list links")?;
        Ok(self.all())
    }

    fn link(&mut self, name: &str) -> io::Result<Link> {
        let state = &mut *self.0.borrow_mut();
        state.admit(&format!("link {name}"))?;
        state.named(name).map(|link| link.link.clone())
    }

    fn addresses(&mut self) -> io::Result<Vec<(u32, IpAddr, u8)>> {
        let state = &mut *self.0.borrow_mut();
        state.admit("list addresses")?;
        let of = |(index, link): (&u32, &SimLink<W>)| {
            let (index, addresses) = (*index, link.addresses.clone());
            addresses.into_iter().map(move |(address, len)| (index, address, len))
        };
        Ok(state.links.iter().flat_map(of).collect())
    }

    fn bridge_ports(&mut self) -> io::Result<BTreeMap<u32, PortFlags>> {
        let state = &mut *self.0.borrow_mut();
        state.admit("list ports of bridges")?;
        let ports = state.links.iter().filter(|(_, link)| link.link.master.is_some());
        Ok(ports.map(|(index, link)| (*index, link.port)).collect())
    }

    fn set(&mut self, name: &str, settings: &[LinkSetting<'_>]) -> io::Result<()> {
        let state = &mut *self.0.borrow_mut();
        state.admit(&format!("link {name}: set {settings:?}"))?;
        settings.iter().try_for_each(|setting| state.set(name, *setting))
    }

    fn set_bridge_port(&mut self, name: &str, settings: &PortFlags) -> io::Result<()> {
        self.0.borrow_mut().admit(&format!("link {name}: set port"))?;
        self.set_flags(name, *settings)
    }

    fn add_address(&mut self, name: &str, address: IpAddr, prefix_len: u8) -> io::Result<()> {
        let state = &mut *self.0.borrow_mut();
        let what = format!("link {name}: add address {address}/{prefix_len}");
        state.admit(&what)?;
        if state.named(name)?.addresses.contains(&(address, prefix_len)) {
            return Err(error(ErrorKind::AlreadyExists, format!("{what}: File exists")));
        }
        state.change(name, |link| link.addresses.push((address, prefix_len)))
    }

    fn remove_address(&mut self, name: &str, address: IpAddr, prefix_len: u8) -> io::Result<()> {
        let state = &mut *self.0.borrow_mut();
        let what = format!("link {name}: remove address {address}/{prefix_len}");
        state.admit(&what)?;
        if !state.named(name)?.addresses.contains(&(address, prefix_len)) {
            return Err(error(ErrorKind::AddrNotAvailable, what));
        }
        state.change(name, |link| link.addresses.retain(|it| *it != (address, prefix_len)))
    }

    fn delete(&mut self, name: &str) -> io::Result<()> {
        self.0.borrow_mut().admit(&format!("link {name}: delete"))?;
        self.remove(name)
    }

    fn open_tap(&mut self, name: &str, queues: u16) -> io::Result<SimTap<W>> {
        let state = &mut *self.0.borrow_mut();
        state.admit(&format!("TAP device {name}: open"))?;
        if !(1..=QUEUES_MAX).contains(&queues) {
            let what = format!("TAP: {queues} queues, where 1 to {QUEUES_MAX} are possible");
            return Err(error(ErrorKind::InvalidInput, what));
        }
        let index = match state.named(name).map(|found| (found.link.index, found.link.kind)) {
            Ok((index, LinkKind::Tap)) => index,
            Ok(_) => {
                let what = format!("TAP device {name}: Invalid argument");
                return Err(error(ErrorKind::InvalidInput, what));
            }
            Err(_) => {
                let wire = (state.make_wire)(name);
                state.add(name, LinkKind::Tap, Some(wire))?
            }
        };
        let Some(link) = state.links.get_mut(&index) else { return Err(missing(name)) };
        link.files += 1;
        state.opened += 1;
        link.wire.iter().for_each(|wire| wire.enable(queues));
        let (kernel, name) = (self.clone(), name.to_owned());
        Ok(SimTap(Rc::new(OpenTap { kernel, index, name, queues })))
    }

    fn pause(&mut self) {
        let state = &mut *self.0.borrow_mut();
        for name in std::mem::take(&mut state.vanishing) {
            // The administrator may have removed it already.
            let _ = state.remove(&name);
        }
    }
}

/// A TAP device of a [`SimKernel`], while it is open.
pub struct SimTap<W: Wire>(Rc<OpenTap<W>>);

/// All files by which one process has opened a device.
struct OpenTap<W: Wire> {
    kernel: SimKernel<W>,
    index: u32,
    name: String,
    queues: u16,
}

impl<W: Wire> SimTap<W> {
    /// Its wire, unless it was deleted.
    fn wire(&self) -> io::Result<W> {
        let state = self.0.kernel.0.borrow();
        let wire = state.links.get(&self.0.index).and_then(|link| link.wire.clone());
        wire.ok_or_else(|| missing(&self.0.name))
    }
}

impl<W: Wire> Tap for SimTap<W> {
    type Queue = W::Queue;
    type Files = SimTap<W>;

    fn from_files(files: &SimTap<W>) -> io::Result<SimTap<W>> {
        let wire = files.wire()?;
        wire.enable(files.0.queues);
        wire.set_plain(false);
        Ok(SimTap(Rc::clone(&files.0)))
    }

    fn name(&self) -> &str {
        &self.0.name
    }

    fn is_deleted(&self) -> bool {
        self.wire().is_err()
    }

    fn set_persistent(&self, is_persistent: bool) -> io::Result<()> {
        self.wire()?;
        let state = &mut *self.0.kernel.0.borrow_mut();
        let link = state.links.get_mut(&self.0.index);
        link.into_iter().for_each(|link| link.is_persistent = is_persistent);
        Ok(())
    }

    fn set_offloads(&self, _: OffloadCaps) -> io::Result<()> {
        self.wire().map(|_| ())
    }

    fn set_plain(&self, is_plain: bool) {
        self.wire().into_iter().for_each(|wire| wire.set_plain(is_plain));
    }

    /// Frames of a world stay as they are.
    fn merge_read(&self, _: OffloadCaps) {}

    fn set_enabled(&mut self, count: u16) -> io::Result<()> {
        let (wire, most) = (self.wire()?, self.0.queues);
        if !(1..=most).contains(&count) {
            let what = format!("TAP: {count} queues, where 1 to {most} are possible");
            return Err(error(ErrorKind::InvalidInput, what));
        }
        wire.take_refusal().map_or(Ok(()), Err)?;
        wire.enable(count);
        Ok(())
    }

    fn queues(&self, _: Side, counters: &[Arc<QueueCounters>]) -> Vec<W::Queue> {
        self.wire().map(|wire| wire.queues(counters)).unwrap_or_default()
    }
}

impl<W: Wire> Drop for OpenTap<W> {
    /// Without its last file, a device goes unless it persists.
    fn drop(&mut self) {
        // A panic may have left the kernel in the middle of a call.
        let Ok(mut state) = self.kernel.0.try_borrow_mut() else { return };
        let Some(link) = state.links.get_mut(&self.index) else { return };
        link.files -= 1;
        if link.files == 0 && !link.is_persistent {
            let name = link.link.name.clone();
            // It was there a moment ago.
            let _ = state.remove(&name);
        }
    }
}

fn missing(name: &str) -> io::Error {
    error(ErrorKind::NotFound, format!("link {name}: No such device"))
}

fn error(kind: ErrorKind, what: String) -> io::Error {
    io::Error::new(kind, what)
}
