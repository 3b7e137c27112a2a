/* regress.h - least squares with non-negative coefficients: costs from measured times.
 *
 * Pure, no allocation. */
#ifndef RESTORE_REGRESS_H
#define RESTORE_REGRESS_H

#include <stdbool.h>

enum { REGRESS_TERMS_MAX = 3 };

/* One measurement: the work took y seconds and contains term j x[j] times. */
struct regress_sample {
    double x[REGRESS_TERMS_MAX];
    double y; /* > 0 */
};

struct regress_fit {
    double coef[REGRESS_TERMS_MAX]; /* >= 0 */
    double r2;                      /* 0..1; 0 if there are no more samples than terms */
    double rms;                     /* root mean square of fitted / measured - 1 */
    double worst;                   /* largest absolute value of fitted / measured - 1 */
};

/* Minimises the sum of squared *relative* errors, since a cost must fit short and long contexts
 * alike. A term that could only help by being negative is left out. Returns false if no fit
 * exists: no sample, a time that is not positive and finite, or terms that are all zero. */
bool regress(const struct regress_sample *s, int n_samples, int n_terms,
             struct regress_fit *out);

#endif
