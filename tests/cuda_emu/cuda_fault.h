/* cuda_fault.h - faults of the emulated GPU, for tests.
 *
 * The environment gives some to whole programs: CUDA_EMU_NO_DEVICE (no GPU is there),
 * CUDA_EMU_MIB=N (its memory) and CUDA_EMU_DEVICES=N (so many GPUs, one memory: what belongs to
 * one device and is used by another as CUDA does not allow ends the program). */
#ifndef TESTS_CUDA_FAULT_H
#define TESTS_CUDA_FAULT_H

#ifdef __cplusplus
extern "C" {
#endif

enum cuda_emu_fault {
    CUDA_EMU_LAUNCH,       /* a launch is refused; the device goes on */
    CUDA_EMU_UP,           /* a copy from host memory to the device is, */
    CUDA_EMU_DOWN,         /* or the other way */
    CUDA_EMU_RECORD,       /* beginning to record a graph is refused */
    CUDA_EMU_UNRECORDABLE, /* a launch is refused that would be recorded */
    CUDA_EMU_MALLOC,       /* device memory is not given */
    CUDA_EMU_LOST,         /* the device is lost at a launch: every later call fails */
    CUDA_EMU_FLIP, /* a copy up of at least a page brings one bit wrong, and nothing is said */
};
/* The `after`-th such call from now on (0: the next) fails, once.  A new device is
 * as good as new. */
void cuda_emu_fail(enum cuda_emu_fault what, int after);
/* How many have failed since the last cuda_emu_fail. */
int cuda_emu_failed(void);
/* How many recorded graphs have been replayed since then. */
int cuda_emu_replayed(void);
/* How often device memory was asked for since then; how many pieces are held now. */
int cuda_emu_mallocs(void);
int cuda_emu_pieces(void);
/* How often a kernel was launched since then, and how often somebody waited for a
 * stream or an event. */
int cuda_emu_launches(void);
int cuda_emu_waits(void);
/* Bytes that were copied from the device to host memory since then, and the other way; kernels
 * may read pinned memory themselves. */
unsigned long long cuda_emu_brought_down(void);
unsigned long long cuda_emu_brought_up(void);

#ifdef __cplusplus
}
#endif
#endif
