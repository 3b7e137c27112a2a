/* job.c - joins the job, and sends, waits and gathers by MPI (messages.h).
 *
 * Several threads of process 0 send and wait at once, so MPI_THREAD_MULTIPLE is needed.  MPI's
 * own waits spin and have no end.  So a process asks whether its message has come (MPI_Iprobe),
 * or whether an exchange is complete (MPI_Test).  Between questions about a message it sleeps
 * once none has come for a while; in an exchange it lets other threads run. */
#include <elf.h>
#include <link.h>
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/minmax.h"
#include "base/mem.h"
#include "base/thread.h"
#include "mpi/disks.h"
#include "mpi/group_impl.h"
#include "mpi/messages.h"
#include "mpi/records.h"

/* Waiting spins for SPIN_NS, which a pause between two steps is shorter than. Then it sleeps a
 * sixteenth of the time that it has waited, at most MOST_SLEEP_NS: so much does waking up add to a
 * request after a pause. */
#define SPIN_NS       ((int64_t)200 * 1000)
#define MOST_SLEEP_NS ((int64_t)2000 * 1000)
/* In an exchange the others are at work. One that takes longer than HANG_S hangs: a stage of a
 * model of 70B may need minutes for a batch. HCACHE_HANG_S in the environment is another bound. */
#define YIELD_NS ((int64_t)50 * 1000)
#define HANG_S   600

static int n_processes, self;
static int64_t hang_s = HANG_S;
static atomic_int next_tag;

/* The note of a library by which the linker names its bytes. */
struct build {
    uint8_t id[32];
};

static const char *place_of(const struct dl_phdr_info *o, const ElfW(Phdr) * p)
{
    return (const char *)(uintptr_t)(o->dlpi_addr + p->p_vaddr);
}

static size_t padded(size_t n)
{
    return (n + 3) & ~(size_t)3;
}

static int find_build(struct dl_phdr_info *o, size_t size, void *out)
{
    const ElfW(Phdr) *p = o->dlpi_phdr, *end = p + o->dlpi_phnum;
    const char *own = (const char *)(uintptr_t)find_build;
    (void)size;
    while (p < end && (own < place_of(o, p) || own >= place_of(o, p) + p->p_memsz))
        p++;
    if (p == end)
        return 0; /* another library */
    for (p = o->dlpi_phdr; p < end; p++) {
        const char *at = place_of(o, p), *behind = at + p->p_memsz;
        const ElfW(Nhdr) * note;
        for (; p->p_type == PT_NOTE && at < behind;
             at += sizeof *note + padded(note->n_namesz) + padded(note->n_descsz)) {
            note = (const void *)at;
            if (note->n_type == NT_GNU_BUILD_ID)
                memcpy(out, at + sizeof *note + padded(note->n_namesz),
                       MIN(note->n_descsz, sizeof(struct build)));
        }
    }
    return 1;
}

/* Calls travel as they lie in memory, and ranks compute parts of one result. So all processes must
 * run the same build. */
static int check_builds(int n, struct err *err)
{
    struct build own = {0}, of[MOST_PROCESSES];
    (void)dl_iterate_phdr(find_build, &own);
    MPI_Allgather(&own, sizeof own, MPI_BYTE, of, sizeof own, MPI_BYTE, MPI_COMM_WORLD);
    for (int i = 1; i < n; i++)
        if (memcmp(&of[i], &of[0], sizeof own) != 0) {
            while (self > 0)
                (void)pause(); /* process 0 says it, and mpirun ends the others */
            return err_set(err, ERR_UNSUPPORTED,
                           "process %d runs another build of hcache than process 0: "
                           "install the same on all machines",
                           i);
        }
    return 0;
}

/* Process 0 sends the others signs of life, eight in the time after which they take it for hanging.
 * The lock protects is_on. */
static struct life {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_on;
} life = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *send_life(void *unused)
{
    const struct disk_call sign = {.op = DISK_LIFE};
    (void)unused;
    pthread_mutex_lock(&life.lock);
    while (life.is_on) {
        for (int i = 1; i < n_processes; i++)
            job_post(i, TAG_FILES, &sign, sizeof sign);
        (void)clock_cond_wait(&life.changed, &life.lock, hang_s * 1000000000 / 8);
    }
    pthread_mutex_unlock(&life.lock);
    return NULL;
}

static void life_begin(void) /* peers_join has blocked all signals */
{
    clock_cond_init(&life.changed);
    life.is_on = true;
    CHECK(thread_create(&life.thread, send_life, NULL) == 0);
}

static void life_end(void)
{
    pthread_mutex_lock(&life.lock);
    life.is_on = false;
    pthread_cond_signal(&life.changed);
    pthread_mutex_unlock(&life.lock);
    (void)pthread_join(life.thread, NULL);
    pthread_cond_destroy(&life.changed);
}

