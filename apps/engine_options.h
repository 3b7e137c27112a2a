/* engine_options.h - the options shared by all commands that open a model.
 *
 * A command's struct has a member `struct engine_args engine`.  Each row below writes its value
 * straight into `engine.o`, which hcache_open and stack_open take.  So a new option of the engine
 * is a row here, a field of struct hcache_opts, and the code that uses the field. */
#ifndef APPS_ENGINE_OPTIONS_H
#define APPS_ENGINE_OPTIONS_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "apps/hub.h"
#include "apps/store_key.h"
#include "base/err.h"
#include "opt/opt.h"
#include "hcache.h"
#include "api/dates.h"
#include "seal/seal_file.h"

struct engine_args {
    struct hcache_opts o;
    /* values of --store and --dram as given; engine_args_finish copies both to o */
    struct opt_list store;
    const char *dram, *store_key;
    uint8_t secret[HCACHE_STORE_KEY_BYTES]; /* of --store-key */
    /* encrypts the files beside the store, until engine_args_end; NULL: they are plain */
    struct seal *seal;
    const char *template_date; /* as in dates_open */
};

static const char *const engine_dtypes[] = {"f32", "bf16", "f16", NULL};
static const char *const engine_weights[] = {"checkpoint", "auto", "f32",   "bf16",
                                             "q8",         "q4",   "bf16r", NULL};
static const char *const engine_devices[] = {"cpu", "ref", "cuda", NULL};
static const char *const engine_checksums[] = {"auto", "device", "host", NULL};
static const char *const engine_maths[] = {"fast", "fixed", "exact", NULL};
static const char *const engine_packs[] = {"auto", "on", "off", NULL};
static const char *const engine_graphs[] = {"on", "off", NULL};
static const char *const engine_early[] = {"off", "on", NULL};
static const char *const engine_remote_writes[] = {"idle", "use", "always", NULL};
static const char *const engine_policies[] = {"lru",  "fifo", "lfu", "attentionstore",
                                              "ours", NULL};
static const char *const engine_directs[] = {"auto", "on", "off", NULL};

/* Rows of an option table. `s` is the type of the command's struct. */
/* clang-format off */
#define OPT_MODEL(s, text)                                                                 \
    {"MODEL_DIR", OPT(s, engine.o.model), .required = true, .help = text}
#define OPT_DTYPE(s)                                                                       \
    {"dtype", OPT(s, engine.o.dtype), .choices = engine_dtypes,                            \
     .help = "type of saved state; the checkpoint's by default"}
#define OPT_WEIGHTS(s)                                                                     \
    {"weights", OPT(s, engine.o.weights), .choices = engine_weights, .def = "checkpoint",  \
     .help = "format of the matrices: f32, bf16, 8 bits (q8), 4 bits (q4), or bf16 with " \
             "activations rounded to bf16 (bf16r: for processors with AMX); checkpoint: " \
             "their own type, quantized ones as the file has them where there are kernels, " \
             "else in 8 bits; auto: measures once, and takes the smallest format that changes " \
             "predictions by at most 0.001 nats per token (0.01 for 4-bit tensors unchanged)"}
#define OPT_IMAGE(s)                                                                       \
    {"image", OPT(s, engine.o.images), .def = "true",                                      \
     .help = "keep an image of the weights in ~/.cache/hcache/images, in the layout of the " \
             "CPU, and map it at the next start"}
#define OPT_WEIGHTS_MEMORY(s)                                                              \
    {"weights-memory", OPT(s, engine.o.weights_memory), .arg = "BYTES|auto|P%",            \
     .help = "memory for a packed model (hcache model pack), KV cache and buffers; " \
             "layers that do not fit are read for each pass. auto: the memory that the " \
             "machine has left; P%: this share of the layers stays; by default all stay"}
#define OPT_THREADS(s)                                                                     \
    {"threads", OPT(s, engine.o.threads), .arg = "N", .def = "0", .min = 0, .max = 1024,   \
     .help = "compute threads; 0 is one per processor that the process may use"}
