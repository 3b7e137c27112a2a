/* targets.c - see targets.h. MUST is an assertion in every build: a violation aborts the program,
 * which the fuzzer records as a finding. */
#include "targets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/textbuf.h"
#include "base/utf8.h"
#include "api/line.h"
#include "jinja/jinja.h"
#include "checkpoint/gguf.h"
#include "text/gguf_tokenizer.h"
#include "checkpoint/gguf_types.h"
#include "base/json.h"
#include "base/json_scan.h"
#include "checkpoint/safetensors.h"
#include "bpe/tokenizer_json.h"
#include "grammar/automaton.h"
#include "text/answer.h"
#include "text/chat.h"
#include "model/config.h"
#include "model/config_gguf.h"
#include "model/pack_file.h"
#include "pack/pack.h"
#include "restore/platform.h"
#include "server/head.h"
#include "server/origin.h"
#include "api/items.h"
#include "api/request.h"
#include "api/sse.h"
#include "store/chunk.h"
#include "store/superblock.h"

#define MUST(x)                                                                            \
    do {                                                                                   \
        if (!(x)) {                                                                        \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #x);         \
            abort();                                                                       \
        }                                                                                  \
    } while (0)

/* A refusal must come with a message. */
#define MUST_SAY(rc, err) MUST((rc) == 0 || (err).msg[0] != 0)

/* --- models ----------------------------------------------------------------------------------- */

static void fuzz_safetensors(const uint8_t *bytes, size_t n)
{
    struct safetensors s = {0};
    struct err err = {0};
    /* The file also has up to 255 bytes of data after the header. */
    uint64_t end = 0, file_bytes = (uint64_t)n + (n > 0 ? bytes[0] : 0);
    int rc = safetensors_header_end(bytes, n, file_bytes, "f", &end, &err);
    MUST_SAY(rc, err);
    MUST(rc != 0 || end <= file_bytes);
    rc = safetensors_parse(&s, bytes, n, file_bytes, "f", &err);
    MUST_SAY(rc, err);
    for (size_t i = 0; rc == 0 && i < s.n_tensors; i++) {
        const struct safetensors_tensor *t = &s.tensors[i];
        MUST(s.data_begin <= t->begin && t->begin <= t->end && t->end <= file_bytes);
        MUST(safetensors_find(&s, t->name) == t);
    }
    safetensors_deinit(&s);
}

/* The description of a packed model, preceded by its number of checksums. */
static void fuzz_packed(const uint8_t *bytes, size_t n)
{
    struct err err = {0};
    if (n < 2)
        return;
    struct pack_file f = {
        .path = xstrdup("f"), .file_bytes = (uint64_t)1 << 40, .n_sums = get_u16(bytes)};
    int rc = pack_file_describe(&f, (const char *)bytes + 2, n - 2, &err);
    MUST_SAY(rc, err);
    size_t n_sums = 0;
    for (size_t i = 0; rc == 0 && i < f.n_parts; i++) {
        const struct pack_part *p = &f.parts[i];
        MUST(p->at % PACK_ALIGN == 0 && p->bytes % PACK_ALIGN == 0);
        MUST(p->at >= PACK_ALIGN && p->bytes <= f.file_bytes - p->at);
        MUST(p->first_sum == n_sums);
        n_sums += pack_part_sums(p);
    }
    MUST(rc != 0 || n_sums == f.n_sums);
    for (size_t i = 0; rc == 0 && i < f.n_members; i++)
        MUST(f.members[i].bytes <= f.file_bytes - f.members[i].at);
    pack_file_close(&f);
}

