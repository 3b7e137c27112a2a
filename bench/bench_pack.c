/* bench_pack.c - `hcache bench pack`: packs and unpacks the records of a store, in memory, and
 * prints the share of the bytes that remain, and the speed on one core. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "apps/option_tables.h"
#include "base/mem.h"
#include "opt/opt.h"
#include "bench/bench.h"
#include "io/io.h"
#include "pack/pack.h"
#include "store/store.h"

/* The sample is larger than the caches. */
#define SAMPLE_BYTES (64u << 20)
#define ROUNDS       5

struct pack_args {
    const char *dir;
    int dtype;
};

static const struct opt positionals[] = {
    {"STORE", OPT(struct pack_args, dir), .required = true,
     .help = "a store of one directory, with saved state"},
    {0},
};

static const char *const dtypes[] = {"bf16", "f16", "f32",
                                     NULL}; /* of enum pack_type, less 1 */

static const struct opt options[] = {
    {"dtype", OPT(struct pack_args, dtype), .choices = dtypes, .def = "bf16",
     .help =
         "type of keys, values and hidden states; snapshots of recurrent layers are f32"},
    {0},
};

static const struct opt_cmd cmd = {
    .name = "bench pack",
    .summary =
        "Packs the records of a store and unpacks them again, in memory: what is left of "
        "their bytes, and the bytes of unpacked state per second of processor time on one "
        "core.",
    .positionals = positionals,
    .options = options,
    .examples = "  hcache ingest --store s --save kv --dtype bf16 MODEL text.txt\n"
                "  hcache bench pack s\n",
    .values_bytes = sizeof(struct pack_args),
};
const struct opt_cmd *const options_of_bench_pack = &cmd;

/* Records of one kind, one after another, and their code. */
struct sample {
    enum pack_type type;
    uint8_t *bytes, *packed, *again;
    size_t n_bytes, n_packed;
    uint32_t *length,
        *packed_length; /* [n]; a packed_length of 0: the record does not get smaller */
    int n;
};

struct pack_bench {
    struct store *store;
    struct sha256 *keys[2]; /* of chunks, and of snapshots (store_state_key) */
    int n_keys[2], max_keys[2];
};

static int key_note(void *arg, const struct store_entry *e)
{
    struct pack_bench *b = arg;
    struct sha256 state = store_state_key(&e->parent);
    int i = memcmp(&e->key, &state, sizeof state) == 0;
    if (b->n_keys[i] == b->max_keys[i]) {
        b->max_keys[i] = b->max_keys[i] == 0 ? 64 : 2 * b->max_keys[i];
        b->keys[i] = xrealloc(b->keys[i], (size_t)b->max_keys[i] * sizeof b->keys[i][0]);
    }
    b->keys[i][b->n_keys[i]++] = e->key;
    return 0;
}

/* Reads one record behind the sample's bytes. */
static int record_add(struct store_reader *reader, const struct store_hit *hit, int layer,
                      enum store_kind kind, struct sample *t, void *block,
                      size_t block_bytes, struct err *err)
{
    struct store_read read = {
        .hit = hit, .layer = layer, .kind = kind, .dst = block, .dst_bytes = block_bytes};
    int rc = store_reader_read(reader, &read, err);
    if (rc == 0 && read.is_packed)
        rc = err_set(err, ERR_USAGE,
                     "the store's records are packed; save some with --pack off");
    if (rc != 0 || t->n_bytes + read.n_bytes > SAMPLE_BYTES)
        return rc;
    t->length = xrealloc(t->length, (size_t)(t->n + 1) * sizeof t->length[0]);
    t->length[t->n++] = read.n_bytes;
    memcpy(t->bytes + t->n_bytes, read.bytes, read.n_bytes);
    t->n_bytes += read.n_bytes;
    return 0;
}

/* Collects the records of a kind of the chunks, or of the snapshots. */
static int sample_fill(struct pack_bench *b, bool of_snapshots, enum store_kind kind,
                       struct sample *t, struct err *err)
{
    enum { BLOCK_BYTES = 4 << 20 };
    void *block = mem_map(BLOCK_BYTES);
    struct store_reader *reader = NULL;
    int rc = store_reader_open(b->store, 1, NULL, 0, &reader, err);
    for (int i = 0; rc == 0 && i < b->n_keys[of_snapshots]; i++) {
        struct store_hit hit;
        if (!store_pin(b->store, &b->keys[of_snapshots][i], &hit))
            continue;
        rc = store_load(b->store, &hit, err);
        for (int l = 0; rc == 0 && l < STORE_MAX_LAYERS; l++)
            if (store_mask_has(&hit.mask, l, kind))
                rc = record_add(reader, &hit, l, kind, t, block, BLOCK_BYTES, err);
        store_release(b->store, &hit, 1);
    }
    store_reader_close(reader);
    mem_unmap(block, BLOCK_BYTES);
    return rc;
}

