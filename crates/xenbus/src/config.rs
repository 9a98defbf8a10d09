//! What the two ends tell each other: the backend's offer, and the frontend's answer to it.

use std::collections::BTreeMap;

use ringway_wire::{EvtchnPort, GrantRef};

use crate::features::Features;
use crate::keys::{
    Absent, BadKeys, EVENT_CHANNEL, EVENT_CHANNEL_RX, EVENT_CHANNEL_TX, FEATURE_RX_COPY,
    FEATURE_RX_FLIP, FEATURE_RX_NOTIFY, FEATURE_SPLIT_EVENT_CHANNELS, KeyChange, Keys,
    MULTI_QUEUE_MAX_QUEUES, MULTI_QUEUE_NUM_QUEUES, QUEUE_KEYS, REQUEST_RX_COPY, RX_RING_REF,
    TX_RING_REF, queue_dir,
};

/// What a backend offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// The most queues a frontend may ask for; at least 1. Absent means 1.
    pub queues_max: u16,
    /// Whether a queue may have one event channel per direction. Absent means no.
    pub split_event_channels: bool,
    /// What the backend can receive.
    pub features: Features,
}

impl Offer {
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
            features: Features::read(keys)?,
        })
    }

    pub(crate) fn changes(&self) -> Vec<KeyChange> {
        let mut changes = vec![
            KeyChange::flag(FEATURE_RX_COPY, true),
            KeyChange::flag(FEATURE_RX_FLIP, false),
            KeyChange::flag(FEATURE_SPLIT_EVENT_CHANNELS, self.split_event_channels),
            KeyChange::set(MULTI_QUEUE_MAX_QUEUES, self.queues_max),
        ];
        changes.extend(self.features.changes());
        changes
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

/// A frontend's answer to an [`Offer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontendConfig {
    /// The queues, in order.
    pub queues: Vec<QueueConfig>,
    /// What the frontend can receive.
    pub features: Features,
    /// `feature-rx-notify`: whether the frontend notifies when it posts rx requests. Absent means
    /// that it does not, so a backend without room has to look for itself.
    pub rx_notify: bool,
}

impl FrontendConfig {
    /// Reads a frontend's keys, as the answer to `offer`.
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
        let flat_key = QUEUE_KEYS.into_iter().find(|key| keys.has(key));
        if let Some(key) = flat_key.filter(|_| count > 1) {
            return Err(BadKeys::FlatKey { path: keys.path(key), count: requested });
        }
        let mut reader = QueueReader { keys, offer, refs: BTreeMap::new(), ports: BTreeMap::new() };
        let queues = (0..count).map(|index| reader.queue(&prefix(index, count)));
        Ok(FrontendConfig {
            queues: queues.collect::<Result<_, _>>()?,
            features: Features::read(keys)?,
            rx_notify: keys.flag(FEATURE_RX_NOTIFY, Absent::False)?,
        })
    }

    /// The keys, and the removal of all that an earlier answer to an offer of `queues_max` queues
    /// may have left: a backend refuses both kinds of queue keys side by side.
    pub(crate) fn changes(&self, queues_max: u16) -> Vec<KeyChange> {
        let count = self.queues.len();
        let flat = QUEUE_KEYS.into_iter().map(|key| KeyChange::Remove(key.to_owned()));
        let dirs = (0..usize::from(queues_max).max(count)).map(queue_dir).map(KeyChange::Remove);
        let mut changes: Vec<KeyChange> = flat.chain(dirs).collect();
        changes.push(KeyChange::flag(REQUEST_RX_COPY, true));
        changes.push(KeyChange::flag(FEATURE_RX_NOTIFY, self.rx_notify));
        changes.push(KeyChange::set(MULTI_QUEUE_NUM_QUEUES, count));
        changes.extend(self.features.changes());
        for (index, queue) in self.queues.iter().enumerate() {
            let prefix = prefix(index, count);
            let mut set = |key, value| changes.push(KeyChange::set(prefix.clone() + key, value));
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

/// Where the keys of queue `index` of `count` are.
fn prefix(index: usize, count: usize) -> String {
    if count == 1 { String::new() } else { queue_dir(index) + "/" }
}

/// Reads queue after queue and remembers what is taken.
struct QueueReader<'a> {
    keys: &'a Keys,
    offer: &'a Offer,
    /// Values that were read so far, and the keys they are from.
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
        let events = if self.offer.split_event_channels && has_split {
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
