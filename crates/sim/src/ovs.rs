//! The Open vSwitch of the backend's host: what is in its database, and what `ovs-vsctl` does with
//! it. It outlives the processes that ask.

use std::collections::{BTreeMap, BTreeSet};

/// What is said of an `ovs-vsctl` that hangs.
const HUNG: &str = "ovs-vsctl has not ended within 10 s and was killed: does ovs-vswitchd run?";
/// The VLAN of all vifs.
pub(crate) const TAG: &str = "7";
/// Ids that a port of ringway has from its first moment on.
const NEEDED: [&str; 3] = ["ringway-vif", "ringway-device", "iface-status"];
/// The id that only a port of ringway has.
const OWNER: &str = "ringway-owner";

/// A database, and whether it replies.
#[derive(Debug, Default)]
pub(crate) struct Database {
    rows: Rows,
    silence: Silence,
    datapath: &'static str,
    version: u64,
}

/// What `ovs-vsctl` says of datapaths: that of a bridge, whether segmentation is left to it once it
/// is started again, and whether it is now.
pub(crate) const DATAPATHS: [&str; 4] = [
    "\"\"\n\n\n",
    "netdev\n\n\"false\"\n",
    "netdev\n\"true\"\n\"false\"\n",
    "netdev\n\"true\"\n\"true\"\n",
];

/// What does not respond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Silence {
    /// All is well.
    #[default]
    Nothing,
    /// The switch: the database changes, and `ovs-vsctl` waits for it.
    Switch,
    /// The database.
    Database,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Rows {
    bridges: BTreeSet<String>,
    ports: BTreeMap<String, Row>,
}

/// A port with its interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) bridge: String,
    pub(crate) vlans: BTreeMap<String, String>,
    pub(crate) ids: BTreeMap<String, String>,
}

impl Row {
    pub(crate) fn id(&self, key: &str) -> Option<&str> {
        self.ids.get(key).map(String::as_str)
    }
}

/// For the administrator.
impl Database {
    /// Counts changes.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn set_silence(&mut self, silence: Silence) {
        self.silence = silence;
        self.version += 1;
    }

    pub(crate) fn set_datapath(&mut self, datapath: &'static str) {
        self.datapath = datapath;
    }

    pub(crate) fn add_bridge(&mut self, name: &str) {
        self.version += u64::from(self.rows.bridges.insert(name.to_owned()));
    }

    /// Removes a bridge without ports; returns whether there is such a bridge.
    pub(crate) fn remove_bridge(&mut self, name: &str) -> bool {
        let is_used = self.rows.ports.values().any(|row| row.bridge == name);
        let is_removed = !is_used && self.rows.bridges.remove(name);
        self.version += u64::from(is_removed);
        is_removed
    }

    /// Adds a port of another program, which knows of the same vif; returns whether the name was
    /// free.
    pub(crate) fn add_stranger(&mut self, name: &str, vif: &str) -> bool {
        let is_free = !self.rows.ports.contains_key(name);
        if is_free {
            let ids = [(OWNER, "there"), ("ringway-vif", vif)];
            let ids = ids.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
            let row = Row { bridge: "theirs".to_owned(), ids, ..Row::default() };
            self.rows.ports.insert(name.to_owned(), row);
            self.version += 1;
        }
        is_free
    }

    /// Removes a port of another program, if that has this name.
    pub(crate) fn remove_stranger(&mut self, name: &str, owner: &str) {
        let is_its = |row: &Row| row.id(OWNER) != Some(owner);
        if self.rows.ports.get(name).is_some_and(is_its) {
            self.rows.ports.remove(name);
            self.version += 1;
        }
    }

    /// The ports of an owner, by their names.
    pub(crate) fn ports_of(&self, owner: &str) -> impl Iterator<Item = (&String, &Row)> {
        self.rows.ports.iter().filter(move |(_, row)| row.id(OWNER) == Some(owner))
    }

    /// Whether there is a port of another program with this name.
    pub(crate) fn has_stranger(&self, name: &str, owner: &str) -> bool {
        self.rows.ports.get(name).is_some_and(|row| row.id(OWNER) != Some(owner))
    }

    /// A port of an owner that lacks something.
    pub(crate) fn half_made(&self, owner: &str) -> Option<(&String, &Row)> {
        let is_whole = |row: &Row| {
            let has_tag = row.vlans.get("tag").is_some_and(|tag| tag == TAG);
            has_tag && NEEDED.iter().all(|key| row.ids.contains_key(*key))
        };
        self.ports_of(owner).find(|(_, row)| !is_whole(row))
    }
}

