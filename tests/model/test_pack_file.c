/* test_pack_file.c - the description of a packed file: every field is needed and bounded, and the
 * bytes that are written stay those of the format. */
#include "tests/unit.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../base/tempdir.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "model/pack_file.h"
#include "packed_file.h"

static char dir[TEMPDIR_BYTES];

static int set_up(void **state)
{
    *state = dir;
    tempdir_make(dir, "packed");
    return 0;
}

/* --- descriptions ------------------------------------------------------------------------- */

/* A model of one layer in 4 bits: tables, head, and the layer's two parts. The second part has more
 * than a MiB. */
static const char good[] =
    "{\"source\": \"S\", \"note\": \"N\", \"layout\": \"cpu 1\", \"weights\": "
    "\"q4\",\"source_type\": \"bf16\", \"embeddings\": \"q4_k\", \"positions\": "
    "\"f16\",\"any_context\": true, \"layers\": 1,\"matrices\": [{\"head\": \"q6_k\"}, "
    "{\"wq\": \"q4_0\", \"wkv\": \"q4_1\",\"wo\": \"q4_k\", \"up\": \"q8\", \"down\": "
    "\"q6_k\"}],\"types\": [{\"name\": \"Q4_K\", \"tensors\": 3, \"quantised\": "
    "true}],\"files\": [{\"name\": \"config.json\", \"at\": 8192, \"bytes\": "
    "100,\"file_bytes\": 7, \"checksum\": \"00000000000000ff\"}],\"parts\": [{\"at\": "
    "16384, \"bytes\": 4096}, {\"at\": 20480, \"bytes\": 1052672},{\"at\": 1073152, "
    "\"bytes\": 0}, {\"at\": 1073152, \"bytes\": 4096}]}";

enum { FILE_BYTES = 1073152 + 4096, N_SUMS = 4 };

static int describe(struct pack_file *f, const char *text, struct err *e)
{
    *f = (struct pack_file){
        .path = xstrdup("f.packed"), .file_bytes = FILE_BYTES, .n_sums = N_SUMS};
    return pack_file_describe(f, text, strlen(text), e);
}

TEST(test_every_field_is_read)
{
    struct pack_file f;
    struct err e = {0};
    if (describe(&f, good, &e) != 0)
        fail_msg("%s", e.msg);
    assert_string_equal(f.source, "S");
    assert_string_equal(f.note, "N");
    assert_string_equal(f.layout, "cpu 1");
    assert_int_equal(f.dtype, DTYPE_Q4);
    assert_int_equal(f.file_dtype, DTYPE_BF16);
    assert_int_equal(f.table_dtype[0], DTYPE_Q4_K);
    assert_int_equal(f.table_dtype[1], DTYPE_F16);
    assert_true(f.any_context);
    assert_int_equal(f.n_layers, 1);
    assert_int_equal(f.matrices.head, DTYPE_Q6_K);
    static const enum dtype types[] = {DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q4_1,
                                       DTYPE_Q4_K, DTYPE_Q8,   DTYPE_Q6_K};
    for (int s = SLOT_WQ; s <= SLOT_DOWN; s++)
        assert_int_equal(matrix_type(&f.matrices, 0, (enum slot)s), types[s - SLOT_WQ]);
    assert_int_equal(f.types.n, 1);
    assert_string_equal(f.types.of[0].name, "Q4_K");
    assert_int_equal(f.types.of[0].n_tensors, 3);
    assert_true(f.types.of[0].quantised);
    assert_int_equal(f.n_members, 1);
    assert_string_equal(f.members[0].name, "config.json");
    assert_int_equal(f.members[0].at, 8192);
    assert_int_equal(f.members[0].bytes, 100);
    assert_int_equal(f.members[0].file_bytes, 7);
    assert_int_equal(f.members[0].sum, 255);
    assert_int_equal(f.n_parts, 4);
    static const struct pack_part parts[] = {
        {16384, 4096, 0}, {20480, 1052672, 1}, {1073152, 0, 3}, {1073152, 4096, 3}};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(f.parts[i].at, parts[i].at);
        assert_int_equal(f.parts[i].bytes, parts[i].bytes);
        assert_int_equal(f.parts[i].first_sum, parts[i].first_sum);
    }
    pack_file_close(&f);
    assert_null(f.path);
}

