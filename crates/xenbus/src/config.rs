//! What the two ends negotiate: the backend's offer, and the frontend's choice from it.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};

use ringway_wire::netif::HEADROOM_MAX;
use ringway_wire::{EvtchnPort, GrantRef};

use crate::features::Features;
use crate::keys::{
    Absent, BadKeys, CTRL_RING_REF, EVENT_CHANNEL, EVENT_CHANNEL_CTRL, EVENT_CHANNEL_RX,
    EVENT_CHANNEL_TX, FEATURE_CTRL_RING, FEATURE_DYNAMIC_MULTICAST_CONTROL,
    FEATURE_MULTICAST_CONTROL, FEATURE_RX_COPY, FEATURE_RX_FLIP, FEATURE_RX_NOTIFY,
    FEATURE_SPLIT_EVENT_CHANNELS, FEATURE_XDP_HEADROOM, KeyChange, Keys, MULTI_QUEUE_MAX_QUEUES,
    MULTI_QUEUE_NUM_QUEUES, QUEUE_KEYS, RECONNECT, REQUEST_MULTICAST_CONTROL, REQUEST_RX_COPY,
    RX_RING_REF, TX_RING_REF, XDP_HEADROOM, queue_dir,
};

/// What a backend offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// The most queues that a frontend may request; at least 1. Absent means 1.
    pub queues_max: u16,
    /// Whether a queue may have one event channel per direction. Absent means no.
    pub split_event_channels: bool,
    /// `feature-ctrl-ring`: whether the vif may have a control ring. Absent means no.
    pub control_ring: bool,
    /// `feature-multicast-control`: whether the guest may choose its multicast frames, from its
    /// connection on (`request-multicast-control`) and by orders. Absent means no.
    pub multicast_control: bool,
    /// `feature-xdp-headroom`: whether bytes before each frame for the guest may be free. Absent
    /// means no.
    pub xdp_headroom: bool,
    /// What the backend can receive.
    pub features: Features,
}

impl Offer {
    /// All that this crate knows, for up to this many queues.
    pub const fn all(queues_max: u16, features: Features) -> Offer {
        Offer {
            queues_max,
            split_event_channels: true,
            control_ring: true,
            multicast_control: true,
            xdp_headroom: true,
            features,
        }
    }

    /// Reads a backend's keys.
    ///
    /// # Errors
    /// Why the backend cannot be used.
    pub fn read(keys: &Keys) -> Result<Offer, BadKeys> {
        if !keys.flag(FEATURE_RX_COPY, Absent::False)? {
            return Err(BadKeys::NoCopy { path: keys.path(FEATURE_RX_COPY) });
        }
        let queues_max = keys.number(MULTI_QUEUE_MAX_QUEUES)?.unwrap_or(1);
        Ok(Offer {
            queues_max: u16::try_from(queues_max).unwrap_or(u16::MAX).max(1),
            split_event_channels: keys.flag(FEATURE_SPLIT_EVENT_CHANNELS, Absent::False)?,
            //= netif.h:ctrl-ring
            control_ring: keys.flag(FEATURE_CTRL_RING, Absent::False)?,
            //= netif.h:multicast-request
            multicast_control: keys.flag(FEATURE_MULTICAST_CONTROL, Absent::False)?,
            //= netif.h:xdp-headroom
            xdp_headroom: keys.flag(FEATURE_XDP_HEADROOM, Absent::False)?,
            features: Features::read(keys)?,
        })
    }

    pub(crate) fn changes(&self) -> Vec<KeyChange> {
        let mut changes = vec![
            KeyChange::flag(FEATURE_RX_COPY, true),
            KeyChange::flag(FEATURE_RX_FLIP, false),
            KeyChange::flag(FEATURE_SPLIT_EVENT_CHANNELS, self.split_event_channels),
            KeyChange::flag(FEATURE_CTRL_RING, self.control_ring),
            KeyChange::flag(FEATURE_MULTICAST_CONTROL, self.multicast_control),
            KeyChange::flag(FEATURE_DYNAMIC_MULTICAST_CONTROL, self.multicast_control),
            KeyChange::flag(FEATURE_XDP_HEADROOM, self.xdp_headroom),
            KeyChange::number(MULTI_QUEUE_MAX_QUEUES, self.queues_max),
        ];
        changes.extend(self.features.changes());
        changes
    }
}

