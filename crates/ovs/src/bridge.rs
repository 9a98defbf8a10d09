//! The name of a bridge, with the VLANs of a port on it.

use std::fmt;
use std::str::FromStr;

use ringway_datapath::{Vid, VlanRules};
use serde::{Deserialize, Serialize};

/// The longest name of a network interface, which a bridge has, too.
const NAME_MAX: usize = 15; // not a limit: the kernel's

/// Where a port is to be: `br-int`, `br-int.7` or `br-int.7:8:9`, as Xen's script
/// `vif-openvswitch` takes `bridge` of a vif.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OvsBridge {
    /// The bridge.
    pub name: String,
    /// The VLAN of the port's untagged frames.
    pub tag: Option<u16>,
    /// The VLANs of its tagged frames; of all VLANs if there is neither a tag nor a trunk.
    pub trunks: Vec<u16>,
}

impl FromStr for OvsBridge {
    type Err = String;

    /// The name begins with a letter or digit: `ovs-vsctl` would take a `-` for an option.
    fn from_str(text: &str) -> Result<OvsBridge, String> {
        parse(text).ok_or_else(|| {
            format!(
                "{:?} names no bridge of Open vSwitch: expected a name of at most {NAME_MAX} \
                 letters, digits, - and _, then perhaps a VLAN behind a dot, and at most {} VLANs \
                 of a trunk, each behind a colon, such as br-int.7:8:9",
                shortened(text),
                VlanRules::TAGGED_MAX
            )
        })
    }
}

impl TryFrom<String> for OvsBridge {
    type Error = String;

    fn try_from(text: String) -> Result<OvsBridge, String> {
        text.parse()
    }
}

impl From<OvsBridge> for String {
    fn from(bridge: OvsBridge) -> String {
        bridge.to_string()
    }
}

fn parse(text: &str) -> Option<OvsBridge> {
    let mut parts = text.split(':');
    let first = parts.next()?;
    let (name, tag) = match first.split_once('.') {
        None => (first, None),
        Some((name, tag)) => (name, Some(vlan(tag)?)),
    };
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let begins_well = name.bytes().next()?.is_ascii_alphanumeric();
    if !begins_well || name.len() > NAME_MAX || !name.bytes().all(is_good) {
        return None;
    }
    let trunks = parts.map(vlan).take(VlanRules::TAGGED_MAX + 1).collect::<Option<Vec<u16>>>()?;
    let is_short = trunks.len() <= VlanRules::TAGGED_MAX;
    is_short.then(|| OvsBridge { name: name.to_owned(), tag, trunks })
}

fn vlan(text: &str) -> Option<u16> {
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_decimal).and_then(Vid::new).map(Vid::get)
}

/// A text of others, as far as a message repeats it.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

impl fmt::Display for OvsBridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.tag.iter().try_for_each(|tag| write!(f, ".{tag}"))?;
        self.trunks.iter().try_for_each(|vlan| write!(f, ":{vlan}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<(String, Option<u16>, Vec<u16>)> {
        let read = text.parse::<OvsBridge>().ok()?;
        assert_eq!(read.to_string(), text);
        Some((read.name, read.tag, read.trunks))
    }

    #[test]
    fn the_forms_of_the_stock_script_are_read() {
        let found = |name: &str, tag, trunks: &[u16]| Some((name.to_owned(), tag, trunks.to_vec()));
        assert_eq!(read("br-int"), found("br-int", None, &[]));
        assert_eq!(read("br-int.7"), found("br-int", Some(7), &[]));
        assert_eq!(read("br-int:7:8"), found("br-int", None, &[7, 8]));
        assert_eq!(read("br_0.4094:1:4094"), found("br_0", Some(4094), &[1, 4094]));
        let most = format!("b{}", ":2".repeat(64));
        assert_eq!(read(&most).expect("64 of them").2.len(), 64);
    }

    #[test]
    fn anything_else_is_refused_and_shortly_repeated() {
        for bad in [
            "",
            ".7",
            "br.",
            "br:",
            "br.7:",
            "br.7.8",
            "br:7.8",
            "br.0",
            "br.4095",
            "br.+7",
            "br. 7",
            "br:seven",
            "--db=x",
            "-br",
            "br int",
            "br;id",
            "br/0",
            "br\"",
            "sixteen-letters-",
        ] {
            let refusal = bad.parse::<OvsBridge>().expect_err(bad);
            assert!(refusal.contains("br-int.7:8:9"), "{refusal}");
        }
        assert!(format!("b{}", ":2".repeat(65)).parse::<OvsBridge>().is_err());
        let long = "\u{7}".repeat(4000);
        assert!(long.parse::<OvsBridge>().is_err_and(|refusal| refusal.len() < 600));
    }
}
