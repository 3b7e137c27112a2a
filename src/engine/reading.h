/* reading.h - what a request reads from its prompt's rows: an embedding, the log-probabilities of
 * its tokens, or a judgement; private to src/engine.
 *
 * The last layer's output of a row is no part of saved state, nor of the KV cache. So a reading
 * that needs every row computes the whole prompt; one that needs the last row alone uses state
 * like any request, since the last token is always computed.
 *
 * Rows are read in the order of their tokens, each once, also if a preempted sequence computes
 * them again. Sums run over the tokens in that order, in double precision. So a reading does not
 * depend on the batch, nor on how the prompt was cut. */
#ifndef ENGINE_READING_H
#define ENGINE_READING_H

#include "engine/seq.h"
#include "tensor/readback.h"

/* Memory that readings share: rows of f32 logits on the last stage, each with room for a hidden
 * state and for the outputs of the layers behind the pooling, and a buffer on the host for them.
 * The memory is borrowed, and its content is lost. */
struct reading_memory {
    struct mat logits;
    struct readback *back;
};

/* Returns whether the request needs every row of its prompt. */
bool reading_needs_all(const struct request *r, const struct model_config *c);
/* Returns whether the request needs the logits of its last token. */
static inline bool reading_needs_logits(const struct request *r)
{
    return r->ask.reads == HCACHE_READS_JUDGEMENT;
}
/* Reserves the memory of the sequence's reading. Returns false if there is none. */
bool reading_begin(struct seq *s);
/* Reads x, the last layer's output of the tokens from first_token on. Waits for the stream. */
int reading_take(struct seq *s, struct stream *stream, struct model_work *work,
                 const struct reading_memory *memory, int first_token, struct mat x);
/* Call when the prompt's last token has its logits. Completes a judgement. */
void reading_end(struct seq *s);

#endif
