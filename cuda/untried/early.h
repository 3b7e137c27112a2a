/* early.h - early launches: a kernel is launched while the one before it in the stream still runs
 * (programmatic dependent launch, compute capability 9.0 and later; --cuda-early).
 *
 * Private to cuda; included by C and by CUDA sources. */
#ifndef CUDA_UNTRIED_EARLY_H
#define CUDA_UNTRIED_EARLY_H

#ifdef __cplusplus
extern "C" {
#endif

/* 1: kernels are launched early. Written when devices are opened. */
extern int gpu_launch_early;

#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__
/* Adds the attribute to a launch. *a must live until the launch. */
static inline void early_launch(cudaLaunchConfig_t *how, cudaLaunchAttribute *a)
{
    a->id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a->val.programmaticStreamSerializationAllowed = 1;
    how->attrs = a;
    how->numAttrs = gpu_launch_early ? 1u : 0u;
}

/* Lets the next kernel of the stream be launched, then waits until everything before this one is
 * done and visible. */
static __device__ __forceinline__ void early_await()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#endif

#endif
