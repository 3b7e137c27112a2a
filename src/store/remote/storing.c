/* storing.c - see storing.h. */
#include "store/remote/storing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/thread.h"

struct storing {
    struct remote *r;
    pthread_t thread;
    bool has_thread;
    /* The thread owns these while is_busy is set, otherwise the reader. */
    struct remote_fetch *f;
    struct redis_answer value;
    struct stored out;

    pthread_mutex_t lock; /* protects the fields below */
    pthread_cond_t news;  /* signals to the thread that is_busy or quit is set */
    pthread_cond_t rest;  /* signals from the thread that is_busy is reset */
    bool is_busy, quit;
};

/* --- one chunk -------------------------------------------------------------------------------- */

static void miss(struct storing *s, enum remote_miss why, const char *text)
{
    s->out.why = why;
    snprintf(s->out.text, sizeof s->out.text, "%.159s", text);
}

/* Ends the chain at a wrong value. Has the value removed from the remote, so that a server that has
 * the chunk writes it anew. */
static void is_wrong(struct storing *s, const char *why)
{
    char text[160];
    const struct offer o = {.key = s->f->keys[s->out.n], .removes = true};
    snprintf(text, sizeof text, "the remote gave a wrong chunk: %.120s", why);
    remote_put_offer(s->r, &o);
    miss(s, REMOTE_MISS_WRONG, text);
}

/* Verifies the value and appends it to the store. */
static void store_value(struct storing *s)
{
    struct chunk_header h;
    struct err err = {0};
    const struct remote_want *want = &s->f->want;
    const struct sha256 *key = &want->keys[s->out.n];
    const size_t n_value = s->value.n_bytes;
    if (s->r->names.seal != NULL && n_value > VALUE_TAIL) {
        bool is_ours = value_open(&s->r->names, key->b, sizeof key->b, s->value.bytes,
                                  n_value - 8);
        s->value.n_bytes = is_ours ? n_value - VALUE_TAIL : 0;
    }
    if (s->value.n_bytes == 0) {
        is_wrong(s, "it is not encrypted with this server's key, or was changed");
    } else if (parcel_check(s->value.bytes, s->value.n_bytes, &h, &err) != 0) {
        is_wrong(s, err.msg);
    } else if (memcmp(h.key.b, key->b, sizeof key->b) != 0) {
        is_wrong(s, "it has another key");
    } else if (memcmp(h.fingerprint.b, want->fingerprint.b, sizeof h.fingerprint.b) != 0) {
        is_wrong(s, "it is state of another model or build");
    } else if (h.owner != want->owner || h.n_tokens != STORE_CHUNK_TOKENS) {
        is_wrong(s, "it belongs to another salt, or is not full");
    } else {
        pthread_mutex_lock(&s->r->append_lock);
        bool may = remote_may_store(s->r, s->f, key);
        int rc = may ? parcel_append(s->r->o.store, s->value.bytes, &h, &want->use, &err)
                     : 0;
        pthread_mutex_unlock(&s->r->append_lock);
        if (!may)
            miss(s, REMOTE_MISS_ABSENT, "the remote's copy was erased a moment ago");
        else if (rc != 0)
            miss(s, REMOTE_MISS_STORE, err.msg);
    }
    if (s->out.why != REMOTE_MISS_NONE)
        return;
    s->out.n++;
    s->out.n_bytes += n_value;
}

static void *storing_main(void *arg)
{
    struct storing *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->quit) {
        if (!s->is_busy) {
            pthread_cond_wait(&s->news, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        store_value(s);
        pthread_mutex_lock(&s->lock);
        s->is_busy = false;
        pthread_cond_signal(&s->rest);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* --- the reader's side ------------------------------------------------------------------------ */

static void await_rest(struct storing *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->is_busy)
        pthread_cond_wait(&s->rest, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

void storing_begin(struct storing *s, struct remote_fetch *f)
{
    s->f = f;
    s->out = (struct stored){.n = 0};
}

bool storing_give(struct storing *s, struct redis_answer *value)
{
    await_rest(s);
    if (s->out.why != REMOTE_MISS_NONE)
        return false;
    struct redis_answer free_buffer = s->value;
    s->value = *value;
    *value = free_buffer;
    pthread_mutex_lock(&s->lock);
    s->is_busy = true;
    pthread_cond_signal(&s->news);
    pthread_mutex_unlock(&s->lock);
    return true;
}

struct stored storing_end(struct storing *s)
{
    await_rest(s);
    s->f = NULL;
    return s->out;
}

int storing_create(struct remote *r, struct storing **out, struct err *err)
{
    struct storing *s = xcalloc(1, sizeof *s);
    s->r = r;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->news, NULL);
    pthread_cond_init(&s->rest, NULL);
    int rc = thread_create(&s->thread, storing_main, s);
    s->has_thread = rc == 0;
    if (rc == 0) {
        *out = s;
        return 0;
    }
    storing_destroy(s);
    return err_set(err, -rc, "no thread for the remote: %s", strerror(rc));
}

void storing_destroy(struct storing *s)
{
    if (s == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    s->quit = true;
    pthread_cond_signal(&s->news);
    pthread_mutex_unlock(&s->lock);
    if (s->has_thread)
        pthread_join(s->thread, NULL);
    redis_answer_deinit(&s->value);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->news);
    pthread_cond_destroy(&s->rest);
    free(s);
}
