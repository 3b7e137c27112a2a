/* json.c - see json.h.
 *
 * `struct json` is never defined: a pointer to it is a jansson json_t under another name.  This
 * costs nothing and keeps jansson's header out of every other file. */
#include "base/json.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/textbuf.h"
#include "base/utf8.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* jansson's reading functions take non-const pointers but do not write through them. */
static json_t *node(const struct json *v)
{
    return (json_t *)(uintptr_t)v;
}

static struct json *wrap(json_t *j)
{
    /* jansson returns NULL when memory runs out, or when it is used wrongly */
    CHECK(j != NULL);
    return (struct json *)j;
}

/* Marks of strings that stand for other values: their first bytes, which are not UTF-8, so no other
 * string has them. */
static const char raw_mark[2] = {'\xFF', '\xFE'}; /* a value in the form of its text */
static const char big_mark[2] = {'\xFF',
                                 '\xFD'}; /* the digits of an integer beyond 64 bits */

static bool is_marked(const json_t *j, const char mark[2])
{
    return json_is_string(j) && json_string_length(j) >= 2 &&
           memcmp(json_string_value(j), mark, 2) == 0;
}

static bool is_big(const json_t *j)
{
    return is_marked(j, big_mark);
}

/* A value whose text is written as it stands. */
static bool is_raw(const json_t *j)
{
    return is_marked(j, raw_mark) || is_big(j);
}

/* --- memory ------------------------------------------------------------------------- */

/* State of the allocator that jansson uses. A parse may fail for lack of memory, because input
 * decides its size. Building a tree may not fail (base/mem.h), because its callers cannot
 * recover. */
static _Thread_local enum { BUILDING, PARSING, PARSE_FAILED } memory_mode;

/* The text that jansson parses on this thread. jansson loses a byte of a token if the token's
 * buffer cannot grow, and then an assertion of its own ends the program. So the first allocation
 * that fails gets `spare`, and the bytes that jansson has not read are made invalid: it stops at
 * the next one. */
static _Thread_local struct {
    const char *at;
    size_t left; /* bytes that jansson has not got */
    char *got;   /* jansson's buffer with the bytes that it got last; NULL: none yet */
    size_t n_got;
    void *spare; /* has room for any token's buffer */
    size_t n_spare;
} parsed;

static size_t give_text(void *buffer, size_t n, void *unused)
{
    (void)unused;
    if (memory_mode == PARSE_FAILED || parsed.left == 0)
        return 0;
    parsed.got = buffer;
    parsed.n_got = MIN(n, parsed.left);
    memcpy(buffer, parsed.at, parsed.n_got);
    parsed.at += parsed.n_got;
    parsed.left -= parsed.n_got;
    return parsed.n_got;
}

/* Makes the parse fail. Returns `spare` for the one allocation that must still succeed. */
static void *last_memory(size_t n)
{
    void *p = n <= parsed.n_spare ? parsed.spare : NULL;
    memory_mode = PARSE_FAILED;
    if (p != NULL)
        parsed.spare = NULL;
    if (parsed.got != NULL)
        memset(parsed.got, 0xff, parsed.n_got); /* no byte of UTF-8 */
    return p;
}

static void *json_memory(size_t n)
{
    if (memory_mode == BUILDING)
        return xmalloc(n);
    if (memory_mode == PARSE_FAILED)
        return NULL;
    void *p = mem_try(n);
    return p != NULL ? p : last_memory(n);
}

__attribute__((constructor)) static void json_memory_choose(void)
{
    json_set_alloc_funcs(json_memory, free);
}

/* --- parsing ------------------------------------------------------------------------ */

/* Returns whether the nesting is at most JSON_MAX_DEPTH. jansson's own limit of 2048 is fixed when
 * it is compiled, so depth is counted before it runs. Only brackets outside of strings count;
 * jansson refuses malformed text. *longest gets a bound on the bytes of a token. */
