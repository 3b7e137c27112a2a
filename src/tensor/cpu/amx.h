/* amx.h - tests whether this process may use AMX, and defines the shapes of its tiles. */
#ifndef TENSOR_AMX_H
#define TENSOR_AMX_H

#include <cpuid.h>
#include <immintrin.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Returns true if the CPU has AMX and the operating system lets this process use it.  The first
 * answer is cached. */
static inline bool amx_runs_here(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILE_DATA = 18, AMX_TILE_AND_INT8 = 3 << 24 };
    static atomic_int known; /* 0: not checked yet; 1: not available; 2: available */
    unsigned a, b, c, d;
    int yes = atomic_load(&known);
    if (yes == 0) {
        bool there = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
                     (d & AMX_TILE_AND_INT8) == AMX_TILE_AND_INT8;
        yes = there && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILE_DATA) == 0 ? 2
                                                                                     : 1;
        atomic_store(&known, yes);
    }
    return yes == 2;
}

struct amx_config {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16]; /* bytes of each tile's rows */
    uint8_t rows[16];
};
_Static_assert(sizeof(struct amx_config) == 64, "ldtilecfg reads 64 bytes");

static inline void amx_configure(const struct amx_config *c)
{
    /* gcc 12 believes that the intrinsic reads only 8 of the 64 bytes, and would drop the other
     * stores. */
    __asm__ volatile("" : : "r"(c) : "memory");
    _tile_loadconfig(c);
}

#endif
