/* test_pack_read.c - the reader of packed parts. Parts arrive whole and checked, even if they have
 * more MiB than the queue has places. Damage is named, and a cancel ends all jobs. */
#include "tests/unit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sim/io_sim.h"
#include "model/pack_read.h"
#include "tests/base/said.h"
#include "tests/base/tempdir.h"

enum { MIB = PACK_SUM_BYTES, N_PARTS = 4, FILE_BYTES = 32 * MIB, FILLER = 0x55 };

/* The parts: more MiB than places in the queue and an end within a MiB; two MiB; an empty part; a
 * single sector. */
static struct pack_part parts[N_PARTS] = {
    {.at = 4096, .bytes = 13 * MIB + 8192},
    {.at = 15 * MIB, .bytes = 2 * MIB},
    {.at = 20 * MIB, .bytes = 0},
    {.at = 20 * MIB, .bytes = 4096},
};
static uint64_t sums[64];
static uint8_t *bytes, *dst;
static struct io *sim;
static struct pack_file file = {.path = "/weights", .n_parts = N_PARTS, .parts = parts};
static struct pack_reader reader;
static int n_allocated;

bool mem_test_denies(size_t n, enum mem_ask ask)
{
    (void)n;
    (void)ask;
    n_allocated++;
    return false;
}

static int set_up(void **state)
{
    struct err err = {0};
    struct io_file *f;
    size_t n = 0;
    bytes = malloc(FILE_BYTES);
    dst = aligned_alloc(4096, FILE_BYTES);
    uint64_t x = 1;
    for (size_t i = 0; i < FILE_BYTES; i++)
        bytes[i] = (uint8_t)((x = x * 6364136223846793005u + 1442695040888963407u) >> 56);
    memset(dst, FILLER, FILE_BYTES);
    for (int i = 0; i < N_PARTS; i++) {
        parts[i].first_sum = n;
        for (uint64_t at = 0; at < parts[i].bytes; at += MIB) {
            uint64_t left = parts[i].bytes - at;
            sums[n++] = checksum64(bytes + parts[i].at + at, left < MIB ? left : MIB);
        }
    }
    file.n_sums = n;
    file.sums = sums;
    assert_int_equal(io_sim_open(&(struct io_sim_opts){.seed = 11}, &sim, &err), 0);
    assert_int_equal(io_file_open(sim, file.path, IO_CREATE, &f, &err), 0);
    assert_int_equal(io_file_pwrite(f, bytes, FILE_BYTES, 0, &err), 0);
    io_file_close(f);
    assert_int_equal(pack_reader_open(&reader, &file, sim, &err), 0);
    return 0;
}

static int tear_down(void **state)
{
    io_sim_fault_clear(sim);
    io_sim_unstick(sim);
    pack_reader_close(&reader);
    io_close(sim);
    free(bytes);
    free(dst);
    return 0;
}

static bool is_there(int part)
{
    return memcmp(dst + parts[part].at, bytes + parts[part].at, parts[part].bytes) == 0;
}

/* Steps until n jobs have ended. */
static void step_until(int n)
{
    struct err err = {0};
    while (n > 0) {
        struct pack_job *done;
        unsigned n_done;
        assert_int_equal(pack_reader_step(&reader, -1, &n_done, &done, &err), 0);
        n -= done != NULL;
    }
}

static void forget(struct pack_job *jobs, int n)
{
    for (int i = 0; i < n; i++)
        pack_job_deinit(&jobs[i]);
}

TEST_WITH(parts_arrive_whole, set_up, tear_down)
{
    struct pack_job jobs[N_PARTS] = {{0}};
    uint64_t all = 0;
    for (int i = 0; i < N_PARTS; i++) {
        bool is_read = pack_reader_begin(&reader, &jobs[i], (size_t)i, dst + parts[i].at);
        assert_int_equal(is_read, parts[i].bytes > 0);
        all += parts[i].bytes;
    }
    step_until(3);
    for (int i = 0; i < N_PARTS; i++) {
        assert_int_equal(jobs[i].rc, 0);
        assert_true(is_there(i));
    }
    assert_int_equal(reader.n_bytes, all);
    /* Nothing is written outside of the parts. */
    assert_int_equal(dst[parts[0].at - 1], FILLER);
    assert_int_equal(dst[parts[0].at + parts[0].bytes], FILLER);
    assert_int_equal(dst[parts[3].at + parts[3].bytes], FILLER);
    forget(jobs, N_PARTS);
}