/* Returns `good` with the first `from` replaced by `to`. The caller frees it. */
static char *changed(const char *from, const char *to)
{
    const char *at = strstr(good, from);
    if (at == NULL)
        fail_msg("no '%s'", from);
    return xasprintf("%.*s%s%s", (int)(at - good), good, to, at + strlen(from));
}

struct change {
    const char *from, *to;
    int code;
    const char *message;
};

static void expect(const struct change *c)
{
    struct pack_file f;
    struct err e = {0};
    char *text = changed(c->from, c->to);
    int rc = describe(&f, text, &e);
    pack_file_close(&f);
    free(text);
    if (rc != c->code || strstr(e.msg, c->message) == NULL)
        fail_msg("%s -> %s: expected %s with '%s', got %s: %s", c->from, c->to,
                 err_name(c->code), c->message, err_name(rc), e.msg);
}

/* A key whose name changes is missing. */
TEST(test_every_field_is_needed)
{
    static const char *const keys[] = {
        "source",    "note",        "layout",  "weights",   "source_type", "embeddings",
        "positions", "any_context", "layers",  "matrices",  "types",       "files",
        "parts",     "name",        "tensors", "quantised", "bytes",       "file_bytes",
        "checksum",  "at",          "head",    "wq",        "wkv",         "wo",
        "up",        "down"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        char from[32], to[32], message[64];
        snprintf(from, sizeof from, "\"%s\":", keys[i]);
        snprintf(to, sizeof to, "\"x%s\":", keys[i]);
        snprintf(message, sizeof message, "'%s' is missing", keys[i]);
        expect(&(struct change){from, to, ERR_FORMAT, message});
    }
    expect(&(struct change){"{\"at\": 16384,", "{", ERR_FORMAT, "'at' is missing"});
    expect(&(struct change){"16384, \"bytes\": 4096", "16384", ERR_FORMAT,
                            "'bytes' is missing"});
    expect(&(struct change){"\"config.json\"", "5", ERR_FORMAT, "'name'"});
}