/// What an earlier run of a backend offered, according to its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offered {
    /// The most queues; `None` if it offered nothing.
    pub queues_max: Option<u16>,
    /// An event channel for each direction.
    pub split_event_channels: bool,
    /// A control ring.
    pub control_ring: bool,
    /// The guest's choice of multicast frames.
    pub multicast_control: bool,
    /// Free bytes before frames.
    pub xdp_headroom: bool,
}

impl Offered {
    /// Reads the keys of the backend's own directory.
    pub fn read(own: &Keys) -> Offered {
        Offered {
            queues_max: own.queues_offered(),
            split_event_channels: own.text(FEATURE_SPLIT_EVENT_CHANNELS) == Some("1"),
            control_ring: own.text(FEATURE_CTRL_RING) == Some("1"),
            multicast_control: own.text(FEATURE_MULTICAST_CONTROL) == Some("1"),
            xdp_headroom: own.text(FEATURE_XDP_HEADROOM) == Some("1"),
        }
    }
}

/// The event channels of one queue, by the frontend's ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventPorts {
    /// One for each direction.
    Split {
        /// For the tx ring.
        tx: EvtchnPort,
        /// For the rx ring.
        rx: EvtchnPort,
    },
    /// One for both.
    Single(EvtchnPort),
}

/// What a backend needs to attach to one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueConfig {
    /// The page of the tx ring.
    pub tx_ring_ref: GrantRef,
    /// The page of the rx ring.
    pub rx_ring_ref: GrantRef,
    /// Its event channels.
    pub events: EventPorts,
}

/// What a backend needs to attach to the control ring of a vif.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlConfig {
    /// The page of the ring.
    pub ring_ref: GrantRef,
    /// Its event channel, by the frontend's port.
    pub event: EvtchnPort,
}

/// How a frontend writes its number of queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueCountKey {
    /// The backend offers several queues, so the frontend writes the number.
    MultiQueue,
    /// The backend does not, so there is one queue and no number.
    OneQueue,
}

impl QueueCountKey {
    /// What the backend with these keys expects.
    pub(crate) fn of(keys: &Keys) -> QueueCountKey {
        if keys.has(MULTI_QUEUE_MAX_QUEUES) {
            QueueCountKey::MultiQueue
        } else {
            QueueCountKey::OneQueue
        }
    }
}

/// What a frontend does after a backend has closed the vif and offers it again.
///
/// Linux's frontend connects only from `Initialising`, which it enters when its driver is bound; it
/// ignores an offer at other times. Ours announces that it reconnects (`ringway-reconnect`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reconnects {
    /// It takes the offer.
    Automatically,
    /// It stays closed until its driver, or its user, starts over.
    Never,
}

impl Reconnects {
    /// Reads a frontend's key. Absent means no.
    pub fn read(keys: &Keys) -> Reconnects {
        if keys.text(RECONNECT) == Some("1") {
            Reconnects::Automatically
        } else {
            Reconnects::Never
        }
    }

    /// The keys that a returning frontend writes before it has an offer.
    pub(crate) fn changes() -> Vec<KeyChange> {
        vec![KeyChange::flag(RECONNECT, true)]
    }
}

/// A frontend's choice from an [`Offer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontendConfig {
    /// The queues, in order.
    pub queues: Vec<QueueConfig>,
    /// What the frontend can receive.
    pub features: Features,
    /// `feature-rx-notify`: whether the frontend notifies when it posts rx requests. Absent means
    /// no, so a backend without room must poll.
    pub rx_notify: bool,
    /// Its control ring, if it has one.
    pub control: Option<ControlConfig>,
    /// `request-multicast-control`: whether it gets only the multicast frames that it orders.
    /// Absent means no.
    pub multicast_control: bool,
    /// `xdp-headroom`: how many bytes before each frame for it are to be free. Absent means none,
    /// and so does a value that cannot be used.
    pub headroom: u16,
}

