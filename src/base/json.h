/* json.h - reads JSON strictly and writes it. Only json.c includes the JSON library.
 *
 * Reading. json_parse turns bytes into a tree. It refuses everything but exactly one JSON object or
 * array: invalid UTF-8, duplicate keys, trailing bytes, nesting deeper than JSON_MAX_DEPTH. The
 * tree belongs to its root; every `const struct json *` and every string inside is borrowed and
 * dies with json_free(root).
 *
 * The typed getters come in two forms. json_get_X fails with ERR_FORMAT if the member is missing.
 * json_opt_X leaves the caller's default in place if the member is missing or null. Both fail if
 * the member has another type or lies outside its bounds, with a message that names the member
 * ("'hidden_size' must be an integer, it is a string"). The caller that knows the file's name puts
 * it before the message (err_wrap); json_parse's own messages already begin with it.
 *
 * Writing. json_make makes a tree of a known shape. Otherwise call json_new_object or
 * json_new_array, then json_put_X (member of an object) and json_push_X (element of an array). A
 * child belongs to its parent from then on. Bytes that are not
 * valid UTF-8 are written as U+FFFD, so writing cannot fail. Keys must be valid UTF-8.
 *
 * Several threads may read a tree; only one may write it. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json;
struct textbuf;

enum { JSON_MAX_DEPTH = 128 };

enum json_kind {
    JSON_KIND_NULL,
    JSON_KIND_BOOL,
    JSON_KIND_INT,
    JSON_KIND_REAL,
    JSON_KIND_STRING,
    JSON_KIND_ARRAY,
    JSON_KIND_OBJECT,
};

/* Parses n bytes, which the tree does not keep. `file` names their source in messages. */
int json_parse(struct json **out, const void *bytes, size_t n, const char *file,
               struct err *err);
/* Returns the value that a text with a zero byte behind it has; NULL if text is NULL or no JSON. */
struct json *json_of_text(const char *text);
void json_free(struct json *root); /* NULL is allowed */

/* --- looking at a value ------------------------------------------------------------- */

enum json_kind json_kind(const struct json *v); /* v NULL counts as JSON_KIND_NULL */
/* "a string" and the like, for messages */
const char *json_kind_name(const struct json *v);

/* returns the number of elements or members; 0 for other kinds */
size_t json_count(const struct json *v);
/* returns NULL if there is no element i */
const struct json *json_at(const struct json *array, size_t i);
/* returns NULL if the member is missing */
const struct json *json_member(const struct json *object, const char *key);

/* Returns the text of a string; NULL if v is not a string. The text ends with a zero byte and may
 * contain others; *n is its length. If n is NULL, a string that contains a zero byte also gives
 * NULL, because the caller would take its beginning for the whole. */
const char *json_string_of(const struct json *v, size_t *n);
/* Returns whether v is a string, and that one. */
bool json_string_is(const struct json *v, const char *text);
/* returns false if v is not a boolean */
bool json_bool_of(const struct json *v, bool *out);
/* returns false if v is not an integer, or is one beyond 64 bits */
bool json_int_of(const struct json *v, int64_t *out);
/* Returns the digits, with the sign, of an integer beyond 64 bits; NULL if v is none. */
const char *json_big_of(const struct json *v, size_t *n);
/* as json_int_of; integers count as reals, too */
bool json_real_of(const struct json *v, double *out);

/* Iterates over members, in the order of the text:
 *
 *     struct json_iter it = json_begin(object);
 *     while (json_next(&it)) use(it.key, it.value); */
struct json_iter {
    const char *key;
    const struct json *value;
    const struct json *object;
    void *at;
};
/* a value that is not an object has no members */
struct json_iter json_begin(const struct json *object);
bool json_next(struct json_iter *it);

/* --- typed members of an object ----------------------------------------------------- */

int json_get_int(const struct json *object, const char *key, int64_t min, int64_t max,
                 int64_t *out, struct err *err);
int json_get_real(const struct json *object, const char *key, double *out, struct err *err);
int json_get_bool(const struct json *object, const char *key, bool *out, struct err *err);
int json_get_string(const struct json *object, const char *key, const char **out,
                    struct err *err); /* refuses a string with a zero byte inside */
int json_get_array(const struct json *object, const char *key, const struct json **out,
                   struct err *err);
