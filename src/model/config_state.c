/* config_state.c - the fields of a config that determine a state's bits, as text for the
 * fingerprint.
 *
 * A config also has fields that change no hidden state, K or V: when generation stops, how long a
 * context may be, and the checkpoint's element type.  A user may edit these and keep the saved
 * state. */
#include "model/config.h"

#include <stdlib.h>

#include "base/mem.h"

/* If this fails, a field was added.  Decide whether it changes a state's bits, name it below if it
 * does, and adapt the size. */
_Static_assert(sizeof(struct model_config) == 888 || sizeof(void *) != 8,
               "struct model_config has changed: see config_state_text");

/* Returns the maximum context if the rotation depends on it, else 0. */
static int32_t context_of(const struct model_config *c)
{
    switch (c->rope_scaling.kind) {
    case ROPE_SCALING_NONE:
    /* the rotation depends on the original context, which is another field */
    case ROPE_SCALING_FACTORS:
        return 0;
    }
    return c->max_ctx;
}

/* Returns the factors of the frequencies, each preceded by a blank. The caller frees the text. */
static char *factors_text(const struct model_config *c)
{
    int n = c->rope_scaling.kind == ROPE_SCALING_FACTORS ? c->d_rope / 2 : 0;
    char *text = xstrdup("");
    for (int i = 0; i < n && i < ROPE_MAX_FACTORS; i++) {
        char *longer = xasprintf("%s %a", text, (double)c->rope_scaling.factors[i]);
        free(text);
        text = longer;
    }
    return text;
}

char *config_state_text(const struct model_config *c)
{
    char *factors = factors_text(c);
    char *text = xasprintf(
        "family %s; layers %d; width %d; heads %d; kv heads %d; head %d; ffn "
        "%d; vocabulary %d; "
        "block %d; norm %d; eps %a; act %d; gated %d; biases %d %d %d %d; qk "
        "norm %d; position %d; "
        "theta %a; rotated %d; scaling %d 0x0p+0 0x0p+0 0x0p+0 0; context %d; offset %d; "
        "window %d from layer %d; "
        "embedding %a; tied %d; factors%s",
        family_name(c->family), c->n_layers, c->n_embd, c->n_heads, c->n_kv_heads,
        c->d_head, c->n_ffn, c->vocab_size, (int)c->block, (int)c->norm,
        (double)c->norm_eps, (int)c->act, c->mlp_gated, c->qkv_bias, c->attn_out_bias,
        c->mlp_bias, c->head_bias, c->qk_norm, (int)c->position, c->rope_theta, c->d_rope,
        (int)c->rope_scaling.kind, context_of(c), c->position_offset, c->sliding_window,
        c->window_layer, (double)c->embed_scale, c->tie_word_embeddings, factors);
    free(factors);
    return text;
}
