/* guess.h - guesses of the next tokens, and how many of them a step computes.
 *
 * A pass over a few rows costs less than as many passes, because the weights are read once. The
 * logits of a row do not depend on other rows (ops.h), and a sample depends on logits, seed and
 * position alone. So the tokens behind the last known one can be guessed and computed in the same
 * pass: a guess counts where it equals the token that is chosen there. Answers have the same bits
 * with guesses and without, at any temperature.
 *
 * Guesses are looked up: the longest end of the context that occurred before proposes what followed
 * it there (prompt lookup). Where the answer's form leaves no choice, the tokens that must follow
 * are proposed instead. How many of them a step computes is decided by what is learned: how
 * often such guesses were right, by sequence and length of the match, and what a pass takes by its
 * number of rows. The expected tokens per second never fall.
 *
 * Pure but for the memory of an index, which guess_index_create takes. */
#ifndef ENGINE_GUESS_H
#define ENGINE_GUESS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    GUESS_MOST = 15,   /* most guesses of one sequence in a step */
    GUESS_ROWS = 15,   /* most guesses of a step, of all sequences */
    GUESS_LEAST = 3,   /* for a match of so many tokens several earlier places are tried */
    GUESS_LENGTHS = 8, /* classes of the length of a match */
    /* Two values in place of a match's length: the last found place goes on, although the text
     * differs there; the answer's form leaves no choice. */
    GUESS_ASIDE = 1,
    GUESS_FORCED = 1000,
    GUESS_MAX_ROWS = 64 /* passes of more rows are not learned */
};

/* --- what could follow ------------------------------------------------------------------------ */

/* Index of a context's tokens by each run of GUESS_LEAST tokens and each run of 2. Takes 24 to 40
 * bytes a token; for long texts 8 bytes a token and 512 KiB. */
struct guess_index;

/* Returns an index of at most `room` tokens, or NULL without memory. */
struct guess_index *guess_index_create(int room);
void guess_index_free(struct guess_index *x); /* NULL is allowed */
/* Appends tokens. Those beyond the room are ignored, and nothing is found from then on. */
void guess_index_add(struct guess_index *x, const int32_t *ids, int n);
/* Returns the number of tokens so far. */
int guess_index_count(const struct guess_index *x);
/* Finds the longest of the recent places where the text's end, at least two tokens, occurred
 * before, and writes the `most` tokens that followed there to out. If the text ends before `most`
 * tokens are found, the found tokens are repeated from the first one. If there is no such place,
 * the last found place goes on for a few tokens, beside the text: one of them may have replaced
 * another. Returns the length of the match; if the last place goes on, GUESS_ASIDE plus the number
 * of tokens that agree again; or 0 if nothing is proposed. */
int guess_index_find(struct guess_index *x, int most, int32_t *out);

/* --- how often guesses are right -------------------------------------------------------------- */

struct guess_rates {
    float tried[GUESS_LENGTHS], hit[GUESS_LENGTHS]; /* recent ones weigh more */
};

/* Returns rates before anything is learned. */
struct guess_rates guess_rates_first(void);
/* Learns whether a token proposed by a match of that length was chosen. `own` are the sequence's
 * rates, `all` those of all sequences. */
void guess_learn(struct guess_rates *own, struct guess_rates *all, int match, bool hit);
/* Returns the length of a match behind k more tokens that were right. */
static inline int guess_longer(int match, int k)
{
    return match < GUESS_FORCED - k ? match + k : match;
}
/* Returns the probability that the next token proposed by a match of that length is chosen. */
double guess_rate(const struct guess_rates *own, const struct guess_rates *all, int match);

/* --- what a pass takes ------------------------------------------------------------------------ */

/* What passes cost by their number of rows. The machine's pace changes all the time: contexts grow,
 * other programs come and go. So a pass is compared with what the passes right before it make
 * expected, and never with a time that was taken long ago. */
struct guess_speed {
    double pace_ns; /* recent time of a pass of cost 1; 0: no pass is known */
    double cost[GUESS_MAX_ROWS + 1]; /* of a number of rows that was seen */
    int n_seen[GUESS_MAX_ROWS + 1];
};

/* Learns from a pass of decodes and guesses alone. */
void guess_speed_learn(struct guess_speed *s, int n_rows, int64_t ns);
/* Returns the expected time of a pass, or 0 if no pass is known. Between known numbers of rows the
 * time is interpolated. Beyond them each row takes a fifth of a pass of one row. */
double guess_pass_ns(const struct guess_speed *s, int n_rows);

/* --- how many --------------------------------------------------------------------------------- */

struct guess_seq {
    int most; /* guesses that are proposed */
    /* Probability that each is right if all before it are. */
    double rate[GUESS_MOST];
    int n; /* result: guesses to compute */
};

/* Sets n of each of the sequences that a pass decodes, the ones without a proposal included. All
 * together get at most most_rows guesses: the number that gives the most tokens a second, if that
 * is 3 % more than without, and 1 % more for each further sequence. A longer pass delays all, so no
 * sequence may lose more than 3 % of its expected speed to the guesses of others. A proposal is not
 * tried if the probability of its first token is below 0.15. */
void guess_decide(const struct guess_speed *speed, struct guess_seq *s, int n_seqs,
                  int most_rows);
/* Sets n to all that is proposed, in order, as far as most_rows goes. */
void guess_all(struct guess_seq *s, int n_seqs, int most_rows);

#endif
