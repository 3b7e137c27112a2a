/* slots.c - see slots.h. */
#include "redis/slots.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- keys ------------------------------------------------------------------------------------- */

/* CRC-16 with the polynomial 0x1021, from 0: the checksum of the cluster's specification. */
static unsigned crc16(const uint8_t *p, size_t n)
{
    unsigned crc = 0;
    for (size_t i = 0; i < n; i++) {
        crc ^= (unsigned)p[i] << 8;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc & 0x8000) != 0 ? crc << 1 ^ 0x1021 : crc << 1;
    }
    return crc & 0xffff;
}

int slot_of(const void *key, size_t n)
{
    const uint8_t *p = key, *open = memchr(p, '{', n);
    if (open != NULL) {
        const uint8_t *close = memchr(open, '}', n - (size_t)(open - p));
        if (close != NULL && close > open + 1)
            return (int)(crc16(open + 1, (size_t)(close - open - 1)) % SLOTS);
    }
    return (int)(crc16(p, n) % SLOTS);
}

/* --- parsing words ---------------------------------------------------------------------------- */

struct word {
    const char *p;
    size_t n;
};

/* Takes the next word off a line. Its n is 0 behind the last word. */
static struct word next_word(struct word *line)
{
    while (line->n > 0 && *line->p == ' ') {
        line->p++;
        line->n--;
    }
    struct word w = {line->p, 0};
    while (w.n < line->n && w.p[w.n] != ' ')
        w.n++;
    line->p += w.n;
    line->n -= w.n;
    return w;
}

static struct word next_line(struct word *text)
{
    struct word line = {text->p, 0};
    while (line.n < text->n && line.p[line.n] != '\n')
        line.n++;
    size_t n_taken = line.n < text->n ? line.n + 1 : line.n;
    text->p += n_taken;
    text->n -= n_taken;
    if (line.n > 0 && line.p[line.n - 1] == '\r')
        line.n--;
    return line;
}

static bool word_is(struct word w, const char *text)
{
    return w.n == strlen(text) && memcmp(w.p, text, w.n) == 0;
}

/* Returns whether a comma-separated list has an item. */
static bool has_item(struct word list, const char *item)
{
    while (list.n > 0) {
        const char *comma = memchr(list.p, ',', list.n);
        struct word one = {list.p, comma != NULL ? (size_t)(comma - list.p) : list.n};
        if (word_is(one, item))
            return true;
        size_t n_taken = comma != NULL ? one.n + 1 : one.n;
        list.p += n_taken;
        list.n -= n_taken;
    }
    return false;
}

/* Parses a number from 0 to max. Returns false if the word has anything else in it. */
static bool number_of(struct word w, int max, int *out)
{
    int n = 0;
    if (w.n == 0 || w.n > 8)
        return false;
    for (size_t i = 0; i < w.n; i++) {
        if (w.p[i] < '0' || w.p[i] > '9')
            return false;
        n = 10 * n + (w.p[i] - '0');
    }
    *out = n;
    return n <= max;
}

static bool copy_host(struct word w, struct slots_node *out)
{
    if (w.n == 0 || w.n >= sizeof out->host)
        return false;
    memcpy(out->host, w.p, w.n);
    out->host[w.n] = 0;
    return true;
}

/* Reads "host:port"; if the host is missing, takes self's host. */
static bool address_of(struct word w, const struct slots_node *self, struct slots_node *out)
{
    size_t colon = w.n;
    while (colon > 0 && w.p[colon - 1] != ':')
        colon--;
    if (colon == 0)
        return false;
    struct word host = {w.p, colon - 1}, port = {w.p + colon, w.n - colon};
    *out = *self;
    return (host.n == 0 || copy_host(host, out)) && number_of(port, 65535, &out->port) &&
           out->port > 0;
}

/* --- CLUSTER NODES ---------------------------------------------------------------------------- */

int slots_node_index(struct slots *s, const struct slots_node *node)
{
    for (int i = 0; i < s->n_nodes; i++)
        if (s->node[i].port == node->port && strcmp(s->node[i].host, node->host) == 0)
            return i;
    if (s->n_nodes == SLOTS_MAX_NODES)
        return -1;
    s->node[s->n_nodes] = *node;
    return s->n_nodes++;
}

