/* turns.c - see turns.h. */
#include "tests/restore/turns.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

enum {
    MAX_FIBERS = 16,
    MAX_HELD = 64,
    MAX_ORDERS = 512,
    MAX_PARKED = 120, /* number of turns for which a fiber is parked at most */
    STACK_BYTES = 1 << 20,
};

#define MAX_STALL_NS ((int64_t)1000000000)

enum fiber_state { NONE, READY, ON_LOCK, ON_COND, ASLEEP, ON_JOIN, ENDED };

struct fiber {
    enum fiber_state state;
    const void *on;   /* the lock, condition or fiber that the fiber waits for */
    int64_t until_ns; /* the end of a timed wait; 0: the wait is not timed */
    bool timed_out;
    /* used when fibers run by rank: the ready fiber with the greatest rank runs */
    uint64_t rank;
    /* the turn until which other fibers run first, if any are ready */
    uint64_t parked_until;
    void *(*fn)(void *arg);
    void *arg, *result;
    ucontext_t at;
    uint8_t *stack;
    void *fake_stack;
};

struct held {
    const void *lock;
    const struct fiber *by;
};

struct order {
    const void *first, *second; /* `second` was taken while `first` was held */
};

static struct {
    bool runs;
    uint64_t seed, max_turns;
    struct rng rng;
    int64_t now_ns;
    /* How the next fiber is chosen. Without ranks, the present fiber goes on, except at one turn in
     * `stay`, when any ready fiber is drawn. With ranks, the ready fiber with the greatest rank
     * runs; at one turn in `stay` the present fiber gets the lowest rank. */
    uint64_t stay;
    bool by_rank;
    struct fiber fiber[MAX_FIBERS];
    struct fiber *now;
    ucontext_t outside;
    void *outside_fake; /* the address sanitizer's handle of the stack outside the fibers */
    const void *outside_stack;
    size_t outside_bytes;
    struct held held[MAX_HELD];
    int n_held;
    struct order order[MAX_ORDERS];
    int n_orders;
    void (*main)(void *arg);
    void *main_arg;
    struct turns_counts counts;
} w;

/* --- violations ------------------------------------------------------------------------------- */

static const char *const state_names[] = {
    "none",  "ready", "waits for a lock", "waits for a condition", "sleeps",
    "joins", "ended"};

_Noreturn void turns_fail(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "seed %llu, turn %llu: ", (unsigned long long)w.seed,
            (unsigned long long)w.counts.n_turns);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    for (int i = 0; i < MAX_FIBERS; i++)
        if (w.fiber[i].state != NONE)
            fprintf(stderr, "  thread %d %s\n", i, state_names[w.fiber[i].state]);
    _exit(1);
}

/* A failed CHECK or an invalid memory access counts as a violation, too. */
static void on_signal(int sig)
{
    turns_fail("signal %d", sig);
}

/* --- one fiber runs --------------------------------------------------------------------------- */

static void enter(void *fake_stack)
{
#ifdef __SANITIZE_ADDRESS__
    const void *from;
    size_t n_bytes;
    __sanitizer_finish_switch_fiber(fake_stack, &from, &n_bytes);
    if (w.outside_stack == NULL) {
        w.outside_stack = from;
        w.outside_bytes = n_bytes;
    }
#else
    (void)fake_stack;
#endif
}

static void leave(void **fake_stack, const void *stack, size_t n_bytes)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(fake_stack, stack, n_bytes);
#else
    (void)fake_stack, (void)stack, (void)n_bytes;
#endif
}

static void go_to(struct fiber *next)
{
    struct fiber *self = w.now;
    if (next == self)
        return;
    w.now = next;
    w.counts.n_switches++;
    leave(self->state == ENDED ? NULL : &self->fake_stack, next->stack, STACK_BYTES);
    swapcontext(&self->at, &next->at);
    enter(self->fake_stack);
}

/* Returns the timed wait that ends first, or NULL. */
static struct fiber *first_due(void)
{
    struct fiber *first = NULL;
    for (int i = 0; i < MAX_FIBERS; i++) {
        struct fiber *f = &w.fiber[i];
        if ((f->state == ASLEEP || f->state == ON_COND) && f->until_ns != 0 &&
            (first == NULL || f->until_ns < first->until_ns))
            first = f;
    }
    return first;
}

static void wake(struct fiber *f)
{
    f->state = READY;
    f->until_ns = 0;
}

static void time_out(struct fiber *f)
{
    if (f->until_ns > w.now_ns)
        w.now_ns = f->until_ns;
    f->timed_out = true;
    wake(f);
}