/* The directory, and the configuration and tokenizer made from it. */
static void fuzz_gguf(const uint8_t *bytes, size_t n)
{
    struct gguf_file file = {
        .path = "f", .fd = memfd_create("f", MFD_CLOEXEC), .n_bytes = n};
    struct gguf_files files = {1, &file};
    struct gguf *g = &file.g;
    struct model_config c;
    struct tokenizer_json t;
    struct err err = {0};
    MUST(file.fd >= 0 && file_write_all(file.fd, bytes, n, 0) == 0);
    /* only a part of the directory */
    int rc = gguf_parse(g, bytes, n / 2, n, "f", &err);
    MUST_SAY(rc, err);
    gguf_deinit(g);
    rc = gguf_parse(g, bytes, n, n, "f", &err);
    MUST_SAY(rc, err);
    for (size_t i = 0; rc == 0 && i < g->n_tensors; i++) {
        const struct gguf_tensor *x = &g->tensors[i];
        MUST(g->data_begin <= x->begin && x->begin <= x->end && x->end <= n);
        MUST(gguf_find_tensor(g, x->name) == x);
        const struct gguf_type *type = gguf_type(x->type);
        if (type->decode != NULL && x->end > x->begin) {
            float *out = xmalloc(type->block * sizeof *out);
            type->decode(bytes + x->begin, out, 1);
            free(out);
        }
    }
    for (size_t i = 0; rc == 0 && i < g->n_values; i++) {
        const struct gguf_value *v = &g->values[i];
        struct gguf_strings it;
        const char *s;
        size_t k;
        MUST(v->bytes >= bytes && v->n_bytes <= (size_t)(bytes + n - v->bytes));
        MUST(gguf_find(g, v->key) == v);
        if (gguf_strings_begin(v, &it))
            while (gguf_strings_next(&it, &s, &k))
                MUST(k <= n && (const uint8_t *)s + k <= bytes + n);
    }
    if (rc == 0) {
        rc = config_from_gguf(&c, &files, &err);
        MUST_SAY(rc, err);
        MUST(rc != 0 || (c.n_layers > 0 && c.n_heads % c.n_kv_heads == 0));
        rc = gguf_tokenizer_read(&t, g, "f", &err);
        MUST_SAY(rc, err);
        MUST(rc != 0 || t.n_ids > 0);
        tokenizer_json_deinit(&t);
    }
    close(file.fd);
    gguf_deinit(g);
}

static void fuzz_safetensors_index(const uint8_t *bytes, size_t n)
{
    struct safetensors_index x = {0};
    struct err err = {0};
    int rc = safetensors_index_parse(&x, bytes, n, "f", &err);
    MUST_SAY(rc, err);
    for (size_t i = 0; rc == 0 && i < x.n_files; i++)
        MUST(strchr(x.files[i], '/') == NULL && strcmp(x.files[i], "..") != 0);
    for (size_t i = 0; rc == 0 && i < x.n_entries; i++)
        MUST(x.entries[i].file_idx < x.n_files);
    safetensors_index_deinit(&x);
}

static void fuzz_config(const uint8_t *bytes, size_t n)
{
    struct model_config c, again;
    struct err err = {0};
    memset(&c, 0, sizeof c);
    memset(&again, 0, sizeof again);
    int rc = config_parse(&c, bytes, n, "config.json", &err);
    MUST_SAY(rc, err);
    if (rc != 0)
        return;
    MUST(c.n_layers > 0 && c.n_heads > 0 && c.n_kv_heads > 0 &&
         c.n_heads % c.n_kv_heads == 0);
    MUST(c.vocab_size > 0 && c.d_head > 0 && c.max_ctx > 0 && config_params(&c) > 0);
    char *text = config_write(&c), *text2;
    rc = config_parse(&again, text, strlen(text), "written", &err);
    if (rc != 0)
        fprintf(stderr, "%s\n%s\n", err.msg, text);
    MUST(rc == 0);
    text2 = config_write(&again);
    MUST(strcmp(text, text2) == 0);
    free(text);
    free(text2);
}

static void fuzz_generation_config(const uint8_t *bytes, size_t n)
{
    struct model_config c;
    struct err err = {0};
    MUST(config_shape(&c, "tiny-mha", &err) == 0);
    int rc = config_parse_generation(&c, bytes, n, "generation_config.json", &err);
    MUST_SAY(rc, err);
    MUST(rc != 0 || (c.n_eos >= 0 && c.n_eos <= CONFIG_MAX_EOS));
}

static void fuzz_tokenizer_config(const uint8_t *bytes, size_t n)
{
    struct tokenizer_config c = {0};
    struct err err = {0};
    int rc = tokenizer_config_parse(&c, bytes, n, "tokenizer_config.json", &err);
    MUST_SAY(rc, err);
    tokenizer_config_deinit(&c);
}

static void fuzz_tokenizer(const uint8_t *bytes, size_t n)
{
    struct tokenizer_json t = {0};
    struct err err = {0};
    int rc = tokenizer_json_parse(&t, bytes, n, "tokenizer.json", &err);
    MUST_SAY(rc, err);
    if (rc == 0)
        (void)tokenizer_json_find(&t, "the", 3);
    tokenizer_json_deinit(&t);
}