static bool depth_ok(const char *s, size_t n, size_t *longest)
{
    int depth = 0;
    size_t begin = 0; /* where the token at i begins */
    *longest = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '"') {
            begin = i;
            for (i++; i < n && s[i] != '"'; i++)
                i += s[i] == '\\';
        } else if (s[i] == '[' || s[i] == '{') {
            if (++depth > JSON_MAX_DEPTH)
                return false;
            begin = i;
        } else if (s[i] == ']' || s[i] == '}') {
            depth--;
            begin = i;
        } else if (memchr(",: \t\r\n", s[i], 6) != NULL) {
            begin = i;
        }
        *longest = i + 1 - begin > *longest ? i + 1 - begin : *longest;
    }
    return true;
}

/* Parses the text. No token has more than `longest` bytes. Returns NULL after an error, and sets
 * *short_of_memory to whether there was no memory. */
static json_t *parse_text(const char *bytes, size_t n, size_t longest, json_error_t *e,
                          bool *short_of_memory)
{
    json_t *j = NULL;
    parsed.at = bytes;
    parsed.left = n;
    parsed.got = NULL;
    /* A token's buffer doubles when it grows. */
    parsed.n_spare = 2 * longest + 64;
    parsed.spare = mem_try(parsed.n_spare);
    memory_mode = parsed.spare != NULL ? PARSING : PARSE_FAILED;
    if (memory_mode == PARSING)
        j = json_load_callback(give_text, NULL, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, e);
    *short_of_memory = memory_mode == PARSE_FAILED;
    memory_mode = BUILDING;
    free(parsed.spare); /* the next parse has its own */
    if (!*short_of_memory)
        return j;
    json_decref(j);
    return NULL;
}

/* --- integers beyond 64 bits ------------------------------------------------------------ */

/* Returns whether a colon follows: what stands before it is no value. */
static bool is_key(const char *s, size_t n)
{
    while (n > 0 && memchr(" \t\r\n", *s, 4) != NULL)
        s++, n--;
    return n > 0 && *s == ':';
}

/* Returns the length of the number at s if it is an integer that jansson cannot hold; else 0.
 * *length gets the length of the number, well formed or not. */
static size_t big_bytes(const char *s, size_t n, size_t *length)
{
    size_t i = *s == '-', from = i;
    while (i < n && s[i] >= '0' && s[i] <= '9')
        i++;
    size_t end = i, digits = i - from;
    while (end < n && memchr("+-.eE0123456789", s[end], 15) != NULL)
        end++;
    *length = end;
    if (end > i || digits < 19 || digits > 4096 || s[from] == '0' || is_key(s + i, n - i))
        return 0;
    errno = 0;
    char text[24] = "9223372036854775808";
    if (digits == 19)
        memcpy(text, s, i);
    text[digits == 19 ? i : 19] = 0;
    (void)strtoll(text, NULL, 10);
    return errno == ERANGE ? i : 0;
}

/* Appends the text to *out. Each integer of big_bytes becomes a string that begins with `name`.
 * Returns false if there is no memory. */
static bool name_bigs(const char *s, size_t n, const char *name, struct textbuf *out)
{
    bool good = true;
    for (size_t i = 0; good && i < n;) {
        size_t length = 1, big = 0, from = i;
        if (s[i] == '"') {
            for (i++; i < n && s[i] != '"'; i++)
                i += s[i] == '\\';
            length = i < n ? i + 1 - from : n - from;
        } else if (s[i] == '-' || (s[i] >= '0' && s[i] <= '9')) {
            big = big_bytes(s + i, n - i, &length);
        }
        good = (big == 0 || (textbuf_try_add(out, "\"", 1) &&
                             textbuf_try_add(out, name, strlen(name)))) &&
               textbuf_try_add(out, s + from, length) &&
               (big == 0 || textbuf_try_add(out, "\"", 1));
        i = from + length;
    }
    return good;
}

