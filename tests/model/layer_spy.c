/* layer_spy.c - see layer_spy.h. */
#include "layer_spy.h"

#include "tests/unit.h"

#include <errno.h>
#include <string.h>

static void note(struct layer_spy *spy, int event)
{
    assert_true(spy->n_events < SPY_MAX_EVENTS);
    spy->events[spy->n_events++] = event;
}

static int acquire(void *arg, int l, struct stream *s, const struct layer_weights **out)
{
    struct layer_spy *spy = arg;
    assert_non_null(s);
    assert_in_range(l, 0, spy->m->cfg.n_layers - 1);
    if (l == spy->fail_at)
        return -EIO;
    if (spy->n_holders[l]++ == 0)
        spy->lent[l] = spy->m->w.layers[l];
    note(spy, l + 1);
    *out = &spy->lent[l];
    return 0;
}

static void release(void *arg, int l, struct stream *s)
{
    struct layer_spy *spy = arg;
    assert_non_null(s);
    assert_true(spy->n_holders[l] > 0);
    if (--spy->n_holders[l] == 0)
        memset(&spy->lent[l], 0, sizeof spy->lent[l]);
    note(spy, -(l + 1));
}

void spy_begin(struct layer_spy *spy, struct model *m)
{
    assert_true(m->cfg.n_layers <= SPY_MAX_LAYERS);
    *spy = (struct layer_spy){.m = m, .fail_at = -1};
    spy->source = (struct layer_source){.acquire = acquire, .release = release, .arg = spy};
    m->w.source = &spy->source;
}

void spy_end(struct layer_spy *spy)
{
    for (int l = 0; l < spy->m->cfg.n_layers; l++)
        assert_int_equal(spy->n_holders[l], 0);
    spy->m->w.source = NULL;
}

void spy_expect_pass(struct layer_spy *spy, int first, int end)
{
    for (int l = first; l < end; l++) {
        assert_true(spy->n_read + 2 <= spy->n_events);
        assert_int_equal(spy->events[spy->n_read++], l + 1);
        assert_int_equal(spy->events[spy->n_read++], -(l + 1));
    }
}

void spy_expect_end(const struct layer_spy *spy)
{
    assert_int_equal(spy->n_read, spy->n_events);
}
