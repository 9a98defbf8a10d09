/*
 * Prints what the published headers say, one "name = value" a line: sizes, offsets, constants and
 * the bytes of filled-in structures. The test beside this file compares it with golden.txt, and
 * golden.txt with the Rust definitions.
 *
 *     cc -o golden golden.c && ./golden > golden.txt
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <linux/virtio_net.h>
#include <xen/xen.h>
#include <xen/grant_table.h>
#include <xen/io/netif.h>
#include <xen/io/xs_wire.h>

#define VALUE(name) printf("%s = %lld\n", #name, (long long)(name))
#define SIZE(type) printf("sizeof %s = %zu\n", #type, sizeof(struct type))
#define OFFSET(type, field) \
    printf("offsetof %s.%s = %zu\n", #type, #field, offsetof(struct type, field))

static void bytes(const char *name, const void *start, size_t len)
{
    const unsigned char *byte = start;

    printf("bytes %s =", name);
    for (size_t i = 0; i < len; i++)
        printf(" %02x", byte[i]);
    printf("\n");
}

static void netif(void)
{
    SIZE(netif_tx_request);
    OFFSET(netif_tx_request, gref);
    OFFSET(netif_tx_request, offset);
    OFFSET(netif_tx_request, flags);
    OFFSET(netif_tx_request, id);
    OFFSET(netif_tx_request, size);
    SIZE(netif_tx_response);
    OFFSET(netif_tx_response, id);
    OFFSET(netif_tx_response, status);
    SIZE(netif_rx_request);
    OFFSET(netif_rx_request, id);
    OFFSET(netif_rx_request, pad);
    OFFSET(netif_rx_request, gref);
    SIZE(netif_rx_response);
    OFFSET(netif_rx_response, id);
    OFFSET(netif_rx_response, offset);
    OFFSET(netif_rx_response, flags);
    OFFSET(netif_rx_response, status);
    SIZE(netif_extra_info);
    OFFSET(netif_extra_info, type);
    OFFSET(netif_extra_info, flags);
    OFFSET(netif_extra_info, u);
    SIZE(xen_netif_ctrl_request);
    OFFSET(xen_netif_ctrl_request, id);
    OFFSET(xen_netif_ctrl_request, type);
    OFFSET(xen_netif_ctrl_request, data);
    SIZE(xen_netif_ctrl_response);
    OFFSET(xen_netif_ctrl_response, id);
    OFFSET(xen_netif_ctrl_response, type);
    OFFSET(xen_netif_ctrl_response, status);
    OFFSET(xen_netif_ctrl_response, data);
    SIZE(xen_netif_gref);
    OFFSET(xen_netif_gref, ref);
    OFFSET(xen_netif_gref, flags);
    OFFSET(xen_netif_gref, status);

    VALUE(NETTXF_csum_blank);
    VALUE(NETTXF_data_validated);
    VALUE(NETTXF_more_data);
    VALUE(NETTXF_extra_info);
    VALUE(NETRXF_data_validated);
    VALUE(NETRXF_csum_blank);
    VALUE(NETRXF_more_data);
    VALUE(NETRXF_extra_info);
    VALUE(NETIF_RSP_DROPPED);
    VALUE(NETIF_RSP_ERROR);
    VALUE(NETIF_RSP_OKAY);
    VALUE(NETIF_RSP_NULL);
    VALUE(XEN_NETIF_MAX_TX_SIZE);
    VALUE(XEN_NETIF_NR_SLOTS_MIN);
    VALUE(XEN_NETIF_EXTRA_TYPE_NONE);
    VALUE(XEN_NETIF_EXTRA_TYPE_GSO);
    VALUE(XEN_NETIF_EXTRA_TYPE_MCAST_ADD);
    VALUE(XEN_NETIF_EXTRA_TYPE_MCAST_DEL);
    VALUE(XEN_NETIF_EXTRA_TYPE_HASH);
    VALUE(XEN_NETIF_EXTRA_TYPE_MAX);
    VALUE(XEN_NETIF_EXTRA_FLAG_MORE);
    VALUE(XEN_NETIF_GSO_TYPE_TCPV4);
    VALUE(XEN_NETIF_GSO_TYPE_TCPV6);
    VALUE(XEN_NETIF_CTRL_TYPE_GET_HASH_FLAGS);
    VALUE(XEN_NETIF_CTRL_TYPE_SET_HASH_FLAGS);
    VALUE(XEN_NETIF_CTRL_TYPE_SET_HASH_KEY);
    VALUE(XEN_NETIF_CTRL_TYPE_GET_HASH_MAPPING_SIZE);
    VALUE(XEN_NETIF_CTRL_TYPE_SET_HASH_MAPPING_SIZE);
    VALUE(XEN_NETIF_CTRL_TYPE_SET_HASH_MAPPING);
    VALUE(XEN_NETIF_CTRL_TYPE_SET_HASH_ALGORITHM);
    VALUE(XEN_NETIF_CTRL_TYPE_GET_GREF_MAPPING_SIZE);
    VALUE(XEN_NETIF_CTRL_TYPE_ADD_GREF_MAPPING);
    VALUE(XEN_NETIF_CTRL_TYPE_DEL_GREF_MAPPING);
    VALUE(XEN_NETIF_CTRL_STATUS_SUCCESS);
    VALUE(XEN_NETIF_CTRL_STATUS_NOT_SUPPORTED);
    VALUE(XEN_NETIF_CTRL_STATUS_INVALID_PARAMETER);
    VALUE(XEN_NETIF_CTRL_STATUS_BUFFER_OVERFLOW);
    VALUE(XEN_NETIF_CTRL_HASH_ALGORITHM_NONE);
    VALUE(XEN_NETIF_CTRL_HASH_ALGORITHM_TOEPLITZ);
    VALUE(_XEN_NETIF_CTRL_HASH_TYPE_IPV4);
    VALUE(_XEN_NETIF_CTRL_HASH_TYPE_IPV4_TCP);
    VALUE(_XEN_NETIF_CTRL_HASH_TYPE_IPV6);
    VALUE(_XEN_NETIF_CTRL_HASH_TYPE_IPV6_TCP);
    VALUE(XEN_NETIF_CTRLF_GREF_readonly);

    struct netif_tx_request tx_request = {
        .gref = 0x11223344, .offset = 0x5566, .flags = 0x7788, .id = 0x99aa, .size = 0xbbcc,
    };
    struct netif_tx_response tx_response = { .id = 0x99aa, .status = NETIF_RSP_DROPPED };
    struct netif_rx_request rx_request = { .id = 0x99aa, .pad = 0, .gref = 0x11223344 };
    struct netif_rx_response rx_response = {
        .id = 0x99aa, .offset = 0x5566, .flags = 0x7788, .status = NETIF_RSP_ERROR,
    };
    struct netif_extra_info gso, mcast, hash;
    struct xen_netif_ctrl_request ctrl_request = {
        .id = 0x99aa, .type = XEN_NETIF_CTRL_TYPE_SET_HASH_MAPPING,
        .data = { 0x11223344, 0x55667788, 0x99aabbcc },
    };
    struct xen_netif_ctrl_response ctrl_response = {
        .id = 0x99aa, .type = XEN_NETIF_CTRL_TYPE_GET_HASH_FLAGS,
        .status = XEN_NETIF_CTRL_STATUS_BUFFER_OVERFLOW, .data = 0x11223344,
    };
    struct xen_netif_gref gref = {
        .ref = 0x11223344, .flags = XEN_NETIF_CTRLF_GREF_readonly,
        .status = XEN_NETIF_CTRL_STATUS_INVALID_PARAMETER,
    };

    memset(&gso, 0, sizeof(gso));
    gso.type = XEN_NETIF_EXTRA_TYPE_GSO;
    gso.u.gso.size = 1448;
    gso.u.gso.type = XEN_NETIF_GSO_TYPE_TCPV6;
    memset(&mcast, 0, sizeof(mcast));
    mcast.type = XEN_NETIF_EXTRA_TYPE_MCAST_ADD;
    mcast.flags = XEN_NETIF_EXTRA_FLAG_MORE;
    memcpy(mcast.u.mcast.addr, "\x01\x00\x5e\x00\x00\xfb", 6);
    bytes("netif_tx_request", &tx_request, sizeof(tx_request));
    bytes("netif_tx_response", &tx_response, sizeof(tx_response));
    bytes("netif_rx_request", &rx_request, sizeof(rx_request));
    bytes("netif_rx_response", &rx_response, sizeof(rx_response));
    bytes("netif_extra_info gso", &gso, sizeof(gso));
    bytes("netif_extra_info mcast", &mcast, sizeof(mcast));
    memset(&hash, 0, sizeof(hash));
    hash.type = XEN_NETIF_EXTRA_TYPE_HASH;
    hash.u.hash.type = _XEN_NETIF_CTRL_HASH_TYPE_IPV6_TCP;
    hash.u.hash.algorithm = XEN_NETIF_CTRL_HASH_ALGORITHM_TOEPLITZ;
    memcpy(hash.u.hash.value, "\x44\x33\x22\x11", 4);
    bytes("netif_extra_info hash", &hash, sizeof(hash));
    bytes("xen_netif_ctrl_request", &ctrl_request, sizeof(ctrl_request));
    bytes("xen_netif_ctrl_response", &ctrl_response, sizeof(ctrl_response));
    bytes("xen_netif_gref", &gref, sizeof(gref));
}

static void rings(void)
{
    static char page[4096] __attribute__((aligned(4096)));
    netif_tx_sring_t *tx = (netif_tx_sring_t *)page;
    netif_rx_sring_t *rx = (netif_rx_sring_t *)page;
    xen_netif_ctrl_sring_t *ctrl = (xen_netif_ctrl_sring_t *)page;

    printf("offsetof sring.req_prod = %zu\n", offsetof(netif_tx_sring_t, req_prod));
    printf("offsetof sring.req_event = %zu\n", offsetof(netif_tx_sring_t, req_event));
    printf("offsetof sring.rsp_prod = %zu\n", offsetof(netif_tx_sring_t, rsp_prod));
    printf("offsetof sring.rsp_event = %zu\n", offsetof(netif_tx_sring_t, rsp_event));
    printf("offsetof sring.ring = %zu\n", (size_t)((char *)&tx->ring[0] - page));
    printf("stride tx = %zu\n", (size_t)((char *)&tx->ring[1] - (char *)&tx->ring[0]));
    printf("stride rx = %zu\n", (size_t)((char *)&rx->ring[1] - (char *)&rx->ring[0]));
    printf("stride ctrl = %zu\n", (size_t)((char *)&ctrl->ring[1] - (char *)&ctrl->ring[0]));
    printf("entries tx = %zu\n", (size_t)__RING_SIZE(tx, 4096));
    printf("entries rx = %zu\n", (size_t)__RING_SIZE(rx, 4096));
    printf("entries ctrl = %zu\n", (size_t)__RING_SIZE(ctrl, 4096));

    SHARED_RING_INIT(tx);
    bytes("sring new", page, 16);
}

static void grants(void)
{
    SIZE(grant_entry_v1);
    OFFSET(grant_entry_v1, flags);
    OFFSET(grant_entry_v1, domid);
    OFFSET(grant_entry_v1, frame);
    VALUE(GTF_invalid);
    VALUE(GTF_permit_access);
    VALUE(GTF_type_mask);
    VALUE(GTF_readonly);
    VALUE(GTF_reading);
    VALUE(GTF_writing);
    VALUE(GNTTAB_NR_RESERVED_ENTRIES);
    VALUE(GNTST_okay);
    VALUE(GNTST_general_error);
    VALUE(GNTST_bad_domain);
    VALUE(GNTST_bad_gntref);
    VALUE(GNTST_permission_denied);
    VALUE(GNTST_bad_page);
    VALUE(GNTST_bad_copy_arg);
    VALUE(GNTST_eagain);

    struct grant_entry_v1 entry = {
        .flags = GTF_permit_access | GTF_readonly, .domid = 0x0102, .frame = 0x03040506,
    };
    bytes("grant_entry_v1", &entry, sizeof(entry));
}

static void xenstore(void)
{
    SIZE(xsd_sockmsg);
    OFFSET(xsd_sockmsg, type);
    OFFSET(xsd_sockmsg, req_id);
    OFFSET(xsd_sockmsg, tx_id);
    OFFSET(xsd_sockmsg, len);
    VALUE(XS_CONTROL);
    VALUE(XS_DIRECTORY);
    VALUE(XS_READ);
    VALUE(XS_GET_PERMS);
    VALUE(XS_WATCH);
    VALUE(XS_UNWATCH);
    VALUE(XS_TRANSACTION_START);
    VALUE(XS_TRANSACTION_END);
    VALUE(XS_INTRODUCE);
    VALUE(XS_RELEASE);
    VALUE(XS_GET_DOMAIN_PATH);
    VALUE(XS_WRITE);
    VALUE(XS_MKDIR);
    VALUE(XS_RM);
    VALUE(XS_SET_PERMS);
    VALUE(XS_WATCH_EVENT);
    VALUE(XS_ERROR);
    VALUE(XS_IS_DOMAIN_INTRODUCED);
    VALUE(XS_RESUME);
    VALUE(XS_SET_TARGET);
    VALUE(XS_RESET_WATCHES);
    VALUE(XS_DIRECTORY_PART);
    VALUE(XS_TYPE_COUNT);
    VALUE(XENSTORE_PAYLOAD_MAX);
    VALUE(XENSTORE_ABS_PATH_MAX);
    VALUE(XENSTORE_REL_PATH_MAX);

    printf("xsd_errors =");
    for (size_t i = 0; i < sizeof(xsd_errors) / sizeof(xsd_errors[0]); i++)
        printf(" %s", xsd_errors[i].errstring);
    printf("\n");

    struct xsd_sockmsg message = {
        .type = XS_WRITE, .req_id = 0x01020304, .tx_id = 0x05060708, .len = 0x090a,
    };
    bytes("xsd_sockmsg", &message, sizeof(message));
}

static void virtio(void)
{
    SIZE(virtio_net_hdr);
    OFFSET(virtio_net_hdr, flags);
    OFFSET(virtio_net_hdr, gso_type);
    OFFSET(virtio_net_hdr, hdr_len);
    OFFSET(virtio_net_hdr, gso_size);
    OFFSET(virtio_net_hdr, csum_start);
    OFFSET(virtio_net_hdr, csum_offset);
    VALUE(VIRTIO_NET_HDR_F_NEEDS_CSUM);
    VALUE(VIRTIO_NET_HDR_F_DATA_VALID);
    VALUE(VIRTIO_NET_HDR_GSO_NONE);
    VALUE(VIRTIO_NET_HDR_GSO_TCPV4);
    VALUE(VIRTIO_NET_HDR_GSO_TCPV6);
    VALUE(VIRTIO_NET_HDR_GSO_ECN);

    struct virtio_net_hdr header = {
        .flags = VIRTIO_NET_HDR_F_NEEDS_CSUM, .gso_type = VIRTIO_NET_HDR_GSO_TCPV6,
        .hdr_len = 0x0102, .gso_size = 0x0304, .csum_start = 0x0506, .csum_offset = 0x0708,
    };
    bytes("virtio_net_hdr", &header, sizeof(header));
}

int main(void)
{
    netif();
    rings();
    grants();
    xenstore();
    virtio();
    return 0;
}
