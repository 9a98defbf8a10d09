/* Loads a program of XDP into a network device, or takes it off, without libbpf and a compiler for it.
 *
 * usage: xdp DEVICE pass|drop|reply|off
 *
 * All programs let through what is no ICMP echo request over IPv4. `pass` lets these through, too, `drop`
 * drops them, and `reply` sends the reply itself, so pings are replied to although Linux sees none. */
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Where a frame has what: no VLAN tag, and no options in the header of IPv4. */
enum { TYPE = 12, VERSION = 14, PROTOCOL = 23, SOURCE = 26, TARGET = 30, ICMP = 34, SUM = 36, END = 42 };

/* One instruction. */
#define OP(op, dst, src, offset, value) \
    ((struct bpf_insn){ .code = (op), .dst_reg = (dst), .src_reg = (src), .off = (offset), .imm = (value) })
#define LOAD(size, dst, src, offset) OP(BPF_LDX | BPF_MEM | (size), dst, src, offset, 0)
#define STORE(size, dst, src, offset) OP(BPF_STX | BPF_MEM | (size), dst, src, offset, 0)
#define SET(dst, value) OP(BPF_ALU64 | BPF_MOV | BPF_K, dst, 0, 0, value)
#define LEAVE(action) SET(BPF_REG_0, action), OP(BPF_JMP | BPF_EXIT, 0, 0, 0, 0)
/* Leaves unless the frame, which begins at register 6, has a value. */
#define NEED(size, offset, value) \
    LOAD(size, BPF_REG_2, BPF_REG_6, offset), \
    OP(BPF_JMP | BPF_JEQ | BPF_K, BPF_REG_2, 0, 2, value), LEAVE(XDP_PASS)
/* Exchanges two bytes with two others. */
#define SWAP(one, other) \
    LOAD(BPF_H, BPF_REG_2, BPF_REG_6, one), LOAD(BPF_H, BPF_REG_3, BPF_REG_6, other), \
    STORE(BPF_H, BPF_REG_6, BPF_REG_3, one), STORE(BPF_H, BPF_REG_6, BPF_REG_2, other)

/* What all programs begin with. Numbers of 16 bits are as this machine, a little-endian one, reads them. */
#define ONLY_REQUESTS \
    LOAD(BPF_W, BPF_REG_6, BPF_REG_1, offsetof(struct xdp_md, data)), \
    LOAD(BPF_W, BPF_REG_7, BPF_REG_1, offsetof(struct xdp_md, data_end)), \
    OP(BPF_ALU64 | BPF_MOV | BPF_X, BPF_REG_8, BPF_REG_6, 0, 0), \
    OP(BPF_ALU64 | BPF_ADD | BPF_K, BPF_REG_8, 0, 0, END), \
    OP(BPF_JMP | BPF_JLE | BPF_X, BPF_REG_8, BPF_REG_7, 2, 0), LEAVE(XDP_PASS), \
    NEED(BPF_H, TYPE, 0x0008), NEED(BPF_B, VERSION, 0x45), NEED(BPF_B, PROTOCOL, 1), NEED(BPF_B, ICMP, 8)

static const struct bpf_insn pass[] = { ONLY_REQUESTS, LEAVE(XDP_PASS) };
static const struct bpf_insn drop[] = { ONLY_REQUESTS, LEAVE(XDP_DROP) };
static const struct bpf_insn reply[] = {
    ONLY_REQUESTS,
    SWAP(0, 6), SWAP(2, 8), SWAP(4, 10),
    SWAP(SOURCE, TARGET), SWAP(SOURCE + 2, TARGET + 2),
    SET(BPF_REG_2, 0), STORE(BPF_B, BPF_REG_6, BPF_REG_2, ICMP),
    /* The first word of the message is less by 0x0800, so its checksum is more by that. */
    LOAD(BPF_H, BPF_REG_2, BPF_REG_6, SUM),
    OP(BPF_ALU64 | BPF_ADD | BPF_K, BPF_REG_2, 0, 0, 0x0008),
    OP(BPF_ALU64 | BPF_MOV | BPF_X, BPF_REG_3, BPF_REG_2, 0, 0),
    OP(BPF_ALU64 | BPF_RSH | BPF_K, BPF_REG_3, 0, 0, 16),
    OP(BPF_ALU64 | BPF_ADD | BPF_X, BPF_REG_2, BPF_REG_3, 0, 0),
    STORE(BPF_H, BPF_REG_6, BPF_REG_2, SUM),
    LEAVE(XDP_TX),
};

static int fail(const char *what)
{
    fprintf(stderr, "xdp: %s: %s\n", what, strerror(errno));
    return 1;
}

/* Loads a program, and prints what the kernel's verifier has against it. */
static int load(const struct bpf_insn *program, size_t len)
{
    static char log[65536];
    union bpf_attr attr = {
        .prog_type = BPF_PROG_TYPE_XDP,
        .insns = (uintptr_t)program,
        .insn_cnt = len / sizeof *program,
        .license = (uintptr_t) "GPL",
        .log_buf = (uintptr_t)log,
        .log_size = sizeof log,
        .log_level = 1,
    };
    int fd = syscall(SYS_bpf, BPF_PROG_LOAD, &attr, sizeof attr);
    if (fd < 0)
        fputs(log, stderr);
    return fd;
}

/* Has the device's driver run a program, or none if it is -1. */
static int attach(unsigned device, int program)
{
    struct {
        struct nlmsghdr header;
        struct ifinfomsg link;
        struct nlattr xdp, fd;
        int program;
        struct nlattr flags;
        uint32_t mode;
    } request = {
        .header = { sizeof request, RTM_SETLINK, NLM_F_REQUEST | NLM_F_ACK, 1, 0 },
        .link = { .ifi_family = AF_UNSPEC, .ifi_index = device },
        .xdp = { 3 * sizeof(struct nlattr) + sizeof(int) + sizeof(uint32_t), NLA_F_NESTED | IFLA_XDP },
        .fd = { sizeof(struct nlattr) + sizeof(int), IFLA_XDP_FD },
        .program = program,
        .flags = { sizeof(struct nlattr) + sizeof(uint32_t), IFLA_XDP_FLAGS },
        .mode = XDP_FLAGS_DRV_MODE,
    };
    struct {
        struct nlmsghdr header;
        struct nlmsgerr error;
        char rest[1024];
    } response;
    int socket_fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    if (socket_fd < 0 || send(socket_fd, &request, sizeof request, 0) != sizeof request)
        return -1;
    if (recv(socket_fd, &response, sizeof response, 0) < (ssize_t)offsetof(typeof(response), rest))
        return -1;
    errno = -response.error.error;
    return response.error.error;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    unsigned device = if_nametoindex(argv[1]);
    if (device == 0)
        return fail(argv[1]);
    int program = -1;
    if (!strcmp(argv[2], "pass"))
        program = load(pass, sizeof pass);
    else if (!strcmp(argv[2], "drop"))
        program = load(drop, sizeof drop);
    else if (!strcmp(argv[2], "reply"))
        program = load(reply, sizeof reply);
    else if (strcmp(argv[2], "off"))
        return 2;
    if (program < 0 && strcmp(argv[2], "off"))
        return fail("the kernel has not loaded the program");
    return attach(device, program) ? fail("the device has not taken the program") : 0;
}
