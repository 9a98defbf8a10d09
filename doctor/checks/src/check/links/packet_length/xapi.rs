//! XAPI's MTU of a network: its interfaces get that MTU whenever they are plugged, regardless of
//! other settings (`determine_mtu` of xapi's `nm.ml`; `xapi_xenops.ml` for guests).

use std::collections::BTreeSet;

use std::ops::Deref;

use super::{Facts, mtu};
use crate::check::{CheckResult, all_well};
use crate::finding::{Advice, Confidence, Finding, Severity, shell_word};
use ringway_evidence::fact::Tried;
use ringway_evidence::parse::xapi::{Network, Plug};
use ringway_evidence::parse::xenstore::Nodes;
use ringway_evidence::{Gap, Quote, Text};

const STORE: &str = "/local/domain/0/backend/vif";
/// XAPI's name of this host, and other things of its installation.
/// Interfaces that a finding quotes.
const QUOTES_MAX: usize = 3;
/// Guests, and cards, that its advice names.
const NAMED_MAX: usize = 16;

pub(super) fn inspect(facts: &Facts) -> CheckResult {
    let Some((networks, text)) = asked(&facts.networks, Network::all)? else {
        return Ok(Vec::new());
    };
    let (cards, card_text) = asked(&facts.cards, Plug::all)?.unwrap_or_default();
    let (vifs, vif_text) = asked(&facts.vifs, Plug::all)?.unwrap_or_default();
    let own = own_uuid(facts);
    let known = vifs_by_mac(facts)?;
    let nics = facts.nics.names();
    let mut findings = Vec::new();
    let mut is_any = false;
    for network in &networks {
        let of = |plugs: &'_ [Plug]| -> Vec<Plug> {
            plugs.iter().filter(|plug| plug.network == network.uuid).cloned().collect()
        };
        let plugged = Plugged { network, cards: of(&cards), vifs: of(&vifs) };
        let mut members = vec![(network.bridge.clone(), None)];
        // Other hosts of the pool have cards with the same names.
        let here = plugged.cards.iter().filter(|card| Some(&card.owner) == own.as_ref());
        members.extend(here.map(|card| (name(card), Some(card_text.quote(card.line)))));
        for (mac, nic) in &known {
            let is_it = |vif: &&Plug| vif.mac.eq_ignore_ascii_case(mac);
            let vif = plugged.vifs.iter().find(is_it);
            members.extend(vif.map(|vif| (nic.clone(), Some(vif_text.quote(vif.line)))));
        }
        members.retain(|(nic, _)| nics.contains(nic));
        is_any |= !members.is_empty();
        let members: Result<Vec<Member>, Gap> = members
            .into_iter()
            .map(|(nic, record)| {
                let (mtu, quote) = mtu(facts, &nic)?;
                Ok(Member { nic, mtu, quotes: [quote].into_iter().chain(record).collect() })
            })
            .collect();
        findings.extend(plugged.judge(&members?, text.quote(network.line)));
    }
    if findings.is_empty() && is_any {
        findings
            .push(all_well("interfaces have the MTUs that XAPI stores for their networks", None));
    }
    Ok(findings)
}

/// XAPI's output; `None` without XAPI.
fn asked<T>(
    said: &Tried<impl Deref<Target = Text>>,
    read: impl Fn(&Text) -> Result<Vec<T>, Gap>,
) -> Result<Option<(Vec<T>, Text)>, Gap> {
    match said.get() {
        Err(Gap::Missing { .. }) => Ok(None),
        Err(gap) => Err(gap),
        Ok(text) => Ok(Some((read(text)?, Text::clone(text)))),
    }
}

/// An interface of this host in a network.
struct Member {
    nic: String,
    mtu: u64,
    quotes: Vec<Quote>,
}

/// A network, and what is plugged into it anywhere in the pool.
struct Plugged<'a> {
    network: &'a Network,
    cards: Vec<Plug>,
    vifs: Vec<Plug>,
}

