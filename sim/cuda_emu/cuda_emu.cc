/* cuda_emu.cc - see cuda_emu.h. */
#include "cuda_emu.h"
#include "cuda_fault.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

dim3 emu_thread, emu_block, emu_block_dim, emu_grid_dim;
unsigned char *emu_dynamic_shared;

[[noreturn]] static void die(const char *what)
{
    fprintf(stderr, "cuda emulation: %s\n", what);
    abort();
}

/* --- device memory: mapped, and readable only while the device works ----------------------------
 */

/* Bytes of address space; the system provides a page when it is touched. */
static const size_t ARENA = (size_t)4 << 30;

static const size_t LARGE_PAGE = (size_t)2 << 20;

static struct {
    std::recursive_mutex lock; /* several threads may call, one at a time */
    unsigned char *base;
    size_t end;
    std::map<size_t, size_t> used; /* allocated pieces: offset -> bytes */
    int open;
} mem;

/* --- faults ------------------------------------------------------------------------------------- */

static struct {
    int what, left; /* calls until the fault; < 0: no fault is set */
    int n_failed, n_replayed, n_mallocs, n_launches, n_waits;
    unsigned long long n_down, n_up;
    bool lost;
    cudaError_t last; /* result of cudaGetLastError */
} fault = {0, -1, 0, 0, 0, 0, 0, 0, 0, false, cudaSuccess};

void cuda_emu_fail(enum cuda_emu_fault what, int after)
{
    std::lock_guard<std::recursive_mutex> hold(mem.lock);
    fault = {(int)what, after, 0, 0, 0, 0, 0, 0, 0, false, cudaSuccess};
}
int cuda_emu_failed(void)
{
    std::lock_guard<std::recursive_mutex> hold(mem.lock);
    return fault.n_failed;
}
int cuda_emu_replayed(void)
{
    std::lock_guard<std::recursive_mutex> hold(mem.lock);
    return fault.n_replayed;
}
int cuda_emu_mallocs(void)
{
    std::lock_guard<std::recursive_mutex> hold(mem.lock);
    return fault.n_mallocs;
}
int cuda_emu_launches(void)
{
    std::lock_guard<std::recursive_mutex> hold(mem.lock);
    return fault.n_launches;
}
int cuda_emu_waits(void)
{
    std::lock_guard<std::recursive_mutex> hold(mem.lock);
    return fault.n_waits;
}
int cuda_emu_pieces(void)
{
    std::lock_guard<std::recursive_mutex> hold(mem.lock);
    return (int)mem.used.size();
}
unsigned long long cuda_emu_brought_down(void)
{
    std::lock_guard<std::recursive_mutex> hold(mem.lock);
    return fault.n_down;
}
unsigned long long cuda_emu_brought_up(void)
{
    std::lock_guard<std::recursive_mutex> hold(mem.lock);
    return fault.n_up;
}
/* Returns whether this call is the one that fails. */
static bool fails(int what)
{
    std::lock_guard<std::recursive_mutex> hold(mem.lock);
    if (fault.left < 0 || fault.what != what || fault.left-- > 0)
        return false;
    fault.n_failed++;
    return true;
}
static cudaError_t status(void)
{
    return fault.lost ? cudaErrorIllegalAddress : cudaSuccess;
}
static size_t memory_bytes(void)
{
    const char *mib = getenv("CUDA_EMU_MIB");
    return mib != NULL ? (size_t)atol(mib) << 20 : ARENA;
}

