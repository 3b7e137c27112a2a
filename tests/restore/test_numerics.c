/* test_numerics.c - a state's bits change only together with a declared version, and all
 * instruction sets of the CPU backend compute the same bits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "tensor/tensor.h"
#include "tests/restore/numerics.h"

#define FAMILY(name) "tests/model/golden/families/" name
#define CHECKPOINT(m)                                                                      \
    {m, "f32", "checkpoint", 0}, {m, "bf16", "checkpoint", 0},                             \
    {                                                                                      \
        m, "f16", "checkpoint", 0                                                          \
    }
#define LONG(dtype, kind)                                                                  \
    {                                                                                      \
        "synth:tiny-gqa", dtype, kind, 8200                                                \
    }

/* Every family and every kind of layer in every state type, up to the end of its context; weights
 * of 8 and 4 bits, and bf16 weights with rounded activations; a context of 8,200 tokens. */
static const struct numerics_run runs[] = {
    CHECKPOINT(FAMILY("llama")),
    CHECKPOINT(FAMILY("llama3")),
    CHECKPOINT(FAMILY("mistral")),
    CHECKPOINT(FAMILY("qwen2")),
    CHECKPOINT(FAMILY("qwen2-window")),
    CHECKPOINT(FAMILY("qwen3")),
    CHECKPOINT(FAMILY("gemma")),
    CHECKPOINT(FAMILY("opt")),
    CHECKPOINT(FAMILY("phi")),
    CHECKPOINT(FAMILY("phi3")),
    CHECKPOINT(FAMILY("falcon-7b")),
    CHECKPOINT(FAMILY("falcon-11b")),
    CHECKPOINT(FAMILY("falcon-40b")),
    CHECKPOINT(FAMILY("falcon-rw")),
    {FAMILY("llama"), "f32", "q8", 0},
    {FAMILY("qwen2-window"), "bf16", "q8", 0},
    {FAMILY("opt"), "f16", "q8", 0},
    {FAMILY("falcon-40b"), "bf16", "q8", 0},
    {FAMILY("llama"), "f32", "q4", 0},
    {FAMILY("qwen2-window"), "bf16", "q4", 0},
    {FAMILY("llama"), "f32", "bf16r", 0},
    {FAMILY("qwen2-window"), "bf16", "bf16r", 0},
    LONG("f32", "checkpoint"),
    LONG("bf16", "checkpoint"),
    LONG("f16", "q8"),
    LONG("bf16", "q4"),
    {0},
};

/* `ref` takes seconds for each long context: it has only the first. */
enum { N_RUNS = sizeof runs / sizeof runs[0], N_REF = N_RUNS - 4 };

static void check(const char *device, const char *isa, const char *version)
{
    struct device_opts o = {.isa = isa};
    struct numerics_run some[N_RUNS] = {0};
    memcpy(some, runs, strcmp(device, "ref") == 0 ? N_REF * sizeof *runs : sizeof runs);
    char *now = numerics_table(device, &o, some);
    numerics_check(device, now, version);
    free(now);
}

TEST(ref_has_its_golden_bits)
{
    check("ref", NULL, "REF_NUMERICS_VERSION (src/tensor/ref/ref.h)");
}

/* Runs the best kernels of this machine and each other instruction set. Products with 8-bit weights
 * then use AMX or VNNI, AVX-512, AVX2 and portable kernels. */
TEST(cpu_has_its_golden_bits_in_every_isa)
{
    static const char *const isas[] = {NULL, "avx512", "avx2", "portable"};
    char best[64] = "";
    int n = 0;
    for (int i = 0; i < 4; i++) {
        struct device *dev;
        struct err err = {0};
        int rc = device_open("cpu", &(struct device_opts){.isa = isas[i]}, NULL, &dev,
                             &err);
        if (rc == 0) {
            bool checked = strcmp(best, dev->isa) == 0;
            if (i == 0)
                snprintf(best, sizeof best, "%s", dev->isa);
            device_close(dev);
            if (!checked)
                check("cpu", isas[i], "CPU_NUMERICS_VERSION (src/tensor/cpu/cpu.h)");
            n++;
        } else {
            assert_non_null(strstr(err.msg, "this CPU lacks it"));
            print_message("skipped: %s\n", err.msg);
        }
    }
    assert_true(n >= 2); /* at least the best and the portable one */
}

static void expect(const char *golden, const char *now, const char *want)
{
    char *wrong = numerics_compare(golden, now, "X_VERSION");
    if (want == NULL) {
        assert_null(wrong);
        return;
    }
    if (wrong == NULL || strstr(wrong, want) == NULL)
        fail_msg("'%s', not '%s'", wrong != NULL ? wrong : "nothing", want);
    free(wrong);
}

/* Two backends have different digests; otherwise a digest would not detect changed bits. */
TEST(changed_bits_are_told)
{
    static const char *const table = "versions: backend 1, model 1\n"
                                     "a bf16 q8 end 11\n"
                                     "b f32 checkpoint decode 22\n";
    static const char *const logits = "versions: backend 1, model 1\n"
                                      "a bf16 q8 logits 11\n"
                                      "b f32 checkpoint decode 22\n";
    expect(table, table, NULL);
    expect(
        logits,
        "versions: backend 1, model 1\na bf16 q8 logits 12\nb f32 checkpoint decode 22\n",
        "the logits of \"a bf16 q8\" changed, and no state did");
    expect(
        logits,
        "versions: backend 1, model 1\na bf16 q8 logits 12\nb f32 checkpoint decode 23\n",
        "bits of \"b f32 checkpoint decode\" changed under an unchanged version");
    expect(table,
           "versions: backend 1, model 1\na bf16 q8 end 11\nb f32 checkpoint decode 23\n",
           "bits of \"b f32 checkpoint decode\" changed under an unchanged version");
    expect(table,
           "versions: backend 1, model 1\na bf16 q8 end 11\nb f32 checkpoint decode 23\n",
           "raise X_VERSION");
    expect(table,
           "versions: backend 2, model 1\na bf16 q8 end 11\nb f32 checkpoint decode 23\n",
           "versions are new (versions: backend 1, model 1 was committed)");
    expect(table, "versions: backend 1, model 1\na bf16 q8 end 11\n",
           "run is missing: b f32");
    expect(table,
           "versions: backend 1, model 1\na bf16 q8 end 11\nb f32 checkpoint decode 22\n"
           "c f32 q8 end 1\n",
           "new runs");
    static const struct numerics_run one[] = {{FAMILY("llama"), "f32", "checkpoint", 0},
                                              {0}};
    char *cpu = numerics_table("cpu", NULL, one), *ref = numerics_table("ref", NULL, one);
    expect(cpu, ref, "bits of \"llama f32 checkpoint prefill\" changed");
    free(cpu);
    free(ref);
}