/* Returns the value for a string of a tree that name_bigs changed; NULL: it stays as it is. */
static json_t *big_of(const json_t *j, const char *name)
{
    size_t n = strlen(name);
    const char *s = json_string_value(j);
    if (s == NULL || json_string_length(j) <= n || memcmp(s, name, n) != 0)
        return NULL;
    size_t digits = json_string_length(j) - n;
    char *marked = xmalloc(sizeof big_mark + digits);
    memcpy(marked, big_mark, sizeof big_mark);
    memcpy(marked + sizeof big_mark, s + n, digits);
    json_t *big = json_stringn_nocheck(marked, sizeof big_mark + digits);
    free(marked);
    return big;
}

static void restore_bigs(json_t *j, const char *name)
{
    for (size_t i = 0; json_is_array(j) && i < json_array_size(j); i++) {
        json_t *big = big_of(json_array_get(j, i), name);
        if (big != NULL)
            (void)json_array_set_new(j, i, big);
        else
            restore_bigs(json_array_get(j, i), name);
    }
    for (void *at = json_object_iter(j); at != NULL; at = json_object_iter_next(j, at)) {
        json_t *big = big_of(json_object_iter_value(at), name);
        if (big != NULL)
            (void)json_object_iter_set_new(j, at, big);
        else
            restore_bigs(json_object_iter_value(at), name);
    }
}

/* Parses a text with integers that jansson cannot hold: they become strings with an unguessable
 * name in front, and then values of their own. */
static json_t *parse_bigs(const char *bytes, size_t n, json_error_t *e,
                          bool *short_of_memory)
{
    struct sha256_ctx *c = sha256_begin();
    struct textbuf text = {0};
    size_t longest = 0;
    char name[65];
    sha256_add(c, bytes, n);
    struct sha256 digest = sha256_end(c);
    sha256_hex(&digest, name);
    json_t *j = NULL;
    *short_of_memory = !name_bigs(bytes, n, name, &text);
    if (!*short_of_memory && depth_ok(text.p, text.n, &longest))
        j = parse_text(text.p, text.n, longest, e, short_of_memory);
    textbuf_free(&text);
    if (j != NULL)
        restore_bigs(j, name);
    return j;
}

int json_parse(struct json **out, const void *bytes, size_t n, const char *file,
               struct err *err)
{
    *out = NULL;
    size_t longest;
    if (!depth_ok(bytes, n, &longest))
        return err_set(err, ERR_FORMAT, "%s: nested deeper than %d levels", file,
                       JSON_MAX_DEPTH);
    json_error_t e;
    bool is_short = false;
    json_t *j = parse_text(bytes, n, longest, &e, &is_short);
    /* Integers beyond 64 bits are legal JSON: ids, hashes, and a model_max_length of 10^30. */
    if (j == NULL && !is_short && json_error_code(&e) == json_error_numeric_overflow)
        j = parse_bigs(bytes, n, &e, &is_short);
    if (is_short)
        return err_set(err, -ENOMEM, "%s: no memory to read its %zu bytes", file, n);
    if (j == NULL)
        return err_set(err, ERR_FORMAT, "%s:%d:%d: %s", file, e.line, e.column, e.text);
    /* jansson skips a zero byte behind a number or a word. */
    const char *zero = n > 0 ? memchr(bytes, 0, n) : NULL;
    if (zero != NULL) {
        json_decref(j);
        return err_set(err, ERR_FORMAT, "%s: a zero byte at %zu", file,
                       (size_t)(zero - (const char *)bytes));
    }
    *out = wrap(j);
    return 0;
}

struct json *json_of_text(const char *text)
{
    struct json *v = NULL;
    if (text != NULL)
        (void)json_parse(&v, text, strlen(text), "text", NULL);
    return v;
}

void json_free(struct json *root)
{
    json_decref(node(root));
}

/* --- looking at a value ------------------------------------------------------------- */

enum json_kind json_kind(const struct json *v)
{
    if (v == NULL)
        return JSON_KIND_NULL;
    switch (json_typeof(node(v))) {
    case JSON_OBJECT:
        return JSON_KIND_OBJECT;
    case JSON_ARRAY:
        return JSON_KIND_ARRAY;
    case JSON_STRING:
        return is_big(node(v)) ? JSON_KIND_INT : JSON_KIND_STRING;
    case JSON_INTEGER:
        return JSON_KIND_INT;
    case JSON_REAL:
        return JSON_KIND_REAL;
    case JSON_TRUE:
    case JSON_FALSE:
        return JSON_KIND_BOOL;
    case JSON_NULL:
        break;
    }
    return JSON_KIND_NULL;
}

