/* pack_write.h - writes a model as a packed file (pack_file.h). */
#ifndef MODEL_PACK_WRITE_H
#define MODEL_PACK_WRITE_H

#include "base/err.h"
#include "base/hash.h"
#include "model/model.h"

struct pack_result {
    struct weights_errors
        errors;     /* of what was made into 4 bits; free(errors.of) ends it */
    char note[320]; /* how the type of matrices was chosen, or what it costs */
    uint64_t bytes; /* of the file */
    int n_layers;
    char layout[64];
    enum dtype dtype;
    struct sha256 hash;
};

/* Packs `source` (a folder, a GGUF file, synth:SHAPE) for a device, with matrices held as `weights`
 * says (model_opts.weights).  It holds one layer at a time, or the tables and the head.  The file
 * appears under its name when it is whole and durable; after an error there is none of ours.
 * -EEXIST: `path` exists. */
int pack_write(const char *source, const char *path, struct device *dev,
               const char *weights, struct pack_result *out, struct err *err);

#endif
