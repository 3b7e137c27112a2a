/* bpe_bytes.c - see bpe_bytes.h. */
#include "bpe/bpe_bytes.h"

#include <string.h>

#include "base/utf8.h"

static bool stands_for_itself(uint32_t b)
{
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xFF && b != 0xAD);
}

/* Returns the character of a byte. The 68 bytes 0x00..0x20, 0x7F..0xA0 and 0xAD become, in this
 * order, U+0100 + index. */
static uint32_t char_of(uint8_t b)
{
    if (stands_for_itself(b))
        return b;
    return b <= 0x20 ? 0x100u + b : b <= 0xA0 ? 0x121u + (b - 0x7Fu) : 0x143u;
}

static int byte_of(uint32_t c)
{
    if (c < 0x100)
        return stands_for_itself(c) ? (int)c : -1;
    if (c <= 0x120)
        return (int)(c - 0x100);
    if (c <= 0x142)
        return (int)(c - 0x121 + 0x7F);
    return c == 0x143 ? 0xAD : -1;
}

bool bpe_bytes_from_text(const char *text, size_t n, char *out, size_t *n_out)
{
    size_t len = 0;
    for (size_t i = 0; i < n;) {
        uint32_t c;
        size_t k = utf8_decode(text + i, n - i, &c);
        int b = k != 0 ? byte_of(c) : -1;
        if (b < 0)
            return false;
        out[len++] = (char)b;
        i += k;
    }
    *n_out = len;
    return true;
}

bool bpe_bytes_are(const char *text, size_t n_text, const char *bytes, size_t n)
{
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        char c[4];
        size_t k = utf8_encode(char_of((uint8_t)bytes[i]), c);
        if (n_text - at < k || memcmp(text + at, c, k) != 0)
            return false;
        at += k;
    }
    return at == n_text;
}

size_t bpe_bytes_to_text(const char *bytes, size_t n, char *out)
{
    size_t len = 0;
    for (size_t i = 0; i < n; i++)
        len += utf8_encode(char_of((uint8_t)bytes[i]), out + len);
    return len;
}
