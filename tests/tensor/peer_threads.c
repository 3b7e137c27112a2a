/* peer_threads.c - see peer_threads.h: the functions of mpi/messages.h over queues in memory. */
#include "tests/tensor/peer_threads.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/thread.h"
#include "mpi/group_impl.h"
#include "mpi/messages.h"

struct letter {
    struct letter *next;
    int from, tag;
    size_t n;
    uint8_t bytes[];
};

/* Processes that gather meet twice: when all parts are known, and when all are read. */
struct meeting {
    struct mat in[MOST_PROCESSES];
    int n_here;
    unsigned round;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the following */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct letter *boxes[MOST_PROCESSES];
static struct meeting meetings[MOST_PROCESSES];
static int next_tag;

static _Thread_local int self; /* the number of the process that this thread plays */

int job_tag(void)
{
    pthread_mutex_lock(&lock);
    int tag = TAG_FIRST + next_tag++ % (TAG_LAST - TAG_FIRST);
    pthread_mutex_unlock(&lock);
    return tag;
}

void job_send(int to, int tag, const void *bytes, size_t n)
{
    struct letter *l = xmalloc(sizeof *l + n), **at;
    *l = (struct letter){.from = self, .tag = tag, .n = n};
    memcpy(l->bytes, bytes, n);
    pthread_mutex_lock(&lock);
    for (at = &boxes[to]; *at != NULL;)
        at = &(*at)->next;
    *at = l;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void job_post(int to, int tag, const void *bytes, size_t n)
{
    job_send(to, tag, bytes, n);
}

/* [lock held] Waits for a letter, and returns its place. */
static struct letter **find(int from, int tag)
{
    for (;;) {
        for (struct letter **at = &boxes[self]; *at != NULL; at = &(*at)->next)
            if ((*at)->from == from && (*at)->tag == tag)
                return at;
        pthread_cond_wait(&changed, &lock);
    }
}

size_t job_await(int from, int tag)
{
    pthread_mutex_lock(&lock);
    size_t n = (*find(from, tag))->n;
    pthread_mutex_unlock(&lock);
    return n;
}

void job_receive(int from, int tag, void *bytes, size_t n)
{
    pthread_mutex_lock(&lock);
    struct letter **at = find(from, tag), *l = *at;
    *at = l->next;
    pthread_mutex_unlock(&lock);
    CHECK(l->n == n);
    memcpy(bytes, l->bytes, n);
    free(l);
}

static void meet(struct meeting *m, int n, const struct mat *in, int k)
{
    pthread_mutex_lock(&lock);
    unsigned round = m->round;
    if (in != NULL)
        m->in[k] = *in;
    if (++m->n_here == n) {
        m->n_here = 0;
        m->round++;
        pthread_cond_broadcast(&changed);
    }
    while (m->round == round)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

void job_gather(int first, int n, struct mat out, struct mat in)
{
    struct meeting *m = &meetings[first];
    size_t width = (size_t)in.cols * dtype_bytes(in.dtype);
    meet(m, n, &in, self - first);
    for (int k = 0; k < n; k++)
        for (int64_t i = 0; i < in.rows; i++) {
            uint8_t *to = (uint8_t *)out.data + ((size_t)i * (size_t)n + (size_t)k) * width;
            const uint8_t *from = (const uint8_t *)m->in[k].data + (size_t)i * width;
            if (to != from)
                memcpy(to, from, width);
        }
    meet(m, n, NULL, 0);
}

/* --- the threads ------------------------------------------------------------------------------ */

static pthread_t threads[MOST_PROCESSES];

static void *play(void *index)
{
    self = (int)(intptr_t)index;
    (void)serve();
    return NULL;
}

void job_begin_process(int index)
{
    CHECK(thread_create(&threads[index], play, (void *)(intptr_t)index) == 0);
}

void job_end_process(int index)
{
    struct message leave = {.c.kind = CALL_LEAVE};
    job_send(index, TAG_CALL, &leave, sizeof leave);
    CHECK(pthread_join(threads[index], NULL) == 0);
}

void peer_threads_use(void)
{
    static const struct peers_plugin group = {GROUP_FUNCTIONS};
    peers_use(&group, PEERS_ANY);
}
