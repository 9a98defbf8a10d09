/* Do vector registers survive while this process is preempted?
 *
 * usage: canary SECONDS
 *
 * Prints {"rounds":N,"corrupted":N} and exits 1 if any round was corrupted. With lazy FPU switching
 * Xen under QEMU's emulation hands the registers of one virtual CPU to another; see the README. A
 * wrong checksum in a scenario then means nothing. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { REGISTERS = 4, SPIN = 20000 };

struct pattern {
    uint64_t lanes[REGISTERS * 2];
};

/* A pattern that no other process and no other round of this one has. */
static struct pattern pattern_of(uint64_t round)
{
    struct pattern pattern;
    for (int i = 0; i < REGISTERS * 2; i++)
        pattern.lanes[i] = ((uint64_t)getpid() << 40) ^ (round << 8) ^ ((uint64_t)i * 0x9e3779b97f4a7c15);
    return pattern;
}

/* Loads the registers, spins, and stores them again. */
static struct pattern keep(const struct pattern *in)
{
    struct pattern out;
    unsigned long spin = SPIN;
#ifdef __aarch64__
    __asm__ volatile("ldp q3, q6, [%1]\n\t"
                     "ldp q9, q14, [%1, #32]\n"
                     "0:\tsubs %0, %0, #1\n\t"
                     "b.ne 0b\n\t"
                     "stp q3, q6, [%2]\n\t"
                     "stp q9, q14, [%2, #32]"
                     : "+r"(spin)
                     : "r"(in), "r"(&out)
                     : "v3", "v6", "v9", "v14", "cc", "memory");
#else
    __asm__ volatile("movdqu   (%1), %%xmm3\n\t"
                     "movdqu 16(%1), %%xmm6\n\t"
                     "movdqu 32(%1), %%xmm9\n\t"
                     "movdqu 48(%1), %%xmm14\n"
                     "0:\tsub $1, %0\n\t"
                     "jnz 0b\n\t"
                     "movdqu %%xmm3,    (%2)\n\t"
                     "movdqu %%xmm6,  16(%2)\n\t"
                     "movdqu %%xmm9,  32(%2)\n\t"
                     "movdqu %%xmm14, 48(%2)"
                     : "+r"(spin)
                     : "r"(in), "r"(&out)
                     : "xmm3", "xmm6", "xmm9", "xmm14", "cc", "memory");
#endif
    return out;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    time_t end = time(NULL) + atoi(argv[1]);
    uint64_t rounds = 0, corrupted = 0;
    for (; time(NULL) < end; rounds++) {
        struct pattern before = pattern_of(rounds), after = keep(&before);
        corrupted += memcmp(&before, &after, sizeof before) != 0;
    }
    printf("{\"rounds\":%lu,\"corrupted\":%lu}\n", rounds, corrupted);
    return corrupted != 0;
}
