/* matrix_types.h - the type that each matrix of a model is held in.  Private to src/model.
 *
 * Models held in f32, f16, bf16 or q8 have one type for all matrices.  In a model held in 4 bits
 * (DTYPE_Q4) each matrix has its own: the file's type of 4 or 6 bits where all tensors that the
 * matrix is made of have it, q4_1 where the matrix is made into 4 bits here, else q8. */
#ifndef MODEL_MATRIX_TYPES_H
#define MODEL_MATRIX_TYPES_H

#include "model/weights.h"
#include "model/weights_names.h"
#include "model/weights_source.h"

struct matrix_types {
    enum dtype all; /* DTYPE_Q4: each has its own, below */
    enum dtype head;
    int n_layers;
    enum dtype *layers; /* [n_layers][N_SLOTS]; NULL unless all is DTYPE_Q4 */
};

/* The types of a model's matrices held as `all`.  set: every tensor of the model.  n_ranks: tensor
 * parallelism cuts rows, and cuts must lie between blocks. */
void matrix_types_make(struct matrix_types *out, enum dtype all,
                       const struct tensor_set *set, const struct model_config *c,
                       int n_ranks);
/* The same with one type, or for a packed file to fill in. */
void matrix_types_init(struct matrix_types *out, enum dtype all, int n_layers);
void matrix_types_deinit(struct matrix_types *t);
/* Whether all rows of a model's matrices, and each rank's cut of them, are whole blocks. */
bool matrix_types_fit(const struct matrix_types *t, const struct model_config *c,
                      int n_ranks);
/* Whether the matrices of two layers have the same types. */
bool matrix_types_alike(const struct matrix_types *t, int layer_a, int layer_b);
void matrix_types_free(
    struct matrix_types *t); /* deinit, and the struct itself; NULL is allowed */

/* Where the type of a matrix is. `layer` is of no matter for the head. */
enum dtype *matrix_type_at(struct matrix_types *t, int layer, enum slot s);
static inline enum dtype matrix_type(const struct matrix_types *t, int layer, enum slot s)
{
    return t->all != DTYPE_Q4 ? t->all
                              : *matrix_type_at((struct matrix_types *)t, layer, s);
}

/* The type of 4 or 6 bits of a GGUF tensor; DTYPE_F32: it has none. */
enum dtype matrix_type_of_file(const struct tensor_src *src);
/* Whether a matrix of a set has a type of 4 or 6 bits. */
bool matrix_types_any_q4(const struct tensor_set *set);

#endif
