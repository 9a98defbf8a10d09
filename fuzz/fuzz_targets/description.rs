//! The description of a host: any text. An accepted one respects its limits and survives a round
//! trip as JSON; a refusal names the file and the line.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ringway_description::{Host, QUEUES_MAX, Usage, parse};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let host = match parse("host.toml", text, Usage::default()) {
        Ok(host) => host,
        Err(refusal) => {
            assert!(refusal.to_string().starts_with("host.toml"), "{refusal}");
            return;
        }
    };
    let json = serde_json::to_string(&host).expect("a host can be handed over");
    let again: Host = serde_json::from_str(&json).expect("and read");
    assert_eq!(serde_json::to_string(&again).expect("and written"), json);

    let mut macs = Vec::new();
    for vif in host.guests.iter().flat_map(|guest| &guest.vifs) {
        assert!(vif.queues.is_none_or(|queues| (1..=QUEUES_MAX).contains(&u64::from(queues))));
        assert!(vif.max_queues.is_none_or(|max| (1..=QUEUES_MAX).contains(&u64::from(max))));
        assert_eq!(vif.mac.0.0[0] & 1, 0, "a group's address");
        macs.push(vif.mac);
    }
    let count = macs.len();
    macs.sort_unstable_by_key(|mac| mac.0.0);
    macs.dedup();
    assert_eq!(macs.len(), count, "two interfaces have one address");
    let mut names: Vec<&str> = host.guests.iter().map(|guest| guest.name.0.as_str()).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "two guests have one name");
});