static void wake_due(void)
{
    for (struct fiber *f; (f = first_due()) != NULL && f->until_ns <= w.now_ns;)
        time_out(f);
}

static int ready_fibers(struct fiber *ready[MAX_FIBERS])
{
    int n = 0, n_parked = 0;
    for (int i = 0; i < MAX_FIBERS; i++) {
        struct fiber *f = &w.fiber[i];
        if (f->state == READY && f->parked_until <= w.counts.n_turns)
            ready[n++] = f;
    }
    for (int i = 0; n == 0 && i < MAX_FIBERS; i++)
        if (w.fiber[i].state == READY)
            ready[n_parked++] = &w.fiber[i];
    return n + n_parked;
}

static struct fiber *choose(void)
{
    struct fiber *ready[MAX_FIBERS], *due = first_due();
    bool is_near = due != NULL && due->until_ns - w.now_ns < MAX_STALL_NS;
    if (is_near && rng_below(&w.rng, 512) == 0) {
        time_out(due);
        w.counts.n_stalls++;
    }
    wake_due();
    int n = ready_fibers(ready);
    if (n == 0 && (due = first_due()) != NULL) {
        time_out(due);
        wake_due();
        n = ready_fibers(ready);
    }
    if (n == 0)
        turns_fail("every thread waits for another");
    struct fiber *f = ready[rng_below(&w.rng, (uint64_t)n)];
    /* (Sometimes a fiber is drawn without regard to ranks. Otherwise a thread that polls could keep
     * the others from running.) */
    for (int i = 0; w.by_rank && i < n && rng_below(&w.rng, 64) != 0; i++)
        f = ready[i]->rank > f->rank ? ready[i] : f;
    return f;
}

static void count_turn(void)
{
    if (++w.counts.n_turns > w.max_turns)
        turns_fail("not over after %llu turns", (unsigned long long)w.max_turns);
}

static void turn(uint64_t stay, uint64_t park)
{
    count_turn();
    bool is_parked = rng_below(&w.rng, park) == 0;
    if (is_parked)
        w.now->parked_until = w.counts.n_turns + rng_below(&w.rng, MAX_PARKED);
    if (!is_parked && rng_below(&w.rng, stay) != 0)
        return;
    if (w.by_rank)
        w.now->rank = rng_below(&w.rng, w.now->rank + 1);
    go_to(choose());
}

void turns_point(void)
{
    if (w.runs)
        turn(w.stay, 400);
}

void turns_shared(void)
{
    if (w.runs)
        turn(w.stay < 4 ? w.stay : 4, 8);
}

/* Makes the present fiber wait. */
static void block(enum fiber_state state, const void *on, int64_t until_ns)
{
    count_turn();
    w.now->state = state;
    w.now->on = on;
    w.now->until_ns = until_ns;
    w.now->timed_out = false;
    go_to(choose());
}

/* --- locks ------------------------------------------------------------------------------------ */

static int find_held(const void *lock)
{
    int i = 0;
    while (i < w.n_held && w.held[i].lock != lock)
        i++;
    return i;
}

static bool leads(const void *from, const void *to, int depth)
{
    for (int i = 0; i < w.n_orders; i++)
        if (w.order[i].first == from &&
            (w.order[i].second == to ||
             (depth < 8 && leads(w.order[i].second, to, depth + 1))))
            return true;
    return false;
}

static void note_order(const void *first, const void *second)
{
    for (int i = 0; i < w.n_orders; i++)
        if (w.order[i].first == first && w.order[i].second == second)
            return;
    if (leads(second, first, 0))
        turns_fail("two locks are taken in both orders");
    if (w.n_orders == MAX_ORDERS)
        turns_fail("more than %d pairs of locks", MAX_ORDERS);
    w.order[w.n_orders++] = (struct order){first, second};
}

/* Forgets the orders of a lock, because a new lock may lie at the address of an old one. */
static void forget_orders(const void *lock)
{
    int n = 0;
    for (int i = 0; i < w.n_orders; i++)
        if (w.order[i].first != lock && w.order[i].second != lock)
            w.order[n++] = w.order[i];
    w.n_orders = n;
}

static void lock_take(const void *lock)
{
    for (int i = 0; i < w.n_held; i++) {
        if (w.held[i].by != w.now)
            continue;
        if (w.held[i].lock == lock)
            turns_fail("a lock is taken twice by one thread");
        note_order(w.held[i].lock, lock);
    }
    while (find_held(lock) < w.n_held)
        block(ON_LOCK, lock, 0);
    if (w.n_held == MAX_HELD)
        turns_fail("more than %d locks are held", MAX_HELD);
    w.held[w.n_held++] = (struct held){lock, w.now};
}