impl Plugged<'_> {
    fn judge(&self, members: &[Member], quote: Quote) -> Option<Finding> {
        let Network { bridge, mtu: set, .. } = self.network;
        let odd: Vec<&Member> = members.iter().filter(|member| member.mtu != *set).collect();
        let first = odd.first()?;
        let more = match odd.len() {
            1 => String::new(),
            count => format!("; {} more differ", count - 1),
        };
        let summary =
            format!("XAPI has MTU {set} for {bridge}, and {} has {}{more}", first.nic, first.mtu);
        let wanted = odd.iter().map(|member| member.mtu).fold(*set, u64::max);
        let finding = Finding::new(Severity::Warning, bridge, summary)
            .cause(format!(
                "An interface gets its network's MTU, {set}, when it is plugged: at the next \
                 start of its guest or of the host. A value set outside XAPI is lost then, and a \
                 value set in XAPI takes effect only then."
            ))
            .quote([quote])
            .quote(odd.iter().take(QUOTES_MAX).flat_map(|member| member.quotes.clone()))
            .confidence(Confidence::High)
            .advise(self.procedure(wanted));
        Some(finding)
    }

    /// The procedure of `throughput-guide:jumbo-stop` and the places after it.
    fn procedure(&self, wanted: u64) -> Advice {
        let Network { uuid, mtu: set, .. } = self.network;
        let uuid = shell_word(uuid);
        let guests: BTreeSet<&String> = self.vifs.iter().map(|vif| &vif.owner).collect();
        let each = |verb: &'static str| {
            guests
                .iter()
                .take(NAMED_MAX)
                .map(move |guest| format!("xe {verb} uuid={}", shell_word(guest)))
        };
        let mut commands: Vec<String> = each("vm-shutdown").collect();
        if wanted != *set {
            commands.push(format!("xe network-param-set uuid={uuid} MTU={wanted}"));
        }
        for Plug { uuid, .. } in self.cards.iter().take(NAMED_MAX) {
            let uuid = shell_word(uuid);
            commands.push(format!("xe pif-unplug uuid={uuid}"));
            commands.push(format!("xe pif-plug uuid={uuid}"));
        }
        commands.extend(each("vm-start"));
        commands.push(format!("xe vif-list network-uuid={uuid} params=MTU --minimal"));
        let mut text = format!(
            "For {wanted} bytes everywhere: shut the network's guests down, set the MTU, unplug \
             and plug its cards, and start the guests one after the other; in each, ip link set \
             dev eth0 mtu {wanted}, and verify. Switches must support this MTU as well."
        );
        if self.cards.iter().any(|card| card.is_management) {
            text += &format!(
                " {}",
                "XAPI does not unplug its management interface: restart that host instead."
            );
        }
        if guests.len().max(self.cards.len()) > NAMED_MAX {
            text += &format!(" {}", "There are more guests or cards than this list shows.");
        }
        Advice::by_hand(text, &commands.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

/// The interface of a card; a VLAN's has the card's name and the VLAN's number.
fn name(card: &Plug) -> String {
    let Plug { device, .. } = card;
    card.vlan.map_or_else(|| device.clone(), |vlan| format!("{device}.{vlan}"))
}

fn own_uuid(facts: &Facts) -> Option<String> {
    let inventory = facts.inventory.ok()?;
    let mut lines = inventory.lines();
    let uuid = lines.find_map(|(_, line)| line.strip_prefix("INSTALLATION_UUID="))?;
    Some(uuid.trim().trim_matches('\'').to_owned())
}

/// The addresses of guests' interfaces, with the interface of this host that serves each.
fn vifs_by_mac(facts: &Facts) -> Result<Vec<(String, String)>, Gap> {
    let text = match facts.store.get() {
        Err(Gap::Missing { .. }) => return Ok(Vec::new()),
        other => other?,
    };
    let nodes = Nodes::parse(text)?;
    let vif = |path: &str| {
        let vif = path.strip_prefix(STORE)?.strip_suffix("/mac")?.trim_matches('/');
        Some((nodes.get(path)?.to_owned(), format!("vif{}", vif.replace('/', "."))))
    };
    Ok(nodes.paths().filter_map(vif).collect())
}
