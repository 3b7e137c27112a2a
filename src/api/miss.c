/* miss.c - see miss.h. */
#include "api/miss.h"

#include <stdio.h>
#include <string.h>

enum {
    MAX_TOKENS = 12, /* most tokens of the prompt that are shown */
    MAX_BYTES = 48,
};

/* Writes the whole characters of the tokens, without control characters and quotation marks. */
static size_t excerpt(const struct tokenizer *t, const int32_t *ids, int n, char *out)
{
    size_t at = 0, k;
    for (int i = 0; i < n && i < MAX_TOKENS && at < MAX_BYTES; i++) {
        const char *bytes = tokenizer_bytes(t, ids[i], &k);
        for (size_t b = 0; bytes != NULL && b < k && at < MAX_BYTES; b++) {
            bool is_plain = (unsigned char)bytes[b] >= ' ' && bytes[b] != '"' &&
                            bytes[b] != 0x7f;
            out[at++] = is_plain ? bytes[b] : ' ';
        }
    }
    /* Drops the last character, which may be cut. */
    while (at > 0 && ((unsigned char)out[at - 1] & 0xc0) == 0x80)
        at--;
    if (at > 0 && (unsigned char)out[at - 1] >= 0xc0)
        at--;
    return at;
}

void miss_text(const struct tokenizer *t, const int32_t *prompt, int n_prompt, int at,
               char *out, size_t n_out)
{
    char text[MAX_BYTES + 1];
    size_t n = t != NULL ? excerpt(t, prompt + at, n_prompt - at, text) : 0,
           used = strlen(out);
    if (n > 0)
        snprintf(out + used, n_out - used, ": the prompt differs at token %d: \"%.*s\"", at,
                 (int)n, text);
    else
        snprintf(out + used, n_out - used, ": the prompt differs at token %d", at);
}
