/* arena.c - see arena.h. */
#include "store/arena.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpus.h"
#include "base/mem.h"
#include "base/process.h"
#include "base/thread.h"

/* Bytes of one call: the host of a virtual machine takes milliseconds to provide them. */
#define PIECE_BYTES ((uint64_t)2 << 20)
#define AHEAD_BYTES ((uint64_t)256 << 20)

enum { MAX_PROVIDERS = 8, LOWEST_PRIORITY = 19 };

struct arena {
    struct arena_opts o;
    uint8_t *base;
    bool is_whole; /* all of it is provided from the start */
    pthread_t providers[MAX_PROVIDERS];
    int n_providers;
    pthread_mutex_t lock; /* protects the fields below */
    pthread_cond_t news;  /* to the providers: end_bytes has grown, or quit is set */
    pthread_cond_t done;  /* all memory is provided */
    bool quit;
    uint64_t end_bytes; /* end of the part that was ever used */
    uint64_t at;        /* end of the part that a provider has taken */
    uint64_t n_provided;
    double s_per_byte; /* a provider's processor time, mean of newer pieces; 0: unknown */
};

/* --- providing -------------------------------------------------------------------------------- */

/* [lock] Returns the end of the part that should be provided now. */
static uint64_t wanted_bytes(const struct arena *a)
{
    uint64_t left = a->o.n_bytes - a->end_bytes;
    return left < a->o.ahead_bytes ? a->o.n_bytes : a->end_bytes + a->o.ahead_bytes;
}

static double thread_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* [lock] Keeps the mean of about 32 pieces, because a single piece may be slow. */
static void note_speed(struct arena *a, double s_per_byte)
{
    enum { PIECES = 32 };
    a->s_per_byte += (s_per_byte - a->s_per_byte) / (a->s_per_byte > 0 ? PIECES : 1);
}

/* [lock, released meanwhile] */
static void provide_piece(struct arena *a)
{
    uint64_t at = a->at, left = wanted_bytes(a) - at;
    uint64_t n = left < PIECE_BYTES ? left : PIECE_BYTES;
    a->at += n;
    pthread_mutex_unlock(&a->lock);
    double begin_s = thread_s();
    mem_provide(a->base + at, n);
    double s = thread_s() - begin_s;
    pthread_mutex_lock(&a->lock);
    note_speed(a, s / (double)n);
    a->n_provided += n;
    if (a->n_provided == a->o.n_bytes)
        pthread_cond_broadcast(&a->done);
}

static void *provide_main(void *arg)
{
    struct arena *a = arg;
    if (!a->is_whole) /* sets the priority of this thread only, on Linux */
        (void)setpriority(PRIO_PROCESS, (id_t)gettid(), LOWEST_PRIORITY);
    pthread_mutex_lock(&a->lock);
    while (!a->quit && a->at < a->o.n_bytes) {
        if (a->at < wanted_bytes(a))
            provide_piece(a);
        else
            pthread_cond_wait(&a->news, &a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

void arena_use(struct arena *a, uint64_t end_bytes)
{
    pthread_mutex_lock(&a->lock);
    if (end_bytes > a->end_bytes) {
        a->end_bytes = end_bytes;
        pthread_cond_signal(&a->news);
    }
    pthread_mutex_unlock(&a->lock);
}

double arena_price_s(struct arena *a, uint64_t n_bytes, uint64_t n_promised)
{
    if (a->n_providers == 0)
        return 0;
    pthread_mutex_lock(&a->lock);
    bool is_all = a->at == a->o.n_bytes;
    uint64_t ahead = a->at > a->end_bytes ? a->at - a->end_bytes : 0;
    uint64_t own = ahead > n_promised ? ahead - n_promised : 0;
    double s = n_bytes > own && !is_all ? (double)(n_bytes - own) * a->s_per_byte : 0;
    pthread_mutex_unlock(&a->lock);
    return s;
}

bool arena_await(struct arena *a, int64_t timeout_ns, uint64_t *n_bytes)
{
    int64_t until = clock_now_ns() + timeout_ns;
    struct timespec t = {.tv_sec = (time_t)(until / 1000000000),
                         .tv_nsec = (long)(until % 1000000000)};
    int rc = 0;
    pthread_mutex_lock(&a->lock);
    bool waits = a->is_whole && a->n_providers > 0;
    while (waits && a->n_provided < a->o.n_bytes && rc == 0)
        rc = pthread_cond_timedwait(&a->done, &a->lock, &t);
    bool is_done = !waits || a->n_provided == a->o.n_bytes;
    *n_bytes = a->n_provided;
    pthread_mutex_unlock(&a->lock);
    return is_done;
}

/* --- life ------------------------------------------------------------------------------------- */

static void start_providers(struct arena *a)
{
    int n = a->o.memory.get != NULL ? 0 : a->is_whole ? cpus_usable() : 1;
    n = n < MAX_PROVIDERS ? n : MAX_PROVIDERS;
    while (a->n_providers < n &&
           thread_create(&a->providers[a->n_providers], provide_main, a) == 0)
        a->n_providers++;
}

/* Refuses more memory than is left: the system would kill a process later. */
static int system_has(uint64_t n_bytes, struct err *err)
{
    uint64_t left = process_memory_left();
    if (left == 0 || n_bytes <= left)
        return 0;
    return err_set(
        err, -ENOMEM,
        "%.2f GB of copies in DRAM do not fit: the system has %.2f GB left for this "
        "process: give less --dram",
        (double)n_bytes / 1e9, (double)left / 1e9);
}

int arena_open(const struct arena_opts *o, struct arena **out, struct err *err)
{
    const struct store_memory *m = &o->memory;
    bool is_whole = o->ahead_bytes >= o->n_bytes;
    int rc = is_whole && m->get == NULL ? system_has(o->n_bytes, err) : 0;
    if (rc != 0)
        return rc;
    void *base = m->get != NULL ? m->get(m->arg, o->n_bytes) : mem_map(o->n_bytes);
    if (base == NULL)
        return err_set(err, -ENOMEM, "no memory for %llu bytes of copies in DRAM",
                       (unsigned long long)o->n_bytes);
    struct arena *a = xcalloc(1, sizeof *a);
    a->o = *o;
    a->o.ahead_bytes = o->ahead_bytes != 0 ? o->ahead_bytes : AHEAD_BYTES;
    a->base = base;
    a->is_whole = is_whole;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->news, NULL);
    clock_cond_init(&a->done);
    start_providers(a);
    *out = a;
    return 0;
}

void arena_close(struct arena *a)
{
    if (a == NULL)
        return;
    pthread_mutex_lock(&a->lock);
    a->quit = true;
    pthread_cond_broadcast(&a->news);
    pthread_mutex_unlock(&a->lock);
    for (int i = 0; i < a->n_providers; i++)
        pthread_join(a->providers[i], NULL);
    if (a->o.memory.get != NULL)
        a->o.memory.put(a->o.memory.arg, a->base, a->o.n_bytes);
    else
        mem_unmap(a->base, a->o.n_bytes);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->news);
    pthread_cond_destroy(&a->done);
    free(a);
}

uint8_t *arena_bytes(const struct arena *a)
{
    return a->base;
}
