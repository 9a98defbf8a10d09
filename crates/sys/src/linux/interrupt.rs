//! Interrupts the system call in which a thread of this process waits.
//!
//! It is done by a signal whose handler does nothing: the call then fails with `EINTR`, because the
//! handler is set without `SA_RESTART`.

use std::cell::Cell;
use std::ptr;

use rustix::thread::gettid;

use crate::linux::guard::default_action;

/// By default ignored, and sent by the kernel only to who asks for it.
const SIGNAL: libc::c_int = libc::SIGURG;

extern "C" fn handle(_signal: libc::c_int) {}

/// Sets the handler. Without it, [`thread`] has no effect.
pub(crate) fn prepare() {
    let handler: extern "C" fn(libc::c_int) = handle;
    let mut action = default_action();
    action.sa_sigaction = handler as libc::sighandler_t;
    // SAFETY: the handler does nothing, so it is safe at any moment; the old one is not asked for.
    let set = unsafe { libc::sigaction(SIGNAL, &raw const action, ptr::null_mut()) };
    debug_assert_eq!(set, 0, "a signal that may be handled");
}

/// The kernel's number of this thread.
pub(crate) fn this_thread() -> i32 {
    thread_local! {
        static NUMBER: Cell<i32> = const { Cell::new(0) };
    }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(gettid().as_raw_nonzero().get());
        }
        number.get()
    })
}

/// Interrupts a thread of this process; for 0 it does nothing. One that has ended is not an error.
pub(crate) fn thread(number: i32) {
    if number == 0 {
        return;
    }
    let process = std::process::id();
    // SAFETY: it reads and writes no memory; the signal has a handler that does nothing, or is
    // ignored.
    unsafe { libc::syscall(libc::SYS_tgkill, process, number, SIGNAL) };
}