/* The message names the first byte of the damaged MiB. */
TEST_WITH(damage_is_named, set_up, tear_down)
{
    struct pack_job j = {0};
    uint64_t bad = parts[0].at + 9 * MIB;
    assert_int_equal(io_sim_flip(sim, file.path, bad + 77, 3), 0);
    assert_true(pack_reader_begin(&reader, &j, 0, dst + parts[0].at));
    step_until(1);
    assert_int_equal(j.rc, ERR_CORRUPT);
    assert_non_null(strstr(j.err.msg, "damaged at byte 9441280"));
    /* After an error the reader can be used again. */
    assert_true(pack_reader_begin(&reader, &j, 1, dst + parts[1].at));
    step_until(1);
    assert_int_equal(j.rc, 0);
    assert_true(is_there(1));
    forget(&j, 1);
}

/* The disk withholds the first MiB. The second job waits for places in the queue. */
TEST_WITH(a_cancel_ends_all_jobs, set_up, tear_down)
{
    struct pack_job jobs[2] = {{0}};
    io_sim_fault_add(sim,
                     &(struct io_sim_fault){.kind = IO_SIM_STUCK, .on = IO_SIM_ON_READ});
    for (int i = 0; i < 2; i++)
        assert_true(pack_reader_begin(&reader, &jobs[i], (size_t)i, dst + parts[i].at));
    pack_reader_cancel(&reader);
    step_until(2);
    for (int i = 0; i < 2; i++)
        assert_int_equal(jobs[i].rc, -ECANCELED);
    io_sim_fault_clear(sim);
    for (int i = 0; i < 2; i++)
        assert_true(pack_reader_begin(&reader, &jobs[i], (size_t)i, dst + parts[i].at));
    step_until(2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(jobs[i].rc, 0);
        assert_true(is_there(i));
    }
    forget(jobs, 2);
}

TEST_WITH(a_disk_that_fails_ends_the_job_with_its_code, set_up, tear_down)
{
    struct pack_job j = {0};
    io_sim_fault_add(
        sim, &(struct io_sim_fault){.kind = IO_SIM_FAIL, .on = IO_SIM_ON_READ, .skip = 3});
    assert_true(pack_reader_begin(&reader, &j, 0, dst + parts[0].at));
    step_until(1);
    assert_int_equal(j.rc, -EIO);
    io_sim_fault_clear(sim);
    n_allocated = 0;
    assert_true(pack_reader_begin(&reader, &j, 0, dst + parts[0].at));
    assert_int_equal(n_allocated, 0); /* the job has the memory of its first read */
    step_until(1);
    assert_int_equal(j.rc, 0);
    assert_true(is_there(0));
    forget(&j, 1);
}

/* Without an io the reader opens the machine's, and says if that has plain reads only. */
TEST_WITH(plain_reads_are_told, set_up, tear_down)
{
    char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 16];
    struct pack_file on_disk = {.path = path, .n_parts = N_PARTS, .parts = parts};
    struct pack_reader r;
    struct err err = {0};
    struct io *ring = NULL;
    tempdir_make_on_disk(dir, "reader");
    snprintf(path, sizeof path, "%s/weights", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, 8192, f), 8192);
    assert_int_equal(fclose(f), 0);
    bool is_plain = io_uring_open(&ring, &err) != 0;
    io_close(ring);
    said_begin(LOG_INFO);
    int rc = pack_reader_open(&r, &on_disk, NULL, &err);
    int n_said = said_count(said_end(), "weights are read with plain reads");
    assert_int_equal(rc, 0);
    assert_int_equal(n_said, is_plain);
    pack_reader_close(&r);
    tempdir_remove(dir);
}