int json_get_object(const struct json *object, const char *key, const struct json **out,
                    struct err *err);

int json_opt_int(const struct json *object, const char *key, int64_t min, int64_t max,
                 int64_t *io, struct err *err);
int json_opt_real(const struct json *object, const char *key, double *io, struct err *err);
int json_opt_bool(const struct json *object, const char *key, bool *io, struct err *err);
int json_opt_string(const struct json *object, const char *key, const char **io,
                    struct err *err);
int json_opt_array(const struct json *object, const char *key, const struct json **io,
                   struct err *err);
int json_opt_object(const struct json *object, const char *key, const struct json **io,
                    struct err *err);

/* Frees a member and removes it from the object, which the caller owns. */
void json_drop(struct json *object, const char *key);

/* --- writing ------------------------------------------------------------------------ */

struct json *json_new_object(void);
struct json *json_new_array(void);
/* Makes a string of any bytes; each byte that is not valid UTF-8 becomes U+FFFD. s may be NULL if n
 * is 0. */
struct json *json_new_bytes(const char *s, size_t n);

struct json *json_new_bool(bool v);
struct json *json_new_int(int64_t v);
struct json *json_new_real(double v); /* becomes null if v is not finite */
/* Makes a raw value from n bytes of text, which must be one JSON value. It takes the memory of its
 * text only, while a tree has a node for each part. It may only be put into a tree that is written
 * and not read. */
struct json *json_new_raw(const char *text, size_t n);

/* Makes a value of a fixed shape, with the arguments in the places of the conversions:
 *
 *     json_make("{type: 'text', text: %s, place: {at: %d, parts: %p}, end: null}", s, at, parts)
 *
 * Names stand without quotes. A text in single quotes has no quote inside. Numbers are digits only.
 * The conversions are %s (const char *; NULL becomes null), %d (int), %ld (int64_t), %lu (uint64_t
 * or size_t), %g (double; null if it is not finite), %.3f (double, rounded to three digits behind
 * the point) and %p (struct json *, which belongs to the new value from then on; NULL becomes
 * null). A shape that cannot be read is a bug and ends the program. */
struct json *json_make(const char *shape, ...) __attribute__((format(printf, 1, 2)));
/* Adds the members of an object of that shape to `object`. */
void json_extend(struct json *object, const char *shape, ...)
    __attribute__((format(printf, 2, 3)));

/* Returns v with one more owner, so that it can be put into another tree without a copy.  From then
 * on neither owner may write to it.  NULL becomes null. */
struct json *json_share(const struct json *v);

/* Shares the members of an object, or the elements of an array, with `to`, which has the same kind.
 * Replaces members of the same name. Does nothing if `from` has none. */
void json_share_all(struct json *to, const struct json *from);

/* The child belongs to the object from then on. Replaces a member of the same name. */
void json_put(struct json *object, const char *key, struct json *child);
void json_put_int(struct json *object, const char *key, int64_t v);
/* becomes null if v is not finite */
void json_put_real(struct json *object, const char *key, double v);
/* written as milliseconds, rounded to whole microseconds */
void json_put_ms(struct json *object, const char *key, double ms);
void json_put_bool(struct json *object, const char *key, bool v);
void json_put_null(struct json *object, const char *key);
/* becomes null if s is NULL */
void json_put_string(struct json *object, const char *key, const char *s);
void json_put_bytes(struct json *object, const char *key, const char *s, size_t n);

/* the child belongs to the array from then on */
void json_push(struct json *array, struct json *child);
void json_push_int(struct json *array, int64_t v);
void json_push_real(struct json *array, double v);
void json_push_string(struct json *array, const char *s);

/* Returns the text, with members in the order in which they were put; `indent` is the number of
 * spaces per level; 0: all on one line. The caller frees it. */
char *json_text(const struct json *v, int indent);
/* Like json_text on one line, with all digits of every real: json_text writes 15. */
char *json_text_exact(const struct json *v);
/* Appends the text that json_text would return to *out. */
void json_append(const struct json *v, int indent, struct textbuf *out);
/* Appends v for programs that read lines. Some of them (Python's splitlines, and so httpx) also end
 * a line at U+0085, U+2028 and U+2029, which JSON allows in strings; these are escaped. */
void json_append_line(const struct json *v, struct textbuf *out);

#endif