#define OPT_CUDA_MATH(s)                                                                   \
    {"cuda-math", OPT(s, engine.o.cuda_math), .choices = engine_maths, .def = "fast",      \
     .help = "arithmetic of a GPU; fixed and exact give a row the same bits in any batch"}
#define OPT_DEVICE(s)                                                                      \
    {"device", OPT(s, engine.o.device), .choices = engine_devices, .def = "cpu",           \
     .help = "where to compute; ref is slow, for checking"},                               \
    OPT_CUDA_MATH(s)
/* Options for how a device computes, for tests and comparisons (tensor/tensor.h, struct
 * device_opts): of `run`, `profile` and benchmarks. */
#define OPT_DEVICE_TUNING(s)                                                               \
    {"isa", OPT(s, engine.o.isa), .arg = "NAME",                                           \
     .help = "kernels of the CPU, for tests: portable, avx2+fma, ...; the best by default"}, \
    {"checksums", OPT(s, engine.o.checksums), .choices = engine_checksums, .def = "auto",  \
     .help = "where checksums of a restore to a GPU are computed"},                              \
    {"cuda-graphs", OPT(s, engine.o.cuda_graphs), .choices = engine_graphs, .def = "on",   \
     .help = "replay recorded decode steps on a GPU"},                               \
    {"cuda-early", OPT(s, engine.o.cuda_early), .choices = engine_early, .def = "off",     \
     .help = "launch a kernel on a GPU while the one before still runs"}
#define OPT_PARALLEL(s)                                                                    \
    {"tensor-parallel", OPT(s, engine.o.tensor_parallel), .arg = "N", .def = "1",          \
     .min = 1, .max = HCACHE_MAX_DEVICES,                                                  \
     .help = "processes that share each layer (the program starts them by mpirun)"},       \
    {"pipeline-parallel", OPT(s, engine.o.pipeline_parallel), .arg = "N", .def = "1",      \
     .min = 1, .max = HCACHE_MAX_DEVICES,                                                  \
     .help = "stages with a run of the layers each: processes, too"}
#define OPT_SEED(s, def_, help_)                                                           \
    {"seed", OPT(s, seed), .arg = "N", .def = def_, .min = INT64_MIN, .max = INT64_MAX,    \
     .help = help_}
#define OPT_BATCH_ROWS(s)                                                                  \
    {"batch-rows", OPT(s, engine.o.batch_rows), .arg = "N", .def = "0", .min = 0,          \
     .max = HCACHE_MAX_BATCH_ROWS,                                                         \
     .help = "most tokens of one forward pass, 512 or more; 0: chosen for the device "  \
             "(512 on a CPU, 2048 on a GPU)"}
#define OPT_COMPUTE(s)                                                                     \
    OPT_DTYPE(s), OPT_WEIGHTS(s), OPT_IMAGE(s), OPT_WEIGHTS_MEMORY(s), OPT_THREADS(s),     \
    OPT_PARALLEL(s), \
        OPT_DEVICE(s)
#define OPT_MAX_CONTEXT(s)                                                                 \
    {"max-context", OPT(s, engine.o.max_context), .arg = "N", .def = "0", .min = 0,        \
     .max = 1 << 24, .help = "context length in tokens; 0 is the model's own"}
#define OPT_TRUNCATE(s, text)                                                              \
    {"truncate", OPT(s, truncate), .arg = "R[,keep=K][,context=C]", .help = text}
#define OPT_STORE(s, text)                                                                 \
    {"store", OPT(s, engine.store), .arg = "DIR[,DIR...]", .help = text}, OPT_STORE_KEY(s)
#define OPT_STORE_KEY(s)                                                                   \
    {"store-key", OPT(s, engine.store_key), .arg = "FILE|env",                             \
     .help = "encrypts the files of --store, and state in a --remote: a file with 64 "      \
             "hexadecimal digits (openssl rand -hex 32), or the variable "                  \
             STORE_KEY_VARIABLE}
#define OPT_STORE_CAP(s)                                                                   \
    {"store-cap", OPT(s, engine.o.store_cap_bytes), .arg = "BYTES", .def = "0",            \
     .help = "limit on all files of saved state: data, index, log and reserve; 0 is none"}
