/* judge.cpp - llama.cpp's token ids and greedy continuations, for golden data.
 *
 *     judge ids MODEL.gguf             reads texts, each ended by a zero byte, and prints a line of ids for each
 *     judge greedy MODEL.gguf N THREADS    reads lines of ids, and prints for each a line:
 *                                          ids, then "| gap" of every step's two best logits, then "| id
 *                                          log-probability" of the five best of the first step
 *
 * K and V are f32, there is no flash attention, and a prompt is one batch. */
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "llama.h"

static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "judge: %s\n", what);
        exit(1);
    }
}

static void ids(const llama_vocab *v)
{
    std::string all((std::istreambuf_iterator<char>(std::cin)), {}), text;
    std::stringstream in(all);
    while (std::getline(in, text, '\0')) {
        std::vector<llama_token> t(text.size() + 16);
        int n = llama_tokenize(v, text.data(), (int)text.size(), t.data(), (int)t.size(), true, true);
        must(n >= 0, "cannot tokenize");
        for (int i = 0; i < n; i++)
            printf("%d%c", t[i], i + 1 < n ? ' ' : '\n');
        if (n == 0)
            printf("\n");
    }
}

/* Returns the best tokens of a step with the logarithms of their probabilities, as text. */
static std::string best_of(const float *x, int vocab, int n)
{
    std::vector<int> order(vocab);
    double sum = 0;
    for (int k = 0; k < vocab; k++)
        order[k] = k;
    std::partial_sort(order.begin(), order.begin() + n, order.end(), [x](int a, int b) { return x[a] > x[b]; });
    for (int k = 0; k < vocab; k++)
        sum += std::exp((double)x[k] - x[order[0]]);
    std::string text;
    for (int i = 0; i < n; i++) {
        char one[48];
        snprintf(one, sizeof one, " %d %.6f", order[i], (double)x[order[i]] - x[order[0]] - std::log(sum));
        text += one;
    }
    return text;
}

static void greedy(llama_model *model, int n_new, int threads)
{
    const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_context_params p = llama_context_default_params();
    p.n_ctx = p.n_batch = p.n_ubatch = 1024;
    p.n_threads = p.n_threads_batch = threads;
    p.type_k = p.type_v = GGML_TYPE_F32;
    p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    llama_context *ctx = llama_init_from_model(model, p);
    must(ctx != nullptr, "cannot make a context");
    std::string line;
    while (std::getline(std::cin, line)) {
        std::stringstream in(line);
        std::vector<llama_token> t((std::istream_iterator<llama_token>(in)), {});
        std::vector<float> gaps;
        std::string first;
        llama_memory_clear(llama_get_memory(ctx), true);
        llama_batch b = llama_batch_get_one(t.data(), (int)t.size());
        llama_token next = 0;
        for (int i = 0; i < n_new; i++) {
            must(llama_decode(ctx, b) == 0, "decode failed");
            const float *x = llama_get_logits_ith(ctx, -1);
            float best = -1e30f, second = -1e30f;
            if (i == 0)
                first = best_of(x, vocab, 5);
            for (int k = 0; k < vocab; k++) {
                if (x[k] > best) {
                    second = best;
                    best = x[k];
                    next = k;
                } else {
                    second = std::max(second, x[k]);
                }
            }
            printf("%d ", next);
            gaps.push_back(best - second);
            b = llama_batch_get_one(&next, 1);
        }
        printf("|");
        for (float g : gaps)
            printf(" %.6f", g);
        printf(" |%s\n", first.c_str());
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    must(argc >= 3, "usage: judge ids|greedy MODEL.gguf [N THREADS]");
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();
    llama_model_params mp = llama_model_default_params();
    mp.vocab_only = std::string(argv[1]) == "ids";
    mp.n_gpu_layers = 0;
    llama_model *model = llama_model_load_from_file(argv[2], mp);
    must(model != nullptr, "cannot load the model");
    if (mp.vocab_only)
        ids(llama_model_get_vocab(model));
    else
        greedy(model, argc > 3 ? atoi(argv[3]) : 200, argc > 4 ? atoi(argv[4]) : 1);
    return 0;
}
