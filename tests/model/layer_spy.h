/* layer_spy.h - a layer_source that records acquires and releases of layers, for tests.
 *
 * It lends private copies of the layers, and wipes a copy when the copy's last holder releases it.
 * So an operation that is queued outside of acquire and release finds wiped weights, and the test
 * fails. */
#ifndef TESTS_MODEL_LAYER_SPY_H
#define TESTS_MODEL_LAYER_SPY_H

#include "model/model.h"
#include "model/weights_use.h"

enum { SPY_MAX_LAYERS = 32, SPY_MAX_EVENTS = 1 << 16 };

struct layer_spy {
    struct layer_source source;
    struct model *m;
    struct layer_weights lent[SPY_MAX_LAYERS];
    int n_holders[SPY_MAX_LAYERS];
    /* in order: l + 1 if layer l was acquired, -(l + 1) if it was released */
    int events[SPY_MAX_EVENTS];
    int n_events, n_read;
    int fail_at; /* acquiring this layer fails with -EIO; -1: no acquire fails */
};

void spy_begin(struct layer_spy *spy, struct model *m);
/* Fails the test if a layer is still held. */
void spy_end(struct layer_spy *spy);

/* Fails the test unless the next events are those of one pass over layers [first, end): each layer
 * is acquired and then released, in ascending order. */
void spy_expect_pass(struct layer_spy *spy, int first, int end);
/* Fails the test unless all events were expected. */
void spy_expect_end(const struct layer_spy *spy);

#endif
