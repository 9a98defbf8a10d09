//! Our layouts against the published C headers.
//!
//! `golden.txt` holds the output of `golden.c` compiled against them, so the comparison runs
//! everywhere. Where the headers and a C compiler are installed, the test compiles `golden.c`
//! again, which proves that the file is genuine.

use std::mem::offset_of;
use std::path::Path;
use std::process::Command;
use std::{env, fs, process};

use ringway_wire::grant::{self, GrantEntryV1, GrantStatus};
use ringway_wire::netif::{
    self, CtrlRequest, CtrlResponse, ExtraInfo, GrefEntry, RxRequest, RxResponse, TxRequest,
    TxResponse,
};
use ringway_wire::ring;
use ringway_wire::vnet::{self, VirtioNetHdr};
use ringway_wire::xenstore::{self, Errno, Op, SockMsg};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const GOLDEN: &str = include_str!("golden.txt");
const HEADERS: [&str; 5] = [
    "/usr/include/xen/io/netif.h",
    "/usr/include/xen/io/ring.h",
    "/usr/include/xen/io/xs_wire.h",
    "/usr/include/xen/grant_table.h",
    "/usr/include/linux/virtio_net.h",
];

/// Collects lines in the format of `golden.c`.
#[derive(Default)]
struct Lines(String);

impl Lines {
    #[expect(clippy::needless_pass_by_value, reason = "nearly all values are numbers")]
    fn value(&mut self, name: &str, value: impl ToString) {
        self.0 += &format!("{name} = {}\n", value.to_string());
    }

    fn bytes(&mut self, name: &str, value: &(impl IntoBytes + Immutable)) {
        self.0 += &format!("bytes {name} =");
        for byte in value.as_bytes() {
            self.0 += &format!(" {byte:02x}");
        }
        self.0 += "\n";
    }
}

/// `layout!(lines, "c_name" = RustName { c_field = rust_field, .. })`: size and offsets.
macro_rules! layout {
    ($lines:ident, $c:literal = $rust:ty { $($c_field:literal = $field:ident),* $(,)? }) => {
        $lines.value(concat!("sizeof ", $c), size_of::<$rust>());
        $($lines.value(concat!("offsetof ", $c, ".", $c_field), offset_of!($rust, $field));)*
    };
}

#[test]
fn our_layouts_constants_and_bytes_are_those_of_the_headers() {
    let mut ours = Lines::default();
    netif_layouts(&mut ours);
    netif_constants(&mut ours);
    netif_bytes(&mut ours);
    ring_layout(&mut ours);
    grant_entries(&mut ours);
    xenstore_messages(&mut ours);
    virtio_header(&mut ours);
    for (ours, golden) in ours.0.lines().zip(GOLDEN.lines()) {
        assert_eq!(ours, golden);
    }
    assert_eq!(ours.0.lines().count(), GOLDEN.lines().count());
}

fn netif_layouts(lines: &mut Lines) {
    layout!(lines, "netif_tx_request" = TxRequest {
        "gref" = gref, "offset" = offset, "flags" = flags, "id" = id, "size" = size,
    });
    layout!(lines, "netif_tx_response" = TxResponse { "id" = id, "status" = status });
    layout!(lines, "netif_rx_request" = RxRequest { "id" = id, "pad" = pad, "gref" = gref });
    layout!(lines, "netif_rx_response" = RxResponse {
        "id" = id, "offset" = offset, "flags" = flags, "status" = status,
    });
    layout!(lines, "netif_extra_info" = ExtraInfo {
        "type" = kind, "flags" = flags, "u" = payload,
    });
    layout!(lines, "xen_netif_ctrl_request" = CtrlRequest {
        "id" = id, "type" = kind, "data" = data,
    });
    layout!(lines, "xen_netif_ctrl_response" = CtrlResponse {
        "id" = id, "type" = kind, "status" = status, "data" = data,
    });
    layout!(lines, "xen_netif_gref" = GrefEntry {
        "ref" = gref, "flags" = flags, "status" = status,
    });
}

