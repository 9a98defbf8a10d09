//! Details of interfaces, as `ip -d -j link show` prints them, and without `-j`, as in a sos
//! report: of the latter, XDP programs and the ends of tunnels.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Counters;
use crate::{Gap, Text};

/// All interfaces of a network namespace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Links {
    /// In the order of the tool.
    pub all: Vec<Link>,
}

/// One of them.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Link {
    /// Its name.
    #[serde(default)]
    pub ifname: String,
    /// The program that decides about its packets before the kernel does.
    #[serde(default)]
    pub xdp: Option<Xdp>,
    /// What is special to its kind.
    #[serde(default)]
    pub linkinfo: Info,
}

/// An XDP program.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Xdp {
    /// The first of the programs, if there are several.
    #[serde(default)]
    pub prog: Option<Program>,
    /// All of them, if there are several.
    #[serde(default)]
    pub attached: Vec<Xdp>,
}

/// A program that was loaded into the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Program {
    /// Its number, as of `bpftool prog`.
    #[serde(default)]
    pub id: u64,
    /// Its name, if it has one.
    #[serde(default)]
    pub name: Option<String>,
}

/// What is special to a kind of interface.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Info {
    /// Such as `vxlan` or `bridge`.
    #[serde(default)]
    pub info_kind: String,
    /// Settings of that kind.
    #[serde(default)]
    pub info_data: Value,
}

impl Link {
    /// The XDP program, also one of several.
    pub fn program(&self) -> Option<&Program> {
        let xdp = self.xdp.as_ref()?;
        xdp.prog.as_ref().or_else(|| xdp.attached.iter().find_map(|one| one.prog.as_ref()))
    }

    /// Whether it is a tunnel whose outer packets are IPv6; `None` if its other end is not set.
    pub fn is_over_ipv6(&self) -> Option<bool> {
        let has = |names: [&str; 3]| names.iter().any(|name| !self.set(name).is_null());
        match has(["remote6", "group6", "local6"]) {
            true => Some(true),
            false => has(["remote", "group", "local"]).then_some(false),
        }
    }

    /// A setting of its kind; `Null` without it.
    pub fn set(&self, name: &str) -> &Value {
        &self.linkinfo.info_data[name]
    }
}

impl Links {
    /// The command that shows them.
    pub(crate) const COMMAND: &[&str] = &["ip", "-d", "-j", "link", "show"];

    /// One of them by its name.
    pub fn of(&self, nic: &str) -> Option<&Link> {
        self.all.iter().find(|link| link.ifname == nic)
    }
}

impl Counters for Links {
    fn parse(text: &Text) -> Result<Links, Gap> {
        if text.value().starts_with(|letter: char| letter.is_ascii_digit()) {
            return Ok(plain(text));
        }
        let all = serde_json::from_str(text.value())
            .map_err(|error| text.unreadable(Some(error.line()), error.to_string()))?;
        Ok(Links { all })
    }
}

fn plain(text: &Text) -> Links {
    let mut all: Vec<Link> = Vec::new();
    for (_, row) in text.lines() {
        let words: Vec<&str> = row.split_whitespace().collect();
        let after = |name: &str| words.windows(2).find(|two| two[0] == name).map(|two| two[1]);
        if row.starts_with(|letter: char| letter.is_ascii_digit()) {
            let name = words.get(1).map_or("", |name| name.trim_end_matches(':'));
            let ifname = name.split('@').next().unwrap_or(name).to_owned();
            all.push(Link { ifname, ..Link::default() });
        }
        let Some(link) = all.last_mut() else { continue };
        if words.first() == Some(&"prog/xdp") {
            let id = after("id").and_then(|id| id.parse().ok()).unwrap_or_default();
            let name = after("name").map(str::to_owned);
            link.xdp = Some(Xdp { prog: Some(Program { id, name }), ..Xdp::default() });
        }
        if let [kind @ ("vxlan" | "geneve"), ..] = words.as_slice() {
            let ends = ["remote", "group", "local"].into_iter();
            let ends = ends.filter_map(|name| Some((name, after(name)?)));
            let key = |name: &str, end: &str| match end.contains(':') {
                true => format!("{name}6"),
                false => name.to_owned(),
            };
            let ends = ends.map(|(name, end)| (key(name, end), json!(end)));
            link.linkinfo.info_kind = (*kind).to_owned();
            link.linkinfo.info_data = Value::Object(ends.collect());
        }
    }
    Links { all }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_special_to_an_interface_is_read() {
        let text = r#"[{"ifname":"lo"},
            {"ifname":"vx","linkinfo":{"info_kind":"vxlan",
             "info_data":{"id":7,"remote6":"2001:db8::1"}}},
            {"ifname":"vy","linkinfo":{"info_kind":"vxlan","info_data":{"id":8}}},
            {"ifname":"a","xdp":{"mode":2,"prog":{"id":9,"name":"xdp_drop","tag":"x"}},
             "linkinfo":{"info_kind":"veth"}}]"#;
        let links = Links::parse(&Text::new("ip", text)).expect("sound");
        let over = |nic: &str| links.of(nic).expect("it is there").is_over_ipv6();
        assert_eq!((over("vx"), over("vy"), over("lo")), (Some(true), None, None));
        let port = links.of("a").expect("it is there");
        let name = Some("xdp_drop".to_owned());
        assert_eq!(port.program(), Some(&Program { id: 9, name }));
        let text = "1: lo: <UP> mtu 65536\n9: vx0@a: <UP> mtu 1450 qdisc\n    link/ether 0a\n    \
                    vxlan id 7 remote 2001:db8::1 dev a\n    prog/xdp id 9 name guard\n";
        let links = Links::parse(&Text::new("ip", text)).expect("sound");
        let tunnel = links.of("vx0").expect("it is there");
        assert_eq!(tunnel.is_over_ipv6(), Some(true));
        assert_eq!(tunnel.program().map(|one| one.id), Some(9));
        for torn in ["", "[", "{}", r#"[{"ifname":1}]"#] {
            assert!(Links::parse(&Text::new("ip", torn)).is_err(), "{torn:?}");
        }
    }
}