const char *json_kind_name(const struct json *v)
{
    static const char *const names[] = {
        [JSON_KIND_NULL] = "null",        [JSON_KIND_BOOL] = "a boolean",
        [JSON_KIND_INT] = "an integer",   [JSON_KIND_REAL] = "a number",
        [JSON_KIND_STRING] = "a string",  [JSON_KIND_ARRAY] = "an array",
        [JSON_KIND_OBJECT] = "an object",
    };
    return names[json_kind(v)];
}

size_t json_count(const struct json *v)
{
    switch (json_kind(v)) {
    case JSON_KIND_ARRAY:
        return json_array_size(node(v));
    case JSON_KIND_OBJECT:
        return json_object_size(node(v));
    default:
        return 0;
    }
}

const struct json *json_at(const struct json *array, size_t i)
{
    return (const struct json *)json_array_get(node(array), i);
}

const struct json *json_member(const struct json *object, const char *key)
{
    return (const struct json *)json_object_get(node(object), key);
}

const char *json_string_of(const struct json *v, size_t *n)
{
    const char *s = json_string_value(node(v));
    if (s == NULL || is_big(node(v)))
        return NULL;
    size_t length = json_string_length(node(v));
    if (n == NULL)
        return strlen(s) == length ? s : NULL;
    *n = length;
    return s;
}

bool json_string_is(const struct json *v, const char *text)
{
    const char *s = json_string_of(v, NULL);
    return s != NULL && strcmp(s, text) == 0;
}

bool json_bool_of(const struct json *v, bool *out)
{
    if (json_kind(v) != JSON_KIND_BOOL)
        return false;
    *out = json_is_true(node(v));
    return true;
}

bool json_int_of(const struct json *v, int64_t *out)
{
    const double exact = 0x1p53; /* doubles up to here hold every integer exactly */
    if (json_is_integer(node(v))) {
        *out = json_integer_value(node(v));
        return true;
    }
    double x = 0;
    if (json_kind(v) != JSON_KIND_REAL || !json_real_of(v, &x))
        return false;
    if (!(x >= -exact && x <= exact) || x != floor(x))
        return false;
    *out = (int64_t)x;
    return true;
}

const char *json_big_of(const struct json *v, size_t *n)
{
    if (v == NULL || !is_big(node(v)))
        return NULL;
    *n = json_string_length(node(v)) - sizeof big_mark;
    return json_string_value(node(v)) + sizeof big_mark;
}

bool json_real_of(const struct json *v, double *out)
{
    size_t n;
    const char *digits = json_big_of(v, &n);
    if (digits != NULL) {
        *out = strtod(digits, NULL);
        return true;
    }
    if (json_kind(v) != JSON_KIND_INT && json_kind(v) != JSON_KIND_REAL)
        return false;
    *out = json_number_value(node(v));
    return true;
}

struct json_iter json_begin(const struct json *object)
{
    return (struct json_iter){.object = object, .at = json_object_iter(node(object))};
}

bool json_next(struct json_iter *it)
{
    if (it->at == NULL)
        return false;
    it->key = json_object_iter_key(it->at);
    it->value = (const struct json *)json_object_iter_value(it->at);
    it->at = json_object_iter_next(node(it->object), it->at);
    return true;
}

/* --- typed members ------------------------------------------------------------------ */

/* Returns the member if it exists and is not null, else NULL. */
static const struct json *present(const struct json *object, const char *key)
{
    const struct json *v = json_member(object, key);
    return json_kind(v) == JSON_KIND_NULL ? NULL : v;
}

static int missing(const char *key, struct err *err)
{
    return err_set(err, ERR_FORMAT, "'%s' is missing", key);
}

