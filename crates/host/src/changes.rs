//! What became of a description that was read again while its host ran.

use std::fmt;

/// The differences between the description in force and one that was read again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DescriptionChanges {
    /// Names of vifs that were not described before.
    pub added: Vec<String>,
    /// Names of vifs that are not described any more, and have ended.
    pub removed: Vec<String>,
    /// Vifs that are described in another way.
    pub vifs: Vec<VifChanges>,
    /// Keys of the switch and the uplink whose new values are in force, such as `uplink.vlan`, and
    /// new bridges, such as `bridge br0`.
    pub common: Vec<String>,
    /// Why the rules of the uplink are as they were, if so.
    pub uplink_refused: Option<String>,
}

/// What has changed of a vif.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VifChanges {
    /// Its name.
    pub vif: String,
    /// Keys whose new values are in force.
    pub changed: Vec<String>,
    /// Keys that are as they were, because they cannot change while the vif is served.
    pub kept: Vec<String>,
    /// Why this host could not apply its rules, which are as they were, if so.
    pub refused: Option<String>,
}

impl VifChanges {
    /// Whether it is as it was, and as it is described.
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.kept.is_empty() && self.refused.is_none()
    }
}

impl DescriptionChanges {
    /// What stays as it was, and what an administrator can do about it, a sentence each.
    pub fn kept(&self) -> Vec<String> {
        let of_vifs = self.vifs.iter().filter(|vif| !vif.kept.is_empty()).map(|vif| {
            format!(
                "kept as it was: {} of {} cannot change while the vif is served: restart the host, \
                 or remove its section, reload, and add it again",
                vif.kept.join(", "),
                vif.vif
            )
        });
        let refused = self.vifs.iter().filter_map(|vif| {
            Some(format!("kept as they were: the rules of {}: {}", vif.vif, vif.refused.as_ref()?))
        });
        let of_uplink = self.uplink_refused.iter();
        let of_uplink =
            of_uplink.map(|reason| format!("kept as they were: the rules of the uplink: {reason}"));
        of_vifs.chain(refused).chain(of_uplink).collect()
    }
}

/// What is in force now and was not before, in one line.
impl fmt::Display for DescriptionChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |what: &str, names: &[String]| {
            (!names.is_empty()).then(|| format!("{what} {}", names.join(", ")))
        };
        let changed = self.vifs.iter().filter(|vif| !vif.changed.is_empty());
        let changed =
            changed.map(|vif| format!("changed {} of {}", vif.changed.join(", "), vif.vif));
        let parts = [("added", &self.added), ("removed", &self.removed), ("changed", &self.common)];
        let parts = parts.into_iter().filter_map(|(what, names)| named(what, names));
        let parts: Vec<String> = parts.chain(changed).collect();
        match parts.is_empty() {
            true => f.write_str("nothing has changed"),
            false => f.write_str(&parts.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn what_is_in_force_is_one_line_and_what_is_not_has_a_sentence_each() {
        let nothing = DescriptionChanges::default();
        assert_eq!(
            (nothing.to_string().as_str(), nothing.kept().len()),
            ("nothing has changed", 0)
        );
        let changes = DescriptionChanges {
            added: names(&["vm3"]),
            removed: names(&["vm4", "vm5"]),
            vifs: vec![
                VifChanges {
                    vif: "vm1".to_owned(),
                    changed: names(&["vlan"]),
                    kept: names(&["mac", "queues"]),
                    refused: None,
                },
                VifChanges {
                    vif: "vm2".to_owned(),
                    refused: Some("there are too many".to_owned()),
                    ..VifChanges::default()
                },
            ],
            common: names(&["uplink.vlan"]),
            uplink_refused: Some("it has no room".to_owned()),
        };
        let line = "added vm3; removed vm4, vm5; changed uplink.vlan; changed vlan of vm1";
        assert_eq!(changes.to_string(), line);
        let expected = [
            "kept as it was: mac, queues of vm1 cannot change while the vif is served: restart the \
             host, or remove its section, reload, and add it again",
            "kept as they were: the rules of vm2: there are too many",
            "kept as they were: the rules of the uplink: it has no room",
        ];
        assert_eq!(changes.kept(), expected);
    }

    #[test]
    fn a_vif_of_which_anything_differs_is_not_as_it_was() {
        let same = VifChanges { vif: "vm1".to_owned(), ..VifChanges::default() };
        assert!(same.is_empty());
        for other in [
            VifChanges { changed: names(&["vlan"]), ..same.clone() },
            VifChanges { kept: names(&["mac"]), ..same.clone() },
            VifChanges { refused: Some("no room".to_owned()), ..same.clone() },
        ] {
            assert!(!other.is_empty(), "{other:?}");
        }
    }
}