#define OPT_DRAM(s, value)                                                                 \
    {"dram", OPT(s, engine.dram), .arg = "BYTES|auto", .def = value,                       \
     .help = "memory for copies of saved state, in front of the store's disk; 0 is none; " \
             "auto: at most an eighth of the machine's memory, and none where a larger KV cache " \
             "serves the model better"}
#define OPT_REMOTE(s)                                                                      \
    {"remote", OPT(s, engine.o.remote), .arg = "redis://[USER:PASSWORD@]HOST[:PORT][/DB]", \
     .help = "a Redis that shares saved state among servers, behind --store; rediss:// is TLS"}, \
    {"remote-ca", OPT(s, engine.o.remote_ca), .arg = "FILE",                               \
     .help = "file of the authorities that may have signed the remote's certificate; the " \
             "system's by default"},                                                       \
    {"remote-cert", OPT(s, engine.o.remote_cert), .arg = "FILE",                           \
     .help = "certificate for the remote, if it requires one"},                                  \
    {"remote-key", OPT(s, engine.o.remote_key), .arg = "FILE",                             \
     .help = "key of --remote-cert"},                                                       \
    {"remote-write", OPT(s, engine.o.remote_write), .choices = engine_remote_writes,       \
     .def = "always",                                                                      \
     .help = "when state is written to the remote: once it is stored here (always), when the " \
             "request that made it has ended (idle), or when a later request uses it (use)"},           \
    {"remote-timeout", OPT(s, engine.o.remote_timeout_s), .arg = "S", .def = "5", .min = 1, \
     .max = 3600,                                                                          \
     .help = "seconds without an answer after which the remote counts as down; requests " \
             "without a forced --plan give it up much earlier"},                           \
    {"remote-ttl", OPT(s, engine.o.remote_ttl_s), .arg = "S", .def = "604800", .min = 1,   \
     .max = 316224000,                                                                     \
     .help = "seconds without a fetch after which the remote drops state"}
#define OPT_PREFETCH(s)                                                                    \
    {"prefetch", OPT(s, engine.o.prefetch), .choices = engine_graphs, .def = "on",         \
     .help = "read state of waiting requests ahead, into --dram"}
#define OPT_PACK(s)                                                                        \
    {"pack", OPT(s, engine.o.pack), .choices = engine_packs, .def = "auto",                \
     .help = "pack saved state without loss, to about two thirds of its bytes; auto: "      \
             "where it is restored as fast, by this machine's profile"}
#define OPT_SPECULATE(s)                                                                   \
    {"speculate", OPT(s, engine.o.speculate), .arg = "auto|off|N", .def = "auto",          \
     .help = "guess tokens that repeat the context and compute them at once: as many as make "    \
             "answers faster, or N a step; answers stay the same"}
#define OPT_POLICY(s)                                                                      \
    {"policy", OPT(s, engine.o.policy), .choices = engine_policies, .def = "lru",          \
     .help = "which state a full store or KV cache evicts first"}
#define OPT_SAVE_BUFFER(s)                                                                 \
    {"save-buffer", OPT(s, engine.o.save_buffer_bytes), .arg = "BYTES", .def = "0",        \
     .help = "memory for state that waits to be written; 0 is 256M"}
#define OPT_TEMPLATE_DATE(s)                                                               \
    {"template-date", OPT(s, engine.template_date), .arg = "YYYY-MM-DD|sticky",            \
     .help = "date that chat templates print: a date; or sticky, the date of the longest " \
             "stored match; today's by default. A kept conversation keeps its own"}
#define OPT_THROTTLE(s)                                                                    \
    {"throttle", OPT(s, engine.o.throttle_bytes_per_s), .arg = "BYTES_PER_S", .def = "0",  \
     .help = "limit the speed of the store's reads, for experiments"}
#define OPT_GPU_DIRECT(s)                                                                  \
    {"gpu-direct", OPT(s, engine.o.gpu_direct), .choices = engine_directs, .def = "auto",  \
     .help = "read the store straight into GPU memory with cuFile; on: fail if that is impossible"}
