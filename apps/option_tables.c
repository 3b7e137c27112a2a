/* option_tables.c - see option_tables.h. */
#include "apps/store_key.h"
#include "apps/option_tables.h"

#include <string.h>

/* Variables that are no command's options and are not suggested to users: for the device's tuning,
 * tests and scripts. */
static const char *const others[] = {
    "HCACHE_BUILD",       "HCACHE_CAMPAIGN_OUT",   "HCACHE_CHECKSUMS", "HCACHE_CUDA_EARLY",
    "HCACHE_CUDA_GRAPHS", "HCACHE_CUDA_MATH",      "HCACHE_FAULTS",    "HCACHE_FLIPS",
    "HCACHE_FUZZ",        "HCACHE_MANY",           "HCACHE_MEMORY",    "HCACHE_PLUGINS",
    "HCACHE_SEED",        "HCACHE_IN_VENV",        "HCACHE_ISA",       "HCACHE_SHARED",
    "HCACHE_SHOTS",       "HCACHE_TEST_HISTORIES",
};

enum { MAX_NAMES = 1000, NAME_BYTES = 80 };

static const char prefix[] = "HCACHE_"; /* prefix of all variables' names */
enum { PREFIX_BYTES = sizeof prefix - 1 };

struct names {
    char text[MAX_NAMES][NAME_BYTES];
    const char *at[MAX_NAMES]; /* names of variables, without the prefix */
    int n;
};

static bool is_known(const struct names *all, const char *name)
{
    for (int i = 0; i < all->n; i++)
        if (strcmp(all->at[i], name + PREFIX_BYTES) == 0)
            return true;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(others[i], name) == 0)
            return true;
    return false;
}

static void add(struct names *all, const char *name)
{
    if (all->n == MAX_NAMES || is_known(all, name))
        return;
    snprintf(all->text[all->n], NAME_BYTES, "%s", name);
    all->at[all->n] = all->text[all->n] + PREFIX_BYTES;
    all->n++;
}

enum { MAX_TABLES = 64 };

/* Lists the tables of all commands. Returns their number. */
static int list_tables(const struct opt_cmd *tables[MAX_TABLES])
{
    const struct opt_cmd *const all[] = {
        options_of_profile,       options_of_store_stat,
        options_of_store_ls,      options_of_store_verify,
        options_of_store_gc,      options_of_store_rm,
        options_of_store_export,  options_of_store_import,
        options_of_store_unpin,   options_of_run,
        options_of_serve,         options_of_ppl,
        options_of_model_info,    options_of_model_synth,
        options_of_model_pack,    options_of_ingest,
        options_of_pull,          options_of_models,
        options_of_tokenize,      options_of_batch,
        options_of_plan,          options_of_bench_plan,
        options_of_bench_form,    options_of_bench_tiers,
        options_of_bench_beside,  options_of_bench_restore,
        options_of_bench_kernels, options_of_bench_ablation,
        options_of_bench_serve,   options_of_bench_exact,
        options_of_bench_device,  options_of_bench_resume,
        options_of_bench_stream,  options_of_bench_save,
        options_of_bench_hybrid,  options_of_bench_hybrid_run,
        options_of_bench_pack,    options_of_why};
    memcpy(tables, all, sizeof all);
    return sizeof all / sizeof all[0];
}

const struct opt_cmd *option_table_of(int argc, char **argv, int *n_words)
{
    const struct opt_cmd *tables[MAX_TABLES];
    int n = list_tables(tables);
    for (*n_words = 2; *n_words > 0; --*n_words) {
        char name[NAME_BYTES];
        if (*n_words <= argc)
            snprintf(name, sizeof name, "%s%s%s", argv[0], *n_words > 1 ? " " : "",
                     *n_words > 1 ? argv[1] : "");
        for (int i = 0; *n_words <= argc && i < n; i++)
            if (strcmp(tables[i]->name, name) == 0)
                return tables[i];
    }
    return NULL;
}

static void collect(struct names *all)
{
    const struct opt_cmd *tables[MAX_TABLES];
    int n = list_tables(tables);
    char name[NAME_BYTES];
    all->n = 0;
    for (int t = 0; t < n; t++) {
        for (const struct opt *o = tables[t]->options; o != NULL && o->name != NULL; o++) {
            opt_env_name(o->name, name, sizeof name);
            add(all, name);
        }
    }
    add(all, "HCACHE_CONFIG");
    add(all, STORE_KEY_VARIABLE);
}

int option_tables_check_environment(char *const *environment)
{
    static struct names all;
    int n_unknown = 0;
    for (; *environment != NULL; environment++) {
        char name[NAME_BYTES];
        if (strncmp(*environment, prefix, PREFIX_BYTES) != 0)
            continue;
        if (all.n == 0)
            collect(&all);
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*environment, "="), *environment);
        if (is_known(&all, name))
            continue;
        const char *near = opt_nearest(name + PREFIX_BYTES, all.at, all.n);
        fprintf(stderr, "hcache: warning: no command reads the environment variable %s",
                name);
        if (near != NULL)
            fprintf(stderr, "; did you mean %s%s?", prefix, near);
        fputc('\n', stderr);
        n_unknown++;
    }
    return n_unknown;
}