static int wrong_kind(const char *key, const char *wanted, const struct json *v,
                      struct err *err)
{
    return err_set(err, ERR_FORMAT, "'%s' must be %s, it is %s", key, wanted,
                   json_kind_name(v));
}

int json_opt_int(const struct json *object, const char *key, int64_t min, int64_t max,
                 int64_t *io, struct err *err)
{
    const struct json *v = present(object, key);
    if (v == NULL)
        return 0;
    int64_t x = 0;
    if (!json_int_of(v, &x))
        return wrong_kind(key, "an integer", v, err);
    if (x < min || x > max)
        return err_set(err, ERR_FORMAT, "'%s' is %lld, it must lie in %lld..%lld", key,
                       (long long)x, (long long)min, (long long)max);
    *io = x;
    return 0;
}

int json_opt_real(const struct json *object, const char *key, double *io, struct err *err)
{
    const struct json *v = present(object, key);
    if (v != NULL && !json_real_of(v, io))
        return wrong_kind(key, "a number", v, err);
    return 0;
}

int json_opt_string(const struct json *object, const char *key, const char **io,
                    struct err *err)
{
    const struct json *v = present(object, key);
    if (v == NULL)
        return 0;
    size_t n = 0;
    const char *s = json_string_of(v, &n);
    if (s == NULL)
        return wrong_kind(key, "a string", v, err);
    if (strlen(s) != n)
        return err_set(err, ERR_FORMAT, "'%s' contains a zero byte", key);
    *io = s;
    return 0;
}

static int opt_kind(const struct json *object, const char *key, enum json_kind kind,
                    const char *wanted, const struct json **io, struct err *err)
{
    const struct json *v = present(object, key);
    if (v == NULL)
        return 0;
    if (json_kind(v) != kind)
        return wrong_kind(key, wanted, v, err);
    *io = v;
    return 0;
}

int json_opt_bool(const struct json *object, const char *key, bool *io, struct err *err)
{
    const struct json *v = NULL;
    int rc = opt_kind(object, key, JSON_KIND_BOOL, "a boolean", &v, err);
    if (v != NULL)
        *io = json_is_true(node(v));
    return rc;
}

int json_opt_array(const struct json *object, const char *key, const struct json **io,
                   struct err *err)
{
    return opt_kind(object, key, JSON_KIND_ARRAY, "an array", io, err);
}

int json_opt_object(const struct json *object, const char *key, const struct json **io,
                    struct err *err)
{
    return opt_kind(object, key, JSON_KIND_OBJECT, "an object", io, err);
}

int json_get_int(const struct json *object, const char *key, int64_t min, int64_t max,
                 int64_t *out, struct err *err)
{
    if (present(object, key) == NULL)
        return missing(key, err);
    return json_opt_int(object, key, min, max, out, err);
}

int json_get_real(const struct json *object, const char *key, double *out, struct err *err)
{
    if (present(object, key) == NULL)
        return missing(key, err);
    return json_opt_real(object, key, out, err);
}

int json_get_bool(const struct json *object, const char *key, bool *out, struct err *err)
{
    if (present(object, key) == NULL)
        return missing(key, err);
    return json_opt_bool(object, key, out, err);
}

int json_get_string(const struct json *object, const char *key, const char **out,
                    struct err *err)
{
    if (present(object, key) == NULL)
        return missing(key, err);
    return json_opt_string(object, key, out, err);
}

int json_get_array(const struct json *object, const char *key, const struct json **out,
                   struct err *err)
{
    if (present(object, key) == NULL)
        return missing(key, err);
    return json_opt_array(object, key, out, err);
}

int json_get_object(const struct json *object, const char *key, const struct json **out,
                    struct err *err)
{
    if (present(object, key) == NULL)
        return missing(key, err);
    return json_opt_object(object, key, out, err);
}

void json_drop(struct json *object, const char *key)
{
    (void)json_object_del(node(object), key);
}

/* --- writing ------------------------------------------------------------------------ */

static json_t *string_node(const char *s, size_t n);

struct json *json_new_object(void)
{
    return wrap(json_object());
}