static void arena_make(void)
{
    if (mem.base != NULL)
        return;
    void *p = mmap(NULL, ARENA + LARGE_PAGE, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        die("no address space");
    mem.base = (unsigned char *)(((uintptr_t)p + LARGE_PAGE - 1) & ~(LARGE_PAGE - 1));
    /* Changing the protection takes time for each page, so huge pages are used. */
    (void)madvise(mem.base, ARENA, MADV_HUGEPAGE);
}

struct device_access {
    std::lock_guard<std::recursive_mutex> hold;
    device_access() : hold(mem.lock)
    {
        if (mem.open++ == 0 && mem.end != 0)
            mprotect(mem.base, mem.end, PROT_READ | PROT_WRITE);
    }
    ~device_access()
    {
        if (--mem.open == 0 && mem.end != 0)
            mprotect(mem.base, mem.end, PROT_NONE);
    }
};

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    device_access access;
    arena_make();
    /* a protected page between pieces makes overruns fault */
    size_t want = (bytes + 8191) & ~(size_t)4095, at = 0;
    for (auto &u : mem.used) {
        if (u.first - at >= want)
            break;
        at = u.first + u.second;
    }
    fault.n_mallocs++;
    if (at + want > memory_bytes() || fault.lost || fails(CUDA_EMU_MALLOC)) {
        *p = NULL;
        return fault.last = cudaErrorMemoryAllocation;
    }
    mem.used[at] = want;
    if (at + want > mem.end) {
        mem.end = (at + want + LARGE_PAGE - 1) & ~(LARGE_PAGE - 1);
        mprotect(mem.base, mem.end, PROT_READ | PROT_WRITE);
    }
    memset(mem.base + at, 0xff, bytes); /* NaN, so that reading unwritten memory shows */
    *p = mem.base + at;
    return cudaSuccess;
}

static void drain_all(void);

cudaError_t cudaFree(void *p)
{
    if (p == NULL)
        return cudaSuccess;
    drain_all();
    device_access access;
    if (mem.used.erase((size_t)((unsigned char *)p - mem.base)) != 1)
        die("cudaFree of what is not allocated");
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    (void)flags;
    *p = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
    return *p != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void *p)
{
    drain_all();
    free(p);
    return cudaSuccess;
}

/* --- streams: queues of operations, executed when the host waits --------------------------------
 */

struct emu_graph {
    std::vector<std::function<void()>> nodes;
};
static thread_local int current_device;

struct emu_stream {
    int device = current_device;
    std::deque<std::function<void()>> todo;
    emu_graph *recording = NULL;
    unsigned long queued = 0, done = 0;
};
struct emu_event {
    int device = current_device;
    emu_stream *s = NULL;
    unsigned long upto = 0;
};
static std::vector<emu_stream *> streams;
static emu_stream null_stream;

static emu_stream *of(cudaStream_t s)
{
    return s != NULL ? s : &null_stream;
}

static void queue(cudaStream_t s, std::function<void()> f)
{
    std::lock_guard<std::recursive_mutex> hold(mem.lock);
    if (of(s)->recording != NULL) {
        of(s)->recording->nodes.push_back(f);
        return;
    }
    of(s)->todo.push_back(f);
    of(s)->queued++;
}

static void drain(emu_stream *s, unsigned long upto)
{
    device_access access;
    while (s->done < upto && !s->todo.empty()) {
        auto f = s->todo.front();
        s->todo.pop_front();
        f();
        s->done++;
    }
}

static void drain_all(void)
{
    device_access access;
    drain(&null_stream, null_stream.queued);
    for (auto s : streams)
        drain(s, s->queued);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    (void)flags;
    device_access access;
    *s = new emu_stream;
    streams.push_back(*s);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    device_access access;
    drain(s, s->queued);
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == s)
            streams.erase(streams.begin() + (long)i);
    delete s;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    device_access access;
    fault.n_waits++;
    if (of(s)->recording != NULL)
        die("waiting for a stream that records");
    drain(of(s), of(s)->queued);
    return status();
}
cudaError_t cudaDeviceSynchronize(void)
{
    drain_all();
    return status();
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    (void)flags;
    *e = new emu_event;
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    delete e;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    device_access access;
    if (of(s)->recording != NULL)
        die("an event in a recording: other streams would wait for each replay");
    if (e->device != of(s)->device)
        die("an event is recorded in a stream of another device");
    e->s = of(s);
    e->upto = of(s)->queued;
    return status();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    (void)flags;
    emu_event mark = *e;
    if (mark.s != NULL)
        queue(s, [=]() { drain(mark.s, mark.upto); });
    return status();
}
cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    device_access access;
    fault.n_waits++;
    if (e->s != NULL)
        drain(e->s, e->upto);
    return status();
}

