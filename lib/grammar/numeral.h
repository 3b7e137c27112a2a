/* numeral.h - sets of numbers as DFAs over their decimal spelling; private to lib/grammar.
 *
 * The spelling: an optional minus, digits without leading zeros, and optionally a point and digits.
 * Zero has no minus.  No exponent. */
#ifndef GRAMMAR_NUMERAL_H
#define GRAMMAR_NUMERAL_H

#include "grammar/dfa.h"

struct json;

/* An exact decimal number. whole has no leading zeros, part no trailing ones. */
struct decimal {
    bool minus;
    const char *whole; /* digits; "0" for zero */
    const char *part;  /* digits behind the point; may be empty */
};

/* Returns the value of a JSON number. A real is the shortest decimal that stands for it. */
struct decimal decimal_of(struct build *b, const struct json *number);
/* Sets *out to the next double above or below x. Returns false if doubles are not exact there. */
bool decimal_next(struct build *b, const struct decimal *x, bool up, struct decimal *out);
int decimal_compare(const struct decimal *x, const struct decimal *y); /* -1, 0, 1 */
bool decimal_is_integer(const struct decimal *x);
/* Returns the decimal's text in the spelling above. */
const char *decimal_text(struct build *b, const struct decimal *x);

struct number_set {
    const struct decimal *lo, *hi; /* NULL: no bound */
    bool above, below;             /* the bounds themselves are left out */
    bool integers;                 /* only integers, written without a point */
    bool fractions;                /* only numbers that are no integers */
    int64_t multiple_of;           /* times 10^-places; 0: any */
    int places; /* with some, a number has no more, and few digits before them */
};

enum { NUMERAL_MAX_MULTIPLE = 10000, NUMERAL_MAX_PLACES = 12 };

/* Makes the set that of multiples of d, too. Returns false if there are too many remainders. */
bool number_set_multiple(struct number_set *s, const struct decimal *d);
bool number_set_has_multiple(const struct number_set *s, const struct decimal *d);

const struct dfa *dfa_of_numbers(struct build *b, const struct number_set *s);
/* Returns those numbers of a set that are written without needless zeros, and that doubles tell
 * apart. */
const struct dfa *dfa_of_plain_numbers(struct build *b, const struct dfa *d);

#endif