static void lock_give(const void *lock)
{
    int i = find_held(lock);
    if (i == w.n_held || w.held[i].by != w.now)
        turns_fail("a lock is given back that the thread does not hold");
    w.held[i] = w.held[--w.n_held];
    for (int k = 0; k < MAX_FIBERS; k++)
        if (w.fiber[k].state == ON_LOCK && w.fiber[k].on == lock)
            wake(&w.fiber[k]);
}

/* --- conditions ------------------------------------------------------------------------------- */

static int cond_wait(const void *cond, const void *lock, int64_t until_ns)
{
    lock_give(lock);
    block(ON_COND, cond, until_ns);
    bool timed_out = w.now->timed_out;
    lock_take(lock);
    return timed_out ? ETIMEDOUT : 0;
}

static void cond_wake(const void *cond, bool all)
{
    struct fiber *waits[MAX_FIBERS];
    int n = 0;
    for (int i = 0; i < MAX_FIBERS; i++)
        if (w.fiber[i].state == ON_COND && w.fiber[i].on == cond)
            waits[n++] = &w.fiber[i];
    int first = n > 0 ? (int)rng_below(&w.rng, (uint64_t)n) : 0;
    for (int i = 0; i < (all ? n : n > 0 ? 1 : 0); i++)
        wake(waits[(first + i) % n]);
}

/* --- life of a fiber -------------------------------------------------------------------------- */

static void end_fiber(struct fiber *f)
{
    for (int i = 0; i < w.n_held; i++)
        if (w.held[i].by == f)
            turns_fail("a thread ends with a lock");
    for (int i = 0; i < MAX_FIBERS; i++)
        if (w.fiber[i].state == ON_JOIN && w.fiber[i].on == f)
            wake(&w.fiber[i]);
    f->state = ENDED;
}

static void fiber_main(void)
{
    enter(NULL);
    struct fiber *f = w.now;
    f->result = f->fn(f->arg);
    end_fiber(f);
    go_to(choose());
}

static void *run_main(void *arg)
{
    (void)arg;
    w.main(w.main_arg);
    for (int i = 1; i < MAX_FIBERS; i++)
        if (w.fiber[i].state != NONE)
            turns_fail("thread %d is left behind", i);
    leave(NULL, w.outside_stack, w.outside_bytes);
    setcontext(&w.outside);
    return NULL;
}

static struct fiber *make_fiber(void *(*fn)(void *arg), void *arg)
{
    struct fiber *f = w.fiber;
    while (f < w.fiber + MAX_FIBERS && f->state != NONE)
        f++;
    if (f == w.fiber + MAX_FIBERS)
        turns_fail("more than %d threads", MAX_FIBERS);
    uint8_t *stack = f->stack;
    if (stack == NULL)
        stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *f = (struct fiber){
        .state = READY, .fn = fn, .arg = arg, .stack = stack, .rank = rng_u64(&w.rng) >> 1};
#ifdef __SANITIZE_ADDRESS__
    /* a fiber ends without returning from its functions */
    __asan_unpoison_memory_region(stack, STACK_BYTES);
#endif
    getcontext(&f->at);
    f->at.uc_stack.ss_sp = stack;
    f->at.uc_stack.ss_size = STACK_BYTES;
    f->at.uc_link = NULL;
    makecontext(&f->at, fiber_main, 0);
    w.counts.n_fibers++;
    return f;
}

void turns_run(const struct turns_opts *o, void (*fn)(void *arg), void *arg,
               struct turns_counts *out)
{
    static const uint64_t stays[] = {2, 3, 6, 15, 60};
    volatile bool is_over = false;
    signal(SIGABRT, on_signal);
    signal(SIGSEGV, on_signal);
    w.seed = o->seed;
    w.max_turns = o->max_turns != 0 ? o->max_turns : 1000000;
    w.rng.s = rng_mix(o->seed ^ 0x7475726e73u);
    w.now_ns = 1000000000;
    w.n_held = w.n_orders = 0;
    w.counts = (struct turns_counts){0};
    w.stay = stays[rng_below(&w.rng, sizeof stays / sizeof stays[0])];
    w.by_rank = rng_below(&w.rng, 3) == 0;
    w.main = fn;
    w.main_arg = arg;
    w.now = make_fiber(run_main, NULL);
    w.runs = true;
    getcontext(&w.outside);
    if (!is_over) {
        is_over = true;
        leave(&w.outside_fake, w.now->stack, STACK_BYTES);
        setcontext(&w.now->at);
    }
    enter(w.outside_fake);
    w.runs = false;
    w.fiber[0].state = NONE;
    if (out != NULL)
        *out = w.counts;
}