/* --- graphs: recorded operations that can be queued again ---------------------------------------
 */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode)
{
    device_access access;
    if (fails(CUDA_EMU_RECORD))
        return cudaErrorInvalidValue;
    if (of(s)->recording != NULL)
        die("recording within a recording");
    of(s)->recording = new emu_graph;
    return status();
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
    device_access access;
    *g = of(s)->recording;
    of(s)->recording = NULL;
    return status();
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t g, unsigned long long)
{
    *exec = new emu_graph(*g);
    return status();
}
cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    delete g;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    device_access access;
    if (of(s)->device != current_device)
        die("a graph is launched on a stream of another device than the current one");
    if (fails(CUDA_EMU_LAUNCH))
        return cudaErrorInvalidValue;
    for (auto &f : exec->nodes)
        queue(s, f);
    fault.n_replayed++;
    return status();
}

static bool is_device(const void *p)
{
    const unsigned char *at = (const unsigned char *)p;
    return at >= mem.base && at < mem.base + ARENA;
}

/* --- copies ------------------------------------------------------------------------------------- */

/* Queued on the default stream, as on a GPU; other streams do not wait for it. */
cudaError_t cudaMemset(void *p, int byte, size_t n)
{
    queue(NULL, [=]() { memset(p, byte, n); });
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind,
                            cudaStream_t s)
{
    (void)kind;
    if (fails(is_device(to) ? CUDA_EMU_UP : CUDA_EMU_DOWN))
        return cudaErrorInvalidValue;
    bool flips = n >= 4096 && is_device(to) && !is_device(from) && fails(CUDA_EMU_FLIP);
    queue(s, [=]() {
        if (!fault.lost && is_device(from) && !is_device(to))
            fault.n_down += n;
        if (!fault.lost && is_device(to) && !is_device(from))
            fault.n_up += n;
        if (!fault.lost)
            memmove(to, from, n);
        if (!fault.lost && flips)
            ((unsigned char *)to)[n / 3] ^= 4;
    });
    return status();
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t s)
{
    (void)kind;
    if (fails(is_device(to) ? CUDA_EMU_UP : CUDA_EMU_DOWN) || width > to_pitch ||
        width > from_pitch)
        return cudaErrorInvalidValue;
    queue(s, [=]() {
        for (size_t i = 0; i < height && !fault.lost; i++)
            memmove((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width);
    });
    return status();
}
/* Copies in reverse, so that nothing can rely on an order. */
cudaError_t cudaMemcpyBatchAsync(void *const *to, const void *const *from,
                                 const size_t *bytes, size_t n,
                                 struct cudaMemcpyAttributes *how, size_t *how_from,
                                 size_t n_how, cudaStream_t s)
{
    if (getenv("CUDA_EMU_NO_BATCHES") != NULL)
        return cudaErrorCallRequiresNewerDriver;
    if (n == 0 || n_how != 1 || how_from[0] != 0 ||
        how[0].srcAccessOrder != cudaMemcpySrcAccessOrderStream)
        return cudaErrorInvalidValue;
    for (size_t i = n; i-- > 0;) {
        cudaError_t e = cudaMemcpyAsync(to[i], from[i], bytes[i], cudaMemcpyDefault, s);
        if (e != cudaSuccess)
            return e;
    }
    return cudaSuccess;
}
cudaError_t cudaMemset2DAsync(void *p, size_t pitch, int byte, size_t width, size_t height,
                              cudaStream_t s)
{
    queue(s, [=]() {
        for (size_t i = 0; i < height; i++)
            memset((char *)p + i * pitch, byte, width);
    });
    return cudaSuccess;
}

/* --- the device --------------------------------------------------------------------------------- */

const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaErrorMemoryAllocation ? "out of memory"
           : e == 0                       ? "no error"
                                          : "emulated error";
}
cudaError_t cudaGetLastError(void)
{
    std::lock_guard<std::recursive_mutex> hold(mem.lock);
    cudaError_t e = fault.last;
    fault.last = cudaSuccess;
    return fault.lost ? cudaErrorIllegalAddress : e;
}
cudaError_t cudaGetDeviceCount(int *n)
{
    const char *devices = getenv("CUDA_EMU_DEVICES");
    *n = getenv("CUDA_EMU_NO_DEVICE") != NULL ? 0 : devices != NULL ? atoi(devices) : 1;
    return *n >= 1 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int i)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || i < 0 || i >= n)
        return cudaErrorInvalidValue;
    current_device = i;
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    *can = device != peer;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    return peer == current_device || flags != 0 ? cudaErrorInvalidValue : cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int i)
{
    (void)i;
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulated GPU");
    p->totalGlobalMem = memory_bytes();
    p->major = getenv("CUDA_EMU_MAJOR") != NULL ? atoi(getenv("CUDA_EMU_MAJOR")) : 9;
    p->sharedMemPerBlockOptin = 227 * 1024;
    p->multiProcessorCount = 4;
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *unused, size_t *total)
{
    device_access access;
    size_t n = 0;
    for (auto &u : mem.used)
        n += u.second;
    *unused = memory_bytes() - n;
    *total = memory_bytes();
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *f, enum cudaFuncAttribute a, int value)
{
    (void)f, (void)a, (void)value;
    return cudaSuccess;
}