int job_join(int *index, int *n, struct err *err)
{
    int provided;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS ||
        provided < MPI_THREAD_MULTIPLE)
        return err_set(err, ERR_UNSUPPORTED,
                       "this MPI does not serve several threads: install Open MPI with "
                       "MPI_THREAD_MULTIPLE");
    MPI_Comm_rank(MPI_COMM_WORLD, index);
    MPI_Comm_size(MPI_COMM_WORLD, n);
    n_processes = *n;
    self = *index;
    group_reader_open = records_reader_open;
    const char *bound = getenv("HCACHE_HANG_S");
    if (bound != NULL && strtol(bound, NULL, 10) > 0)
        hang_s = strtol(bound, NULL, 10);
    int rc = *n <= MOST_PROCESSES
                 ? check_builds(*n, err)
                 : err_set(err, ERR_USAGE, "%d processes: at most %d are allowed", *n,
                           MOST_PROCESSES);
    if (rc == 0 && self == 0)
        life_begin();
    return rc;
}

int job_self(void)
{
    return self;
}

int job_processes(void)
{
    return n_processes;
}

void job_begin_process(int index)
{
    (void)index; /* mpirun has started it, and ends it */
}

void job_end_process(int index)
{
    (void)index;
}

int job_tag(void)
{
    unsigned n = (unsigned)atomic_fetch_add(&next_tag, 1);
    return TAG_FIRST + (int)(n % (TAG_LAST - TAG_FIRST));
}

/* A wait. A pause of this process counts as MOST_STEP_NS: others may have paused with it. */
#define MOST_STEP_NS ((int64_t)500 * 1000 * 1000)
struct wait {
    int64_t last, waited_ns;
};

static struct wait wait_begin(void)
{
    return (struct wait){.last = clock_now_ns()};
}

static int64_t waited(struct wait *w)
{
    int64_t now = clock_now_ns();
    w->waited_ns += MIN(now - w->last, MOST_STEP_NS);
    w->last = now;
    return w->waited_ns;
}

/* Ends the job if another process hangs: one that was waited for so long. */
static void check_hang(int64_t waited_ns)
{
    if (waited_ns / 1000000000 < hang_s)
        return;
    fprintf(stderr,
            "hcache: a process of the job has not answered for %d s, so the job ends: look "
            "for a machine that is overloaded or stopped, and start it again\n",
            (int)hang_s);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Waits for the end of n parts of an exchange. */
static void finish(MPI_Request *r, int n)
{
    int is_done = 0;
    struct wait w = wait_begin();
    for (;;) {
        MPI_Testall(n, r, &is_done, MPI_STATUSES_IGNORE);
        if (is_done)
            return;
        int64_t waited_ns = waited(&w);
        check_hang(waited_ns);
        if (waited_ns > YIELD_NS)
            (void)sched_yield();
    }
}

/* Copies of small messages on their way. Open MPI's shared memory counts a message of more than 256
 * bytes as sent when the receiver has looked at it, which it does not while it computes. */
enum { N_COPIES = 128 };
#define MOST_COPIED ((size_t)64 << 10)
static struct copy {
    MPI_Request r; /* NULL before its first use */
    uint8_t *bytes;
    size_t room;
} copies[N_COPIES];
static unsigned next_copy;
static pthread_mutex_t copies_lock = PTHREAD_MUTEX_INITIALIZER; /* protects both */

/* Sends a copy. Returns false if the oldest copy is still on its way. */
static bool send_copy(int to, int tag, const void *bytes, size_t n)
{
    int is_done = 1;
    pthread_mutex_lock(&copies_lock);
    struct copy *c = &copies[next_copy % N_COPIES];
    if (c->r != NULL)
        MPI_Test(&c->r, &is_done, MPI_STATUS_IGNORE);
    if (is_done) {
        next_copy++;
        if (n > c->room)
            c->bytes = xrealloc(c->bytes, c->room = 2 * n);
        memcpy(c->bytes, bytes, n);
        MPI_Isend(c->bytes, (int)n, MPI_BYTE, to, tag, MPI_COMM_WORLD, &c->r);
    }
    pthread_mutex_unlock(&copies_lock);
    return is_done;
}

static void finish_copies(void)
{
    for (int i = 0; i < N_COPIES; i++) {
        if (copies[i].r != NULL)
            finish(&copies[i].r, 1);
        free(copies[i].bytes);
    }
}

void job_post(int to, int tag, const void *bytes, size_t n)
{
    if (n > MOST_COPIED || !send_copy(to, tag, bytes, n))
        job_send(to, tag, bytes, n);
}

void job_send(int to, int tag, const void *bytes, size_t n)
{
    MPI_Request r;
    MPI_Isend(bytes, (int)n, MPI_BYTE, to, tag, MPI_COMM_WORLD, &r);
    finish(&r, 1);
}

void *job_send_begin(int to, int tag, const void *bytes, size_t n)
{
    MPI_Request *r = xmalloc(sizeof *r);
    MPI_Isend(bytes, (int)n, MPI_BYTE, to, tag, MPI_COMM_WORLD, r);
    return r;
}

bool job_send_ended(void **sending)
{
    int is_done = 0;
    MPI_Test(*sending, &is_done, MPI_STATUS_IGNORE);
    if (is_done) {
        free(*sending);
        *sending = NULL;
    }
    return is_done;
}

bool job_has(int from, int tag)
{
    int has_come = 0;
    MPI_Iprobe(from, tag, MPI_COMM_WORLD, &has_come, MPI_STATUS_IGNORE);
    return has_come;
}

int job_has_any(int tag)
{
    MPI_Status status;
    int has_come = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &has_come, &status);
    return has_come ? status.MPI_SOURCE : -1;
}