struct json *json_new_bytes(const char *s, size_t n)
{
    return wrap(string_node(s, n));
}

struct json *json_new_array(void)
{
    return wrap(json_array());
}

struct json *json_share(const struct json *v)
{
    json_t *j = v != NULL ? node(v) : json_null();
    /* Threads share values, and jansson reads the count without atomics. */
    if (__atomic_load_n(&j->refcount, __ATOMIC_RELAXED) != SIZE_MAX)
        __atomic_add_fetch(&j->refcount, 1, __ATOMIC_RELAXED);
    return wrap(j);
}

void json_share_all(struct json *to, const struct json *from)
{
    struct json_iter it = json_begin(from);
    while (json_next(&it))
        json_put(to, it.key, json_share(it.value));
    for (size_t i = 0; json_kind(from) == JSON_KIND_ARRAY && i < json_count(from); i++)
        json_push(to, json_share(json_at(from, i)));
}

/* Makes a JSON string of any bytes; each byte that is not valid UTF-8 becomes U+FFFD. */
static json_t *string_node(const char *s, size_t n)
{
    json_t *j = json_stringn(n > 0 ? s : "", n); /* NULL if the bytes are not valid UTF-8 */
    if (j != NULL)
        return j;
    char *clean = xmalloc(3 * n);
    size_t len = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t k = utf8_decode(s + i, n - i, &cp);
        memcpy(clean + len, k != 0 ? s + i : "\xEF\xBF\xBD", k != 0 ? k : 3);
        len += k != 0 ? k : 3;
        i += k != 0 ? k : 1;
    }
    j = json_stringn(clean, len);
    free(clean);
    return j;
}