/* --- templates and output of models ----------------------------------------------------------- */

static const char conversation[] =
    "[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"Hi "
    "<b> \\u00e9\"},"
    "{\"role\":\"assistant\",\"content\":\"Hello\",\"tool_calls\":[{\"type\":\"function\","
    "\"function\":"
    "{\"name\":\"f\",\"arguments\":{\"a\":[1,2.5,null,true]}}}]},{\"role\":\"tool\","
    "\"content\":\"3\"},"
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"more\"}]}]";

static void fuzz_template(const uint8_t *bytes, size_t n)
{
    /* The limit is below 2 MiB, so that the kernel need not clear a huge page for each input. */
    struct jinja_limits limits = {.max_steps = 20000,
                                  .max_depth = 60,
                                  .max_source_bytes = 1 << 16,
                                  .max_output_bytes = 1 << 16,
                                  .max_memory_bytes = 1 << 20};
    static struct json *messages; /* parsed once: rendering does not change it */
    struct jinja_template *t = NULL;
    struct err err = {0};
    if (messages == NULL)
        MUST(json_parse(&messages, conversation, sizeof conversation - 1, "messages",
                        &err) == 0);
    int rc = jinja_compile(&t, (const char *)bytes, n, "t", &limits, &err);
    MUST_SAY(rc, err);
    if (rc != 0)
        return;
    struct jinja_var vars[] = {{.name = "messages", .value = messages}};
    struct jinja_input in = {.extra = vars, .n_extra = 1};
    char *text = NULL;
    size_t n_text = 0;
    rc = jinja_render(t, &in, &text, &n_text, &err);
    MUST_SAY(rc, err);
    MUST(rc != 0 || (n_text <= limits.max_output_bytes && text[n_text] == 0));
    if (rc == 0)
        free(text);
    jinja_destroy(t);
}

static struct answer *read_answer(const struct answer_form *f, const struct json *tools,
                                  const char *text, size_t n, size_t step)
{
    struct answer *a = answer_open(f, "", 0, tools);
    for (size_t i = 0; i < n; i += step)
        answer_push(a, text + i, i + step < n ? step : n - i);
    answer_end(a);
    return a;
}

/* An answer of every family has the same parts however it is cut. */
static void fuzz_tool_calls(const uint8_t *bytes, size_t n)
{
    static const char offered[] = "[{\"name\":\"f\"},{\"name\":\"get_weather\"}]";
    struct json *tools = NULL;
    MUST(json_parse(&tools, offered, sizeof offered - 1, "tools", NULL) == 0);
    for (int i = 0; i < CALL_SYNTAXES; i++) {
        const struct answer_syntax s = {&call_syntaxes[i], thought_syntaxes[0], NULL};
        struct answer_form *f = answer_form_create(&s, NULL);
        struct answer *whole = read_answer(f, tools, (const char *)bytes, n, n + 1),
                      *cut = read_answer(f, tools, (const char *)bytes, n, 1);
        size_t n_whole, n_cut;
        const struct answer_part *p = answer_parts(whole, &n_whole),
                                 *q = answer_parts(cut, &n_cut);
        MUST(n_whole == n_cut);
        for (size_t k = 0; k < n_whole; k++)
            MUST(p[k].kind == q[k].kind && p[k].n == q[k].n &&
                 memcmp(p[k].text, q[k].text, p[k].n) == 0);
        answer_close(whole);
        answer_close(cut);
        answer_form_destroy(f);
    }
    json_free(tools);
}

/* --- requests --------------------------------------------------------------------------------- */

static void must_be_fault(const struct fault *f)
{
    MUST(f->status >= 400 && f->status < 600 && f->message[0] != 0);
    MUST(memchr(f->message, 0, sizeof f->message) != NULL);
    json_free(fault_json(f));
}

static bool ignores_all(const void *arg, const char *name, size_t n)
{
    (void)arg;
    (void)name;
    (void)n;
    return true;
}

/* The scan accepts every text that the parser accepts. It refuses what the parser refuses, except
 * for two faults that only the parser sees: a duplicate key, and a number beyond doubles. A text
 * stays valid JSON when ignored members are cut out. */
