//! The types of a description's values; each describes valid values for error messages.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::marker::PhantomData;
use std::net::IpAddr;
use std::str::FromStr;

use ringway_datapath::{IpNetwork, MacAddr, Mirrored, words};
use ringway_steering::FlowKey;
use ringway_units::Size;
use ringway_vhost::backend::{FEATURES, PROTOCOL_FEATURES, REQUIRED};
use ringway_wire::vhost_user::{PROTOCOL_FEATURE_NAMES, protocol_names};
use ringway_wire::virtio::Features;
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};

/// Longest name of a network interface (`IFNAMSIZ` less the zero byte).
const INTERFACE_NAME_LEN_MAX: usize = 15;
/// Longest name of a guest: it becomes part of the path of a socket, which has 108 bytes in all.
const GUEST_NAME_LEN_MAX: usize = 32;
/// Longest name of a tenant: it names a directory with a socket, whose path has the same limit.
const TENANT_NAME_LEN_MAX: usize = 20;
/// Longest path of a socket (`sockaddr_un`, less the zero byte).
const SOCKET_PATH_LEN_MAX: usize = 107;
/// Longest name of a group (`LOGIN_NAME_MAX`, less the zero byte).
const GROUP_LEN_MAX: usize = 255;
/// The prefix of the names given to vifs without a tenant of their own.
const OF_DOMAIN: &str = "domain-";
const OF_VHOST: &str = "vhost-";

macro_rules! shown_as_their_contents {
    ($($name:ident,)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

shown_as_their_contents! {
    Mac,
    Network,
    FlowKeyText,
    InterfaceName,
    GuestName,
    VhostName,
    SocketPath,
    GroupText,
    TenantName,
    MirroredText,
}

/// An address with the length of its network's prefix, such as `10.77.0.1/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    /// The address.
    pub address: IpAddr,
    /// Bits of it that name the network.
    pub prefix_len: u8,
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Cidr, String> {
        let refusal = || {
            format!(
                "`{text}` is not an address with a prefix length: expected one such as \
                 `10.77.0.1/24` \
                 or `fd77::1/64`"
            )
        };
        let (address, prefix_len) = text.split_once('/').ok_or_else(refusal)?;
        let address: IpAddr = address.parse().map_err(|_| refusal())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix_len = prefix_len.parse().ok().filter(|len| *len <= bits).ok_or_else(refusal)?;
        Ok(Cidr { address, prefix_len })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_len)
    }
}

/// An Ethernet address that an interface may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mac(pub MacAddr);

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Mac, String> {
        let mac = MacAddr::parse(text).ok_or_else(|| {
            format!("`{text}` is not an Ethernet address: expected one such as `00:16:3e:00:00:02`")
        })?;
        if mac.0[0] & 1 != 0 || mac.0 == [0; 6] {
            return Err(format!(
                "`{text}` is a group address or zero: expected one with an even first byte"
            ));
        }
        Ok(Mac(mac))
    }
}

/// IP addresses that a guest may have: one, or a network of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network(pub IpNetwork);

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        text.parse().map(Network)
    }
}

/// The key of the default hash of flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowKeyText(pub FlowKey);

impl FlowKeyText {
    /// A key that no sender can guess.
    pub fn random() -> FlowKeyText {
        // The system draws the keys of a hash map at random, and its hashes show nothing of them.
        let random = RandomState::new();
        FlowKeyText(FlowKey::new([0, 1].map(|word: u64| random.hash_one(word))))
    }
}

impl FromStr for FlowKeyText {
    type Err = String;

    fn from_str(text: &str) -> Result<FlowKeyText, String> {
        text.parse().map(FlowKeyText).map_err(|error| format!("`{text}` is not a key: {error}"))
    }
}