/* --- a block: coroutines that meet at barriers -------------------------------------------------- */

/* Distance of two stacks. The odd number of cache lines spreads the tops of the stacks over the
 * sets of the caches. With a distance of a power of two all tops would share one set, and each
 * switch would miss. */
static const size_t STACK = 64 * 1024 + 17 * 64;

/* Saves the registers that a function must preserve on the stack, stores the stack pointer in
 * *from, and continues at `to`.  (swapcontext would do the same with two system calls each time.)
 */
extern "C" void emu_switch(void **from, void *to);
asm(".text\n.globl emu_switch\nemu_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");

struct async_copy {
    void *to;
    const void *from; /* NULL: zeros */
    unsigned group;
};
struct coroutine {
    void *sp;
    dim3 idx;
    unsigned n_gathers;
    unsigned n_groups; /* number of committed groups of copies */
    std::deque<async_copy> copies;
};
/* The masks have one bit per lane: the lane is ready to run, waits for its warp, or waits for its
 * block. A lane that has ended has no bit. */
struct warp {
    alignas(8) unsigned char slots[2][32 * 8];
    float mma_in[32][12], mma_c[32][4];
    int n_live, n_waiting;
    uint32_t ready, at_warp, at_block;
};
static std::vector<coroutine> threads; /* as many as the largest block so far has threads */
static std::vector<warp> warps;
static std::vector<unsigned char> stacks;
static size_t n_warps;
static void *scheduler;
static size_t current;
static bool backwards; /* whether this block's threads run in reverse order */
static int n_live, n_at_barrier;
static std::function<void()> *kernel_body;

static uint32_t bit_of(size_t thread)
{
    return (uint32_t)1 << thread % 32;
}

/* Returns the first lane of `ready` in the block's direction; ready is not 0. */
static size_t first_lane(uint32_t ready)
{
    return (size_t)(backwards ? 31 - __builtin_clz(ready) : __builtin_ctz(ready));
}

/* Returns the next thread to run. A warp runs until all its threads wait for others or have ended;
 * then the next warp runs. */
static size_t find_next(void)
{
    size_t w = current / 32;
    uint32_t ready = warps[w].ready, below = bit_of(current) - 1;
    uint32_t ahead = ready & (backwards ? below : ~below & ~bit_of(current));
    if (ready != 0)
        return w * 32 + first_lane(ahead != 0 ? ahead : ready);
    for (size_t k = 1; k <= n_warps; k++) {
        size_t v = (backwards ? w + n_warps - k : w + k) % n_warps;
        if (warps[v].ready != 0)
            return v * 32 + first_lane(warps[v].ready);
    }
    die("threads wait at a barrier that others never reach");
}

