//! `vlan` of a vif line, as xl writes it since Xen 4.20 (xl-network-configuration(5)): `10`,
//! `10p/20`, `10p/20-29`.
//!
//! On a Linux bridge the toolstack's hotplug script applies it; ringway does on its own switch.

use alloc::vec::Vec;

use ringway_datapath::{Vid, VlanRules};

/// What ringway can do of what xl accepts. `u` would have frames of several VLANs leave without a
/// tag, and the text and the example of xl's page differ in how many VLANs `100+10x4` is.
pub(crate) const EXPECTED: &str = "VLANs from 1 to 4094 with slashes between them, each once, one \
     of them with p, and at most 64 others, such as 10p/20/30-39; forms with u, + and x are not \
     supported";

/// Reads the value; `None` if ringway cannot do what it says, or it is not in this form.
pub(crate) fn parse(text: &str) -> Option<VlanRules> {
    if let Some(vid) = number(text) {
        return Some(VlanRules { untagged: Some(vid), tagged: Vec::new() });
    }
    let mut rules = VlanRules::default();
    for term in text.split('/') {
        if let Some(native) = term.strip_suffix('p') {
            if rules.untagged.replace(number(native)?).is_some() {
                return None;
            }
            continue;
        }
        let (first, last) = term.split_once('-').unwrap_or((term, term));
        let (first, last) = (number(first)?, number(last)?);
        for vid in first.get()..=last.get() {
            let vid = Vid::new(vid)?;
            if rules.tagged.len() == VlanRules::TAGGED_MAX || rules.tagged.contains(&vid) {
                return None;
            }
            rules.tagged.push(vid);
        }
        if last < first {
            return None;
        }
    }
    let native = rules.untagged?;
    (!rules.tagged.contains(&native)).then_some(rules)
}

fn number(text: &str) -> Option<Vid> {
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_decimal).and_then(Vid::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<(u16, Vec<u16>)> {
        let rules = parse(text)?;
        let native = rules.untagged.expect("there is always one").get();
        Some((native, rules.tagged.into_iter().map(Vid::get).collect()))
    }

    #[test]
    fn forms_of_xls_page_are_read() {
        for access in ["10", "10p"] {
            assert_eq!(read(access), Some((10, Vec::new())), "{access}");
        }
        assert_eq!(read("10p/20"), Some((10, [20].to_vec())));
        assert_eq!(read("20/4094/10p/1"), Some((10, [20, 4094, 1].to_vec())));
        assert_eq!(read("10p/20-22/7-7"), Some((10, [20, 21, 22, 7].to_vec())));
        let most = read("1p/2-65").expect("64 others");
        assert_eq!((most.0, most.1.len()), (1, 64));
    }

    #[test]
    fn what_is_not_certain_is_refused() {
        for bad in [
            "",
            "p",
            "0",
            "4095",
            "65546",
            "+10",
            "10 ",
            " 10",
            "10,20",
            "ten",
            "10q",
            "-10",
            "1_0",
            // Which VLAN frames without a tag are in is missing, or there are two.
            "10/20",
            "10-20",
            "10p/20p",
            "10pp",
            "10p-20",
            "10-20p",
            // Not in full.
            "10p/",
            "/10p",
            "10p//20",
            "10p/20-",
            "10p/-20",
            "10p/20-10",
            "10p/20-30-40",
            // Twice.
            "10p/10",
            "10p/20/20",
            "10p/5-15",
            "10p/20-22/22",
            // Not supported.
            "10u",
            "10p/20u",
            "10p/20-22u",
            "10p/100+10x4",
            "1p/2-66",
        ] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }
}
