//! A whole host: guests honest and hostile, engines, handshakes and XenStore, in which the fuzzer's
//! bytes decide who does something next, what is sent and what goes wrong. All checkers of the
//! simulator watch.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ringway_sim::run_bytes(data));