static double cpu_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void pack_all(struct sample *t)
{
    const uint8_t *from = t->bytes;
    t->n_packed = 0;
    for (int i = 0; i < t->n; i++, from += t->length[i - 1]) {
        size_t n = pack_run(t->type, from, t->length[i], t->packed + t->n_packed,
                            t->length[i]);
        t->packed_length[i] = (uint32_t)n;
        if (n == 0) /* the record is kept as it is */
            memcpy(t->packed + t->n_packed, from, n = t->length[i]);
        t->n_packed += n;
    }
}

/* Returns false if a packed record could not be unpacked. */
static bool unpack_all(struct sample *t)
{
    const uint8_t *from = t->packed;
    uint8_t *to = t->again;
    bool is_good = true;
    for (int i = 0; i < t->n; i++) {
        size_t n = t->packed_length[i];
        if (n > 0)
            is_good &= pack_undo(from, n, to, t->length[i]);
        else
            memcpy(to, from, n = t->length[i]);
        from += n;
        to += t->length[i];
    }
    return is_good;
}

/* Measures one kind and prints its row. */
static int measure(struct sample *t, const char *name, enum pack_loops_for loops,
                   struct err *err)
{
    static const char *const loops_name[] = {"processor", "avx2", "portable"};
    double pack_s[ROUNDS], unpack_s[ROUNDS];
    pack_use(loops);
    for (int r = 0; r < ROUNDS; r++) {
        double begin_s = cpu_s();
        pack_all(t);
        double middle_s = cpu_s();
        bool is_good = unpack_all(t);
        pack_s[r] = middle_s - begin_s;
        unpack_s[r] = cpu_s() - middle_s;
        if (!is_good || memcmp(t->bytes, t->again, t->n_bytes) != 0)
            return err_set(err, ERR_CORRUPT,
                           "unpacked records differ from the stored ones");
    }
    pack_use(PACK_FOR_PROCESSOR);
    double gb = (double)t->n_bytes / 1e9;
    printf("%-16s %-9s %8d %9.1f %9.4f %9.2f %11.2f\n", name, loops_name[loops], t->n,
           gb * 1e3, (double)t->n_packed / (double)t->n_bytes,
           gb / bench_median(pack_s, ROUNDS), gb / bench_median(unpack_s, ROUNDS));
    return 0;
}

static int kind_run(struct pack_bench *b, bool of_snapshots, enum store_kind kind,
                    enum pack_type type, const char *name, struct err *err)
{
    struct sample t = {.type = type,
                       .bytes = xmalloc(SAMPLE_BYTES),
                       .packed = xmalloc(SAMPLE_BYTES),
                       .again = xmalloc(SAMPLE_BYTES)};
    int rc = sample_fill(b, of_snapshots, kind, &t, err);
    if (rc == 0 && t.n > 0) {
        t.packed_length = xmalloc((size_t)t.n * sizeof t.packed_length[0]);
        for (enum pack_loops_for l = 0; rc == 0 && l <= PACK_PORTABLE; l++)
            rc = measure(&t, name, l, err);
    }
    free(t.bytes);
    free(t.packed);
    free(t.again);
    free(t.length);
    free(t.packed_length);
    return rc;
}

int bench_pack(int argc, char **argv)
{
    struct pack_args a;
    struct opt_parsed *parsed;
    struct err err = {0};
    int code;
    if (!opt_begin(&cmd, argc, argv, &a, &parsed, &code))
        return code;
    struct pack_bench b = {0};
    enum pack_type type = (enum pack_type)(a.dtype + 1);
    struct io *io = io_machine_open(NULL);
    struct store_opts o = {.io = io, .dirs = &a.dir, .n_dirs = 1, .read_only = true};
    int rc = store_open(&o, &b.store, &err);
    if (rc == 0)
        rc = store_each(b.store, key_note, &b, &err);
    if (rc == 0)
        printf("%-16s %-9s %8s %9s %9s %9s %11s\n", "kind", "loops", "records", "MB",
               "share", "pack GB/s", "unpack GB/s");
    if (rc == 0)
        rc = kind_run(&b, false, STORE_KV, type, "keys and values", &err);
    if (rc == 0)
        rc = kind_run(&b, false, STORE_HIDDEN, type, "hidden states", &err);
    if (rc == 0)
        rc = kind_run(&b, true, STORE_HIDDEN, PACK_F32, "snapshots", &err);
    free(b.keys[0]);
    free(b.keys[1]);
    store_close(b.store);
    io_close(io);
    opt_end(parsed);
    return bench_end("pack", rc, &err);
}
