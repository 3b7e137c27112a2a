/* test_cpu.c - the processor's properties, and the choice of kernels for a product. */
#include "quant_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/cpu/q4.h"

/* --- the processor ---------------------------------------------------------------------------- */

/* Reads a field of /proc/cpuinfo. Returns whether it is there. */
static bool cpuinfo(const char *field, char text[100])
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[4096];
    bool found = false;
    while (f != NULL && !found && fgets(line, sizeof line, f) != NULL)
        found = strncmp(line, field, strlen(field)) == 0 &&
                sscanf(line, "%*[^:]: %99s", text) == 1;
    if (f != NULL)
        fclose(f);
    return found;
}

TEST(the_family_is_that_of_cpuinfo)
{
    char family[100], maker[100];
    if (!cpuinfo("cpu family", family) || !cpuinfo("vendor_id", maker)) {
        print_message("no CPU family in /proc/cpuinfo\n");
        skip();
    }
    bool is_amd = strcmp(maker, "AuthenticAMD") == 0;
    for (int i = 0; i < 2; i++) { /* the second time from memory */
        assert_int_equal(cpu_family(), atoi(family));
        assert_int_equal(cpu_fetches_into_l2(), is_amd);
        assert_int_equal(cpu_reads_one_stream(), is_amd && atoi(family) >= 26);
    }
}

TEST(zen_5_and_later_read_one_stream)
{
    assert_false(family_reads_one_stream(true, 0x19)); /* Zen 4 */
    assert_true(family_reads_one_stream(true, 0x1a));
    assert_true(family_reads_one_stream(true, 0x1b));
    assert_false(family_reads_one_stream(false, 0x1a));
}

TEST(a_device_has_the_kernels_of_its_instruction_set)
{
    for (int i = 0; i < ISA_COUNT; i++) {
        struct lab l = lab_cpu(isa_names[i], 1);
        if (l.device == NULL)
            continue;
        assert_string_equal(cpu_kernels_of(l.stream)->isa, isa_names[i]);
        lab_close(&l);
    }
}

/* --- few rows --------------------------------------------------------------------------------- */

/* The rows of the product are few if the kernel for few rows was called. */
static int n_few, n_many;

static void few_spy(const struct quant_tile *t)
{
    n_few += t->m;
}

static void many_spy(const struct quant_tile *t)
{
    n_many += t->m;
}

static void multiply_spied(int m)
{
    enum { N = 16, K = 32 };
    struct quant_kernels k = q4_kernels_portable;
    float *rows = random_elems(DTYPE_F32, N * K, 1);
    struct mat a = mat_random(DTYPE_F32, m, K, 2), c = mat_alloc(DTYPE_F32, m, N);
    struct weight w = weight_make(&cpu, DTYPE_Q8, N, K, rows);
    k.direct = k.direct_stream = few_spy;
    k.blocked = many_spy;
    n_few = n_many = 0;
    assert_int_equal(quant_matmul_by(&k, cpu.stream, c, a, &w, NULL), 0);
    weight_free(&cpu, &w);
    mat_free(&c);
    mat_free(&a);
    free(rows);
}

TEST(quantised_weights_have_a_kernel_for_up_to_direct_rows)
{
    int most = q4_kernels_portable.direct_rows;
    multiply_spied(most);
    assert_true(n_few == most && n_many == 0);
    multiply_spied(most + 1);
    assert_true(n_few == 0 && n_many == most + 1);
}

/* Returns whether a product of m rows writes into the thread's scratch memory. The kernel for many
 * rows keeps the sums of the last columns there. */
static bool uses_scratch(const struct lab *l, int m)
{
    enum { N = 20, K = 8 };
    float *rows = random_elems(DTYPE_F32, N * K, 1);
    struct mat a = mat_random(DTYPE_F32, m, K, 2), c = mat_alloc(DTYPE_F32, m, N);
    struct weight w = weight_make(l, DTYPE_F32, N, K, rows);
    float *scratch = scratch_thread(l->stream, 0);
    bool used = false;
    memset(scratch, 0, MM_SCRATCH * sizeof *scratch);
    assert_int_equal(l->ops->matmul(l->stream, c, a, &w, NULL), 0);
    for (int i = 0; i < MM_SCRATCH; i++)
        used |= scratch[i] != 0;
    weight_free(l, &w);
    mat_free(&c);
    mat_free(&a);
    free(rows);
    return used;
}

TEST(float_weights_have_a_kernel_for_up_to_direct_rows)
{
    for (int i = 0; i < ISA_COUNT; i++) {
        struct lab l = lab_cpu(isa_names[i], 1);
        if (l.device == NULL)
            continue;
        int most = cpu_kernels_of(l.stream)->direct_rows;
        assert_false(uses_scratch(&l, most));
        assert_true(uses_scratch(&l, most + 1));
        lab_close(&l);
    }
}

int main(void)
{
    return unit_run(quant_setup, quant_teardown);
}