//= netif.h:flag-bits
fn netif_constants(lines: &mut Lines) {
    lines.value("NETTXF_csum_blank", netif::NETTXF_CSUM_BLANK);
    lines.value("NETTXF_data_validated", netif::NETTXF_DATA_VALIDATED);
    lines.value("NETTXF_more_data", netif::NETTXF_MORE_DATA);
    lines.value("NETTXF_extra_info", netif::NETTXF_EXTRA_INFO);
    lines.value("NETRXF_data_validated", netif::NETRXF_DATA_VALIDATED);
    lines.value("NETRXF_csum_blank", netif::NETRXF_CSUM_BLANK);
    lines.value("NETRXF_more_data", netif::NETRXF_MORE_DATA);
    lines.value("NETRXF_extra_info", netif::NETRXF_EXTRA_INFO);
    lines.value("NETIF_RSP_DROPPED", netif::NETIF_RSP_DROPPED);
    lines.value("NETIF_RSP_ERROR", netif::NETIF_RSP_ERROR);
    lines.value("NETIF_RSP_OKAY", netif::NETIF_RSP_OKAY);
    lines.value("NETIF_RSP_NULL", netif::NETIF_RSP_NULL);
    lines.value("XEN_NETIF_MAX_TX_SIZE", netif::MAX_TX_SIZE);
    lines.value("XEN_NETIF_NR_SLOTS_MIN", netif::NR_SLOTS_MIN);
    lines.value("XEN_NETIF_EXTRA_TYPE_NONE", netif::EXTRA_TYPE_NONE);
    lines.value("XEN_NETIF_EXTRA_TYPE_GSO", netif::EXTRA_TYPE_GSO);
    lines.value("XEN_NETIF_EXTRA_TYPE_MCAST_ADD", netif::EXTRA_TYPE_MCAST_ADD);
    lines.value("XEN_NETIF_EXTRA_TYPE_MCAST_DEL", netif::EXTRA_TYPE_MCAST_DEL);
    lines.value("XEN_NETIF_EXTRA_TYPE_HASH", netif::EXTRA_TYPE_HASH);
    lines.value("XEN_NETIF_EXTRA_TYPE_MAX", netif::EXTRA_TYPE_MAX);
    lines.value("XEN_NETIF_EXTRA_FLAG_MORE", netif::EXTRA_FLAG_MORE);
    lines.value("XEN_NETIF_GSO_TYPE_TCPV4", netif::GSO_TYPE_TCPV4);
    lines.value("XEN_NETIF_GSO_TYPE_TCPV6", netif::GSO_TYPE_TCPV6);
    control_constants(lines);
}

