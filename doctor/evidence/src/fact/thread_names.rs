//! Recognizes threads and interfaces by the names that programs or the kernel give them.

/// Whether a thread belongs to vhost: the kernel names it after the process that it works for.
/// Programs have threads with similar names.
pub(super) fn is_vhost(name: &str) -> bool {
    name.strip_prefix("vhost-").is_some_and(is_number)
}

/// Whether a thread is a guest's CPU, by QEMU's naming.
pub(super) fn is_vcpu(name: &str) -> bool {
    let number = name.strip_prefix("CPU ").and_then(|rest| rest.strip_suffix("/KVM"));
    number.is_some_and(is_number)
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a name is one that toolstacks give to the host's end of a Xen guest's interface.
pub(super) fn is_vif_name(nic: &str) -> bool {
    let rest = nic.strip_prefix("vif").and_then(|rest| rest.split_once('.'));
    rest.is_some_and(|(domain, handle)| {
        domain.parse::<u32>().is_ok() && handle.parse::<u32>().is_ok()
    })
}
