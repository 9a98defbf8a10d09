//! A whole host: guests honest and hostile, engines, handshakes and XenStore. The fuzzer's bytes
//! decide which part acts next, what is sent and what fails. All checkers of the simulator watch.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ringway_sim::run_bytes(data));
