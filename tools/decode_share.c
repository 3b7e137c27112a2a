/* decode_share.c - decode steps and plain reads of memory by turns, in one process.
 *
 * Decoding is bound by reading weights. Other programs and other guests of a machine change the
 * speed of memory within seconds, so a decode and a read that are measured one after the other
 * cannot be compared. Here each token is followed by a read of 64 MiB with as many threads, and
 * the share is taken of each pair.
 *
 *   make install, then:
 *   cc -O2 -mavx2 -o decode_share tools/decode_share.c $(pkg-config --cflags --libs hcache) -pthread
 *   ./decode_share MODEL THREADS TOKENS BYTES
 *
 * THREADS is 1 or 2. BYTES: bytes of weights that a token reads; `hcache run -v` prints the bytes
 * of all weights in memory, of which an untied embedding table is not read. It prints the medians
 * of all pairs, and the shares of pairs in which both sides had the processors for themselves.
 * Steps of less than some 5 ms hardly ever seem so, since the kernel adds up a running thread's
 * time at its ticks. For these run it alone, or at real-time priority (chrt -f 1). */
#include <hcache.h>
#include <immintrin.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { MAX_PAIRS = 4096, SLICE = 64 << 20, SLICES = 8 };

struct timing {
    double wall_s, cpu_s; /* elapsed time, and processor time of the whole process */
};

static struct timing step_of[MAX_PAIRS], read_of[MAX_PAIRS], last;
static int n_pairs, n_threads, slice_idx;
static unsigned char *memory; /* [SLICES][SLICE] */
static sem_t begin, end;      /* of the second thread's half of a read */
static unsigned long long sink;

static double clock_s(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct timing now(void)
{
    return (struct timing){clock_s(CLOCK_MONOTONIC), clock_s(CLOCK_PROCESS_CPUTIME_ID)};
}

static struct timing since(struct timing t0)
{
    struct timing t = now();
    return (struct timing){t.wall_s - t0.wall_s, t.cpu_s - t0.cpu_s};
}

/* Reads n bytes as four streams, as the kernels of one row do. */
static void read_bytes(const unsigned char *p, size_t n)
{
    __m256i sum[4] = {0};
    for (size_t i = 0; i < n / 4; i += sizeof sum[0])
        for (int s = 0; s < 4; s++)
            sum[s] = _mm256_xor_si256(
                sum[s], _mm256_loadu_si256((const void *)(p + (size_t)s * (n / 4) + i)));
    sum[0] = _mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]),
                              _mm256_xor_si256(sum[2], sum[3]));
    sink += (unsigned long long)_mm256_extract_epi64(sum[0], 0);
}

static void *second_half(void *arg)
{
    (void)arg;
    for (;;) {
        sem_wait(&begin);
        read_bytes(memory + (size_t)slice_idx * SLICE + SLICE / 2, SLICE / 2);
        sem_post(&end);
    }
    return NULL;
}

static void read_slice(void)
{
    if (n_threads > 1)
        sem_post(&begin);
    read_bytes(memory + (size_t)slice_idx * SLICE, (size_t)(SLICE / n_threads));
    if (n_threads > 1)
        sem_wait(&end);
}

static int on_token(void *arg, int32_t id, const char *text, size_t n)
{
    (void)arg;
    (void)id;
    (void)text;
    (void)n;
    if (last.wall_s > 0 && n_pairs < MAX_PAIRS) {
        step_of[n_pairs] = since(last);
        struct timing t0 = now();
        read_slice();
        read_of[n_pairs++] = since(t0);
        slice_idx = (slice_idx + 1) % SLICES;
    }
    last = now();
    return 0;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Returns whether the process had its processors for itself for the whole time. */
static int is_undisturbed(struct timing t)
{
    return t.cpu_s > 0.9 * n_threads * t.wall_s;
}

static double median_of(const struct timing *of)
{
    static double wall_s[MAX_PAIRS];
    for (int i = 1; i < n_pairs; i++)
        wall_s[i - 1] = of[i].wall_s;
    qsort(wall_s, (size_t)n_pairs - 1, sizeof wall_s[0], ascending);
    return wall_s[(n_pairs - 1) / 2];
}

static void print_shares(double bytes)
{
    static double share[MAX_PAIRS], decode[MAX_PAIRS];
    int n = 0;
    if (n_pairs < 2)
        return;
    double step_s = median_of(step_of), read_s = median_of(read_of);
    printf(
        "%d threads, all %d pairs, medians: a step %.3f ms, a read %.1f GB/s, share %.3f\n",
        n_threads, n_pairs - 1, step_s * 1e3, SLICE / read_s * 1e-9,
        bytes / step_s / (SLICE / read_s));
    for (int i = 1; i < n_pairs; i++) {
        if (!is_undisturbed(step_of[i]) || !is_undisturbed(read_of[i]))
            continue;
        decode[n] = bytes / step_of[i].wall_s;
        share[n] = decode[n] / (SLICE / read_of[i].wall_s);
        n++;
    }
    if (n == 0) {
        printf("no undisturbed pair of %d\n", n_pairs);
        return;
    }
    qsort(share, (size_t)n, sizeof share[0], ascending);
    qsort(decode, (size_t)n, sizeof decode[0], ascending);
    printf("%d threads, %d of %d pairs: decode %.1f GB/s, share of a read: median %.3f, "
           "quartiles "
           "%.3f and %.3f\n",
           n_threads, n, n_pairs, decode[n / 2] * 1e-9, share[n / 2], share[n / 4],
           share[n * 3 / 4]);
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: decode_share MODEL THREADS TOKENS BYTES\n");
        return 2;
    }
    n_threads = atoi(argv[2]) > 1 ? 2 : 1;
    memory = mmap(NULL, (size_t)SLICES * SLICE, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    madvise(memory, (size_t)SLICES * SLICE, MADV_HUGEPAGE);
    memset(memory, 1, (size_t)SLICES * SLICE);
    pthread_t thread;
    sem_init(&begin, 0, 0);
    sem_init(&end, 0, 0);
    if (pthread_create(&thread, NULL, second_half, NULL) != 0)
        return 1;
    const struct hcache_opts o = {
        .model = argv[1], .weights = "q4", .threads = n_threads, .max_context = 512};
    const int32_t prompt[] = {5, 6, 7, 8, 9, 10, 11, 12};
    const struct hcache_request q = {.prompt = prompt,
                                     .n_prompt = 8,
                                     .max_tokens = atoi(argv[3]),
                                     .ignore_eos = true,
                                     .on_token = on_token};
    struct hcache *h = NULL;
    struct hcache_result r = {0};
    struct hcache_err e = {0};
    if (hcache_open(&o, &h, &e) != 0 || hcache_generate(h, &q, &r, &e) != 0) {
        fprintf(stderr, "decode_share: %s\n", e.msg);
        return 1;
    }
    print_shares(atof(argv[4]));
    return 0;
}
