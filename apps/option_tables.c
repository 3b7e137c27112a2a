/* option_tables.c - see option_tables.h. */
#include "apps/option_tables.h"

#include <string.h>

/* Variables that are no option: of debugging, of the CUDA backend, of tests and scripts. */
static const char *const others[] = {
    "HCACHE_API_KEY",      "HCACHE_BUILD",
    "HCACHE_CAMPAIGN_OUT", "HCACHE_CHECKSUMS",
    "HCACHE_CONFIG",       "HCACHE_CUDA_EARLY",
    "HCACHE_CUDA_GRAPHS",  "HCACHE_CUDA_MATH",
    "HCACHE_CUDA_RANKS",   "HCACHE_FAULTS",
    "HCACHE_FLIPS",        "HCACHE_FUZZ",
    "HCACHE_MANY",         "HCACHE_MEMORY",
    "HCACHE_SEED",         "HCACHE_IN_VENV",
    "HCACHE_ISA",          "HCACHE_SHARED",
    "HCACHE_SHOTS",        "HCACHE_TEST_HISTORIES",
};

enum { MAX_NAMES = 1000, NAME_BYTES = 80 };

struct names {
    char text[MAX_NAMES][NAME_BYTES];
    const char *at[MAX_NAMES];
    int n;
};

static void add(struct names *all, const char *name)
{
    for (int i = 0; i < all->n; i++)
        if (strcmp(all->at[i], name) == 0)
            return;
    if (all->n == MAX_NAMES)
        return;
    snprintf(all->text[all->n], NAME_BYTES, "%s", name);
    all->at[all->n] = all->text[all->n];
    all->n++;
}

static void collect(struct names *all)
{
    const struct opt_cmd *const tables[] = {
        options_of_profile,       options_of_store_stat,    options_of_store_ls,
        options_of_store_verify,  options_of_store_gc,      options_of_run,
        options_of_serve,         options_of_ppl,           options_of_model_info,
        options_of_model_synth,   options_of_model_pack,    options_of_ingest,
        options_of_tokenize,      options_of_batch,         options_of_plan,
        options_of_bench_plan,    options_of_bench_tiers,   options_of_bench_beside,
        options_of_bench_restore, options_of_bench_kernels, options_of_bench_ablation,
        options_of_bench_serve,   options_of_bench_exact,   options_of_bench_device,
        options_of_bench_resume,  options_of_bench_stream,  options_of_bench_save,
        options_of_bench_hybrid};
    char name[NAME_BYTES];
    all->n = 0;
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++) {
        for (const struct opt *o = tables[t]->options; o != NULL && o->name != NULL; o++) {
            opt_env_name(o->name, name, sizeof name);
            add(all, name);
        }
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        add(all, others[i]);
}

int option_tables_check_environment(char *const *environment)
{
    static struct names all;
    int n_unknown = 0;
    for (; *environment != NULL; environment++) {
        char name[NAME_BYTES];
        if (strncmp(*environment, "HCACHE_", 7) != 0)
            continue;
        if (all.n == 0)
            collect(&all);
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*environment, "="), *environment);
        bool known = false;
        for (int i = 0; i < all.n && !known; i++)
            known = strcmp(all.at[i], name) == 0;
        if (known)
            continue;
        const char *near = opt_nearest(name, all.at, all.n);
        fprintf(stderr, "hcache: warning: no command reads the environment variable %s",
                name);
        if (near != NULL)
            fprintf(stderr, "; did you mean %s?", near);
        fputc('\n', stderr);
        n_unknown++;
    }
    return n_unknown;
}
