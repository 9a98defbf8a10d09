//! Pairs of vifs that are the two ends of a link: each names the other.

use toml::Spanned;

use super::{Source, Usage, is_xen_vif};
use crate::section::{FileSection, VifSection};

/// A vif, by its name as a port.
struct End<'a> {
    of: &'static str,
    name: String,
    /// What distinguishes tenants with processes of their own: the name, or the only owner, with a
    /// space, which no name has.
    tenant: String,
    section: &'a VifSection,
}

fn tenant(section: &VifSection, kind: &str, owner: &str) -> String {
    let named = section.tenant.as_ref().map(|it| it.get_ref().0.clone());
    named.unwrap_or_else(|| format!("{kind} {owner}"))
}

impl Source<'_> {
    /// Checks `link-local-to` of all vifs. Those that a toolstack makes are not known here.
    pub(super) fn check_links(&self, sections: &FileSection, usage: Usage) {
        let isolate = sections.host.isolate.as_ref().is_some_and(|it| *it.get_ref());
        let is_isolated = usage.isolate || isolate;
        let guests = (1_u16..).zip(sections.guest.iter().map(Spanned::get_ref));
        let of_guests = guests.flat_map(|(number, guest)| {
            let name = guest.name.as_ref().map_or("", |name| name.get_ref().0.as_str());
            (0_u8..).zip(&guest.vif).map(move |(handle, vif)| {
                let section = vif.get_ref();
                let tenant = tenant(section, "guest", name);
                End { of: "guest.vif", name: format!("vif{number}.{handle}"), tenant, section }
            })
        });
        let of_vhosts = sections.vhosts().filter_map(|(of, section)| {
            let name = section.name.as_ref()?.get_ref().0.clone();
            let tenant = tenant(section, "vhost", &name);
            Some(End { of, name, tenant, section })
        });
        let ends: Vec<End<'_>> = of_guests.chain(of_vhosts).collect();
        for End { of, name, tenant, section } in &ends {
            let Some(to) = &section.link_local_to else { continue };
            let found = ends.iter().find(|end| end.name == *to.get_ref());
            let back = found.and_then(|end| end.section.link_local_to.as_ref());
            let reason = match found {
                Some(end) if end.name == *name => "is this vif: expected another".to_owned(),
                Some(_) if back.is_none_or(|back| back.get_ref() != name) => {
                    format!("does not name `{name}`: each of the two must name the other")
                }
                Some(end) if is_isolated && end.tenant != *tenant => {
                    "is of another tenant: expected a vif of the same".to_owned()
                }
                None if !(usage.has_toolstack && is_xen_vif(to.get_ref())) => {
                    "is no vif: expected one such as vif1.0, a [[vhost]] or [[namespace]]"
                        .to_owned()
                }
                _ => continue,
            };
            let message = format!("{of}.link-local-to: `{}` {reason}", to.get_ref());
            self.fault_at(to, &message);
        }
    }
}
