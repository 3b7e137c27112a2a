/* test_lives.c - restores and saves under a seed; life.h lists what is checked.
 *
 * HCACHE_LIVES=N runs N lives (default 60), from seed HCACHE_LIVES_FROM on (default 1), and a
 * quarter as many in which many reads fail.  HCACHE_LIFE=S runs the life of seed S alone, to look
 * into it; with HCACHE_LOSSY=1 that in which many reads fail.  HCACHE_CAMPAIGN_OUT=FILE receives
 * the counts, one "name: number" per line, for the table that `make crash` prints.  A violation
 * prints its seed. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/step.h"
#include "save/bugs.h"
#include "tests/restore/life.h"
#include "tests/restore/turns.h"

/* Two sizes of a test. FEW_LIVES reach every kind of trouble. MANY_LIVES also reach direct reads
 * that are abandoned because the disk does not answer. */
enum { FEW_LIVES = 80, MANY_LIVES = 2000 };

static enum state_bug bug;

enum state_bug state_test_bug(void)
{
    return bug;
}

void shared_test_turn(void)
{
    turns_shared();
}

static uint64_t env_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL && *text != 0 ? strtoull(text, NULL, 10) : otherwise;
}

static void print_counts(FILE *f, const struct life_counts *c)
{
    static const char *const troubles[] = {
        [LIFE_FLIP] = "flipped bits",
        [LIFE_READ_FAIL] = "failing reads",
        [LIFE_WRITE_FAIL] = "failing writes",
        [LIFE_STUCK] = "stuck reads",
        [LIFE_HANG] = "a hanging disk",
        [LIFE_FULL] = "a full disk",
        [LIFE_CRASH] = "power lost",
        [LIFE_ERASE] = "erasures",
        [LIFE_SHORT] = "short and slow transfers",
        [LIFE_MEMORY] = "no memory",
    };
    static const char *const stages[] = {"looking up", "found", "reading", "done"};
    fprintf(f, "lives under a seed: %llu\n", (unsigned long long)c->n_lives);
    fprintf(f, "  turns: %llu\n", (unsigned long long)c->n_turns);
    for (int i = 0; i < LIFE_MEMORY; i++)
        fprintf(f, "  with %s: %llu\n", troubles[i], (unsigned long long)c->n_trouble[i]);
    fprintf(f, "  restores compared: %llu\n", (unsigned long long)c->n_restored);
    fprintf(f, "  restores that lost chunks: %llu\n", (unsigned long long)c->n_short);
    for (int i = 0; i < LIFE_STAGES; i++)
        fprintf(f, "  restores cancelled, %s: %llu\n", stages[i],
                (unsigned long long)c->n_cancelled[i]);
    fprintf(f, "  raced, reads ended first: %llu\n", (unsigned long long)c->n_read);
    fprintf(f, "  raced, recomputation ended first: %llu\n",
            (unsigned long long)c->n_recomputed);
    fprintf(f, "  of these with reads in flight: %llu\n", (unsigned long long)c->n_late);
    fprintf(f, "  restores that left their reads: %llu\n", (unsigned long long)c->n_left);
    fprintf(f, "  work items of several layers: %llu\n", (unsigned long long)c->n_joint);
    fprintf(f, "  windows restored anew: %llu\n", (unsigned long long)c->n_rewound);
    fprintf(f, "  erased while in use: %llu\n", (unsigned long long)c->n_erased_while_read);
    fprintf(f, "  sequences whose context was erased: %llu\n",
            (unsigned long long)c->n_too_late);
    fprintf(f, "  erased chunks looked for: %llu\n", (unsigned long long)c->n_erased_gone);
    fprintf(f, "  sequences saved no further: %llu\n", (unsigned long long)c->n_save_ended);
    fprintf(f, "  committed tokens looked for: %llu\n", (unsigned long long)c->n_committed);
    fprintf(f, "  records served from DRAM: %llu\n", (unsigned long long)c->n_dram_reads);
    fprintf(f, "  copies fetched to DRAM: %llu\n", (unsigned long long)c->n_promoted);
    fprintf(f, "  chunks demoted from DRAM: %llu\n", (unsigned long long)c->n_demoted);
    fprintf(f, "  on a device with memory of its own: %llu\n",
            (unsigned long long)c->n_split);
    fprintf(f, "  restores with direct reads: %llu\n", (unsigned long long)c->n_direct);
    fprintf(f, "  batches of direct reads: %llu\n", (unsigned long long)c->n_batches);
    fprintf(f, "  of these refused: %llu\n", (unsigned long long)c->n_refused);
    fprintf(f, "  ended by a fault of the reader: %llu\n", (unsigned long long)c->n_broken);
    fprintf(f, "  direct reads left as stuck: %llu\n", (unsigned long long)c->n_stuck);
}

/* Every kind of trouble and every stage of a cancellation has happened. */
static void assert_reached(const struct life_counts *c)
{
    for (int i = 0; i < LIFE_MEMORY; i++)
        if (c->n_trouble[i] == 0)
            fail_msg("no life had trouble %d", i);
    for (int i = 0; i < LIFE_STAGES; i++)
        if (c->n_cancelled[i] == 0)
            fail_msg("no restore was cancelled at stage %d", i);
    assert_true(c->n_calm > 0 && c->n_short > 0 && c->n_rewound > 0);
    assert_true(c->n_joint > 0);
    assert_true(c->n_read > 0 && c->n_recomputed > 0 && c->n_late > 0 && c->n_left > 0);
    assert_true(c->n_erased_while_read > 0 && c->n_save_ended > 0 && c->n_committed > 0);
    assert_true(c->n_too_late > 0 && c->n_erased_gone > 0);
    assert_true(c->n_dram_reads > 0 && c->n_demoted > 0 && c->n_promoted > 0);
    assert_true(c->n_split > 0 && c->n_direct > 0 && c->n_batches > 0);
    assert_true(c->n_refused > 0 && c->n_broken > 0);
    if (c->n_lives >= MANY_LIVES)
        assert_true(c->n_stuck > 0);
}