fn control_constants(lines: &mut Lines) {
    for (name, kind) in [
        ("GET_HASH_FLAGS", netif::CTRL_TYPE_GET_HASH_FLAGS),
        ("SET_HASH_FLAGS", netif::CTRL_TYPE_SET_HASH_FLAGS),
        ("SET_HASH_KEY", netif::CTRL_TYPE_SET_HASH_KEY),
        ("GET_HASH_MAPPING_SIZE", netif::CTRL_TYPE_GET_HASH_MAPPING_SIZE),
        ("SET_HASH_MAPPING_SIZE", netif::CTRL_TYPE_SET_HASH_MAPPING_SIZE),
        ("SET_HASH_MAPPING", netif::CTRL_TYPE_SET_HASH_MAPPING),
        ("SET_HASH_ALGORITHM", netif::CTRL_TYPE_SET_HASH_ALGORITHM),
        ("GET_GREF_MAPPING_SIZE", netif::CTRL_TYPE_GET_GREF_MAPPING_SIZE),
        ("ADD_GREF_MAPPING", netif::CTRL_TYPE_ADD_GREF_MAPPING),
        ("DEL_GREF_MAPPING", netif::CTRL_TYPE_DEL_GREF_MAPPING),
    ] {
        lines.value(&format!("XEN_NETIF_CTRL_TYPE_{name}"), kind);
    }
    for (name, status) in [
        ("SUCCESS", netif::CTRL_STATUS_SUCCESS),
        ("NOT_SUPPORTED", netif::CTRL_STATUS_NOT_SUPPORTED),
        ("INVALID_PARAMETER", netif::CTRL_STATUS_INVALID_PARAMETER),
        ("BUFFER_OVERFLOW", netif::CTRL_STATUS_BUFFER_OVERFLOW),
    ] {
        lines.value(&format!("XEN_NETIF_CTRL_STATUS_{name}"), status);
    }
    lines.value("XEN_NETIF_CTRL_HASH_ALGORITHM_NONE", netif::HASH_ALGORITHM_NONE);
    lines.value("XEN_NETIF_CTRL_HASH_ALGORITHM_TOEPLITZ", netif::HASH_ALGORITHM_TOEPLITZ);
    lines.value("_XEN_NETIF_CTRL_HASH_TYPE_IPV4", netif::HASH_TYPE_IPV4);
    lines.value("_XEN_NETIF_CTRL_HASH_TYPE_IPV4_TCP", netif::HASH_TYPE_IPV4_TCP);
    lines.value("_XEN_NETIF_CTRL_HASH_TYPE_IPV6", netif::HASH_TYPE_IPV6);
    lines.value("_XEN_NETIF_CTRL_HASH_TYPE_IPV6_TCP", netif::HASH_TYPE_IPV6_TCP);
    lines.value("XEN_NETIF_CTRLF_GREF_readonly", netif::GREF_READONLY);
}

fn netif_bytes(lines: &mut Lines) {
    let (gref, offset, flags, id) = (0x1122_3344, 0x5566, 0x7788, 0x99aa);
    lines.bytes("netif_tx_request", &TxRequest { gref, offset, flags, id, size: 0xbbcc });
    let status = netif::NETIF_RSP_DROPPED;
    lines.bytes("netif_tx_response", &TxResponse { id, status });
    lines.bytes("netif_rx_request", &RxRequest { id, pad: 0, gref });
    let status = netif::NETIF_RSP_ERROR;
    lines.bytes("netif_rx_response", &RxResponse { id, offset, flags, status });
    lines.bytes("netif_extra_info gso", &ExtraInfo::for_gso(1448, netif::GSO_TYPE_TCPV6));
    let mcast = ExtraInfo {
        kind: netif::EXTRA_TYPE_MCAST_ADD,
        flags: netif::EXTRA_FLAG_MORE,
        payload: [0x01, 0x00, 0x5e, 0x00, 0x00, 0xfb],
    };
    lines.bytes("netif_extra_info mcast", &mcast);
    //= netif.h:hash-extra
    let hash = ExtraInfo::for_hash(gref, netif::HASH_TYPE_IPV6_TCP, netif::HASH_ALGORITHM_TOEPLITZ);
    lines.bytes("netif_extra_info hash", &hash);
    let kind = netif::CTRL_TYPE_SET_HASH_MAPPING;
    let data = [gref, 0x5566_7788, 0x99aa_bbcc];
    lines.bytes("xen_netif_ctrl_request", &CtrlRequest { id, kind, data });
    let kind = netif::CTRL_TYPE_GET_HASH_FLAGS;
    let status = netif::CTRL_STATUS_BUFFER_OVERFLOW;
    lines.bytes("xen_netif_ctrl_response", &CtrlResponse { id, kind, status, data: gref });
    let status = 2;
    lines.bytes("xen_netif_gref", &GrefEntry { gref, flags: netif::GREF_READONLY, status });
}

