//! Calls of the command line: the host carries them out, and this process adds its own facts.

use std::time::{Instant, SystemTime};

use ringway_control::{BackendRequest, Call, Reply};
use ringway_host::{CallReply, NotDone};
use ringway_host_shell::stream_pcapng;
use ringway_hypervisor::Hypervisor;
use ringway_xenstore::Lost;

use crate::Backend;

impl<H: Hypervisor> Backend<H> {
    pub(crate) fn serve_call(&mut self, call: Call<BackendRequest>) -> Result<(), Lost> {
        let reply = match self.carry_out(&call.request) {
            Ok(CallReply::Done) => Reply::ok(&()),
            Ok(CallReply::Status(status)) => Reply::ok(&self.process.complete(*status)),
            Ok(CallReply::Capture(capture, vif, snap_len)) => {
                Reply::stream(move |stream| stream_pcapng(&capture, &vif, snap_len, stream))
            }
            Err(NotDone::Refused(reason)) => Reply::error(&reason),
            Err(NotDone::Lost(lost)) => return Err(lost),
        };
        call.reply(reply);
        Ok(())
    }

    fn carry_out(&mut self, request: &BackendRequest) -> Result<CallReply, NotDone> {
        let is_for_tests =
            matches!(request, BackendRequest::Panic { .. } | BackendRequest::Stall { .. });
        // These work only if the environment declares a test.
        if is_for_tests && std::env::var_os("RINGWAY_TEST_PANICS").is_none() {
            return Err("this process is not under test".to_owned().into());
        }
        let Backend { host, store, process, .. } = self;
        let (wall, now) = (SystemTime::now(), Instant::now());
        host.call(request, wall, now, &mut process.machinery.parts(store))
    }
}