static void must_scan_alike(const uint8_t *bytes, size_t n, int parsed)
{
    struct json *left = NULL;
    struct err err = {0};
    size_t cost;
    char *text = xmalloc(n + 1);
    memcpy(text, bytes, n);
    int rc = json_scan(text, n, NULL, NULL, "body", &cost, &err);
    MUST_SAY(rc, err);
    MUST(memcmp(text, bytes, n) == 0 && (rc == 0 || parsed != 0));
    if (rc == 0 && parsed != 0) {
        (void)json_parse(&left, bytes, n, "body", &err);
        MUST(strstr(err.msg, "duplicate") != NULL || strstr(err.msg, "overflow") != NULL);
    }
    if (parsed == 0) {
        MUST(json_scan(text, n, ignores_all, NULL, "body", &cost, &err) == 0);
        MUST(json_parse(&left, text, n, "body", &err) == 0);
        json_free(left);
    }
    free(text);
}

static void fuzz_request(const uint8_t *bytes, size_t n)
{
    struct json *body = NULL;
    struct err err = {0};
    int rc = json_parse(&body, bytes, n, "body", &err);
    MUST_SAY(rc, err);
    must_scan_alike(bytes, n, rc);
    for (unsigned kind = 1; rc == 0 && kind <= REQUEST_COUNT; kind *= 2) {
        struct gen_params p;
        struct fault f = {0};
        if (request_parse(body, kind, &p, &f) != 0) {
            must_be_fault(&f);
            continue;
        }
        MUST(p.n >= 1 && p.n <= REQUEST_MAX_N && p.n_stop <= HCACHE_MAX_STOP);
        MUST(p.temperature >= 0 && p.top_p >= 0 && p.top_p <= 1 && p.max_tokens >= -1);
    }
    json_free(body);
}

/* A batch's line is either a request or has a fault. In both cases one output line with the line's
 * own id answers it. */
static void fuzz_batch_line(const uint8_t *bytes, size_t n)
{
    struct input in = {.n_lines = 1};
    struct idset seen = {0};
    struct line l;
    struct fault f = {0};
    struct json *told = NULL;
    textbuf_add(&in.line, bytes, n);
    int rc = line_read(&in, INPUT_LINE, &seen, &l, &f);
    if (rc != 0)
        must_be_fault(&f);
    else
        MUST(l.custom_id != NULL && l.kind != 0 && json_kind(l.body) == JSON_KIND_OBJECT);
    char *text = rc == 0 ? line_answer(&l, 200, json_new_object()) : line_fault(&l, &f);
    MUST(strlen(l.name) == LINE_NAME_BYTES - 1 && strchr(text, '\n') == NULL);
    MUST(strncmp(text, "{\"id\": \"" LINE_ID, strlen("{\"id\": \"" LINE_ID)) == 0);
    MUST(json_parse(&told, text, strlen(text), "line", NULL) == 0);
    MUST(json_kind(json_member(told, rc == 0 ? "error" : "response")) == JSON_KIND_NULL);
    json_free(told);
    free(text);
    line_deinit(&l);
    idset_free(&seen);
    textbuf_free(&in.line);
}

static void fuzz_items(const uint8_t *bytes, size_t n)
{
    struct json *sent = NULL, *items = NULL, *again = NULL;
    struct err err = {0};
    struct fault f = {0};
    if (json_parse(&sent, bytes, n, "input", &err) != 0)
        return;
    if (items_read(sent, "input", &items, &f) != 0) {
        must_be_fault(&f);
    } else { /* accepted items are accepted again, and turn into messages and a title */
        struct json *messages = json_new_array();
        MUST(items_read(items, "input", &again, &f) == 0);
        MUST(json_count(items) == json_count(again) && json_count(items) <= ITEMS_MAX);
        items_to_messages(items, messages);
        free(items_title(items, 40));
        json_free(messages);
        json_free(again);
        json_free(items);
    }
    json_free(sent);
}

/* Without rules, a request is refused if it names another host or comes from a page of another
 * site. The rule "*" allows every page, but no other host. */
static void must_keep_pages_out(const struct origin_head *h)
{
    static const char *const all[] = {"*"};
    const struct origin_rules none = {0}, any = {.origins = all, .n_origins = 1};
    struct fault f = {0};
    const char *allowed;
    if (origin_check(&none, h, false, &allowed, &f) != 0)
        must_be_fault(&f);
    else
        MUST(h->n_host <= 1 && h->n_origin <= 1 &&
             (h->n_origin == 0 || strncasecmp(h->origin, "http", 4) == 0));
    MUST(allowed == NULL);
    if (origin_check(&any, h, false, &allowed, &f) == 0)
        MUST((allowed != NULL) == (h->n_origin == 1));
}

