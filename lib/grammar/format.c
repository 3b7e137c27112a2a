/* format.c - the formats of JSON schemas as regular expressions of the whole text. */
#include <string.h>

#include "grammar/schema.h"

/* RFC 3339; a day exists in its month, and 29 February in leap years only.  A leap second is taken
 * at 23:59:60Z. */
#define DATE                                                                               \
    "(([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|" \
    "30)|"                                                                                 \
    "02-(0[1-9]|1[0-9]|2[0-8])))|([0-9]{2}(0[48]|[2468][048]|[13579][26])|"                \
    "([02468][048]|[13579][26])00)-02-29)"
#define TIME                                                                               \
    "(([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]+)?([Zz]|[+-]([01][0-9]|2[0-3])"    \
    ":[0-5][0-9])|23:59:60(\\.[0-9]+)?[Zz])"
#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4  OCTET "(\\." OCTET "){3}"
#define H16   "[0-9a-fA-F]{1,4}"
#define LS32  "(" H16 ":" H16 "|" IPV4 ")"
/* RFC 3986, IPv6address */
#define IPV6                                                                               \
    "((" H16 ":){6}" LS32 "|::(" H16 ":){5}" LS32 "|(" H16 ")?::(" H16 ":){4}" LS32        \
    "|((" H16 ":){0,1}" H16 ")?::(" H16 ":){3}" LS32 "|((" H16 ":){0,2}" H16 ")?::(" H16   \
    ":){2}" LS32 "|((" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|((" H16 ":){0,4}" H16       \
    ")?::" LS32 "|((" H16 ":){0,5}" H16 ")?::" H16 "|((" H16 ":){0,6}" H16 ")?::)"
/* RFC 1123. A name has at most 253 characters: up to four labels may have 63 of them (the last of
 * four 61), up to seven 35, up to fifteen 15. */
#define LABEL(n) "[a-zA-Z0-9]([a-zA-Z0-9-]{0," n "}[a-zA-Z0-9])?"
#define HOST                                                                               \
    "(" LABEL("61") "(\\." LABEL("61") "){0,2}(\\." LABEL("59") ")?|" LABEL(               \
        "33") "(\\." LABEL("33") "){4,6}|" LABEL("13") "(\\." LABEL("13") "){7,14})"
#define ATOM "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
/* RFC 5321 */
#define LOCAL "(" ATOM "(\\." ATOM ")*|\"([ !#-\\[\\]-~]|\\\\[ -~])*\")"
#define PCT   "%[0-9a-fA-F]{2}"
/* RFC 3986, and RFC 3987 with the characters U beyond ASCII, P in a query */
#define UCS                                                                                \
    "\\u00A0-\\uD7FF\\uF900-\\uFDCF\\uFDF0-\\uFFEF\\u{10000}-\\u{1FFFD}\\u{20000}-\\u{"    \
    "2FFFD}"                                                                               \
    "\\u{30000}-\\u{3FFFD}\\u{40000}-\\u{4FFFD}\\u{50000}-\\u{5FFFD}\\u{60000}-\\u{6FFFD}" \
    "\\u{70000}-\\u{7FFFD}\\u{80000}-\\u{8FFFD}\\u{90000}-\\u{9FFFD}\\u{A0000}-\\u{AFFFD}" \
    "\\u{B0000}-\\u{BFFFD}\\u{C0000}-\\u{CFFFD}\\u{D0000}-\\u{DFFFD}\\u{E1000}-\\u{EFFFD}"
#define PRIVATE  "\\uE000-\\uF8FF\\u{F0000}-\\u{FFFFD}\\u{100000}-\\u{10FFFD}"
#define PCHAR(U) "([a-zA-Z0-9._~!$&'()*+,;=:@" U "-]|" PCT ")"
#define AUTHORITY(U)                                                                       \
    "(([a-zA-Z0-9._~!$&'()*+,;=:" U "-]|" PCT ")*@)?(\\[(" IPV6                            \
    "|[vV][0-9a-fA-F]+\\.[a-zA-Z0-9._~!$&'()*+,;=:-]+)\\]|([a-zA-Z0-9._~!$&'()*+,;=" U     \
    "-]|" PCT ")*)(:[0-9]*)?"
