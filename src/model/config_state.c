/* config_state.c - the fields of a config that determine a state's bits, as text for the
 * fingerprint.
 *
 * A config also has fields that change no hidden state, K or V: when generation stops, how long a
 * context may be, and the checkpoint's element type.  A user may edit these and keep the saved
 * state. */
#include "model/config.h"

#include "base/textbuf.h"

/* If this fails, a field was added.  Decide whether it changes a state's bits, name it below if it
 * does, and adapt the size. */
_Static_assert(sizeof(struct model_config) == 2672 || sizeof(void *) != 8,
               "struct model_config has changed: see config_state_text");

/* Appends the factors of the frequencies, each preceded by a blank. */
static void add_factors(struct textbuf *b, const struct model_config *c)
{
    int n = c->rope_scaling.kind == ROPE_SCALING_FACTORS ? c->d_rope / 2 : 0;
    for (int i = 0; i < n && i < ROPE_MAX_FACTORS; i++)
        textbuf_addf(b, " %a", (double)c->rope_scaling.factors[i]);
}

/* Appends the layers of a set, each preceded by a blank. */
static void add_layers(struct textbuf *b, const struct model_config *c,
                       const struct layer_set *set)
{
    for (int l = 0; l < c->n_layers; l++)
        if (layer_set_has(set, l))
            textbuf_addf(b, " %d", l);
}

/* Appends " from layer N" if the windowed layers are the last ones, else " in layers 0 1 3", with
 * every windowed layer. */
static void add_windows(struct textbuf *b, const struct model_config *c)
{
    int first = 0;
    while (first < c->n_layers && !layer_set_has(&c->windowed, first))
        first++;
    first = c->sliding_window > 0 ? first : 0;
    bool is_last = layer_set_last_out(&c->windowed, c->n_layers) < first;
    if (is_last || c->sliding_window == 0) {
        textbuf_addf(b, " from layer %d", first);
    } else {
        textbuf_addf(b, " in layers");
        add_layers(b, c, &c->windowed);
    }
}

/* Appends the fields that most models do not have, each only if it changes something. */
static void add_more(struct textbuf *b, const struct model_config *c)
{
    if (config_is_hybrid(c))
        textbuf_addf(b, "; recurrent layers");
    add_layers(b, c, &c->recurrent);
    const struct {
        const char *name;
        double value, without;
    } fields[] = {
        {"norm place", c->norm_place, NORMS_BEFORE},
        {"experts", c->n_experts, 0},
        {"experts used", c->n_experts_used, 0},
        {"experts normed", c->experts_normed, 0},
        {"residual", (double)c->residual_scale, 1},
        {"scores", (double)c->attn_scale, 0},
        {"logits", (double)c->logit_scale, 1},
        {"score cap", (double)c->attn_cap, 0},
        {"logit cap", (double)c->logit_cap, 0},
        {"sinks", c->attn_sinks, 0},
        {"local kv heads", c->local_kv_heads, 0},
        {"local head", c->local_d_head, 0},
        {"reading", c->n_reading, 0},
        {"wide", c->wide_reading, 0},
        {"beside experts", c->dense_beside, 0},
        {"layer embedding", c->n_layer_embd, 0},
        {"v norm", c->v_norm, 0},
        {"v is k", c->v_is_k, 0},
        {"both ways", c->both_ways, 0},
        {"router bias", c->router_bias, 0},
        {"shared expert", c->n_shared_ffn, 0},
        {"dense layers", c->n_dense_layers, 0},
        {"their width", c->n_dense_ffn, 0},
        {"latent of", c->latent.d_nope, 0},
        {"latent v", c->latent.d_v, 0},
        {"latent q", c->latent.q_rank, 0},
        {"sigmoids", c->router_sigmoid, 0},
        {"groups", c->expert_groups.n, 0},
        {"groups used", c->expert_groups.used, 0},
        {"experts scale", (double)c->experts_scale, 1},
        {"gated", c->attn_gated, 0},
        {"heads of q in recurrences", c->recurrence.n_k, 0},
        {"heads of v in recurrences", c->recurrence.n_v, 0},
        {"their width of q", c->recurrence.d_k, 0},
        {"their width of v", c->recurrence.d_v, 0},
        {"convolutions of", c->recurrence.kind != 0 ? c->recurrence.n_conv : 0, 0},
        {"tiled", c->recurrence.tiled, 0},
        {"local only", c->rope_local_only, 0},
        {"query growth", (double)c->query_growth, 0},
        {"query context", c->query_ctx, 0},
        {"local theta", c->rope_local_theta, 0},
        {"magnitude", (double)c->rope_magnitude, 1}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (fields[i].value != fields[i].without)
            textbuf_addf(b, "; %s %a", fields[i].name, fields[i].value);
}

/* "context 0" is for scalings that depend on the context: no kind does. */
char *config_state_text(const struct model_config *c)
{
    struct textbuf b = {0};
    textbuf_addf(
        &b,
        "family %s; layers %d; width %d; heads %d; kv heads %d; head %d; ffn %d; "
        "vocabulary %d; block %d; norm %d; eps %a; act %d; gated %d; biases %d %d %d %d; "
        "qk norm %d; position %d; theta %a; rotated %d; scaling %d 0x0p+0 0x0p+0 0x0p+0 "
        "0; context 0; offset %d; window %d",
        family_name(c->family), c->n_layers, c->n_embd, c->n_heads, c->n_kv_heads,
        c->d_head, c->n_ffn, c->vocab_size, (int)c->block, (int)c->norm,
        (double)c->norm_eps, (int)c->act, c->mlp_gated, c->qkv_bias, c->attn_out_bias,
        c->mlp_bias, c->head_bias, (int)c->qk_norm, (int)c->position, c->rope_theta,
        c->d_rope, (int)c->rope_scaling.kind, c->position_offset, c->sliding_window);
    add_windows(&b, c);
    textbuf_addf(&b, "; embedding %a; tied %d; factors", (double)c->embed_scale,
                 c->tie_word_embeddings);
    add_factors(&b, c);
    add_more(&b, c);
    return b.p;
}