/* The input is the path in its first line, then one header per line as "name: value"; a line
 * without a colon is a header without a value. The order of headers must not affect the
 * decision. */
static void fuzz_http_head(const uint8_t *bytes, size_t n)
{
    struct head h = {.uri_bytes = n};
    struct origin_head origin = {0};
    struct fault f = {0};
    char *text = xmalloc(n + 1), *at = text, *line;
    memcpy(text, bytes, n);
    text[n] = 0;
    char *path = strsep(&at, "\n");
    for (const char *const *r = (const char *const[]){"/", "/v1/models/{*model}",
                                                      "/v1/a/{id}/b", "/v1/chat", NULL};
         *r != NULL; r++)
        if (head_path_is(*r, path))
            MUST(strncmp(path, *r, strcspn(*r, "{")) == 0);
    while ((line = strsep(&at, "\n")) != NULL) {
        char *value = strchr(line, ':');
        if (value != NULL)
            *value++ = 0;
        head_add(&h, line, value);
        origin_add(&origin, line, value);
    }
    must_keep_pages_out(&origin);
    uint64_t max_body_bytes = 1 << 20;
    if (head_check(&h, max_body_bytes, &f) != 0) {
        must_be_fault(&f);
    } else {
        /* An accepted request has at most one indication of its length, and its length and path are
         * within the limits. */
        MUST(h.n_length + h.n_encoding <= 1 && !h.bad_length && !h.bad_encoding);
        MUST(h.length <= max_body_bytes && h.uri_bytes <= HEAD_MAX_URI_BYTES);
    }
    free(text);
}

/* An event is one line for every reader, and a client reads the same text from it. */
static void fuzz_sse(const uint8_t *bytes, size_t n)
{
    struct textbuf out = {0};
    struct json *v = json_new_bytes((const char *)bytes, n), *back = NULL;
    size_t n_text, n_back;
    const char *text = json_string_of(v, &n_text);
    sse_json(&out, json_make("[%p]", json_share(v)));
    MUST(out.n > 8 && memcmp(out.p, "data: ", 6) == 0);
    MUST(strcspn(out.p, "\r\n") == out.n - 2 && strcmp(out.p + out.n - 2, "\n\n") == 0);
    MUST(json_parse(&back, out.p + 6, out.n - 8, "event", NULL) == 0);
    const char *same = json_string_of(json_at(back, 0), &n_back);
    MUST(n_back == n_text && memcmp(same, text, n_text) == 0);
    textbuf_free(&out);
    json_free(back);
    json_free(v);
}

/* --- the store -------------------------------------------------------------------------------- */

enum { CHECKSUM_AT = 16 }; /* in headers and superblocks: docs/STORE_FORMAT.md */

/* Copies the bytes to `size` bytes, padded with zeros. */
static uint8_t *padded(const uint8_t *bytes, size_t n, size_t size)
{
    uint8_t *p = xcalloc(size, 1);
    if (n > 0)
        memcpy(p, bytes, n < size ? n : size);
    return p;
}

/* Random bytes never have the right checksum: sets it, so that later checks are reached. */
static void set_checksum(uint8_t *block, size_t size)
{
    put_u64(block + CHECKSUM_AT, 0);
    put_u64(block + CHECKSUM_AT, checksum64(block, size));
}

static void fuzz_chunk_header(const uint8_t *bytes, size_t n)
{
    uint8_t *in = padded(bytes, n, CHUNK_HEADER_BYTES), out[CHUNK_HEADER_BYTES];
    struct chunk_header *h = xcalloc(1, sizeof *h), *h2 = xcalloc(1, sizeof *h2);
    struct err err = {0};
    MUST_SAY(chunk_header_decode(in, h, &err), err);
    set_checksum(in, CHUNK_HEADER_BYTES);
    int rc = chunk_header_decode(in, h, &err);
    MUST_SAY(rc, err);
    if (rc == 0) {
        MUST(h->n_tokens >= 1 && h->n_tokens <= STORE_CHUNK_TOKENS);
        MUST(h->n_records <= CHUNK_MAX_RECORDS && h->n_bytes % STORE_ALIGN == 0);
        for (int i = 0; i < h->n_records; i++)
            MUST((uint64_t)h->records[i].offset + h->records[i].n_bytes <= h->n_bytes);
        chunk_header_encode(h, out);
        MUST(chunk_header_decode(out, h2, &err) == 0);
        MUST(memcmp(&h->key, &h2->key, sizeof h->key) == 0 && h->id == h2->id &&
             memcmp(h->tokens, h2->tokens, sizeof h->tokens) == 0);
    }
    free(in);
    free(h);
    free(h2);
}