impl FrontendConfig {
    /// Reads a frontend's keys, as its choice from `offer`.
    ///
    /// # Errors
    /// Why the frontend cannot be served.
    pub fn read(keys: &Keys, offer: &Offer) -> Result<FrontendConfig, BadKeys> {
        if !keys.flag(REQUEST_RX_COPY, Absent::False)? {
            return Err(BadKeys::NoCopy { path: keys.path(REQUEST_RX_COPY) });
        }
        let requested = keys.number(MULTI_QUEUE_NUM_QUEUES)?.unwrap_or(1);
        let count = u16::try_from(requested).ok().filter(|n| (1..=offer.queues_max).contains(n));
        let Some(count) = count.map(usize::from) else {
            let path = keys.path(MULTI_QUEUE_NUM_QUEUES);
            return Err(BadKeys::QueueCount { path, requested, max: offer.queues_max });
        };
        let mut reader = QueueReader { keys, offer, refs: BTreeMap::new(), ports: BTreeMap::new() };
        let queues = (0..count).map(|index| reader.queue(&prefix(index, count)));
        let queues = queues.collect::<Result<_, _>>()?;
        Ok(FrontendConfig {
            queues,
            control: reader.control()?,
            features: Features::read(keys)?,
            rx_notify: keys.flag(FEATURE_RX_NOTIFY, Absent::False)?,
            //= netif.h:multicast-request
            multicast_control: offer.multicast_control && keys.requests_multicast_control()?,
            //= netif.h:xdp-headroom
            headroom: if offer.xdp_headroom { keys.headroom().unwrap_or(0) } else { 0 },
        })
    }

    /// The keys to write, and the removal of up to `stale_max` queues' keys of an earlier
    /// connection, so that these are not mistaken for part of this one.
    pub(crate) fn changes(&self, stale_max: usize, count_key: QueueCountKey) -> Vec<KeyChange> {
        let count = self.queues.len();
        let of_vif = [CTRL_RING_REF, EVENT_CHANNEL_CTRL];
        let flat = QUEUE_KEYS.into_iter().chain(of_vif);
        let flat = flat.map(|key| KeyChange::Remove(key.to_owned()));
        let dirs = (0..stale_max.max(count)).map(queue_dir).map(KeyChange::Remove);
        let mut changes: Vec<KeyChange> = flat.chain(dirs).collect();
        changes.push(KeyChange::flag(REQUEST_RX_COPY, true));
        changes.push(KeyChange::flag(FEATURE_RX_NOTIFY, self.rx_notify));
        changes.push(match count_key {
            QueueCountKey::MultiQueue => KeyChange::set(MULTI_QUEUE_NUM_QUEUES, count.to_string()),
            QueueCountKey::OneQueue => KeyChange::Remove(MULTI_QUEUE_NUM_QUEUES.to_owned()),
        });
        changes.extend(self.features.changes());
        //= netif.h:ctrl-ring
        if let Some(ControlConfig { ring_ref, event }) = self.control {
            changes.push(KeyChange::number(CTRL_RING_REF, ring_ref.0));
            changes.push(KeyChange::number(EVENT_CHANNEL_CTRL, event.0));
        }
        changes.push(match self.multicast_control {
            true => KeyChange::flag(REQUEST_MULTICAST_CONTROL, true),
            false => KeyChange::Remove(REQUEST_MULTICAST_CONTROL.to_owned()),
        });
        changes.push(headroom_change(self.headroom));
        for (index, queue) in self.queues.iter().enumerate() {
            let prefix = prefix(index, count);
            let mut set = |key: &str, value: u32| {
                changes.push(KeyChange::number(&format!("{prefix}{key}"), value));
            };
            set(TX_RING_REF, queue.tx_ring_ref.0);
            set(RX_RING_REF, queue.rx_ring_ref.0);
            match queue.events {
                EventPorts::Single(port) => set(EVENT_CHANNEL, port.0),
                EventPorts::Split { tx, rx } => {
                    set(EVENT_CHANNEL_TX, tx.0);
                    set(EVENT_CHANNEL_RX, rx.0);
                }
            }
        }
        changes
    }
}

impl Keys {
    /// Whether a frontend wants only the multicast frames that it orders. Absent means no.
    ///
    /// # Errors
    /// [`BadKeys::Unreadable`] if it is no number.
    pub fn requests_multicast_control(&self) -> Result<bool, BadKeys> {
        self.flag(REQUEST_MULTICAST_CONTROL, Absent::False)
    }