fn ring_layout(lines: &mut Lines) {
    lines.value("offsetof sring.req_prod", ring::REQ_PROD);
    lines.value("offsetof sring.req_event", ring::REQ_EVENT);
    lines.value("offsetof sring.rsp_prod", ring::RSP_PROD);
    lines.value("offsetof sring.rsp_event", ring::RSP_EVENT);
    lines.value("offsetof sring.ring", ring::SLOTS);
    lines.value("stride tx", netif::TX_SLOT_LEN);
    lines.value("stride rx", netif::RX_SLOT_LEN);
    lines.value("stride ctrl", netif::CTRL_SLOT_LEN);
    lines.value("entries tx", netif::TX_RING_SLOTS);
    lines.value("entries rx", netif::RX_RING_SLOTS);
    lines.value("entries ctrl", netif::CTRL_RING_SLOTS);
    // req_prod, req_event, rsp_prod, rsp_event as `SHARED_RING_INIT` sets them; a test of the ring
    // crate checks that ours starts like this.
    lines.bytes("sring new", &[0_u32, 1, 0, 1]);
}

fn grant_entries(lines: &mut Lines) {
    layout!(lines, "grant_entry_v1" = GrantEntryV1 {
        "flags" = flags, "domid" = domid, "frame" = frame,
    });
    lines.value("GTF_invalid", grant::GTF_INVALID);
    lines.value("GTF_permit_access", grant::GTF_PERMIT_ACCESS);
    lines.value("GTF_type_mask", grant::GTF_TYPE_MASK);
    lines.value("GTF_readonly", grant::GTF_READONLY);
    lines.value("GTF_reading", grant::GTF_READING);
    lines.value("GTF_writing", grant::GTF_WRITING);
    lines.value("GNTTAB_NR_RESERVED_ENTRIES", grant::RESERVED_ENTRIES);
    for (name, status) in [
        ("okay", GrantStatus::Okay),
        ("general_error", GrantStatus::GeneralError),
        ("bad_domain", GrantStatus::BadDomain),
        ("bad_gntref", GrantStatus::BadGrantRef),
        ("permission_denied", GrantStatus::PermissionDenied),
        ("bad_page", GrantStatus::BadPage),
        ("bad_copy_arg", GrantStatus::BadCopyArg),
        ("eagain", GrantStatus::Again),
    ] {
        #[expect(clippy::as_conversions, reason = "only a cast reads a discriminant")]
        lines.value(&format!("GNTST_{name}"), status as i16);
    }
    let flags = grant::GTF_PERMIT_ACCESS | grant::GTF_READONLY;
    lines.bytes("grant_entry_v1", &GrantEntryV1 { flags, domid: 0x0102, frame: 0x0304_0506 });
}

fn xenstore_messages(lines: &mut Lines) {
    layout!(lines, "xsd_sockmsg" = SockMsg {
        "type" = kind, "req_id" = req_id, "tx_id" = tx_id, "len" = len,
    });
    for op in Op::ALL {
        lines.value(&format!("XS_{}", c_spelling(&format!("{op:?}"))), op.number());
    }
    // The count is one more than the last: 20 was withdrawn.
    lines.value("XS_TYPE_COUNT", Op::DirectoryPart.number() + 1);
    lines.value("XENSTORE_PAYLOAD_MAX", xenstore::XENSTORE_PAYLOAD_MAX);
    lines.value("XENSTORE_ABS_PATH_MAX", xenstore::XENSTORE_ABS_PATH_MAX);
    lines.value("XENSTORE_REL_PATH_MAX", xenstore::XENSTORE_REL_PATH_MAX);
    let errors: Vec<&str> = Errno::ALL.iter().map(|errno| errno.name()).collect();
    lines.value("xsd_errors", errors.join(" "));
    let (req_id, tx_id, len) = (0x0102_0304, 0x0506_0708, 0x090a);
    lines.bytes("xsd_sockmsg", &SockMsg { kind: Op::Write.number(), req_id, tx_id, len });
}

/// `GetDomainPath` to `GET_DOMAIN_PATH`.
fn c_spelling(name: &str) -> String {
    let mut spelled = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !spelled.is_empty() {
            spelled.push('_');
        }
        spelled.push(letter.to_ascii_uppercase());
    }
    spelled
}