static void fuzz_chunk_table(const uint8_t *bytes, size_t n)
{
    int n_records = (int)(n / CHUNK_RECORD_CODE);
    if (n_records == 0 || n_records > CHUNK_MAX_RECORDS)
        return;
    struct chunk_record *r = xcalloc((size_t)n_records, sizeof *r);
    uint8_t *again = xcalloc((size_t)n_records, CHUNK_RECORD_CODE);
    /* The extent's length that fits the table's own record lengths, so that decoding goes on after
     * this check. */
    uint64_t extent = 4096;
    for (int i = 0; i < n_records; i++)
        extent += round_up(get_u32(bytes + i * CHUNK_RECORD_CODE + 2), 4096);
    if (chunk_table_decode(bytes, n_records, extent, r) == 0) {
        chunk_table_encode(r, n_records, again);
        MUST(memcmp(again, bytes, (size_t)n_records * CHUNK_RECORD_CODE) == 0);
    }
    free(r);
    free(again);
}

/* The packed bytes say how many bytes to unpack. All loops agree on
 * any bytes; and as numbers, any bytes come back. */
static void fuzz_state_pack(const uint8_t *bytes, size_t n)
{
    enum { ROOM = 2 * PACK_PIECE };
    if (n < 8 || n > ROOM)
        return;
    size_t n_out = get_u32(bytes + 4) % (ROOM + 1);
    uint8_t *out = xcalloc(1, n_out + 1), *out2 = xcalloc(1, n_out + 1),
            *packed = xmalloc(4 * ROOM);
    bool is_good = pack_undo(bytes, n, out, n_out);
    for (enum pack_loops_for loops = PACK_FOR_AVX2; loops <= PACK_PORTABLE; loops++) {
        pack_use(loops);
        MUST(pack_undo(bytes, n, out2, n_out) == is_good);
        MUST(!is_good || memcmp(out, out2, n_out) == 0);
    }
    pack_use(PACK_FOR_PROCESSOR);
    for (enum pack_type type = PACK_BF16; type <= PACK_F32; type++) {
        size_t n_in = n - n % pack_width(type);
        size_t n_packed = pack_run(type, bytes, n_in, packed, 4 * ROOM);
        uint8_t *again = xmalloc(n_in + 1);
        MUST(n_packed > 0 && pack_undo(packed, n_packed, again, n_in));
        MUST(memcmp(again, bytes, n_in) == 0);
        free(again);
    }
    free(out);
    free(out2);
    free(packed);
}

static void fuzz_superblock(const uint8_t *bytes, size_t n)
{
    uint8_t *in = padded(bytes, n, SUPERBLOCK_FILE_BYTES), out[SUPERBLOCK_FILE_BYTES];
    struct superblock sb, sb2;
    struct err err = {0};
    MUST_SAY(superblock_decode(in, &sb, &err), err);
    set_checksum(in, SUPERBLOCK_FILE_BYTES / 2);
    int rc = superblock_decode(in, &sb, &err);
    MUST_SAY(rc, err);
    if (rc == 0) {
        MUST(sb.device < sb.n_devices && sb.segment_bytes > 0);
        superblock_encode(&sb, out);
        MUST(superblock_decode(out, &sb2, &err) == 0);
        MUST(memcmp(sb.uuid, sb2.uuid, sizeof sb.uuid) == 0 && sb.device == sb2.device);
    }
    free(in);
}

static void fuzz_platform(const uint8_t *bytes, size_t n)
{
    static struct platform p, again;
    struct err err = {0};
    int rc = platform_parse((const char *)bytes, n, &p, &err);
    MUST_SAY(rc, err);
    if (rc != 0)
        return;
    int need = platform_format(&p, NULL, 0);
    char *text = xmalloc((size_t)need + 1);
    platform_format(&p, text, (size_t)need + 1);
    MUST(platform_parse(text, (size_t)need, &again, &err) == 0);
    free(text);
}

