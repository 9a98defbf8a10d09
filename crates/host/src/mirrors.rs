//! Mirrors: vifs that get copies of the frames of other ports of the switch, and nothing else.
//!
//! A mirror names ports, and ports are added and removed: the mirrored ports are determined again
//! after every change. The frames of an output are never mirrored, so nothing is copied twice.

use ringway_datapath::{Mirrored, MirroredPassage};
use ringway_switch::{MIRRORS_MAX, MirrorConfig, PortId, Switch};

use crate::vif_state::VifState;
use crate::world::World;

/// Updates the switch's mirrors to the present ports: those of vifs, and the uplink.
pub(crate) fn update_mirrors<'a, W: World + 'a>(
    switch: &Switch,
    states: impl Iterator<Item = &'a VifState<W>> + Clone,
    uplink: Option<(&str, PortId)>,
) {
    let mirrors = switch.mirrors();
    let mut outputs = states.clone().filter(|state| !state.rules.mirror().is_empty()).peekable();
    if outputs.peek().is_none() && !mirrors.is_active() {
        return;
    }
    let vifs = states.filter_map(|state| {
        let connection = state.connection.as_ref()?;
        connection.device_port.is_none().then_some((state.name.as_str(), connection.port))
    });
    let ports: Vec<(&str, PortId)> = vifs.chain(uplink).collect();
    let configs = outputs.filter_map(|state| {
        let (_, output) = ports.iter().find(|(name, _)| *name == state.name)?;
        Some(config(*output, state.rules.mirror(), &ports))
    });
    mirrors.set(&configs.collect::<Vec<_>>());
}

/// Why a vif cannot be the output of such a mirror; `None` if it can.
pub(crate) fn refuse_mirror<'a, W: World + 'a>(
    states: impl Iterator<Item = &'a VifState<W>>,
    output: &str,
    wanted: &[Mirrored],
) -> Option<String> {
    let vifs = states.map(|state| (state.name.as_str(), state.rules.mirror()));
    refuse_among(vifs, output, wanted)
}

/// As [`refuse_mirror`], among vifs with these names and mirrors.
pub(crate) fn refuse_among<'a>(
    vifs: impl Iterator<Item = (&'a str, &'a [Mirrored])>,
    output: &str,
    wanted: &[Mirrored],
) -> Option<String> {
    // It is no output, so it may be mirrored.
    if wanted.is_empty() {
        return None;
    }
    let mirrors: Vec<(&str, &[Mirrored])> =
        vifs.filter(|(name, mirror)| *name != output && !mirror.is_empty()).collect();
    if wanted.iter().any(|it| it.port == output) {
        return Some(format!(
            "{output} would receive copies of its own copies: choose other ports"
        ));
    }
    let is_other = |it: &&Mirrored| mirrors.iter().any(|(name, _)| *name == it.port);
    if let Some(other) = wanted.iter().find(is_other) {
        return Some(format!(
            "{} is the output of a mirror, which carries only copies: mirror the ports that it \
             copies instead",
            other.port
        ));
    }
    if let Some((name, _)) =
        mirrors.iter().find(|(_, mirror)| mirror.iter().any(|it| it.port == output))
    {
        return Some(format!(
            "{output} is mirrored to {name}, and cannot be an output: choose a vif that is not \
             mirrored"
        ));
    }
    (mirrors.len() >= MIRRORS_MAX)
        .then(|| format!("there are {MIRRORS_MAX} mirrors, which is the limit"))
}

/// Why one of these ports cannot be mirrored now; `None` if all can.
pub(crate) fn refuse_ports<'a, W: World + 'a>(
    states: impl Iterator<Item = &'a VifState<W>>,
    uplink: Option<&str>,
    wanted: &[Mirrored],
) -> Option<String> {
    let vifs: Vec<&VifState<W>> = states.collect();
    let named = wanted.iter().map(|it| it.port.as_str());
    let mut unknown = named.filter(|port| *port != Mirrored::ALL && Some(*port) != uplink);
    unknown.find_map(|port| match vifs.iter().find(|state| state.name == port) {
        None => {
            let known = vifs.iter().map(|state| state.name.as_str());
            let known: Vec<&str> = known.chain(uplink).collect();
            Some(format!(
                "there is no port {port:?}: expected {} or some of {}",
                Mirrored::ALL,
                known.join(", ")
            ))
        }
        Some(state) => {
            let bridge = state.bridge()?;
            Some(format!(
                "{port} is on the bridge {bridge}, and only ports of the switch are mirrored"
            ))
        }
    })
}

/// A mirror of the ports that exist.
fn config(output: PortId, wanted: &[Mirrored], ports: &[(&str, PortId)]) -> MirrorConfig {
    let of = |unwanted: MirroredPassage| -> Vec<PortId> {
        let is_in = |name: &str| {
            let names_it = |it: &Mirrored| it.port == name || it.port == Mirrored::ALL;
            wanted.iter().any(|it| names_it(it) && it.passage != unwanted)
        };
        ports.iter().filter(|(name, _)| is_in(name)).map(|(_, port)| *port).collect()
    };
    MirrorConfig { output, ingress: of(MirroredPassage::Rx), egress: of(MirroredPassage::Tx) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_has_the_existing_ports_in_the_configured_directions() {
        let ports = [("vif1.0", 3), ("vif2.0", 4), ("ringway0", 0)];
        let ports = ports.map(|(name, port)| (name, PortId(port)));
        let config = |text: &str| {
            let wanted = Mirrored::parse_list(text).expect("good");
            let MirrorConfig { ingress, egress, .. } = config(PortId(9), &wanted, &ports);
            let numbers = |ports: Vec<PortId>| ports.iter().map(|port| port.0).collect::<Vec<_>>();
            (numbers(ingress), numbers(egress))
        };
        assert_eq!(config("vif1.0 vif7.0"), (vec![3], vec![3]));
        assert_eq!(config("vif1.0:tx,ringway0:rx"), (vec![3], vec![0]));
        assert_eq!(config("all:rx vif2.0:tx"), (vec![4], vec![3, 4, 0]));
    }
}