    /// How many bytes before each frame a frontend wants to be free. Absent means none.
    ///
    /// # Errors
    /// [`BadKeys::Unreadable`] if it is no number, or a larger one than [`HEADROOM_MAX`].
    pub fn headroom(&self) -> Result<u16, BadKeys> {
        let expected = "a number of bytes from 0 to 2048";
        let parse = |text: &str| {
            let bytes = self.number(XDP_HEADROOM).ok().flatten();
            let bytes = bytes.and_then(|bytes| u16::try_from(bytes).ok());
            let bytes = bytes.filter(|bytes| *bytes <= HEADROOM_MAX);
            bytes.ok_or_else(|| self.unreadable(XDP_HEADROOM, text, expected))
        };
        self.text(XDP_HEADROOM).map_or(Ok(0), parse)
    }
}

/// The key of a frontend that wants this headroom. One that wants none leaves none of an earlier
/// connection.
pub(crate) fn headroom_change(headroom: u16) -> KeyChange {
    match headroom {
        0 => KeyChange::Remove(XDP_HEADROOM.to_owned()),
        bytes => KeyChange::number(XDP_HEADROOM, bytes),
    }
}

/// The path prefix of the keys of queue `index` of `count`.
fn prefix(index: usize, count: usize) -> String {
    if count == 1 { String::new() } else { queue_dir(index) + "/" }
}

/// Reads queue after queue and remembers which rings and ports are in use.
struct QueueReader<'a> {
    keys: &'a Keys,
    offer: &'a Offer,
    /// Values that were read so far, and the keys that hold them.
    refs: BTreeMap<u32, String>,
    ports: BTreeMap<u32, String>,
}

impl QueueReader<'_> {
    fn queue(&mut self, prefix: &str) -> Result<QueueConfig, BadKeys> {
        let key = |name: &str| format!("{prefix}{name}");
        let tx_ring_ref = take(self.keys, &mut self.refs, &key(TX_RING_REF))?;
        let rx_ring_ref = take(self.keys, &mut self.refs, &key(RX_RING_REF))?;
        let (tx_key, rx_key) = (key(EVENT_CHANNEL_TX), key(EVENT_CHANNEL_RX));
        let has_split = self.keys.has(&tx_key) || self.keys.has(&rx_key);
        // Linux's frontend leaves the keys of an earlier connection, and may have read an older
        // offer.
        let is_offered = self.offer.split_event_channels;
        let events = if has_split && (is_offered || !self.keys.has(&key(EVENT_CHANNEL))) {
            let tx = EvtchnPort(take(self.keys, &mut self.ports, &tx_key)?);
            let rx = EvtchnPort(take(self.keys, &mut self.ports, &rx_key)?);
            EventPorts::Split { tx, rx }
        } else {
            let port = take(self.keys, &mut self.ports, &key(EVENT_CHANNEL))?;
            EventPorts::Single(EvtchnPort(port))
        };
        let (tx_ring_ref, rx_ring_ref) = (GrantRef(tx_ring_ref), GrantRef(rx_ring_ref));
        Ok(QueueConfig { tx_ring_ref, rx_ring_ref, events })
    }

    /// The control ring. Its keys may be those of an earlier connection if none is offered.
    fn control(&mut self) -> Result<Option<ControlConfig>, BadKeys> {
        //= netif.h:ctrl-ring
        if !self.offer.control_ring || !self.keys.has(CTRL_RING_REF) {
            return Ok(None);
        }
        let ring_ref = GrantRef(take(self.keys, &mut self.refs, CTRL_RING_REF)?);
        let event = EvtchnPort(take(self.keys, &mut self.ports, EVENT_CHANNEL_CTRL)?);
        Ok(Some(ControlConfig { ring_ref, event }))
    }
}

/// A number that no other key of its kind may have.
fn take(keys: &Keys, taken: &mut BTreeMap<u32, String>, key: &str) -> Result<u32, BadKeys> {
    let value = keys.required(key)?;
    let path = keys.path(key);
    match taken.get(&value) {
        Some(first) => Err(BadKeys::Duplicate { path, first: first.clone(), value }),
        None => {
            taken.insert(value, path);
            Ok(value)
        }
    }
}

#[cfg(test)]
mod tests;
