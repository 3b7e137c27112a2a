/* cmd_bench.c - `hcache bench NAME`: finds the benchmark and runs it. */
#include <stdio.h>
#include <string.h>

#include "apps/cmds.h"
#include "bench/bench.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} benches[] = {
    {"device", bench_device,
     "copies, products and attention of a device: the same on CPU and GPU"},
    {"kernels", bench_kernels, "every kernel as a share of the machine's limits"},
    {"plan", bench_plan,
     "planning a restore: processor time by ranges of different records"},
    {"restore", bench_restore, "restoring a context, by every method"},
    {"resume", bench_resume,
     "a request after a restore: fused or not, alone and beside decodes"},
    {"ablation", bench_ablation, "the figures of the HCache paper at this machine's scale"},
    {"serve", bench_serve,
     "a server under chats, documents or a trace: TTFT, TBT, hit rates"},
    {"exact", bench_exact,
     "whether a server's answers are those of cold runs, and leak nothing"},
    {"beside", bench_beside, "decodes, beside a prompt and its restoration"},
    {"stream", bench_stream, "weights read from the disk for each pass"},
    {"form", bench_form, "forms of answers: compiling schemas, masks of the vocabulary"},
    {"pack", bench_pack, "packing saved state: bytes and speed"},
    {"tiers", bench_tiers, "placement policies on simulated caches: hit rates by load"},
    {"hybrid", bench_hybrid,
     "keys and values, activations, or both, with streamed weights: modelled"},
    {"save", bench_save, "the time between tokens with saving off, on, and direct"},
};

enum { N_BENCHES = sizeof benches / sizeof benches[0] };

static int usage(FILE *out, int code)
{
    for (int i = 0; i < N_BENCHES; i++)
        fprintf(out, "%s hcache bench %s [OPTION]...\n", i == 0 ? "usage:" : "      ",
                benches[i].name);
    fputc('\n', out);
    for (int i = 0; i < N_BENCHES; i++)
        fprintf(out, "  %-10s %s\n", benches[i].name, benches[i].help);
    fprintf(out, "\nhcache bench NAME --help explains a benchmark.\n");
    return code;
}

int cmd_bench(int argc, char **argv)
{
    if (argc < 2)
        return usage(stderr, 2);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return usage(stdout, 0);
    for (int i = 0; i < N_BENCHES; i++) {
        if (strcmp(argv[1], benches[i].name) == 0)
            return benches[i].run(argc - 1, argv + 1);
    }
    fprintf(stderr, "hcache bench: there is no benchmark '%s'\n", argv[1]);
    return usage(stderr, 2);
}