/* --- functions that the linker redirects here ------------------------------------------------- */

/* The real function. It is declared weak because a program whose calls are not redirected does not
 * have it. */
#define REAL(type, name, ...)                                                              \
    extern type __real_##name(__VA_ARGS__) __attribute__((weak));                          \
    type __wrap_##name(__VA_ARGS__);                                                       \
    type __wrap_##name(__VA_ARGS__)

REAL(int, pthread_create, pthread_t *thread, const pthread_attr_t *attr,
     void *(*fn)(void *), void *arg)
{
    if (!w.runs)
        return __real_pthread_create(thread, attr, fn, arg);
    *thread = (pthread_t)(make_fiber(fn, arg) - w.fiber);
    turns_point();
    return 0;
}

REAL(int, pthread_join, pthread_t thread, void **result)
{
    if (!w.runs)
        return __real_pthread_join(thread, result);
    struct fiber *f = &w.fiber[thread];
    while (f->state != ENDED)
        block(ON_JOIN, f, 0);
    if (result != NULL)
        *result = f->result;
    f->state = NONE;
    return 0;
}

REAL(int, pthread_mutex_init, pthread_mutex_t *m, const pthread_mutexattr_t *attr)
{
    if (w.runs)
        forget_orders(m);
    return __real_pthread_mutex_init(m, attr);
}

REAL(int, pthread_mutex_destroy, pthread_mutex_t *m)
{
    if (w.runs && find_held(m) < w.n_held)
        turns_fail("a lock is destroyed while it is held");
    return __real_pthread_mutex_destroy(m);
}

REAL(int, pthread_mutex_lock, pthread_mutex_t *m)
{
    if (!w.runs)
        return __real_pthread_mutex_lock(m);
    turns_point();
    lock_take(m);
    return 0;
}

REAL(int, pthread_mutex_trylock, pthread_mutex_t *m)
{
    if (!w.runs)
        return __real_pthread_mutex_trylock(m);
    turns_point();
    if (find_held(m) < w.n_held)
        return EBUSY;
    lock_take(m);
    return 0;
}

REAL(int, pthread_mutex_unlock, pthread_mutex_t *m)
{
    if (!w.runs)
        return __real_pthread_mutex_unlock(m);
    lock_give(m);
    turns_point();
    return 0;
}

REAL(int, pthread_cond_wait, pthread_cond_t *c, pthread_mutex_t *m)
{
    return w.runs ? cond_wait(c, m, 0) : __real_pthread_cond_wait(c, m);
}

REAL(int, pthread_cond_timedwait, pthread_cond_t *c, pthread_mutex_t *m,
     const struct timespec *until)
{
    if (!w.runs)
        return __real_pthread_cond_timedwait(c, m, until);
    int64_t until_ns = (int64_t)until->tv_sec * 1000000000 + until->tv_nsec;
    return cond_wait(c, m, until_ns > 0 ? until_ns : 1);
}

REAL(int, pthread_cond_signal, pthread_cond_t *c)
{
    if (!w.runs)
        return __real_pthread_cond_signal(c);
    cond_wake(c, false);
    return 0;
}

REAL(int, pthread_cond_broadcast, pthread_cond_t *c)
{
    if (!w.runs)
        return __real_pthread_cond_broadcast(c);
    cond_wake(c, true);
    return 0;
}

REAL(int64_t, clock_now_ns, void)
{
    return w.runs ? (w.now_ns += 100) : __real_clock_now_ns();
}

REAL(int64_t, clock_wall_s, void)
{
    return w.runs ? 1700000000 + w.now_ns / 1000000000 : __real_clock_wall_s();
}

REAL(void, clock_sleep_ns, int64_t ns)
{
    if (!w.runs)
        __real_clock_sleep_ns(ns);
    else if (ns > 0)
        block(ASLEEP, NULL, w.now_ns + ns);
}

REAL(int, setpriority, __priority_which_t which, id_t who, int priority)
{
    return w.runs ? 0 : __real_setpriority(which, who, priority);
}

/* The thread's own call is ignored: it would lower the class of the whole test. */
REAL(int, sched_setscheduler, pid_t who, int policy, const struct sched_param *param)
{
    return w.runs ? 0 : __real_sched_setscheduler(who, policy, param);
}
