//! `ringway demo`, as scripts use it.

use std::fs;

use serde_json::Value;

use crate::host::{ringway, text_of};
use crate::turn;

#[test]
fn the_demo_moves_traffic_on_all_queues_and_leaves_nothing() {
    let Some(_turn) = turn(&["iperf3", "ping"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("demo.json");
    let mut demo = ringway();
    demo.args(["demo", "--queues", "4", "--streams", "4", "--seconds", "2", "--json"]).arg(&file);
    text_of(demo.output().expect("it can be started"), "ringway demo");
    let text = fs::read_to_string(&file).expect("written");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((report["queues"].as_u64(), report["streams"].as_u64()), (Some(4), Some(4)));
    for rate in ["tx_bits_per_second", "rx_bits_per_second"] {
        assert!(report[rate].as_f64().expect("a rate") > 0.0, "{rate} in {text}");
    }
    let vifs = report["vifs"].as_array().expect("a list");
    assert_eq!(vifs.len(), 2, "{text}");
    for vif in vifs {
        let queues = vif["queues"].as_array().expect("a list");
        assert_eq!(queues.len(), 4, "{vif}");
        for queue in queues {
            for counter in ["tx_packets", "rx_packets", "tx_bytes", "rx_bytes"] {
                assert!(queue[counter].as_u64().expect("a counter") > 0, "{counter} in {vif}");
            }
        }
    }
    assert!(report["dropped"].is_object(), "{text}");
    assert_eq!(report["leftovers"], Value::Array(Vec::new()));
    // What has no ports goes to queue 0: one ping and the ARP before it, in either direction.
    for way in ["tx_packets", "rx_packets"] {
        let packets = report["ping"][way].as_array().expect("a list");
        assert_eq!(packets.len(), 4, "{text}");
        assert!(packets[0].as_u64() >= Some(2), "{way} in {text}");
        assert!(packets[1..].iter().all(|count| count.as_u64() == Some(0)), "{way} in {text}");
    }
}
