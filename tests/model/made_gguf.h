/* made_gguf.h - writes small GGUF files whose metadata and tensors a test chooses.
 *
 * A made file describes a model of two layers: width 16, two heads of 8 dimensions, one KV head, an
 * MLP of 24, and a table of 32 tokens.  A test names the entries and tensors that differ.
 */
#ifndef TESTS_MODEL_MADE_GGUF_H
#define TESTS_MODEL_MADE_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/gguf.h"

/* An entry of this kind is left out. */
enum { MADE_ABSENT = 99 };

/* A metadata entry.  Keys that begin with "general.", "split." or "tokenizer." are whole; others
 * get the architecture in front. */
struct made_value {
    const char *key;
    int kind;     /* enum gguf_kind, or MADE_ABSENT */
    double value; /* of a number */
    /* of a string; in an array, element i is line i, or the last line */
    const char *text;
    uint64_t n;  /* above 0: an array of n equal elements */
    double last; /* the array's last number, if it is not 0 */
};

struct made_tensor {
    const char *name;
    uint32_t n_dims;
    uint64_t dims[2]; /* the fastest first, as in files */
    uint32_t type;
    float value; /* of every element of an F32 tensor */
};

struct made_file {
    const char *arch; /* NULL: "llama" */
    bool whole;       /* also has the tensors of both layers, the final norm and the head */
    struct made_value values[10];
    struct made_tensor tensors[3];
};

/* Writes the file. Entries and tensors replace those of the same name; a tensor of no dimensions is
 * left out. */
void made_gguf_write(const char *path, const struct made_file *f);

/* A file in a temporary folder of its own, which made_gguf_setup makes and made_gguf_teardown
 * removes: the setup and teardown of a group of tests. */
extern char made_gguf_path[];
int made_gguf_setup(void **state);
int made_gguf_teardown(void **state);

#endif
