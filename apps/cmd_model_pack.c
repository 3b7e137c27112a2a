/* cmd_model_pack.c - hcache model pack: writes a model in the layout of the device that will
 * compute with it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "apps/cmds.h"
#include "apps/engine_options.h"
#include "apps/json_print.h"
#include "apps/option_tables.h"
#include "base/clock.h"
#include "base/cpus.h"
#include "base/pool.h"
#include "base/json.h"
#include "apps/pack_write.h"
#include "tensor/group.h"

struct pack_args {
    const char *source, *out;
    const char *weights, *device, *isa;
    int threads, ranks;
    bool json;
};

static const struct opt pack_positionals[] = {
    {"MODEL_DIR", OPT(struct pack_args, source), .required = true,
     .help = "a Hugging Face folder, a GGUF file, or synth:SHAPE"},
    {0},
};
static const struct opt pack_options[] = {
    {"out", OPT(struct pack_args, out), .arg = "FILE", .required = true,
     .help = "the file to write; it must not exist yet"},
    {"weights", OPT(struct pack_args, weights), .choices = engine_weights,
     .def = "checkpoint",
     .help = "format of the matrices in the file, with the values of run --weights"},
    {"device", OPT(struct pack_args, device), .choices = engine_devices, .def = "cpu",
     .help = "device for which the file is written: each device has its own layout"},
    {"tensor-parallel", OPT(struct pack_args, ranks), .arg = "N", .def = "1", .min = 1,
     .max = HCACHE_MAX_DEVICES, .help = "number of ranks for which the file is written"},
    {"isa", OPT(struct pack_args, isa), .arg = "NAME",
     .help = "kernels of the CPU, for tests; the file is the same with all of them"},
    {"threads", OPT(struct pack_args, threads), .arg = "N", .def = "0", .min = 0,
     .max = 1024,
     .help = "compute threads; 0 is one for each processor that the process may use"},
    {"json", OPT(struct pack_args, json), .help = "print one JSON object"},
    {0},
};
static const struct opt_cmd pack_cmd = {
    .name = "model pack",
    .summary =
        "Writes a model as one file in the layout that a device computes with, layer by "
        "layer, with its configuration, tokenizer and chat template. run, serve and ppl "
        "take "
        "the file like a folder. They start faster from it, and --weights-memory needs it.",
    .positionals = pack_positionals,
    .options = pack_options,
    .examples = "  hcache model pack synth:llama-2-7b --out /var/tmp/7b.packed\n"
                "  hcache model pack MODEL_DIR --weights q8 --out model.q8.packed\n"
                "  hcache model pack MODEL_DIR --weights q4 --out model.q4.packed\n",
    .values_bytes = sizeof(struct pack_args),
};
const struct opt_cmd *const options_of_model_pack = &pack_cmd;

static int pack(const struct pack_args *a, struct pack_result *r, struct err *e)
{
    struct pool *pool = NULL;
    struct device *dev = NULL;
    const struct device_opts d = {.isa = a->isa};
    int rc = pool_create(a->threads > 0 ? a->threads : cpus_usable(), &pool, e);
    if (rc == 0)
        rc = group_open(a->device, &d, a->ranks, 1, pool, &dev, e);
    if (rc == 0)
        rc = pack_write(a->source, a->out, dev, a->weights, r, e);
    device_close(dev);
    pool_destroy(pool);
    return rc;
}

static void print_errors(const struct pack_result *r)
{
    for (size_t i = 0; i < r->errors.n; i++)
        printf("  %-56s %6.2f %% of its size is error\n", r->errors.of[i].name,
               100 * r->errors.of[i].relative);
    if (r->note[0] != 0)
        printf("%s\n", r->note);
}

static struct json *errors_json(const struct pack_result *r)
{
    struct json *list = json_new_array();
    for (size_t i = 0; i < r->errors.n; i++) {
        json_push(list, json_make("{name: %s, relative_error: %g}", r->errors.of[i].name,
                                  r->errors.of[i].relative));
    }
    return list;
}

static void print(const struct pack_args *a, const struct pack_result *r, double seconds)
{
    char id[65];
    sha256_hex(&r->hash, id);
    if (!a->json) {
        print_errors(r);
        printf("%s: %d layers of %s for '%s', %.1f MB in %.1f s\n", a->out, r->n_layers,
               dtype_name(r->dtype), r->layout, (double)r->bytes / 1e6, seconds);
        return;
    }
    struct json *o = json_make(
        "{bytes: %lu, layers: %d, layout: %s, weights: %s, weights_id: %s, "
        "seconds: %g, note: %s}",
        r->bytes, r->n_layers, r->layout, dtype_name(r->dtype), id, seconds, r->note);
    if (r->errors.n > 0)
        json_put(o, "made_q4", errors_json(r));
    json_print(o, 0);
}

int cmd_model_pack(int argc, char **argv)
{
    struct pack_args a;
    struct opt_parsed *parsed;
    struct err e = {0};
    struct pack_result r;
    int code;
    if (!opt_begin(&pack_cmd, argc, argv, &a, &parsed, &code))
        return code;
    int64_t start = clock_now_ns();
    code = pack(&a, &r, &e);
    if (code == 0) {
        print(&a, &r, (double)(clock_now_ns() - start) / 1e9);
        free(r.errors.of);
    } else {
        fprintf(stderr, "hcache %s: %s\n", pack_cmd.name, e.msg);
        code = e.code == ERR_USAGE || e.code == ERR_NOT_FOUND ? 2 : 1;
    }
    opt_end(parsed);
    return code;
}
