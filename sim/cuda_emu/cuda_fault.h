/* cuda_fault.h - makes the emulated GPU fail, for tests.
 *
 * Environment variables set up whole programs: CUDA_EMU_NO_DEVICE (there is no GPU), CUDA_EMU_MIB=N
 * (its memory) and CUDA_EMU_DEVICES=N (number of GPUs, with one memory: using an object of one
 * device on another in a way that CUDA forbids ends the program). */
#ifndef TESTS_CUDA_FAULT_H
#define TESTS_CUDA_FAULT_H

#ifdef __cplusplus
extern "C" {
#endif

enum cuda_emu_fault {
    CUDA_EMU_LAUNCH,       /* a launch is refused; the device goes on */
    CUDA_EMU_UP,           /* a copy from host memory to the device is refused */
    CUDA_EMU_DOWN,         /* a copy from the device to host memory is refused */
    CUDA_EMU_RECORD,       /* the start of recording a graph is refused */
    CUDA_EMU_UNRECORDABLE, /* a launch is refused while it is recorded */
    CUDA_EMU_MALLOC,       /* an allocation of device memory fails */
    CUDA_EMU_LOST,         /* the device is lost at a launch: every later call fails */
    /* a copy to the device of at least a page gets one wrong bit, without an error */
    CUDA_EMU_FLIP,
};
/* The `after`-th call of this kind from now on (0: the next) fails, once.  A new device has no
 * faults. */
void cuda_emu_fail(enum cuda_emu_fault what, int after);
/* Number of calls that have failed since the last cuda_emu_fail. */
int cuda_emu_failed(void);
/* Number of recorded graphs that were replayed since the last cuda_emu_fail. */
int cuda_emu_replayed(void);
/* Number of allocations of device memory since the last cuda_emu_fail, and number of allocations
 * that exist now. */
int cuda_emu_mallocs(void);
int cuda_emu_pieces(void);
/* Numbers of kernel launches, and of waits for a stream or an event, since the last
 * cuda_emu_fail. */
int cuda_emu_launches(void);
int cuda_emu_waits(void);
/* Bytes copied from the device to host memory, and from host memory to the device, since the last
 * cuda_emu_fail. Pinned memory that kernels read directly does not count. */
unsigned long long cuda_emu_brought_down(void);
unsigned long long cuda_emu_brought_up(void);

#ifdef __cplusplus
}
#endif
#endif