TEST(test_every_field_is_bounded)
{
    static const char description[] = "its description is damaged: pack the model again",
                      member[] = "the place of a file in it is damaged",
                      part[] = "the place of a part is damaged",
                      matrices[] = "its list of matrices is damaged";
    static const struct change bad[] = {
        {"\"layers\": 1", "\"layers\": 0", ERR_FORMAT, "'layers' is 0"},
        {"\"layers\": 1", "\"layers\": 65537", ERR_FORMAT, "it must lie in 1..65536"},
        {"\"layers\": 1", "\"layers\": 2", ERR_CORRUPT, matrices},
        {"\"weights\": \"q4\"", "\"weights\": \"q5\"", ERR_FORMAT, "'weights' is 'q5'"},
        {"\"weights\": \"q4\"", "\"weights\": \"q4_k\"", ERR_CORRUPT, description},
        {"\"weights\": \"q4\"", "\"weights\": \"q8\"", ERR_CORRUPT, description},
        {"\"embeddings\": \"q4_k\"", "\"embeddings\": \"q8\"", ERR_CORRUPT, description},
        {"\"embeddings\": \"q4_k\"", "\"embeddings\": \"f32\"", 0, ""},
        {"\"positions\": \"f16\"", "\"positions\": \"q8\"", ERR_CORRUPT, description},
        {"\"positions\": \"f16\"", "\"positions\": \"bf16\"", 0, ""},
        {"\"source_type\": \"bf16\"", "\"source_type\": \"q8\"", ERR_CORRUPT, description},
        {"\"head\": \"q6_k\"", "\"head\": \"bf16\"", ERR_CORRUPT, matrices},
        {"\"head\": \"q6_k\"", "\"head\": \"q8\"", 0, ""},
        {"\"wq\": \"q4_0\"", "\"wq\": \"f32\"", ERR_CORRUPT, matrices},
        {"\"down\": \"q6_k\"", "\"down\": \"bf16\"", ERR_CORRUPT, matrices},
        {"\"wkv\": \"q4_1\"", "\"wkv\": \"q4_1\", \"wv\": \"f16\"", ERR_CORRUPT, matrices},
        {"{\"head\": \"q6_k\"}, ", "", ERR_CORRUPT, matrices},
        {"\"tensors\": 3", "\"tensors\": -1", ERR_FORMAT, "'tensors' is -1"},
        {"\"tensors\": 3", "\"tensors\": 16777217", ERR_FORMAT, "0..16777216"},
        {"\"at\": 8192", "\"at\": -1", ERR_FORMAT, "'at' is -1"},
        {"\"at\": 8192", "\"at\": 4095", ERR_CORRUPT, member},
        {"\"at\": 8192", "\"at\": 4096", 0, ""},
        {"\"at\": 8192", "\"at\": 1077148", 0, ""}, /* the file's last 100 bytes */
        {"\"at\": 8192", "\"at\": 1077149", ERR_CORRUPT, member},
        {"\"at\": 8192", "\"at\": 9000000", ERR_CORRUPT, member},
        {"\"bytes\": 100", "\"bytes\": -1", ERR_FORMAT, "'bytes' is -1"},
        {"\"bytes\": 100", "\"bytes\": 1073741825", ERR_FORMAT, "0..1073741824"},
        {"\"file_bytes\": 7", "\"file_bytes\": -1", ERR_FORMAT, "'file_bytes' is -1"},
        {"\"at\": 16384", "\"at\": 16385", ERR_CORRUPT, part},
        {"\"at\": 16384", "\"at\": 0", ERR_CORRUPT, part},
        {"\"at\": 16384", "\"at\": 1077248", ERR_CORRUPT, part},
        {"\"bytes\": 1052672", "\"bytes\": 1052673", ERR_CORRUPT, part},
        {"\"bytes\": 1052672", "\"bytes\": 1060864", ERR_CORRUPT, part},
        {"\"bytes\": 1052672", "\"bytes\": 1048576", ERR_CORRUPT,
         "its number of checksums is damaged"},
        {"{\"at\": 16384, \"bytes\": 4096}, ", "", ERR_CORRUPT,
         "its list of parts is damaged"},
        {"{\"at\": 16384", "5, {\"at\": 16384", ERR_FORMAT, "'at' is missing"},
        {"{\"source\"", "{{\"source\"", ERR_FORMAT, "f.packed:1:"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect(&bad[i]);
    /* W_v has a type of its own */
    struct pack_file f;
    struct err e = {0};
    char *text = changed("\"wkv\": \"q4_1\"", "\"wkv\": \"q4_1\", \"wv\": \"q6_k\"");
    assert_int_equal(describe(&f, text, &e), 0);
    assert_int_equal(matrix_type(&f.matrices, 0, SLOT_WKV), DTYPE_Q4_1);
    assert_int_equal(matrix_type(&f.matrices, 0, SLOT_WV), DTYPE_Q6_K);
    pack_file_close(&f);
    free(text);
}

/* Types beyond the room of a description are left out. */
TEST(test_only_so_many_types_are_kept)
{
    char *list = xstrdup("");
    struct pack_file f;
    struct err e = {0};
    size_t room = sizeof f.types.of / sizeof f.types.of[0];
    for (size_t i = 0; i <= room; i++) {
        char *longer = xasprintf(
            "%s{\"name\": \"T%zu\", \"tensors\": %zu, \"quantised\": false}%s", list, i, i,
            i < room ? "," : "");
        free(list);
        list = longer;
    }
    char *text = changed("{\"name\": \"Q4_K\", \"tensors\": 3, \"quantised\": true}", list);
    assert_int_equal(describe(&f, text, &e), 0);
    assert_int_equal(f.types.n, room);
    assert_int_equal(f.types.of[room - 1].n_tensors, room - 1);
    assert_false(f.types.of[room - 1].quantised);
    pack_file_close(&f);
    free(text);
    free(list);
}

/* --- files -------------------------------------------------------------------------------- */

/* Returns a hash of a whole packed file without its name's own folder. Sources are named relative
 * to the repository, so the bytes are the same everywhere. */
static uint64_t bytes_sum(const char *source, int n_ranks, const char *weights, size_t *n)
{
    char path[PATH_MAX], *bytes;
    struct err e = {0};
    packed_file_make(dir, source, "cpu", n_ranks, weights, path);
    assert_int_equal(file_read(path, 1 << 26, &bytes, n, &e), 0);
    uint64_t sum = checksum64(bytes, *n);
    free(bytes);
    return sum;
}

/* Files that earlier builds wrote are read, so the bytes may only change with the version. */
TEST(test_the_bytes_of_a_file_stay_the_same)
{
    static const struct {
        const char *source, *weights;
        int n_ranks;
        size_t bytes;
        uint64_t sum;
    } known[] = {
        {"synth:tiny-mha", NULL, 1, 1101824, 0x283d1f7f9c8fb011},
        {"tests/model/golden/families/opt", "q8", 1, 135168, 0x5d65a2544b42c5fc},
        {"tests/model/golden/gguf/six.gguf", "q4", 1, 544768, 0xae89245bbb9ac0e1},
        {"tests/model/golden/gguf/six.gguf", "q4", 2, 585728, 0xe1c2264fef050731},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        size_t n;
        uint64_t sum = bytes_sum(known[i].source, known[i].n_ranks, known[i].weights, &n);
        if (n != known[i].bytes || sum != known[i].sum)
            fail_msg("%s: %zu bytes, 0x%" PRIx64, known[i].source, n, sum);
    }
}

/* Writes 8 bytes at `at` of a file and makes the header's checksum right. */
static void change(const char *path, size_t at, uint64_t value)
{
    char *bytes;
    size_t n;
    struct err e = {0};
    assert_int_equal(file_read(path, 1 << 26, &bytes, &n, &e), 0);
    put_u64((uint8_t *)bytes + at, value);
    put_u64((uint8_t *)bytes + 4088, checksum64(bytes, 4088));
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    free(bytes);
}

static void refuse(const char *path, int code, const char *message)
{
    struct pack_file f;
    struct err e = {0};
    int rc = pack_file_open(&f, path, &e);
    pack_file_close(&f);
    if (rc != code || strstr(e.msg, message) == NULL || strstr(e.msg, path) != e.msg)
        fail_msg("expected %s with '%s', got %s: %s", err_name(code), message, err_name(rc),
                 e.msg);
}

/* A header with a good checksum may still say anything. */
TEST(test_a_header_is_not_trusted)
{
    enum {
        VERSION = 8,
        SIZE = 16,
        TEXT = 24,
        TEXT_SUM = 32,
        SUMS_AT = 40,
        N = 48,
        SUM = 56
    };
    char path[PATH_MAX], *bytes;
    size_t n;
    struct err e = {0};
    packed_file_make(dir, "synth:tiny-mha", "cpu", 1, NULL, path);
    assert_int_equal(file_read(path, 1 << 26, &bytes, &n, &e), 0);
    const uint8_t *h = (const uint8_t *)bytes;
    uint64_t sums_at = get_u64(h + SUMS_AT), n_sums = get_u64(h + N);
    const struct {
        size_t at;
        uint64_t value;
        int code;
        const char *message;
    } bad[] = {
        {VERSION, 0, ERR_UNSUPPORTED, "is a packed model of version 0"},
        {VERSION, 4, ERR_UNSUPPORTED, "version 4, and this program reads versions up to 3"},
        {VERSION, 2, 0, ""},
        {SIZE, n + 1, ERR_CORRUPT, "the file is cut short or changed"},
        {TEXT, (64 << 20) + 1, ERR_CORRUPT, "its header is damaged"},
        {TEXT, n, ERR_CORRUPT, "its header is damaged"},
        {TEXT, get_u64(h + TEXT) - 1, ERR_CORRUPT, "its description is damaged"},
        {TEXT_SUM, 1, ERR_CORRUPT, "its description is damaged"},
        {SUMS_AT, 4095, ERR_CORRUPT, "its table of checksums is damaged"},
        {SUMS_AT, n - 8 * n_sums + 1, ERR_CORRUPT, "its table of checksums is damaged"},
        {SUMS_AT, sums_at + 8, ERR_CORRUPT, "its table of checksums is damaged"},
        {N, n / 8 + 1, ERR_CORRUPT, "its table of checksums is damaged"},
        {N, UINT64_MAX / 8 + 2, ERR_CORRUPT, "its table of checksums is damaged"},
        {N, n_sums - 1, ERR_CORRUPT, "its table of checksums is damaged"},
        {SUM, 1, ERR_CORRUPT, "its table of checksums is damaged"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t old = get_u64(h + bad[i].at);
        change(path, bad[i].at, bad[i].value);
        if (bad[i].code != 0) {
            refuse(path, bad[i].code, bad[i].message);
        } else {
            struct pack_file f;
            assert_int_equal(pack_file_open(&f, path, &e), 0);
            pack_file_close(&f);
        }
        change(path, bad[i].at, old);
    }
    free(bytes);
}

static void put(const char *name, const char *bytes, size_t n, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

TEST(test_which_files_are_packed)
{
    char path[PATH_MAX], zeros[4096] = {0};
    put("eight", "hcpacked", 8, path);
    assert_true(pack_file_is(path));
    refuse(path, ERR_CORRUPT, "is cut short");
    put("seven", "hcpacke", 7, path);
    assert_false(pack_file_is(path));
    put("other", "hcpackex", 8, path);
    assert_false(pack_file_is(path));
    put("zeros", zeros, sizeof zeros, path);
    refuse(path, ERR_FORMAT, "not a packed model");
    memcpy(zeros, "hcpacked", 8);
    put("zeros", zeros, sizeof zeros, path);
    refuse(path, ERR_CORRUPT, "its header is damaged");
    assert_false(pack_file_is(dir));
    refuse(dir, ERR_FORMAT, "not a packed model");
    snprintf(path, sizeof path, "%s/absent", dir);
    assert_false(pack_file_is(path));
    refuse(path, -ENOENT, "absent: No such file or directory");
    snprintf(path, sizeof path, "%s/pipe", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_false(pack_file_is(path));
    refuse(path, ERR_FORMAT, "not a packed model"); /* without waiting for a writer */
}

TEST(test_members)
{
    char path[PATH_MAX], *bytes = NULL;
    size_t n = 0;
    uint64_t file_bytes = 99;
    struct err e = {0};
    struct pack_file f;
    packed_file_make(dir, "tests/model/golden/gguf/six.gguf", "cpu", 1, "q4", path);
    assert_int_equal(pack_file_open(&f, path, &e), 0);
    assert_int_equal(pack_member_read(&f, "config.json", &bytes, &n, &file_bytes, &e), 0);
    assert_int_equal(file_bytes, 0);
    assert_int_equal(strlen(bytes), n);
    assert_memory_equal(bytes, "{", 1);
    free(bytes);
    assert_int_equal(pack_member_read(&f, "tokenizer.gguf", &bytes, &n, &file_bytes, &e),
                     0);
    struct stat st;
    assert_int_equal(stat("tests/model/golden/gguf/six.gguf", &st), 0);
    assert_int_equal(file_bytes, st.st_size);
    assert_true(n < (size_t)st.st_size);
    assert_int_equal(bytes[n], 0);
    free(bytes);
    assert_int_equal(pack_member_read(&f, "config.js", &bytes, &n, NULL, &e), -ENOENT);
    assert_non_null(strstr(e.msg, "has no 'config.js' in it"));
    assert_int_equal(model_file_read(path, "config.json", 1 << 20, &bytes, &n, &e), 0);
    free(bytes);
    assert_int_equal(model_file_read(path, "config.json", n, &bytes, &n, &e), 0);
    free(bytes);
    assert_int_equal(model_file_read(path, "config.json", n - 1, &bytes, &n, &e),
                     ERR_LIMIT);
    assert_non_null(strstr(e.msg, "'config.json' has more than"));
    assert_int_equal(model_file_read(path, "merges.txt", 9, &bytes, &n, &e), -ENOENT);
    f.members[0].sum ^= 1;
    assert_int_equal(pack_member_read(&f, "config.json", &bytes, &n, NULL, &e),
                     ERR_CORRUPT);
    assert_non_null(strstr(e.msg, "config.json is damaged"));
    f.members[0].sum ^= 1;
    assert_int_equal(unlink(path), 0);
    assert_int_equal(pack_member_read(&f, "config.json", &bytes, &n, NULL, &e), -ENOENT);
    pack_file_close(&f);
}

int main(void)
{
    return unit_run(set_up, tempdir_end);
}