#define SLASHES(U) "(/" PCHAR(U) "*)*"
#define TAIL(U, P) "(\\?(" PCHAR(U) "|[/?" P "])*)?(#(" PCHAR(U) "|[/?])*)?"
#define FULL(U, P)                                                                         \
    "[a-zA-Z][a-zA-Z0-9+.-]*:(//" AUTHORITY(U) SLASHES(U) "|/(" PCHAR(U) "+" SLASHES(      \
        U) ")?|" PCHAR(U) "+" SLASHES(U) "|)" TAIL(U, P)
#define RELATIVE(U, P)                                                                     \
    "(//" AUTHORITY(U)                                                                     \
        SLASHES(U) "|/(" PCHAR(U) "+" SLASHES(U) ")?|([a-zA-Z0-9._~!$&'()*+,;=@" U         \
                                                 "-]|" PCT ")+" SLASHES(U) "|)" TAIL(U, P)
/* RFC 6570 */
#define VARNAME "([a-zA-Z0-9_]|" PCT ")(\\.?([a-zA-Z0-9_]|" PCT "))*"
#define VARSPEC VARNAME "(:[1-9][0-9]{0,3}|\\*)?"
#define TEMPLATE                                                                           \
    "([!#$&(-;=?-\\[\\]_a-z~" UCS PRIVATE "]|" PCT "|\\{[+#./;?&=,!@|]?" VARSPEC           \
    "(," VARSPEC ")*\\})*"
/* RFC 3339, appendix A */
#define DURATION                                                                           \
    "P([0-9]+W|([0-9]+D|[0-9]+M([0-9]+D)?|[0-9]+Y([0-9]+M([0-9]+D)?)?)(T([0-9]+H([0-9]+M(" \
    "[0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))?|T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M("      \
    "[0-9]+S)?|[0-9]+S))"

/* Expressions that ECMA-262 (flag u) and other engines take: groups and looks ahead two deep, and
 * neither names, nor back references, nor properties of Unicode. A range is one of those below. */
#define RX_ESCAPE                                                                          \
    "\\\\([dDwWsSfnrtv^$\\\\.*+?()\\[\\]{}|/]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})"
#define RX_ITEM   "(0-9|a-z|A-Z|a-f|A-F|[^\\\\\\[\\]^-]|" RX_ESCAPE "|\\\\-)"
#define RX_CLASS  "\\[\\^?(" RX_ITEM "+-?|-)\\]"
#define RX_ATOM   "([^\\\\^$*+?()\\[\\]{}|]|" RX_ESCAPE "|" RX_CLASS ")"
#define RX_COUNT  "(([*+?]|\\{([0-9]{1,3},?|[0-9],[1-9][0-9]{1,2})\\})[?]?)?"
#define RX_TERM   RX_ATOM RX_COUNT "|\\^|\\$|\\\\[bB]"
#define RX_ANY(T) "(" T "|\\|)*"
#define RX_GROUP(T)                                                                        \
    RX_TERM "|\\((\\?:)?" RX_ANY(T) "\\)" RX_COUNT "|\\(\\?[=!]" RX_ANY(T) "\\)"

const char *schema_format(struct schema *c, const char *name)
{
    static const struct {
        const char *name, *regex; /* regex NULL: cannot be enforced */
    } formats[] = {
        {"date-time", DATE "[Tt]" TIME},
        {"date", DATE},
        {"time", TIME},
        {"duration", DURATION},
        {"email", LOCAL "@(" HOST "|\\[(" IPV4 "|IPv6:" IPV6 ")\\])"},
        {"hostname", HOST},
        {"ipv4", IPV4},
        {"ipv6", IPV6},
        {"uri", FULL("", "")},
        {"uri-reference", "(" FULL("", "") "|" RELATIVE("", "") ")"},
        {"iri", FULL(UCS, PRIVATE)},
        {"iri-reference", "(" FULL(UCS, PRIVATE) "|" RELATIVE(UCS, PRIVATE) ")"},
        {"uri-template", TEMPLATE},
        {"uuid", "[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"},
        {"json-pointer", "(/([^/~]|~[01])*)*"},
        {"relative-json-pointer", "(0|[1-9][0-9]*)(#|(/([^/~]|~[01])*)*)"},
        {"idn-email", NULL},
        {"idn-hostname", NULL},
        {"regex", RX_ANY(RX_GROUP(RX_GROUP(RX_TERM)))},
    };
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (strcmp(formats[i].name, name) != 0)
            continue;
        if (formats[i].regex == NULL)
            schema_refuse(c, "format");
        return formats[i].regex;
    }
    return NULL; /* a format that the standard does not define is an annotation */
}
