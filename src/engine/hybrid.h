/* hybrid.h - which blocks of a batch's contexts are kept as keys and values, and which as
 * activations (HybridServe, section 4.3).
 *
 * A *block* is 64 tokens of one layer.  A KV block holds keys and values.  An ACT block holds the
 * layer's inputs: it is smaller if heads are not grouped, and its keys and values are projected
 * again in each step. For every layer of every step
 *
 *     link     [weights][KV and ACT blocks of the host ...]      T_weights + T_load
 *     compute  [forward pass][projection of all ACT blocks]      T_forward + T_project
 *
 * The two lanes run beside each other, so a step takes the longer of the two. Blocks on the device
 * need no link.
 *
 * Requests pass a layer in mini-batches (engine/minibatch.h). While one computes, the blocks of the
 * next one are loaded. So a layer takes the sum of max(compute of a mini-batch, link of the next
 * one). This sum equals the longer lane only if the mini-batches are equal:
 *
 *     6 requests, at most 5 together   5 + 1: 5 of 6 parts beside 1 of 6, twice
 *                                      3 + 3: as long as the longer lane
 *
 * If sizes cannot be equal, mini-batches have different shares of ACT blocks (hybrid_share.h).
 *
 * The paper's equation 9 leaves out the transfer of ACT blocks that lie on the host. hybrid_paper
 * follows the paper; hybrid_choose counts this transfer. Let x = d * bandwidth / FLOP/s of the
 * projection. A balanced mixture of infinite length has KV : ACT = x : 1 without the transfer, and
 * (x - 1/2) : 1 with it. Then the mixture takes x / (x + 1/2) of the time of KV blocks alone.
 *
 * Pure: no clock, no allocation. */
#ifndef ENGINE_HYBRID_H
#define ENGINE_HYBRID_H

#include <stdbool.h>
#include <stdint.h>

/* A cost of n blocks or bytes: a_s + b_s * n seconds for n > 0, and 0 for n = 0. */
struct hybrid_line {
    double a_s, b_s;
};

/* Costs of one layer in one step. */
struct hybrid_machine {
    /* T_weights: the layer's weights over the link; 0: they are resident */
    double weights_s;
    double forward_s; /* T_forward: all new tokens, attention included, in one mini-batch */
    /* further seconds for each mini-batch after the first, because it reads the layer again */
    double forward_mini_s;
    struct hybrid_line project; /* T_project, as a line over ACT blocks */
    struct hybrid_line link;    /* T_load, as a line over bytes */
    double kv_bytes, act_bytes; /* bytes of a block */
    /* mini-batches of a step, at least 1; each costs a_s of link and of project */
    int n_minibatches;
    /* Requests of equal size, at least n_minibatches.  Mini-batches have whole requests, and their
     * numbers of requests differ by at most one.  0: mini-batches are equal. */
    int n_requests;
    /* Layers of a step. Its first load and its last computation overlap nothing. 0: infinitely
     * many, so that these two do not count. */
    int n_layers;
};

/* Room for the blocks of one layer, bytes. */
struct hybrid_memory {
    double device_bytes, host_bytes;
};

/* A placement of one layer's blocks, and the costs of a step with it. */
struct hybrid_split {
    int64_t act_device, kv_device, act_host, kv_host;
    double link_s, compute_s;
    double seconds; /* seconds of a layer: at least the longer of link_s and compute_s */
    /* Seconds of a layer with KV blocks alone, even if they do not fit. */
    double kv_seconds;
    /* true: hybrid_share_out gives each mini-batch its ACT blocks; false: all requests have equally
     * many */
    bool is_shared_out;
    bool fits; /* false: no mixture of n_blocks blocks fits, and all other fields are 0 */
};

/* Places n_blocks blocks, n_act of them as ACT. ACT blocks fill the device first, then KV blocks.
 * The order hardly matters: a block of either type saves the link as many bytes as it takes on the
 * device. */
void hybrid_place(const struct hybrid_machine *m, const struct hybrid_memory *mem,
                  int64_t n_blocks, int64_t n_act, struct hybrid_split *out);

/* Finds the mixture of n_blocks blocks with the shortest step, with equal or unequal shares of the
 * mini-batches. Uses no ACT blocks if they are no smaller than KV blocks, or if they shorten the
 * step by less than 3 % and all blocks fit without them. */
void hybrid_choose(const struct hybrid_machine *m, const struct hybrid_memory *mem,
                   int64_t n_blocks, struct hybrid_split *out);

/* The paper's Algorithm 1: divides the host's memory before any request is known. ACT blocks fill
 * the device's memory, mem->device_bytes. Numbers of blocks are real, as in the paper's linear
 * system. The paper does not say what happens if the first step wants more memory than the host
 * has; here that step gets all of the host's memory. */
struct hybrid_shares {
    double act_init, kv_init; /* step 1: no idle time while the weights are transferred */
    double act_remain, kv_remain; /* step 2: blocks in the rest of the memory, in balance */
    double act_host, kv_host;     /* sums of both steps */
};
void hybrid_paper(const struct hybrid_machine *m, const struct hybrid_memory *mem,
                  struct hybrid_shares *out);

/* Equation 11: returns whether the next block of a request with n_act and n_kv blocks is an ACT
 * block, so that they keep the ratio act_share : kv_share. After each block the numbers are less
 * than one block off the ratio. */
bool hybrid_next_is_act(double act_share, double kv_share, int64_t n_act, int64_t n_kv);

#endif