/// A text that is what it claims to be.
macro_rules! texts {
    ($($(#[$about:meta])* $name:ident: |$text:ident| $is_good:expr, $refusal:expr;)*) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub String);

        impl FromStr for $name {
            type Err = String;

            fn from_str($text: &str) -> Result<$name, String> {
                if $is_good { Ok($name($text.to_owned())) } else { Err($refusal) }
            }
        }
    )*};
}

texts! {
    /// The name of a network interface.
    InterfaceName: |text|
        (1..=INTERFACE_NAME_LEN_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"/:%".contains(&byte))
            && text != "."
            && text != "..",
        format!(
            "`{text}` is not an interface name: expected 1 to {INTERFACE_NAME_LEN_MAX} visible \
             characters without `/`, `:` and `%`"
        );
    /// The name of a guest: letters, digits, `-`, `_` and `.`, because it is part of file names.
    GuestName: |text| is_file_name(text, GUEST_NAME_LEN_MAX),
        format!(
            "`{text}` is not a guest name: expected 1 to {GUEST_NAME_LEN_MAX} letters, digits, \
             `-`, `_` and `.`, the first a letter or digit"
        );
    /// The name of a virtio vif.
    VhostName: |text|
        is_file_name(text, GUEST_NAME_LEN_MAX)
            && !text.starts_with("vif")
            && text != Mirrored::ALL,
        match text {
            Mirrored::ALL => {
                format!("`{text}` means all ports, as in `mirror`: choose another name")
            }
            _ => format!(
                "`{text}` is not a name for a vif: expected 1 to {GUEST_NAME_LEN_MAX} letters, \
                 digits, `-`, `_` and `.`, the first a letter or digit, and no `vif` at the \
                 start, which is for Xen's"
            ),
        };
    /// The path of a Unix socket.
    SocketPath: |text|
        text.starts_with('/')
            && !text.ends_with('/')
            && text.len() <= SOCKET_PATH_LEN_MAX
            && !text.contains('\0'),
        format!(
            "`{text}` is not a socket path: expected one that begins with `/` and has at most \
             {SOCKET_PATH_LEN_MAX} bytes"
        );
    /// A group of the host: its name or its number.
    GroupText: |text|
        (1..=GROUP_LEN_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic() && !b":,/".contains(&byte)),
        format!(
            "`{text}` is not a group: expected a name of at most {GROUP_LEN_MAX} letters, digits, \
             `-`, `_` and `.`, or a number"
        );
    /// The name of a tenant, whose vifs have a process of their own: part of names of files, as a
    /// guest's name is, and of sockets, whose paths must be short.
    TenantName: |text|
        is_file_name(text, TENANT_NAME_LEN_MAX) && !text.starts_with(OF_DOMAIN),
        format!(
            "`{}` is not a tenant name: expected 1 to {TENANT_NAME_LEN_MAX} letters, digits, `-`, \
             `_` and `.`, the first a letter or digit, and not `{OF_DOMAIN}`",
            text.escape_debug().take(2 * TENANT_NAME_LEN_MAX).collect::<String>()
        );
}

fn is_file_name(text: &str, len_max: usize) -> bool {
    (1..=len_max).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
}

/// Which end creates a vhost-user socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SocketMode {
    /// The virtual machine monitor does, and we connect.
    #[default]
    Client,
    /// We do, and it connects.
    Server,
}

words! {
    SocketMode { Client = "client", Server = "server" }
    else |text| format!(
        "`{text}` is not a mode: expected `client`, where QEMU creates the socket, or `server`"
    )
}

/// A feature that a virtio vif should offer, or should not: `ring_packed`, `-guest_tso4`,
/// `-protocol:rarp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureText {
    /// Virtio features; none if it is a protocol feature.
    pub features: Features,
    /// Protocol features; none if it is a virtio feature.
    pub protocol: u64,
    /// Whether to offer it.
    pub is_on: bool,
    text: String,
}

/// The prefix of a feature that should not be offered.
const OFF: &str = "-";
/// The prefix of a protocol feature.
const OF_PROTOCOL: &str = "protocol:";

impl FeatureText {
    /// Its name, whether it is offered or not.
    pub(crate) fn name(&self) -> &str {
        self.text.strip_prefix(OFF).unwrap_or(&self.text)
    }
}

impl FromStr for FeatureText {
    type Err = String;

    fn from_str(text: &str) -> Result<FeatureText, String> {
        let (name, is_on) = text.strip_prefix(OFF).map_or((text, true), |name| (name, false));
        let (features, protocol) = match name.strip_prefix(OF_PROTOCOL) {
            None => (Features::named(name).unwrap_or(Features::NONE).and(FEATURES), 0),
            Some(name) => {
                let found = PROTOCOL_FEATURE_NAMES.iter().find(|(_, known)| *known == name);
                (Features::NONE, found.map_or(0, |(bit, _)| bit & PROTOCOL_FEATURES))
            }
        };
        if features == Features::NONE && protocol == 0 {
            let known: Vec<String> = FEATURES.names().map(str::to_owned).collect();
            let of_protocol = protocol_names(PROTOCOL_FEATURES);
            let of_protocol: Vec<String> =
                of_protocol.map(|name| format!("{OF_PROTOCOL}{name}")).collect();
            return Err(format!(
                "`{text}` is not a feature that can be offered: expected one of {}, {}, with `-` \
                 before it to not offer it",
                known.join(", "),
                of_protocol.join(", ")
            ));
        }
        if !is_on && features.and(REQUIRED) != Features::NONE {
            return Err(format!("`{text}`: virtio over vhost-user needs {name}"));
        }
        Ok(FeatureText { features, protocol, is_on, text: text.to_owned() })
    }
}

