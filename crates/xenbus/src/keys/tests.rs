use super::*;

fn keys(key: &str, value: &str) -> Keys {
    Keys::new("/local/domain/0/backend/vif/1/0", [(key.to_owned(), value.to_owned())])
}

#[test]
fn vlans_of_a_line_count_where_no_script_applies_them_and_ours_replace_them() {
    let vlans = |more: &[(&str, &str)]| {
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Keys::new("/b", [(LINE_VLAN, "10p/20")].iter().chain(more).map(own)).vlan_rules()
    };
    let rules = |untagged, tagged: &[u16]| {
        let tagged = tagged.iter().copied().filter_map(Vid::new).collect();
        Ok(VlanRules { untagged: Vid::new(untagged), tagged })
    };
    assert_eq!(vlans(&[]), rules(10, &[20]));
    assert_eq!(vlans(&[(SCRIPT, "/etc/xen/scripts/vif-ringway")]), rules(10, &[20]));
    assert_eq!(vlans(&[(BRIDGE, "xenbr0")]), rules(10, &[20]));
    assert_eq!(vlans(&[(SCRIPT, "/etc/xen/scripts/vif-bridge")]), rules(0, &[]));
    assert_eq!(vlans(&[(TRUNK, "30")]), rules(0, &[30]));
    assert_eq!(vlans(&[(VLAN, "10")]), rules(10, &[]));
    let error = keys(LINE_VLAN, "10/20").rules().expect_err("no VLAN has p").to_string();
    assert!(error.contains("/1/0/vlan is \"10/20\"") && error.contains("10p/20"), "{error}");
}

#[test]
fn an_absent_mtu_is_not_configured() {
    assert_eq!(keys(STATE, "1").mtu_configured(), Ok(None));
    assert_eq!(keys(STATE, "1").mtu(), Ok(1500));
    assert_eq!(keys(MTU, "9000").mtu_configured(), Ok(Some(9000)));
    for bad in ["", "67", "65536", "-1", "1500 ", "jumbo"] {
        assert!(keys(MTU, bad).mtu_configured().is_err(), "{bad:?}");
    }
}