/// For `ovs-vsctl`.
impl Database {
    /// Runs `ovs-vsctl` with these arguments.
    pub(crate) fn run(&mut self, words: &[String]) -> Result<String, String> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        if self.silence == Silence::Database {
            return Err(HUNG.to_owned());
        }
        match words.as_slice() {
            ["--format=json", "--columns=name,external_ids", "find", "Interface", which @ ..] => {
                Ok(self.rows.found(which))
            }
            ["port-to-br", port] => {
                let row = self.rows.ports.get(*port);
                row.map(|row| format!("{}\n", row.bridge)).ok_or_else(|| missing(port))
            }
            ["--", "get", "Bridge", bridge, "datapath_type", "--", "--if-exists", "get", ..] => {
                let is_there = self.rows.bridges.contains(*bridge);
                let missing = || format!("ovs-vsctl: no row \"{bridge}\" in table Bridge");
                is_there.then(|| self.datapath.to_owned()).ok_or_else(missing)
            }
            ["--", ..] => self.commit(&words),
            other => panic!("ovs-vsctl has no command {other:?}"),
        }
    }

    /// Carries out the commands between `--`: all of them, or none.
    fn commit(&mut self, words: &[&str]) -> Result<String, String> {
        let mut rows = self.rows.clone();
        for command in words.split(|word| *word == "--").filter(|command| !command.is_empty()) {
            rows.apply(command)?;
        }
        self.version += u64::from(rows != self.rows);
        self.rows = rows;
        match self.silence {
            Silence::Nothing => Ok(String::new()),
            Silence::Switch | Silence::Database => Err(HUNG.to_owned()),
        }
    }
}

impl Rows {
    fn row(&mut self, port: &str) -> Result<&mut Row, String> {
        self.ports.get_mut(port).ok_or_else(|| missing(port))
    }

    fn apply(&mut self, command: &[&str]) -> Result<(), String> {
        match command {
            ["--may-exist", "add-port", bridge, port] => {
                if !self.bridges.contains(*bridge) {
                    return Err(format!("ovs-vsctl: no bridge named {bridge}"));
                }
                let made = || Row { bridge: (*bridge).to_owned(), ..Row::default() };
                let row = self.ports.entry((*port).to_owned()).or_insert_with(made);
                if row.bridge != *bridge {
                    return Err(format!("ovs-vsctl: {port} is on bridge {}", row.bridge));
                }
            }
            ["--if-exists", "del-port", port] => drop(self.ports.remove(*port)),
            ["clear", "Port", port, columns @ ..] => {
                self.row(port)?.vlans.retain(|column, _| !columns.contains(&column.as_str()));
            }
            ["set", "Port", port, values @ ..] => {
                self.row(port)?.vlans.extend(values.iter().map(|value| pair(value)));
            }
            ["remove", "Interface", port, "external_ids", keys @ ..] => {
                self.row(port)?.ids.retain(|key, _| !keys.contains(&key.as_str()));
            }
            ["set", "Interface", port, values @ ..] => {
                let ids = values.iter().filter_map(|value| value.strip_prefix("external_ids:"));
                self.row(port)?.ids.extend(ids.map(pair));
            }
            other => panic!("ovs-vsctl has no command {other:?}"),
        }
        Ok(())
    }

    /// The interfaces that meet all conditions, as JSON.
    fn found(&self, conditions: &[&str]) -> String {
        let meets = |name: &str, row: &Row, condition: &str| {
            let (key, value) = pair(condition);
            match key.strip_prefix("external_ids:") {
                Some(key) => row.id(key) == Some(value.as_str()),
                None => key == "name" && name == value,
            }
        };
        let rows = self.ports.iter().filter(|(name, row)| {
            conditions.iter().all(|condition| meets(name.as_str(), row, condition))
        });
        let rows = rows.map(|(name, row)| {
            let ids: Vec<String> =
                row.ids.iter().map(|(key, value)| format!("[{key:?},{value:?}]")).collect();
            format!("[{name:?},[\"map\",[{}]]]", ids.join(","))
        });
        format!("{{\"data\":[{}],\"headings\":[]}}", rows.collect::<Vec<_>>().join(","))
    }
}

fn missing(port: &str) -> String {
    format!("ovs-vsctl: no port named {port}")
}

/// `KEY=VALUE`, of which the value may be in quotes. No value here has any inside.
fn pair(text: &str) -> (String, String) {
    let (key, value) = text.split_once('=').expect("a pair");
    (key.to_owned(), value.trim_matches('"').to_owned())
}
