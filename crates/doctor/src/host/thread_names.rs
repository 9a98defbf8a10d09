//! What a thread is, by the name that its program or the kernel gave it.

/// Whether a thread is one of vhost: the kernel calls it after the process that it works for.
/// Programs have threads whose names begin alike.
pub(super) fn is_vhost(name: &str) -> bool {
    name.strip_prefix("vhost-").is_some_and(is_number)
}

/// Whether a thread is a guest's CPU, as QEMU calls it.
pub(super) fn is_vcpu(name: &str) -> bool {
    let number = name.strip_prefix("CPU ").and_then(|rest| rest.strip_suffix("/KVM"));
    number.is_some_and(is_number)
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}