fn virtio_header(lines: &mut Lines) {
    layout!(lines, "virtio_net_hdr" = VirtioNetHdr {
        "flags" = flags, "gso_type" = gso_type, "hdr_len" = hdr_len, "gso_size" = gso_size,
        "csum_start" = csum_start, "csum_offset" = csum_offset,
    });
    lines.value("VIRTIO_NET_HDR_F_NEEDS_CSUM", vnet::VIRTIO_NET_HDR_F_NEEDS_CSUM);
    lines.value("VIRTIO_NET_HDR_F_DATA_VALID", vnet::VIRTIO_NET_HDR_F_DATA_VALID);
    lines.value("VIRTIO_NET_HDR_GSO_NONE", vnet::VIRTIO_NET_HDR_GSO_NONE);
    lines.value("VIRTIO_NET_HDR_GSO_TCPV4", vnet::VIRTIO_NET_HDR_GSO_TCPV4);
    lines.value("VIRTIO_NET_HDR_GSO_TCPV6", vnet::VIRTIO_NET_HDR_GSO_TCPV6);
    lines.value("VIRTIO_NET_HDR_GSO_ECN", vnet::VIRTIO_NET_HDR_GSO_ECN);
    let header = VirtioNetHdr {
        flags: vnet::VIRTIO_NET_HDR_F_NEEDS_CSUM,
        gso_type: vnet::VIRTIO_NET_HDR_GSO_TCPV6,
        hdr_len: 0x0102,
        gso_size: 0x0304,
        csum_start: 0x0506,
        csum_offset: 0x0708,
    };
    lines.bytes("virtio_net_hdr", &header);
}

#[test]
#[cfg_attr(miri, ignore = "runs a C compiler")]
fn the_golden_file_matches_the_installed_headers() {
    if let Some(missing) = HEADERS.iter().find(|header| !Path::new(header).exists()) {
        return skip(&format!("{missing} is missing (Debian: libxen-dev, linux-libc-dev)"));
    }
    let compiler = env::var("CC").unwrap_or_else(|_| String::from("cc"));
    if Command::new(&compiler).arg("--version").output().is_err() {
        return skip(&format!("no C compiler `{compiler}` (Debian: gcc, libc6-dev)"));
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("golden-{}", process::id()));
    let compiled = Command::new(&compiler).arg("-o").arg(&program).arg(&source).output();
    let compiled = compiled.expect("the compiler ran a moment ago");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = runner(&program).output().expect("a program that was just compiled runs");
    fs::remove_file(&program).expect("the program is ours to remove");
    assert!(printed.status.success());
    let printed = String::from_utf8(printed.stdout).expect("it prints ASCII");
    for (installed, golden) in printed.lines().zip(GOLDEN.lines()) {
        assert_eq!(installed, golden);
    }
    assert_eq!(printed.lines().count(), GOLDEN.lines().count());
}

/// A command that runs the compiler's output: through `CC_RUNNER` if that is for another machine.
fn runner(program: &Path) -> Command {
    let runner = env::var("CC_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace();
    let Some(first) = words.next() else { return Command::new(program) };
    let mut command = Command::new(first);
    command.args(words).arg(program);
    command
}

#[test]
fn structures_survive_being_written_and_read() {
    let request = TxRequest { gref: 1, offset: 2, flags: 3, id: 4, size: 5 };
    assert_eq!(TxRequest::read_from_bytes(request.as_bytes()).ok(), Some(request));
    let response = RxResponse { id: 1, offset: 2, flags: 3, status: -4 };
    assert_eq!(RxResponse::read_from_bytes(response.as_bytes()).ok(), Some(response));
    let (size, kind) = ExtraInfo::for_gso(65535, netif::GSO_TYPE_TCPV4).gso();
    assert_eq!((size, kind), (65535, netif::GSO_TYPE_TCPV4));
}

/// Printed to standard error, past the harness's capture, so that a skipped test does not look like
/// a pass.
fn skip(why: &str) {
    use std::io::Write;
    let line = format!("SKIPPED: {}: {why}\n", module_path!());
    std::io::stderr().write_all(line.as_bytes()).expect("the standard error is open");
}
