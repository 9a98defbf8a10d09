//! What the two ends negotiate: the backend's offer, and the frontend's choice from it.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};

use ringway_wire::{EvtchnPort, GrantRef};

use crate::features::Features;
use crate::keys::{
    Absent, BadKeys, CTRL_RING_REF, EVENT_CHANNEL, EVENT_CHANNEL_CTRL, EVENT_CHANNEL_RX,
    EVENT_CHANNEL_TX, FEATURE_CTRL_RING, FEATURE_RX_COPY, FEATURE_RX_FLIP, FEATURE_RX_NOTIFY,
    FEATURE_SPLIT_EVENT_CHANNELS, KeyChange, Keys, MULTI_QUEUE_MAX_QUEUES, MULTI_QUEUE_NUM_QUEUES,
    QUEUE_KEYS, RECONNECT, REQUEST_RX_COPY, RX_RING_REF, TX_RING_REF, queue_dir,
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
            //= netif.h:ctrl-ring
            control_ring: keys.flag(FEATURE_CTRL_RING, Absent::False)?,
            features: Features::read(keys)?,
        })
    }

    pub(crate) fn changes(&self) -> Vec<KeyChange> {
        let mut changes = vec![
            KeyChange::flag(FEATURE_RX_COPY, true),
            KeyChange::flag(FEATURE_RX_FLIP, false),
            KeyChange::flag(FEATURE_SPLIT_EVENT_CHANNELS, self.split_event_channels),
            KeyChange::flag(FEATURE_CTRL_RING, self.control_ring),
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
}

impl Offered {
    /// Reads the keys of the backend's own directory.
    pub fn read(own: &Keys) -> Offered {
        Offered {
            queues_max: own.queues_offered(),
            split_event_channels: own.text(FEATURE_SPLIT_EVENT_CHANNELS) == Some("1"),
            control_ring: own.text(FEATURE_CTRL_RING) == Some("1"),
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
mod tests {
    use ringway_datapath::OffloadCaps;

    use super::*;

    const OFFER: Offer = Offer {
        queues_max: 4,
        split_event_channels: true,
        control_ring: true,
        features: Features {
            scatter_gather: true,
            checksum_v4: true,
            checksum_v6: true,
            gso_v4: true,
            gso_v6: true,
        },
    };

    /// Keys as a Linux guest with two queues wrote them.
    const TWO_QUEUES: &[(&str, &str)] = &[
        ("backend", "/local/domain/0/backend/vif/2/0"),
        ("backend-id", "0"),
        ("state", "4"),
        ("handle", "0"),
        ("mac", "00:16:3e:00:00:02"),
        ("trusted", "1"),
        ("mtu", "1500"),
        ("xdp-headroom", "0"),
        ("multi-queue-num-queues", "2"),
        ("queue-0", ""),
        ("queue-0/tx-ring-ref", "1032"),
        ("queue-0/rx-ring-ref", "1033"),
        ("queue-0/event-channel-tx", "15"),
        ("queue-0/event-channel-rx", "16"),
        ("queue-1", ""),
        ("queue-1/tx-ring-ref", "1034"),
        ("queue-1/rx-ring-ref", "1035"),
        ("queue-1/event-channel-tx", "17"),
        ("queue-1/event-channel-rx", "18"),
        ("request-rx-copy", "1"),
        ("feature-rx-notify", "1"),
        ("feature-sg", "1"),
        ("feature-gso-tcpv4", "1"),
        ("feature-gso-tcpv6", "1"),
        ("feature-ipv6-csum-offload", "1"),
    ];

    /// Keys as a small frontend without multi-queue or split event channels writes them.
    const MINIMAL: &[(&str, &str)] = &[
        ("state", "4"),
        ("tx-ring-ref", "520"),
        ("rx-ring-ref", "521"),
        ("event-channel", "9"),
        ("request-rx-copy", "1"),
    ];

    fn keys(of: &[(&str, &str)], changed: &[(&str, Option<&str>)]) -> Keys {
        let own = |text: &str| text.to_owned();
        let mut values: BTreeMap<String, String> =
            of.iter().map(|(key, value)| (own(key), own(value))).collect();
        for (key, value) in changed {
            match value {
                Some(value) => drop(values.insert(own(key), own(value))),
                None => drop(values.remove(*key)),
            }
        }
        Keys::new("/f", values)
    }

    fn refusal(of: &[(&str, &str)], changed: &[(&str, Option<&str>)]) -> String {
        let read = FrontendConfig::read(&keys(of, changed), &OFFER);
        read.expect_err("the keys are wrong").to_string()
    }

    #[test]
    fn the_keys_of_a_linux_guest_are_read() {
        let keys = keys(TWO_QUEUES, &[]);
        let config = FrontendConfig::read(&keys, &OFFER).expect("the keys are good");
        assert_eq!(config.features.caps(), OffloadCaps::NETIF);
        assert!(config.rx_notify);
        let split = |tx, rx| EventPorts::Split { tx: EvtchnPort(tx), rx: EvtchnPort(rx) };
        let queue = |tx, rx, events| QueueConfig {
            tx_ring_ref: GrantRef(tx),
            rx_ring_ref: GrantRef(rx),
            events,
        };
        let queues = [queue(1032, 1033, split(15, 16)), queue(1034, 1035, split(17, 18))];
        assert_eq!(config.queues, queues);
        assert_eq!(keys.mtu(), Ok(1500));
        assert!(keys.mac().is_ok_and(|mac| mac.is_some()));
    }

    #[test]
    fn the_keys_of_a_small_frontend_are_read() {
        let config = FrontendConfig::read(&keys(MINIMAL, &[]), &OFFER).expect("the keys are good");
        let [queue] = config.queues.as_slice() else { panic!("one queue") };
        assert_eq!(queue.events, EventPorts::Single(EvtchnPort(9)));
        assert!(!config.rx_notify && !config.features.scatter_gather);
        assert!(config.features.checksum_v4 && !config.features.checksum_v6);
    }

    #[test]
    fn keys_that_a_frontend_writes_are_read_by_the_backend_whatever_was_there_before() {
        let queue = |n: u32| QueueConfig {
            tx_ring_ref: GrantRef(n),
            rx_ring_ref: GrantRef(n + 1),
            events: EventPorts::Split { tx: EvtchnPort(n), rx: EvtchnPort(n + 1) },
        };
        let mut store: BTreeMap<String, String> = BTreeMap::new();
        for (count, has_control) in [(1, true), (4, false), (2, true), (1, true), (3, false)] {
            let queues = (0..count).map(|n| queue(n * 2)).collect();
            let features = Features::from(OffloadCaps::NONE);
            let control = ControlConfig { ring_ref: GrantRef(100), event: EvtchnPort(100) };
            let control = has_control.then_some(control);
            let config = FrontendConfig { queues, features, rx_notify: true, control };
            for change in config.changes(4, QueueCountKey::MultiQueue) {
                match change {
                    KeyChange::Set(key, value) => drop(store.insert(key, value)),
                    KeyChange::Remove(key) => {
                        store.retain(|k, _| *k != key && !k.starts_with(&format!("{key}/")));
                    }
                }
            }
            let read = FrontendConfig::read(&Keys::new("/f", store.clone()), &OFFER);
            assert_eq!(read, Ok(config));
        }
    }

    #[test]
    fn an_offer_of_a_backend_is_read_by_the_frontend() {
        let changes = OFFER.changes().into_iter().filter_map(|change| match change {
            KeyChange::Set(key, value) => Some((key, value)),
            KeyChange::Remove(_) => None,
        });
        assert_eq!(Offer::read(&Keys::new("/b", changes)), Ok(OFFER));
        let bare = Offer::read(&keys(&[("feature-rx-copy", "1")], &[])).expect("it is enough");
        assert_eq!((bare.queues_max, bare.split_event_channels), (1, false));
        //= netif.h:ctrl-ring
        assert!(!bare.control_ring);
        assert!(Offer::read(&keys(&[], &[])).is_err());
    }

    #[test]
    fn a_number_of_queues_that_is_not_offered_is_refused_with_both_numbers() {
        for (n, text) in [("0", "0"), ("5", "5"), ("4294967295", "4294967295")] {
            let refusal = refusal(TWO_QUEUES, &[("multi-queue-num-queues", Some(n))]);
            let expected =
                format!("/f/multi-queue-num-queues asks for {text} queues, expected 1 to 4");
            assert_eq!(refusal, expected);
        }
        let refusal = refusal(TWO_QUEUES, &[("multi-queue-num-queues", Some("-1"))]);
        assert!(refusal.contains("is \"-1\", expected a number"), "{refusal}");
    }

    /// Linux's frontend leaves them when it returns with several queues, and its backend reads only
    /// those of the queues.
    #[test]
    fn flat_keys_are_ignored_with_several_queues() {
        let read = |changed: &[_]| FrontendConfig::read(&keys(TWO_QUEUES, changed), &OFFER);
        let stale = QUEUE_KEYS.map(|key| (key, Some("1032")));
        assert_eq!(read(&stale), read(&[]));
        assert!(read(&[]).is_ok());
    }

    #[test]
    fn missing_unreadable_and_repeated_keys_are_refused_by_name() {
        for (key, value, text) in [
            ("queue-1/tx-ring-ref", None, "/f/queue-1/tx-ring-ref is missing"),
            ("queue-1/event-channel-rx", None, "/f/queue-1/event-channel-rx is missing"),
            ("queue-0/rx-ring-ref", Some(""), "/f/queue-0/rx-ring-ref is \"\", expected a number"),
            ("queue-0/rx-ring-ref", Some("4294967296"), "is \"4294967296\", expected a number"),
            (
                "queue-1/tx-ring-ref",
                Some("1033"),
                "/f/queue-1/tx-ring-ref is 1033, as is /f/queue-0/rx-ring-ref",
            ),
            (
                "queue-1/event-channel-tx",
                Some("16"),
                "/f/queue-1/event-channel-tx is 16, as is /f/queue-0/event-channel-rx",
            ),
            ("request-rx-copy", None, "/f/request-rx-copy is not 1"),
            ("feature-sg", Some("on"), "/f/feature-sg is \"on\", expected a number"),
        ] {
            let refusal = refusal(TWO_QUEUES, &[(key, value)]);
            assert!(refusal.contains(text), "{refusal}");
        }
        let long = "\u{7}".repeat(4000);
        assert!(refusal(TWO_QUEUES, &[("queue-0/tx-ring-ref", Some(&long))]).len() < 150);
    }

    #[test]
    fn a_control_ring_is_one_of_its_own_and_only_where_it_is_offered() {
        //= netif.h:ctrl-ring
        let read = |changed: &[_], offer: &Offer| {
            let read = FrontendConfig::read(&keys(TWO_QUEUES, changed), offer);
            read.map(|config| config.control).map_err(|bad| bad.to_string())
        };
        let (ring, event) = (("ctrl-ring-ref", Some("8")), ("event-channel-ctrl", Some("9")));
        let control = ControlConfig { ring_ref: GrantRef(8), event: EvtchnPort(9) };
        assert_eq!(read(&[ring, event], &OFFER), Ok(Some(control)));
        assert_eq!(read(&[event], &OFFER), Ok(None), "as Linux's backend reads it");
        let without = Offer { control_ring: false, ..OFFER };
        for stale in [("ctrl-ring-ref", Some("8")), ("ctrl-ring-ref", Some("none"))] {
            assert_eq!(read(&[stale], &without), Ok(None));
        }
        for (changed, text) in [
            ([ring, ("event-channel-ctrl", None)], "/f/event-channel-ctrl is missing"),
            ([("ctrl-ring-ref", Some("-8")), event], "/f/ctrl-ring-ref is \"-8\", expected"),
            (
                [("ctrl-ring-ref", Some("1035")), event],
                "/f/ctrl-ring-ref is 1035, as is /f/queue-1/rx-ring-ref",
            ),
            (
                [ring, ("event-channel-ctrl", Some("15"))],
                "/f/event-channel-ctrl is 15, as is /f/queue-0/event-channel-tx",
            ),
        ] {
            let refusal = read(&changed, &OFFER).expect_err("the keys are wrong");
            assert!(refusal.contains(text), "{refusal}");
        }
    }

    #[test]
    fn addresses_and_mtus_that_no_vif_can_have_are_refused() {
        for mac in ["", "01:16:3e:00:00:02", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00", "1:2"] {
            let error = keys(TWO_QUEUES, &[("mac", Some(mac))]).mac().expect_err(mac);
            assert!(error.to_string().contains("the Ethernet address of a station"), "{error}");
        }
        let mtu = |mtu| keys(TWO_QUEUES, &[("mtu", mtu)]).mtu();
        assert_eq!([mtu(None), mtu(Some("68")), mtu(Some("65521"))], [Ok(1500), Ok(68), Ok(65521)]);
        for bad in ["67", "65522", "-1", ""] {
            assert!(mtu(Some(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn of_both_kinds_of_event_channels_the_offered_kind_is_used() {
        let joint = Offer { split_event_channels: false, ..OFFER };
        let is_split = |offer: &Offer, changed: &[_]| {
            let config = FrontendConfig::read(&keys(MINIMAL, changed), offer).expect("good");
            matches!(config.queues[0].events, EventPorts::Split { .. })
        };
        let both = [("event-channel-tx", Some("3")), ("event-channel-rx", Some("4"))];
        let split = [both[0], both[1], ("event-channel", None)];
        assert!(is_split(&OFFER, &both) && !is_split(&joint, &both));
        assert!(is_split(&OFFER, &split) && is_split(&joint, &split));
        assert!(!is_split(&OFFER, &[]) && !is_split(&joint, &[]));
    }
}