/* Stores this thread's stack pointer in *from, and continues with the next thread that can run. */
static void run_next(void **from)
{
    current = find_next();
    emu_thread = threads[current].idx;
    emu_switch(from, threads[current].sp);
}

/* Takes this thread off its warp's `ready` lanes and adds it to the `waiting` ones, until others
 * release it. */
static void yield_in(uint32_t warp::*waiting)
{
    warp &w = warps[current / 32];
    w.ready &= ~bit_of(current);
    w.*waiting |= bit_of(current);
    run_next(&threads[current].sp);
}

static void release_block(void)
{
    n_at_barrier = 0;
    for (size_t w = 0; w < n_warps; w++) {
        warps[w].ready |= warps[w].at_block;
        warps[w].at_block = 0;
    }
}
static void release_warp(size_t w)
{
    warps[w].n_waiting = 0;
    warps[w].ready |= warps[w].at_warp;
    warps[w].at_warp = 0;
}

void __syncthreads(void)
{
    if (++n_at_barrier == n_live)
        release_block();
    else
        yield_in(&warp::at_block);
}
void __syncwarp(void)
{
    size_t w = current / 32;
    if (++warps[w].n_waiting == warps[w].n_live)
        release_warp(w);
    else
        yield_in(&warp::at_warp);
}
void *emu_warp_slots(unsigned *lane)
{
    *lane = (unsigned)(current % 32);
    /* Gathers use two places by turns. A lane uses this place again only after the gather in
     * between, which waits for all lanes. So by then every lane has finished reading this place. */
    return warps[current / 32].slots[threads[current].n_gathers++ % 2];
}

/* Products and sums of 8 columns; each column's sum takes k in ascending order. */
typedef float columns __attribute__((vector_size(32)));

static void warp_mma(warp &w)
{
    columns b[16];
    for (int k = 0; k < 16; k++)
        for (int col = 0; col < 8; col++)
            b[k][col] = w.mma_in[col * 4 + k % 8 / 2][8 + k / 8 * 2 + k % 2];
    for (int row = 0; row < 16; row++) {
        columns sum;
        for (int col = 0; col < 8; col++)
            sum[col] = w.mma_c[row % 8 * 4 + col / 2][row / 8 * 2 + col % 2];
        for (int k = 0; k < 16; k++)
            sum += w.mma_in[row % 8 * 4 + k % 8 / 2][(row / 8 + k / 8 * 2) * 2 + k % 2] *
                   b[k];
        for (int col = 0; col < 8; col++)
            w.mma_c[row % 8 * 4 + col / 2][row / 8 * 2 + col % 2] = sum[col];
    }
}

/* The last lane to arrive computes the step for all lanes. No lane reaches the next step before all
 * have been at this one, so a lane needs memory for one step only. */
void emu_warp_mma(float c[4], const float in[12])
{
    warp &w = warps[current / 32];
    size_t lane = current % 32;
    if (w.n_live != 32)
        die("a step of the tensor cores without all lanes of the warp");
    memcpy(w.mma_in[lane], in, sizeof w.mma_in[lane]);
    memcpy(w.mma_c[lane], c, sizeof w.mma_c[lane]);
    if (++w.n_waiting == w.n_live) {
        warp_mma(w);
        release_warp(current / 32);
    } else {
        yield_in(&warp::at_warp);
    }
    memcpy(c, w.mma_c[lane], sizeof w.mma_c[lane]);
}

void emu_copy_async16(void *to, const void *from, bool in)
{
    coroutine &t = threads[current];
    t.copies.push_back({to, in ? from : NULL, t.n_groups});
}
void emu_copy_async_commit(void)
{
    threads[current].n_groups++;
}
void emu_copy_async_wait(unsigned n_open)
{
    coroutine &t = threads[current];
    for (; !t.copies.empty() && t.copies.front().group + n_open < t.n_groups;
         t.copies.pop_front()) {
        const async_copy &c = t.copies.front();
        if (c.from != NULL)
            memcpy(c.to, c.from, 16);
        else
            memset(c.to, 0, 16);
    }
}

