//! Whether frames that arrive by a link end in its network namespace.

use std::io;

use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    AfSpecInet, AfSpecInet6, AfSpecUnspec, InfoKind, LinkAttribute, LinkInfo, LinkMessage, LinkXdp,
    XdpAttached,
};
use netlink_packet_route::tc::{TcAttribute, TcMessage};

use crate::{Netlink, explain};

impl Netlink {
    /// Whether all frames that arrive by a link end in the kernel's own TCP/IP, as far as rtnetlink
    /// shows: the link forwards nothing, is part of no bridge, bond or other device, and neither
    /// an XDP program nor a filter of tc sees its frames. Rules of nftables in the family `netdev`
    /// and programs that are attached by tcx do not show.
    ///
    /// # Errors
    /// `NotFound` if no link has that name, or what the kernel reports.
    pub fn is_local_end(&mut self, name: &str) -> io::Result<bool> {
        let index = self.link(name)?.index;
        let links = self.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
        let passes_on = links.iter().any(|message| match message {
            RouteNetlinkMessage::NewLink(link) if link.header.index == index => {
                link.attributes.iter().any(passes_on)
            }
            // A VLAN, macvlan or ipvlan device over it.
            RouteNetlinkMessage::NewLink(link) => is_over(&link.attributes, index),
            _ => false,
        });
        if passes_on {
            return Ok(false);
        }
        let disciplines = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default());
        Ok(!self.dump(disciplines)?.iter().any(|message| match message {
            RouteNetlinkMessage::NewQueueDiscipline(discipline) => {
                u32::try_from(discipline.header.index) == Ok(index)
                    && discipline.attributes.iter().any(sees_arrivals)
            }
            _ => false,
        }))
    }

    fn dump(&mut self, message: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.socket
            .request(message, NLM_F_DUMP)
            .map_err(|error| explain(&error, "what a link does with frames"))
    }
}

fn passes_on(attribute: &LinkAttribute) -> bool {
    match attribute {
        LinkAttribute::Controller(index) => *index != 0,
        LinkAttribute::Xdp(programs) => programs.iter().any(|program| {
            matches!(program, LinkXdp::Attached(attached) if *attached != XdpAttached::None)
        }),
        LinkAttribute::AfSpecUnspec(families) => families.iter().any(|family| match family {
            AfSpecUnspec::Inet(settings) => settings.iter().any(|setting| {
                matches!(setting, AfSpecInet::DevConf(settings) if settings.forwarding != 0)
            }),
            AfSpecUnspec::Inet6(settings) => settings.iter().any(|setting| {
                matches!(setting, AfSpecInet6::DevConf(settings) if settings.forwarding != 0)
            }),
            _ => false,
        }),
        _ => false,
    }
}

/// Whether a device lies over the link with this number, in the same namespace. The other end of a
/// veth pair names it as well.
fn is_over(attributes: &[LinkAttribute], index: u32) -> bool {
    let names_it = attributes.contains(&LinkAttribute::Link(index));
    let is_not_over = |attribute: &LinkAttribute| match attribute {
        LinkAttribute::LinkNetNsId(_) => true,
        LinkAttribute::LinkInfo(info) => info.contains(&LinkInfo::Kind(InfoKind::Veth)),
        _ => false,
    };
    names_it && !attributes.iter().any(is_not_over)
}

/// The disciplines that filters of arriving frames belong to.
fn sees_arrivals(attribute: &TcAttribute) -> bool {
    matches!(attribute, TcAttribute::Kind(kind) if kind == "ingress" || kind == "clsact")
}
