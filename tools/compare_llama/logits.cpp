/* logits.cpp - llama.cpp's logits of the token ids in a file that `hcache ppl --logits-out` wrote, in
 * a file of the same kind (apps/ppl_reference.h).
 *
 *     logits MODEL.gguf IN OUT THREADS */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama.h"

static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "logits: %s\n", what);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    must(argc == 5, "usage: logits MODEL.gguf IN OUT THREADS");
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    FILE *in = fopen(argv[2], "rb"), *out = fopen(argv[3], "wb");
    uint32_t header[6]; /* magic, vocabulary, context, windows, zero */
    must(in != nullptr && out != nullptr, "cannot open the files");
    must(fread(header, sizeof header, 1, in) == 1, "no header");
    const int vocab = (int)header[2], n = (int)header[3], windows = (int)header[4];
    std::vector<int32_t> ids((size_t)n * windows);
    must(fread(ids.data(), 4, ids.size(), in) == ids.size(), "ids are missing");
    fwrite(header, sizeof header, 1, out);
    fwrite(ids.data(), 4, ids.size(), out);

    llama_backend_init();
    llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    must(model != nullptr, "cannot load the model");
    must(llama_vocab_n_tokens(llama_model_get_vocab(model)) == vocab, "another vocabulary");
    llama_context_params p = llama_context_default_params();
    p.n_ctx = p.n_batch = p.n_ubatch = (uint32_t)n;
    p.n_threads = p.n_threads_batch = atoi(argv[4]);
    p.type_k = p.type_v = GGML_TYPE_F32;
    llama_context *ctx = llama_init_from_model(model, p);
    must(ctx != nullptr, "cannot make a context");
    llama_batch b = llama_batch_init(n, 0, 1);
    for (int w = 0; w < windows; w++) {
        b.n_tokens = n;
        for (int i = 0; i < n; i++) {
            b.token[i] = ids[(size_t)w * n + i];
            b.pos[i] = i;
            b.n_seq_id[i] = 1;
            b.seq_id[i][0] = 0;
            b.logits[i] = i >= n / 2 && i < n - 1;
        }
        llama_memory_clear(llama_get_memory(ctx), true);
        must(llama_decode(ctx, b) == 0, "decode failed");
        for (int i = n / 2; i < n - 1; i++)
            fwrite(llama_get_logits_ith(ctx, i), 4, (size_t)vocab, out);
    }
    must(fclose(out) == 0, "cannot write");
    return 0;
}