static void coroutine_main(void)
{
    (*kernel_body)();
    size_t w = current / 32;
    warps[w].ready &= ~bit_of(current);
    n_live--;
    warps[w].n_live--;
    if (n_live > 0 && n_at_barrier == n_live)
        release_block();
    if (warps[w].n_live > 0 && warps[w].n_waiting == warps[w].n_live)
        release_warp(w);
    void *unused;
    if (n_live > 0)
        run_next(&unused); /* never returns */
    emu_switch(&unused, scheduler);
}

static size_t n_awaited; /* threads of this kernel that have called await_stream */

void await_stream(void)
{
    n_awaited++;
}

static void run_block(dim3 dim)
{
    size_t n = (size_t)dim.x * dim.y * dim.z;
    if (threads.size() < n) {
        threads.resize(n);
        stacks.resize(n * STACK);
        warps.resize((n + 31) / 32);
    }
    n_warps = (n + 31) / 32;
    for (size_t w = 0; w < n_warps; w++) {
        warps[w].n_live = warps[w].n_waiting = 0;
        warps[w].ready = warps[w].at_warp = warps[w].at_block = 0;
    }
    n_live = (int)n;
    n_at_barrier = 0;
    for (size_t i = 0; i < n; i++) {
        coroutine &t = threads[i];
        warps[i / 32].n_live++;
        warps[i / 32].ready |= bit_of(i);
        t.n_gathers = t.n_groups = 0;
        t.copies.clear();
        t.idx = dim3((unsigned)(i % dim.x), (unsigned)(i / dim.x % dim.y),
                     (unsigned)(i / dim.x / dim.y));
        uintptr_t top = ((uintptr_t)&stacks[(i + 1) * STACK] & ~(uintptr_t)15) - 16;
        /* the address to which the first switch returns */
        *(void (**)(void))top = coroutine_main;
        t.sp = (void *)(top - 6 * sizeof(void *));
    }
    backwards = (emu_block.x + emu_block.y + emu_block.z) % 2 != 0;
    current = backwards ? n - 1 : 0;
    emu_thread = threads[current].idx;
    /* returns when all threads of the block have ended */
    emu_switch(&scheduler, threads[current].sp);
}

void emu_launch(dim3 grid, dim3 block, size_t shared, cudaStream_t s,
                std::function<void()> body)
{
    if (block.x * block.y * block.z > 1024 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
        grid.y > 65535 || grid.z > 65535 || shared > 227 * 1024)
        die("a launch that CUDA would refuse");
    if (of(s)->device != current_device)
        die("a kernel is launched on a stream of another device than the current one");
    if (fails(CUDA_EMU_LAUNCH) ||
        (of(s)->recording != NULL && fails(CUDA_EMU_UNRECORDABLE))) {
        fault.last = cudaErrorInvalidValue;
        return;
    }
    if (fails(CUDA_EMU_LOST))
        fault.lost = true;
    {
        std::lock_guard<std::recursive_mutex> hold(mem.lock);
        fault.n_launches++;
    }
    queue(s, [=]() {
        if (fault.lost)
            return;
        std::function<void()> mine = body;
        std::unique_ptr<unsigned char[]> smem(new unsigned char[shared + 64]);
        memset(smem.get(), 0xff, shared + 64);
        emu_dynamic_shared = (unsigned char *)(((uintptr_t)smem.get() + 15) &
                                               ~(uintptr_t)15);
        kernel_body = &mine;
        emu_grid_dim = grid;
        emu_block_dim = block;
        n_awaited = 0;
        for (unsigned z = 0; z < grid.z; z++)
            for (unsigned y = 0; y < grid.y; y++)
                for (unsigned x = 0; x < grid.x; x++) {
                    emu_block = dim3(x, y, z);
                    run_block(block);
                }
        if (n_awaited != (size_t)grid.x * grid.y * grid.z * block.x * block.y * block.z)
            die("a kernel does not begin with await_stream");
    });
}