impl fmt::Display for FeatureText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl TenantName {
    /// The tenant of a domain's vifs that name none.
    pub fn of_domain(domid: u16) -> TenantName {
        TenantName(format!("{OF_DOMAIN}{domid}"))
    }

    /// The longest name of a virtio vif that names no tenant and has one of its own.
    pub(crate) const VHOST_LEN_MAX: usize = TENANT_NAME_LEN_MAX - OF_VHOST.len();

    /// The tenant of a virtio vif that names none, if its name is not too long.
    pub(crate) fn of_vhost(name: &VhostName) -> Option<TenantName> {
        let fits = name.0.len() <= TenantName::VHOST_LEN_MAX;
        fits.then(|| TenantName(format!("{OF_VHOST}{name}")))
    }
}

/// A port whose frames a mirror copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirroredText(pub Mirrored);

impl FromStr for MirroredText {
    type Err = String;

    fn from_str(text: &str) -> Result<MirroredText, String> {
        text.parse().map(MirroredText)
    }
}

/// An amount of memory, such as `16GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemorySize {
    /// Bytes.
    pub bytes: u64,
}

/// Units in which an amount of memory is shown, and their bytes.
const MEMORY_UNITS: [(&str, u64); 3] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20)];

impl FromStr for MemorySize {
    type Err = String;

    fn from_str(text: &str) -> Result<MemorySize, String> {
        let size = text.parse::<Size>().ok();
        let bytes: Option<u64> = size.and_then(|size| format!("{:.0}", size.0).parse().ok());
        bytes.filter(|bytes| *bytes > 0).map(|bytes| MemorySize { bytes }).ok_or_else(|| {
            format!("`{text}` is not an amount of memory: expected one such as `16GiB` or `512MiB`")
        })
    }
}

impl fmt::Display for MemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, bytes): &(&str, u64)| self.bytes % bytes == 0;
        match MEMORY_UNITS.into_iter().find(fits) {
            Some((unit, bytes)) => write!(f, "{}{unit}", self.bytes / bytes),
            None => write!(f, "{}B", self.bytes),
        }
    }
}

/// A whole number with limits that its type names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Within<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> Within<MIN, MAX> {
    /// As a smaller type, which must contain the limits.
    pub(crate) fn get<T: TryFrom<u64>>(self) -> Option<T> {
        T::try_from(self.0).ok()
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Within<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_i64(WithinVisitor)
    }
}

/// A visitor, so that the parser knows the place of a number that is refused, also in a list.
struct WithinVisitor<const MIN: u64, const MAX: u64>;

impl<const MIN: u64, const MAX: u64> Visitor<'_> for WithinVisitor<MIN, MAX> {
    type Value = Within<MIN, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("i64")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        match u64::try_from(number) {
            Ok(number) if (MIN..=MAX).contains(&number) => Ok(Within(number)),
            _ => Err(E::custom(format!(
                "{number} is out of range: expected a whole number from {MIN} to {MAX}"
            ))),
        }
    }
}

/// Values that are written as text, or absent.
pub(crate) mod optional_text {
    use super::*;

    pub(crate) fn serialize<T: fmt::Display, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().map(ToString::to_string).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, T: FromStr<Err = String>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

/// Serialises a value as its text.
pub(crate) mod text {
    use super::*;

    /// As text.
    pub(crate) fn serialize<T: fmt::Display, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    /// From text.
    pub(crate) fn deserialize<'de, T: FromStr<Err = String>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        deserializer.deserialize_str(TextVisitor(PhantomData))
    }

    /// A visitor, so that the parser knows the place of a text that is refused, also in a list.
    struct TextVisitor<T>(PhantomData<T>);

    impl<T: FromStr<Err = String>> Visitor<'_> for TextVisitor<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }
    }
}

macro_rules! as_text {
    ($($type:ty),*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                text::serialize(self, serializer)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                text::deserialize(deserializer)
            }
        }
    )*};
}

pub(crate) use as_text;

as_text!(Cidr, Mac, Network, InterfaceName, GuestName, TenantName, MirroredText);
as_text!(VhostName, SocketPath, SocketMode, FeatureText, FlowKeyText, GroupText, MemorySize);
