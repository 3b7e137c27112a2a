/* watch.c - see watch.h: one thread, one epoll, a fixed table. */
#include "server/watch.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"

/* Deadlines are checked this often. They are whole seconds, and a scan of the table takes
 * microseconds. */
enum { TICK_MS = 250, MAX_EVENTS = 64 };

/* If more than three quarters of the places are in use, connections that send no request are
 * closed sooner. Otherwise a client that takes all places and sends a byte now and then would
 * keep others out. */
enum { PRESSED_REQUEST_S = 5 };

struct watch {
    struct watcher *owner;
    int socket;
    /* Number of the socket in this place. It lets the watcher ignore a late event of an earlier
     * socket. */
    uint32_t generation;
    bool used, is_gone;
    int64_t deadline_ns; /* 0: no deadline */
    int64_t pressed_ns;  /* deadline if places are short; 0: no deadline */
    void (*gone)(void *arg);
    void *arg;
    int64_t alarm_ns;
    void (*alarm)(void *arg); /* NULL: no alarm is set */
    void *alarm_arg;
};

struct watcher {
    pthread_t thread;
    pthread_mutex_t lock; /* protects the table */
    int epoll, wake;
    bool stop, rings; /* rings: alarms no longer wait, because watcher_ring was called */
    int n, n_used;
    /* Time that a connection may stay open between requests if places are short. */
    int pressed_idle_s;
    struct watch place[];
};

/* [lock] Calls `gone` of a place whose client has closed its side. The tag has the place's number
 * and generation. */
static void peer_ended(struct watcher *w, uint64_t tag)
{
    struct watch *p = &w->place[tag & 0xffffffffu];
    if (!p->used || p->generation != (uint32_t)(tag >> 32))
        return;
    p->is_gone = true;
    if (p->gone != NULL)
        p->gone(p->arg);
    p->gone = NULL;
}

static void check_alarm(struct watch *p, int64_t now)
{
    void (*alarm)(void *arg) = p->alarm;
    if (alarm == NULL || (now < p->alarm_ns && !p->owner->rings))
        return;
    p->alarm = NULL;
    alarm(p->alarm_arg);
}

static bool has_passed(int64_t deadline_ns, int64_t now)
{
    return deadline_ns != 0 && now >= deadline_ns;
}

static void check_deadlines(struct watcher *w)
{
    int64_t now = clock_now_ns();
    int n_over = w->n_used - (w->n - w->n / 4);
    for (int i = 0; i < w->n; i++) {
        struct watch *p = &w->place[i];
        if (p->used)
            check_alarm(p, now);
        bool is_pressed = n_over > 0 && has_passed(p->pressed_ns, now);
        if (!p->used || (!is_pressed && !has_passed(p->deadline_ns, now)))
            continue;
        n_over--;
        p->deadline_ns = p->pressed_ns = 0;
        (void)shutdown(p->socket, SHUT_RDWR);
    }
}

static void *watcher_main(void *arg)
{
    struct watcher *w = arg;
    struct epoll_event ev[MAX_EVENTS];
    for (;;) {
        int n = epoll_wait(w->epoll, ev, MAX_EVENTS, TICK_MS);
        pthread_mutex_lock(&w->lock);
        bool stop = w->stop;
        for (int i = 0; i < n; i++) {
            if (ev[i].data.u64 != UINT64_MAX)
                peer_ended(w, ev[i].data.u64);
        }
        check_deadlines(w);
        pthread_mutex_unlock(&w->lock);
        if (stop)
            return NULL;
    }
}

int watcher_create(int max_watches, int pressed_idle_s, struct watcher **out,
                   struct err *err)
{
    struct watcher *w = xcalloc(1, sizeof *w + (size_t)max_watches * sizeof w->place[0]);
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = UINT64_MAX};
    w->n = max_watches;
    w->pressed_idle_s = pressed_idle_s;
    pthread_mutex_init(&w->lock, NULL);
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->wake = eventfd(0, EFD_CLOEXEC);
    int rc = w->epoll < 0 || w->wake < 0 ? -errno : 0;
    if (rc == 0 && epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->wake, &ev) != 0)
        rc = -errno;
    if (rc == 0)
        rc = -thread_create(&w->thread, watcher_main, w);
    if (rc != 0) {
        close(w->epoll);
        close(w->wake);
        free(w);
        return err_set(err, rc, "the watcher of connections: %s", err_name(rc));
    }
    *out = w;
    return 0;
}

