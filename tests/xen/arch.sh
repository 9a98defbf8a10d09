# shellcheck shell=bash
# What differs between the architectures that are booted. Read by `build` and `run`, which define
# `rig`, the folder of this file.

# Sets what follows from an architecture, by Debian's name for it: ARCH
#   arch, triplet, loader   Debian's names of the architecture, its folders and its dynamic loader
#   target, cache           where cargo builds for it, and where images and results are
#   cross, emulator         prefix of the compiler's tools, and what runs its output on this machine
#   lists                   apt's lists of its packages
#   packages_set            of scripts/install-packages
# shellcheck disable=SC2034 # The scripts that source this file use them.
choose_arch() {
    local built=${CARGO_TARGET_DIR:-$rig/../../target}
    arch=$1
    case $arch in
    amd64)
        triplet=x86_64-linux-gnu loader=usr/lib64/ld-linux-x86-64.so.2
        target=$built/release cache=$built/xen lists=/var/lib/apt/lists
        cross='' emulator='' packages_set=xen
        ;;
    arm64)
        triplet=aarch64-linux-gnu loader=usr/lib/ld-linux-aarch64.so.1
        target=$built/arm64/aarch64-unknown-linux-gnu/release cache=$built/xen/arm64
        lists=$cache/apt/lists
        cross=aarch64-linux-gnu- emulator=qemu-aarch64 packages_set=xen-arm64
        ;;
    *)
        echo "xen: there is no architecture '$arch': expected amd64 or arm64" >&2
        return 2
        ;;
    esac
}