static json_t *real_node(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

struct json *json_new_bool(bool v)
{
    return wrap(json_boolean(v));
}

struct json *json_new_int(int64_t v)
{
    return wrap(json_integer(v));
}

struct json *json_new_real(double v)
{
    return wrap(real_node(v));
}

void json_put(struct json *object, const char *key, struct json *child)
{
    int rc = json_object_set_new(node(object), key, node(wrap(node(child))));
    /* keys come from this program and are valid UTF-8, so this cannot fail */
    CHECK(rc == 0);
}

void json_put_int(struct json *object, const char *key, int64_t v)
{
    json_put(object, key, json_new_int(v));
}

void json_put_real(struct json *object, const char *key, double v)
{
    json_put(object, key, json_new_real(v));
}

static double thousandths(double x)
{
    return floor(x * 1e3 + 0.5) / 1e3;
}

void json_put_ms(struct json *object, const char *key, double ms)
{
    json_put_real(object, key, thousandths(ms));
}

void json_put_bool(struct json *object, const char *key, bool v)
{
    json_put(object, key, json_new_bool(v));
}

void json_put_null(struct json *object, const char *key)
{
    json_put(object, key, wrap(json_null()));
}

void json_put_string(struct json *object, const char *key, const char *s)
{
    json_put(object, key, wrap(s != NULL ? string_node(s, strlen(s)) : json_null()));
}

void json_put_bytes(struct json *object, const char *key, const char *s, size_t n)
{
    json_put(object, key, wrap(string_node(s, n)));
}

void json_push(struct json *array, struct json *child)
{
    int rc = json_array_append_new(node(array), node(wrap(node(child))));
    CHECK(rc == 0);
}

void json_push_int(struct json *array, int64_t v)
{
    json_push(array, json_new_int(v));
}

void json_push_real(struct json *array, double v)
{
    json_push(array, json_new_real(v));
}

void json_push_string(struct json *array, const char *s)
{
    json_push(array, wrap(s != NULL ? string_node(s, strlen(s)) : json_null()));
}

/* --- values of a fixed shape ---------------------------------------------------------- */

/* Skips blanks, and `c` behind them. Returns whether it was there. */
static bool skip(const char **at, char c)
{
    *at += strspn(*at, " ");
    bool follows = **at == c;
    *at += follows;
    return follows;
}

/* Skips blanks, and `word` behind them. Returns whether it was there. */
static bool skip_word(const char **at, const char *word)
{
    size_t n = strlen(word);
    bool follows = strncmp(*at += strspn(*at, " "), word, n) == 0;
    *at += follows ? n : 0;
    return follows;
}

/* Makes a value of the argument whose conversion, without '%', is at *at. Moves *at behind it. */
static struct json *converted(const char **at, va_list *args)
{
    if (skip_word(at, "s")) {
        const char *s = va_arg(*args, const char *);
        return wrap(s != NULL ? string_node(s, strlen(s)) : json_null());
    }
    if (skip_word(at, "d"))
        return json_new_int(va_arg(*args, int));
    if (skip_word(at, "ld"))
        return json_new_int(va_arg(*args, long));
    if (skip_word(at, "lu"))
        return json_new_int((int64_t)va_arg(*args, unsigned long));
    if (skip_word(at, "g"))
        return json_new_real(va_arg(*args, double));
    if (skip_word(at, ".3f"))
        return json_new_real(thousandths(va_arg(*args, double)));
    CHECK(skip_word(at, "p"));
    struct json *v = va_arg(*args, struct json *);
    return v != NULL ? v : wrap(json_null());
}

static void put_members(struct json *o, const char **at, va_list *args);

/* Makes the value whose shape is at *at. Moves *at behind the shape. */
static struct json *shaped(const char **at, va_list *args)
{
    if (skip(at, '%'))
        return converted(at, args);
    if (skip_word(at, "null"))
        return wrap(json_null());
    if (skip_word(at, "true"))
        return json_new_bool(true);
    if (skip_word(at, "false"))
        return json_new_bool(false);
    if (skip(at, '\'')) {
        const char *text = *at;
        *at += strcspn(text, "'");
        struct json *v = json_new_bytes(text, (size_t)(*at - text));
        CHECK(skip(at, '\''));
        return v;
    }
    if (**at >= '0' && **at <= '9') {
        char *end;
        struct json *v = json_new_int(strtol(*at, &end, 10));
        *at = end;
        return v;
    }
    if (skip(at, '[')) {
        struct json *list = json_new_array();
        while (!skip(at, ']')) {
            json_push(list, shaped(at, args));
            (void)skip(at, ',');
        }
        return list;
    }
    struct json *o = json_new_object();
    put_members(o, at, args);
    return o;
}

/* Adds the members of the object whose shape is at *at to o. Moves *at behind the shape. */
static void put_members(struct json *o, const char **at, va_list *args)
{
    CHECK(skip(at, '{'));
    while (!skip(at, '}')) {
        char name[64];
        *at += strspn(*at, " ");
        size_t n = strcspn(*at, ":");
        CHECK(n > 0 && n < sizeof name);
        memcpy(name, *at, n);
        name[n] = 0;
        *at += n + 1;
        json_put(o, name, shaped(at, args));
        (void)skip(at, ',');
    }
}

struct json *json_make(const char *shape, ...)
{
    va_list args;
    va_start(args, shape);
    struct json *v = shaped(&shape, &args);
    va_end(args);
    CHECK(*shape == 0);
    return v;
}

void json_extend(struct json *object, const char *shape, ...)
{
    va_list args;
    va_start(args, shape);
    put_members(object, &shape, &args);
    va_end(args);
    CHECK(*shape == 0);
}

/* --- text ---------------------------------------------------------------------------- */

static int append_piece(const char *s, size_t n, void *out)
{
    textbuf_add(out, s, n);
    return 0;
}

/* Appends the text piece by piece. jansson's own function for this would hold the text twice while
 * its buffer grows, and once more in its result. */
static void append_by_jansson(const json_t *j, int indent, struct textbuf *out)
{
    int rc = json_dump_callback(j, append_piece, out,
                                JSON_ENCODE_ANY | JSON_INDENT((size_t)indent) |
                                    JSON_REAL_PRECISION(15));
    CHECK(rc == 0);
}

struct json *json_new_raw(const char *text, size_t n)
{
    char *marked = xmalloc(sizeof raw_mark + n);
    memcpy(marked, raw_mark, sizeof raw_mark);
    memcpy(marked + sizeof raw_mark, text, n);
    json_t *j = json_stringn_nocheck(marked, sizeof raw_mark + n);
    free(marked);
    return wrap(j);
}

static bool has_raw(json_t *j)
{
    const char *key;
    json_t *child;
    size_t i;
    if (json_is_object(j)) {
        json_object_foreach(j, key, child)
        {
            if (has_raw(child))
                return true;
        }
    } else if (json_is_array(j)) {
        json_array_foreach(j, i, child)
        {
            if (has_raw(child))
                return true;
        }
    }
    return is_raw(j);
}

/* Appends a real with the fewest digits that give the same real again. */
static void append_exact(double x, struct textbuf *out)
{
    char text[32];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    if (strpbrk(text, ".eEn") == NULL)
        memcpy(text + strlen(text), ".0", 3);
    textbuf_add(out, text, strlen(text));
}

/* Appends the tree on one line, with jansson's separators and with raw values. With `exact` reals
 * keep all digits; otherwise 15. */
static void append_with_raw(json_t *j, bool exact, struct textbuf *out)
{
    const char *key, *between = "";
    json_t *child;
    size_t i;
    if (is_raw(j)) {
        textbuf_add(out, json_string_value(j) + 2, json_string_length(j) - 2);
    } else if (json_is_object(j)) {
        textbuf_add(out, "{", 1);
        json_object_foreach(j, key, child)
        {
            json_t *name = json_string(key);
            textbuf_add(out, between, strlen(between));
            append_by_jansson(node(wrap(name)), 0, out);
            textbuf_add(out, ": ", 2);
            append_with_raw(child, exact, out);
            json_decref(name);
            between = ", ";
        }
        textbuf_add(out, "}", 1);
    } else if (json_is_array(j)) {
        textbuf_add(out, "[", 1);
        json_array_foreach(j, i, child)
        {
            textbuf_add(out, between, strlen(between));
            append_with_raw(child, exact, out);
            between = ", ";
        }
        textbuf_add(out, "]", 1);
    } else if (exact && json_is_real(j)) {
        append_exact(json_real_value(j), out);
    } else {
        append_by_jansson(j, 0, out);
    }
}

void json_append(const struct json *v, int indent, struct textbuf *out)
{
    if (has_raw(node(v))) /* such a tree is always written on one line */
        append_with_raw(node(v), false, out);
    else
        append_by_jansson(node(v), indent, out);
}

char *json_text(const struct json *v, int indent)
{
    struct textbuf out = {0};
    json_append(v, indent, &out);
    return out.p;
}

char *json_text_exact(const struct json *v)
{
    struct textbuf out = {0};
    append_with_raw(node(v), true, &out);
    return out.p;
}

/* Returns the escape of the character at p if some programs take it for the end of a line, and sets
 * *n to its bytes. p ends with a NUL byte. */
static const char *line_end(const char *p, size_t *n)
{
    *n = (uint8_t)*p == 0xC2 ? 2 : 3;
    return strncmp(p, "\xC2\x85", 2) == 0       ? "\\u0085"
           : strncmp(p, "\xE2\x80\xA8", 3) == 0 ? "\\u2028"
           : strncmp(p, "\xE2\x80\xA9", 3) == 0 ? "\\u2029"
                                                : NULL;
}

void json_append_line(const struct json *v, struct textbuf *out)
{
    struct textbuf text = {0};
    json_append(v, 0, &text);
    const char *from = text.p;
    for (const char *p = from; (p = strpbrk(p, "\xC2\xE2")) != NULL;) {
        size_t n;
        const char *escape = line_end(p, &n);
        if (escape != NULL) {
            textbuf_add(out, from, (size_t)(p - from));
            textbuf_add(out, escape, 6);
            from = p + n;
        }
        p += escape != NULL ? n : 1;
    }
    textbuf_add(out, from, text.n - (size_t)(from - text.p));
    textbuf_free(&text);
}