/* clang-format on */

/* Copies --store (directories, or the word memory) and --dram to e->o, which from then on points
 * into e->store. Returns 0, or ERR_USAGE if the word memory stands among directories or --dram is
 * not a size, or ERR_NOT_FOUND if a model's name is not that of a fetched one. */
static inline int engine_args_finish(struct engine_args *e, struct err *err)
{
    for (int i = 0; e->store.n > 1 && i < e->store.n; i++)
        if (strcmp(e->store.items[i], "memory") == 0)
            return err_set(err, ERR_USAGE,
                           "--store: memory cannot be combined with directories; for a "
                           "folder of that name give ./memory");
    e->o.store_in_memory = e->store.n == 1 && strcmp(e->store.items[0], "memory") == 0;
    if (e->dram != NULL && strcmp(e->dram, "auto") == 0)
        e->o.dram_bytes = HCACHE_DRAM_AUTO;
    else if (e->dram != NULL && !opt_size_parse(e->dram, &e->o.dram_bytes))
        return err_set(err, ERR_USAGE, "--dram '%s': must be auto or a size such as 4G",
                       e->dram);
    /* A name OWNER/REPO[:TYPE] becomes the path of the fetched model, which lives as long as the
     * process. */
    char *path = NULL;
    int rc = hub_find(e->o.model, getenv("HCACHE_MODELS"), &path, err);
    if (path != NULL)
        e->o.model = path;
    if (rc != 0)
        return rc;
    if (e->store_key != NULL) {
        rc = store_key_read(e->store_key, e->secret, err);
        e->o.store_key = e->secret;
        e->seal = rc == 0 ? seal_shared(e->secret) : NULL;
    }
    if (rc != 0)
        return rc;
    e->o.store = e->o.store_in_memory ? NULL : e->store.items;
    e->o.n_store = e->o.store_in_memory ? 0 : e->store.n;
    return 0;
}

/* Overwrites the key of --store-key and the seal made from it. Everything that was opened with
 * these arguments is closed before. Safe after engine_args_finish has failed, and twice. */
static inline void engine_args_end(struct engine_args *e)
{
    explicit_bzero(e->secret, sizeof e->secret);
    seal_free(e->seal);
    e->seal = NULL;
}

/* Opens the dates that chat templates print. Dates that were used lie beside the store. */
static inline int engine_dates_open(const struct engine_args *e, struct dates **out,
                                    struct err *err)
{
    return dates_open(e->template_date, e->o.n_store > 0 ? e->o.store[0] : NULL, e->seal,
                      out, err);
}

/* Returns the beginning of the last name in the first *n bytes of a path. *n becomes its end. */
static inline const char *engine_last_name(const char *path, size_t *n)
{
    while (*n > 1 && path[*n - 1] == '/')
        --*n;
    size_t begin = *n;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    return path + begin;
}

/* Returns the model's name, made from its folder or file. It is from malloc.  A folder in the cache
 * of Hugging Face, .../models--ORG--NAME/snapshots/COMMIT, is named ORG/NAME. */
static inline char *engine_model_name(const char *model)
{
    static const char mark[] = "models--";
    size_t n = strlen(model), n_mark = sizeof mark - 1;
    const char *last = engine_last_name(model, &n);
    size_t end = (size_t)(last - model);
    const char *folder = engine_last_name(model, &end), *top = NULL;
    if (end == (size_t)(folder - model) + 9 && strncmp(folder, "snapshots", 9) == 0) {
        end = (size_t)(folder - model);
        top = engine_last_name(model, &end);
    }
    size_t n_top = top != NULL ? end - (size_t)(top - model) : 0;
    if (n_top <= n_mark || strncmp(top, mark, n_mark) != 0)
        return strndup(last, n - (size_t)(last - model));
    char *name = strndup(top + n_mark, n_top - n_mark), *cut = strstr(name, "--");
    if (cut != NULL) {
        *cut = '/';
        memmove(cut + 1, cut + 2, strlen(cut + 2) + 1);
    }
    return name;
}

#endif