void watcher_destroy(struct watcher *w)
{
    if (w == NULL)
        return;
    uint64_t one = 1;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_mutex_unlock(&w->lock);
    (void)!write(w->wake, &one, sizeof one);
    pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
    close(w->epoll);
    close(w->wake);
    free(w);
}

static int64_t after(int seconds)
{
    return seconds > 0 ? clock_now_ns() + seconds * (int64_t)1000000000 : 0;
}

/* [lock] Sets both deadlines. */
static void set_deadline(struct watch *p, int seconds, int pressed_s)
{
    p->deadline_ns = after(seconds);
    p->pressed_ns = after(seconds > 0 ? pressed_s : 0);
}

struct watch *watch_begin(struct watcher *w, int socket, int seconds)
{
    struct watch *p = NULL;
    pthread_mutex_lock(&w->lock);
    for (int i = 0; p == NULL && i < w->n; i++)
        p = w->place[i].used ? NULL : &w->place[i];
    if (p != NULL) {
        uint32_t generation = p->generation + 1;
        *p = (struct watch){
            .owner = w, .socket = socket, .generation = generation, .used = true};
        set_deadline(p, seconds, PRESSED_REQUEST_S);
        w->n_used++;
        struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLET,
                                 .data.u64 = (uint64_t)generation << 32 |
                                             (uint64_t)(p - w->place)};
        (void)epoll_ctl(w->epoll, EPOLL_CTL_ADD, socket, &ev);
    }
    pthread_mutex_unlock(&w->lock);
    return p;
}

void watch_end(struct watch *w)
{
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->owner->lock);
    (void)epoll_ctl(w->owner->epoll, EPOLL_CTL_DEL, w->socket, NULL);
    w->used = false;
    w->owner->n_used--;
    w->gone = NULL;
    w->alarm = NULL;
    pthread_mutex_unlock(&w->owner->lock);
}

/* Sets both deadlines with the lock. Does nothing if w is NULL. */
static void change_deadline(struct watch *w, int seconds, int pressed_s)
{
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->owner->lock);
    set_deadline(w, seconds, pressed_s);
    pthread_mutex_unlock(&w->owner->lock);
}

void watch_request(struct watch *w, int seconds)
{
    change_deadline(w, seconds, PRESSED_REQUEST_S);
}

void watch_answer(struct watch *w)
{
    change_deadline(w, 0, 0);
}

void watch_idle(struct watch *w, int seconds)
{
    change_deadline(w, seconds, w != NULL ? w->owner->pressed_idle_s : 0);
}

void watch_on_gone(struct watch *w, void (*gone)(void *arg), void *arg)
{
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->owner->lock);
    w->gone = gone;
    w->arg = arg;
    if (w->is_gone && gone != NULL) {
        w->gone = NULL;
        gone(arg);
    }
    pthread_mutex_unlock(&w->owner->lock);
}

bool watch_is_gone(struct watch *w)
{
    if (w == NULL)
        return false;
    pthread_mutex_lock(&w->owner->lock);
    bool is_gone = w->is_gone;
    pthread_mutex_unlock(&w->owner->lock);
    return is_gone;
}

void watch_alarm(struct watch *w, int64_t after_ns, void (*alarm)(void *arg), void *arg)
{
    if (w == NULL) {
        if (alarm != NULL)
            alarm(arg);
        return;
    }
    pthread_mutex_lock(&w->owner->lock);
    w->alarm = alarm;
    w->alarm_arg = arg;
    w->alarm_ns = clock_now_ns() + after_ns;
    if (w->owner->rings)
        check_alarm(w, w->alarm_ns);
    pthread_mutex_unlock(&w->owner->lock);
}

void watcher_ring(struct watcher *w)
{
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->lock);
    w->rings = true;
    check_deadlines(w);
    pthread_mutex_unlock(&w->lock);
}