/* The fuzzer is linked without the engine, which compiles the forms of requests. No target calls
 * this. */
__attribute__((weak)) int hcache_form_create(struct hcache *h,
                                             const struct hcache_form_opts *o,
                                             struct hcache_form **out, char **unenforced,
                                             struct hcache_err *err)
{
    (void)h, (void)o, (void)out, (void)unenforced;
    return err->code = HCACHE_E_UNSUPPORTED;
}

/* --- forms of answers ----------------------------------------------------------------------- */

/* A grammar that compiles can be walked: from each state that is not complete, a byte leads on. */
static void walk_grammar(struct grammar *g, int rc, struct err *err)
{
    struct walk w = {0};
    MUST_SAY(rc, *err);
    MUST((g != NULL) == (rc == 0));
    struct automaton *a = g == NULL ? NULL : automaton_create(g, NULL);
    bool ok = a != NULL && walk_begin(&w, a) == 0;
    for (int i = 0; ok && i < 40 && !walk_is_complete(&w); i++) {
        int rest = 256;
        for (ok = false; !ok && rest > 0; rest--) {
            struct walk next;
            uint8_t byte = (uint8_t)(rest + i * 37);
            walk_copy(&next, &w);
            if (walk_bytes(&next, &byte, 1, &ok) != 0) { /* too ambiguous */
                walk_end(&next);
                goto out;
            }
            if (ok) {
                walk_end(&w);
                walk_copy(&w, &next);
            }
            walk_end(&next);
        }
        MUST(ok);
    }
out:
    walk_end(&w);
    automaton_destroy(a);
    grammar_free(g);
}

static void fuzz_schema(const uint8_t *bytes, size_t n)
{
    struct json *v;
    struct err err = {0};
    struct grammar *g = NULL;
    struct textbuf loose = {0};
    if (json_parse(&v, bytes, n, "schema", &err) != 0)
        return;
    int rc = grammar_compile(&g,
                             &(struct grammar_source){.kind = GRAMMAR_SCHEMA,
                                                      .schema = v,
                                                      .loose = n % 2 ? &loose : NULL},
                             &err);
    walk_grammar(g, rc, &err);
    textbuf_free(&loose);
    json_free(v);
}

static void fuzz_gbnf(const uint8_t *bytes, size_t n)
{
    struct err err = {0};
    struct grammar *g = NULL;
    int rc = grammar_compile(
        &g,
        &(struct grammar_source){.kind = GRAMMAR_GBNF, .text = (const char *)bytes, .n = n},
        &err);
    walk_grammar(g, rc, &err);
}

static void fuzz_regex(const uint8_t *bytes, size_t n)
{
    struct err err = {0};
    struct grammar *g = NULL;
    int rc = grammar_compile(&g,
                             &(struct grammar_source){.kind = GRAMMAR_REGEX,
                                                      .text = (const char *)bytes,
                                                      .n = n},
                             &err);
    walk_grammar(g, rc, &err);
}

const struct fuzz_target fuzz_targets[] = {
    {"safetensors", fuzz_safetensors},
    {"safetensors-index", fuzz_safetensors_index},
    {"gguf", fuzz_gguf},
    {"packed", fuzz_packed},
    {"config", fuzz_config},
    {"generation-config", fuzz_generation_config},
    {"tokenizer-config", fuzz_tokenizer_config},
    {"tokenizer", fuzz_tokenizer},
    {"template", fuzz_template},
    {"tool-calls", fuzz_tool_calls},
    {"request", fuzz_request},
    {"batch-line", fuzz_batch_line},
    {"items", fuzz_items},
    {"http-head", fuzz_http_head},
    {"sse", fuzz_sse},
    {"chunk-header", fuzz_chunk_header},
    {"chunk-table", fuzz_chunk_table},
    {"state-pack", fuzz_state_pack},
    {"superblock", fuzz_superblock},
    {"platform", fuzz_platform},
    {"schema", fuzz_schema},
    {"gbnf", fuzz_gbnf},
    {"regex", fuzz_regex},
    {0},
};

const struct fuzz_target *fuzz_target_of(const char *name)
{
    const struct fuzz_target *t = fuzz_targets;
    while (t->name != NULL && strcmp(t->name, name) != 0)
        t++;
    return t->name != NULL ? t : NULL;
}