/* Waits for a message; sleeps if none comes for a while. */
static MPI_Status await(int from, int tag)
{
    MPI_Status status;
    int has_come = 0;
    struct wait w = wait_begin();
    for (;;) {
        MPI_Iprobe(from, tag, MPI_COMM_WORLD, &has_come, &status);
        if (has_come)
            break;
        int64_t waited_ns = waited(&w);
        /* Process 0 waits for an answer. The others wait for work, but signs of life come, too. */
        if (self == 0 || tag == TAG_FILES)
            check_hang(waited_ns);
        if (waited_ns > SPIN_NS)
            nanosleep(&(struct timespec){.tv_nsec = MIN(waited_ns / 16, MOST_SLEEP_NS)},
                      NULL);
    }
    return status;
}

size_t job_await(int from, int tag)
{
    MPI_Status status = await(from, tag);
    int n = 0;
    MPI_Get_count(&status, MPI_BYTE, &n);
    return (size_t)n;
}

int job_await_any(int tag)
{
    return await(MPI_ANY_SOURCE, tag).MPI_SOURCE;
}

void job_receive(int from, int tag, void *bytes, size_t n)
{
    MPI_Request r;
    MPI_Irecv(bytes, (int)n, MPI_BYTE, from, tag, MPI_COMM_WORLD, &r);
    finish(&r, 1);
}

/* The parts of other processes arrive in their places: a call that maps and zeroes memory for them
 * takes longer than the exchange. */
void job_gather(int first, int n, struct mat out, struct mat in)
{
    MPI_Request r[2 * MOST_PROCESSES];
    MPI_Datatype part;
    size_t width = (size_t)in.cols * dtype_bytes(in.dtype);
    int n_requests = 0;
    uint8_t *own = (uint8_t *)out.data + (size_t)(self - first) * width;
    MPI_Type_vector((int)in.rows, (int)width, (int)width * n, MPI_BYTE, &part);
    MPI_Type_commit(&part);
    for (int k = 0; k < n; k++) {
        if (first + k == self)
            continue;
        MPI_Irecv((uint8_t *)out.data + (size_t)k * width, 1, part, first + k, TAG_GATHER,
                  MPI_COMM_WORLD, &r[n_requests++]);
        MPI_Isend(in.data, (int)(width * (size_t)in.rows), MPI_BYTE, first + k, TAG_GATHER,
                  MPI_COMM_WORLD, &r[n_requests++]);
    }
    for (int64_t i = 0; i < in.rows && own != in.data; i++)
        memcpy(own + (size_t)i * (size_t)n * width,
               (const uint8_t *)in.data + (size_t)i * width, width);
    finish(r, n_requests);
    MPI_Type_free(&part);
}

void job_leave(void)
{
    if (life.is_on)
        life_end();
    disks_leave(n_processes);
    struct message end = {.c.kind = CALL_LEAVE};
    for (int i = 1; i < n_processes; i++)
        job_send(i, TAG_CALL, &end, sizeof end);
    finish_copies();
    MPI_Finalize();
}

/* Carries out calls to this process's device and files until process 0 leaves. */
static int serve_all(void)
{
    disk_threads_start();
    records_thread_start();
    int rc = serve();
    records_thread_join();
    disk_threads_join();
    finish_copies();
    MPI_Finalize();
    return rc;
}

extern const struct peers_plugin hcache_peers_plugin;
__attribute__((visibility("default")))
const struct peers_plugin hcache_peers_plugin = {.version = PEERS_PLUGIN_VERSION,
                                                 .layout = PEERS_PLUGIN_LAYOUT,
                                                 .join = job_join,
                                                 .serve = serve_all,
                                                 .leave = job_leave,
                                                 GROUP_FUNCTIONS,
                                                 .disks = disks_open};
