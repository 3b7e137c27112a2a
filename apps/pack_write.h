/* pack_write.h - writes a model as a packed file (pack_file.h). */
#ifndef APPS_PACK_WRITE_H
#define APPS_PACK_WRITE_H

#include "base/err.h"
#include "base/hash.h"
#include "model/model.h"

struct pack_result {
    /* errors of matrices converted to 4 bits; the caller frees errors.of */
    struct weights_errors errors;
    char note[320]; /* how the type of the matrices was chosen, or its cost */
    uint64_t bytes; /* size of the file */
    int n_layers;
    char layout[64];
    enum dtype dtype;
    struct sha256 hash;
};

/* Packs `source` (a folder, a GGUF file, synth:SHAPE) for a device, with matrices held as `weights`
 * says (model_opts.weights).  Memory holds one layer at a time, or the tables and the head.  The
 * file appears under its name when it is complete and durable; after an error no file is left.
 * -EEXIST: `path` exists. */
int pack_write(const char *source, const char *path, struct device *dev,
               const char *weights, struct pack_result *out, struct err *err);

#endif
