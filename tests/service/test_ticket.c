/* test_ticket.c - stop strings and log-probabilities of a request. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "service/ticket.h"

/* Pieces separated by '|' arrive one after another; `visible` has the text visible after each. */
static void scan(const char *pieces, const char *stop, const char *visible, bool stops)
{
    char text[200], seen[200] = "", *stops_list[] = {(char *)(uintptr_t)stop};
    size_t n = 0, n_visible = 0, stop_bytes = strlen(stop);
    bool found = false;
    for (const char *p = pieces; *p != 0 && !found;) {
        size_t n_piece = strcspn(p, "|"), n_old = n, shown = n_visible;
        memcpy(text + n, p, n_piece);
        n += n_piece;
        found = ticket_scan_stop(text, n_old, &n, stops_list, &stop_bytes, 1, &n_visible);
        assert_true(n_visible >= shown && n_visible <= n);
        strncat(seen, text + shown, n_visible - shown);
        strcat(seen, "|");
        p += n_piece + (p[n_piece] == '|');
    }
    assert_string_equal(seen, visible);
    assert_int_equal(found, stops);
}

static void stop_strings_end_the_text(void **state)
{
    (void)state;
    scan("ab|cd", "xy", "ab|cd|", false);
    scan("abxy", "xy", "ab|", true);
    scan("ab|x|y|c", "xy", "ab|||", true);  /* across pieces */
    scan("ab|x|z", "xy", "ab||xz|", false); /* held back, then shown */
    scan("aa|ab", "aab", "|a|", true);      /* overlaps itself */
    scan("a|a|a|b", "aab", "||a||", true);
    scan("xyxy", "xy", "|", true); /* the first match counts */
    scan("1|2|3|4", "34", "1|2|||", true);
    scan("abab|abac", "abac", "ab|ab|", true);
}

static void the_earliest_of_several_stops(void **state)
{
    (void)state;
    char *stop[] = {"later", "soon"};
    size_t bytes[] = {5, 4}, n = strlen("go soon or later"), visible;
    assert_true(ticket_scan_stop("go soon or later", 0, &n, stop, bytes, 2, &visible));
    assert_int_equal(n, 3);
    assert_int_equal(visible, 3);
}

static void no_stops_show_everything(void **state)
{
    (void)state;
    size_t n = 3, visible = 0;
    assert_false(ticket_scan_stop("abc", 0, &n, NULL, NULL, 0, &visible));
    assert_int_equal(visible, 3);
}

static void logprobs_are_normalized_and_sorted(void **state)
{
    (void)state;
    const float logits[] = {1, 3, 2, 3, -INFINITY, 0};
    struct hcache_logprob lp[7];
    ticket_logprobs(logits, 6, 2, 6, lp);
    const int32_t order[] = {2, 1, 3, 2, 0, 5, 4};
    double sum = 0;
    for (int i = 0; i < 7; i++)
        assert_int_equal(lp[i].id, order[i]);
    for (int i = 1; i < 7; i++)
        sum += exp((double)lp[i].logprob);
    assert_true(fabs(sum - 1) < 1e-6);
    assert_true(lp[0].logprob == lp[3].logprob);
    ticket_logprobs(logits, 6, 0, 0, lp);
    assert_int_equal(lp[0].id, 0);
}

static void a_small_vocabulary_leaves_places_empty(void **state)
{
    (void)state;
    const float logits[] = {0, 1};
    struct hcache_logprob lp[5];
    ticket_logprobs(logits, 2, 0, 4, lp);
    assert_int_equal(lp[1].id, 1);
    assert_int_equal(lp[2].id, 0);
    assert_int_equal(lp[3].id, -1);
    assert_int_equal(lp[4].id, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_strings_end_the_text),
        cmocka_unit_test(the_earliest_of_several_stops),
        cmocka_unit_test(no_stops_show_everything),
        cmocka_unit_test(logprobs_are_normalized_and_sorted),
        cmocka_unit_test(a_small_vocabulary_leaves_places_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