TEST(nothing_is_violated)
{
    struct life_counts c = {0};
    const char *path = getenv("HCACHE_CAMPAIGN_OUT");
    uint64_t one = env_number("HCACHE_LIFE", 0), n = env_number("HCACHE_LIVES", FEW_LIVES);
    const unsigned lossy = 1u << LIFE_LOSSY;
    if (one != 0) {
        life_run(one, env_number("HCACHE_LOSSY", 0) != 0 ? lossy : LIFE_DRAWN, &c);
        return;
    }
    /* Lives that lose many chunks reach races with the end of the good chunks, as 16fc1a9 mended
     * one: drawn lives meet that one once in thousands, these once in fifty. */
    uint64_t first = env_number("HCACHE_LIVES_FROM", 1), first_lossy = (first + 3) / 4;
    /* What is rarest comes once in a hundred lives: more lives are drawn until it has come. */
    for (uint64_t i = 0;
         i < n || ((c.n_erased_while_read == 0 || c.n_rewound == 0) && i < 5 * n); i++) {
        life_run(first + i, LIFE_DRAWN, &c);
        if (i % 4 == 0)
            life_run(first_lossy + i / 4, lossy, &c);
    }
    FILE *f = path != NULL && *path != 0 ? fopen(path, "w") : stdout;
    assert_non_null(f);
    print_counts(f, &c);
    if (f != stdout)
        assert_int_equal(fclose(f), 0);
    if (n >= FEW_LIVES)
        assert_reached(&c);
}

/* Seeds that found bugs once. With 1071 recomputation waited for groups on the device, and their
 * time was counted twice. With 1702, 4294 and 4752 a race continued a piece of recomputation that
 * had begun before the race. A chunk before the piece was lost, so the piece's rows were written at
 * the context's beginning. With the other seeds a race, on a device with memory of its own, ended
 * without rows that had been excluded from the restore's records. */
TEST(old_findings_stay_mended)
{
    static const uint64_t seeds[] = {1071, 1109, 1702, 2541, 3079, 4294, 4752, 5715, 5894};
    struct life_counts c = {0};
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++)
        life_run(seeds[i], LIFE_DRAWN, &c);
}

/* A seed determines the interleaving: a second run equals the first. */
TEST(a_seed_repeats_itself)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct life_counts a = {0}, b = {0};
        life_run(seed, LIFE_DRAWN, &a);
        life_run(seed, LIFE_DRAWN, &b);
        assert_int_equal(a.n_turns, b.n_turns);
        assert_int_equal(a.n_switches, b.n_switches);
        assert_int_equal(a.n_restored, b.n_restored);
    }
}

/* Runs up to 1,000 lives with this bug and these troubles in a child process, from seed `from` on,
 * until a life violates a check. Returns the life's seed, or 0. */
static uint64_t hunt(enum state_bug which, unsigned trouble, uint64_t from)
{
    int fd[2], status;
    uint64_t seed = 0;
    assert_int_equal(pipe(fd), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct life_counts unused = {0};
        (void)!freopen("/dev/null", "w", stderr);
        bug = which;
        for (seed = from; seed < from + 1000; seed++) {
            (void)!write(fd[1], &seed, sizeof seed);
            life_run(seed, trouble, &unused);
        }
        _exit(0);
    }
    close(fd[1]);
    while (read(fd[0], &seed, sizeof seed) == sizeof seed) {
    }
    close(fd[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status == 0 ? 0 : seed;
}

/* The lives find each of the known bugs. */
TEST(known_bugs_are_found)
{
    static const struct {
        const char *name;
        unsigned trouble;
        uint64_t
            from; /* a little before the first seed that found the bug when it was set */
    } bugs[STATE_BUGS] = {
        /* This bug shows only if a chunk is lost between the two reads of n_good, so these lives
         * lose many chunks. */
        [STATE_BUG_TWO_READS] = {"n_good read twice", 1u << LIFE_LOSSY, 35},
        [STATE_BUG_LOST_NEWS] = {"a lost wake-up", LIFE_DRAWN, 1},
        [STATE_BUG_EARLY_COMMITTED] = {"committed before the commit", LIFE_DRAWN, 1},
        [STATE_BUG_EARLY_ROWS] = {"a chunk written before its rows are down", LIFE_DRAWN,
                                  230},
    };
    if (env_number("HCACHE_LIFE", 0) != 0)
        skip();
    for (int b = STATE_BUG_NONE + 1; b < STATE_BUGS; b++) {
        uint64_t seed = hunt((enum state_bug)b, bugs[b].trouble, bugs[b].from);
        printf("bug, %s: %s at seed %llu\n", bugs[b].name,
               seed != 0 ? "caught" : "NOT CAUGHT", (unsigned long long)seed);
        assert_true(seed != 0);
    }
}

int main(void)
{
#ifdef __SANITIZE_THREAD__
    printf("1..0 # SKIP all threads run in one, where the thread sanitizer sees nothing\n");
    return 0;
#endif
    life_prepare();
    int rc = unit_run(NULL, NULL);
    life_release();
    return rc;
}