/* Reads "host:port@bus[,name[,...]]". The part "@bus" may be missing. */
static bool node_address(struct word w, const struct slots_node *self, bool by_name,
                         struct slots_node *out)
{
    const char *comma = memchr(w.p, ',', w.n);
    struct word at = {w.p, comma != NULL ? (size_t)(comma - w.p) : w.n};
    const char *bus = memchr(at.p, '@', at.n);
    if (bus != NULL)
        at.n = (size_t)(bus - at.p);
    if (!address_of(at, self, out))
        return false;
    if (comma == NULL || !by_name)
        return true;
    struct word name = {comma + 1, w.n - (size_t)(comma + 1 - w.p)};
    const char *end = memchr(name.p, ',', name.n);
    if (end != NULL)
        name.n = (size_t)(end - name.p);
    return name.n == 0 || copy_host(name, out);
}

/* Reads "first-last" or one slot. A moving slot appears in brackets, and also without them at
 * the server that still has it. */
static bool take_slots(struct slots *s, struct word w, int owner)
{
    const char *dash = memchr(w.p, '-', w.n);
    struct word from = {w.p, dash != NULL ? (size_t)(dash - w.p) : w.n}, to = from;
    int first, last;
    if (w.p[0] == '[')
        return true;
    if (dash != NULL)
        to = (struct word){dash + 1, w.n - from.n - 1};
    if (!number_of(from, SLOTS - 1, &first) || !number_of(to, SLOTS - 1, &last) ||
        first > last)
        return false;
    memset(s->owner + first, owner, (size_t)(last - first + 1));
    return true;
}

/* Reads a line: id address flags master ping pong epoch link slots... */
static int take_line(struct slots *s, struct word line, const struct slots_node *self,
                     bool by_name, struct err *err)
{
    /* words that are not used: master, ping, pong, epoch, link */
    enum { UNUSED_WORDS = 5 };
    struct slots_node node;
    (void)next_word(&line);
    struct word address = next_word(&line), flags = next_word(&line);
    if (flags.n == 0)
        return err_set(err, ERR_FORMAT, "the cluster's list of nodes has a short line");
    if (!has_item(flags, "master") || has_item(flags, "fail") ||
        has_item(flags, "noaddr") || has_item(flags, "handshake"))
        return 0;
    if (!node_address(address, self, by_name, &node))
        return err_set(err, ERR_FORMAT, "the cluster's list of nodes has a bad address");
    for (int i = 0; i < UNUSED_WORDS; i++)
        (void)next_word(&line);
    struct word slots = next_word(&line);
    if (slots.n == 0) /* the server may just have left the cluster, and have no slots */
        return 0;
    int owner = slots_node_index(s, &node);
    if (owner < 0)
        return err_set(err, ERR_LIMIT, "the cluster has more than %d masters",
                       SLOTS_MAX_NODES);
    for (; slots.n > 0; slots = next_word(&line))
        if (!take_slots(s, slots, owner))
            return err_set(err, ERR_FORMAT, "the cluster's list of nodes has bad slots");
    return 0;
}

int slots_parse(const char *text, size_t n, const struct slots_node *self, bool by_name,
                struct slots *out, struct err *err)
{
    struct word rest = {text, n};
    int rc = 0;
    /* *out is filled in place: a temporary struct would be too large for a small stack */
    memset(out, 0, sizeof *out);
    memset(out->owner, SLOTS_NOBODY, sizeof out->owner);
    while (rc == 0 && rest.n > 0) {
        struct word line = next_line(&rest);
        if (line.n > 0)
            rc = take_line(out, line, self, by_name, err);
    }
    if (rc == 0 && out->n_nodes == 0)
        rc = err_set(err, ERR_FORMAT, "the cluster has no master");
    return rc;
}

/* --- redirections ----------------------------------------------------------------------------- */

bool redirection_parse(const char *text, size_t n, const struct slots_node *self,
                       struct redirection *out)
{
    struct word rest = {text, n}, what = next_word(&rest);
    out->is_for_good = word_is(what, "MOVED");
    if (!out->is_for_good && !word_is(what, "ASK"))
        return false;
    return number_of(next_word(&rest), SLOTS - 1, &out->slot) &&
           address_of(next_word(&rest), self, &out->to);
}
