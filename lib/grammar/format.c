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
/* RFC 5890: names that are valid and in their normal form without a look at other characters.
 * Letters of one of these groups, ASCII and single hyphens make a label; with so few of them its
 * form in ASCII has at most 63 characters.  Names with Hebrew or Arabic have letters alone
 * (RFC 5893). */
#define LATIN                                                                              \
    "\\u00DF-\\u00F6\\u00F8-\\u00FF\\u0101\\u0103\\u0105\\u0107\\u0109\\u010B"             \
    "\\u010D\\u010F\\u0111\\u0113\\u0115\\u0117\\u0119\\u011B\\u011D\\u011F"               \
    "\\u0121\\u0123\\u0125\\u0127\\u0129\\u012B\\u012D\\u012F\\u0131\\u0135"               \
    "\\u0137\\u0138\\u013A\\u013C\\u013E\\u0142\\u0144\\u0146\\u0148\\u014B"               \
    "\\u014D\\u014F\\u0151\\u0153\\u0155\\u0157\\u0159\\u015B\\u015D\\u015F"               \
    "\\u0161\\u0163\\u0165\\u0167\\u0169\\u016B\\u016D\\u016F\\u0171\\u0173"               \
    "\\u0175\\u0177\\u017A\\u017C\\u017E"
#define GREEK_CYRILLIC "\\u03AC-\\u03CE\\u0430-\\u045F"
#define EAST_ASIAN     "\\u3041-\\u3096\\u30A1-\\u30FA\\u4E00-\\u9FEF\\uAC00-\\uD7A3"
#define WORD(C, n)     "[a-z0-9" C "](-?[a-z0-9" C "]){0," n "}"
#define IDN_LABEL                                                                          \
    "(" WORD(LATIN GREEK_CYRILLIC, "17") "|" WORD(EAST_ASIAN, "8") "|" WORD("A-Z", "29") ")"
#define RTL_LABEL "([\\u05D0-\\u05EA]{1,12}|[\\u0621-\\u063F\\u0641-\\u064A]{1,12})"
#define IDN_HOST                                                                           \
    "(" IDN_LABEL "(\\." IDN_LABEL "){0,3}|([a-z]{1,30}\\.)?" RTL_LABEL "(\\.(" RTL_LABEL  \
    "|[a-z]{1,30})){0,3})"
#define ATOM_OF(U) "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~" U "-]+"
#define MAIL_IP    "\\[(" IPV4 "|IPv6:" IPV6 ")\\]"
/* RFC 5321, and RFC 6531 with the characters U beyond ASCII */
#define LOCAL(U) "(" ATOM_OF(U) "(\\." ATOM_OF(U) ")*|\"([ !#-\\[\\]-~]|\\\\[ -~])*\")"
#define PCT      "%[0-9a-fA-F]{2}"
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

const char *schema_format(const char *name)
{
    static const struct {
        const char *name, *regex;
    } formats[] = {
        {"date-time", DATE "[Tt]" TIME},
        {"date", DATE},
        {"time", TIME},
        {"duration", DURATION},
        {"email", LOCAL("") "@(" HOST "|" MAIL_IP ")"},
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
        {"idn-email", LOCAL(UCS) "@(" IDN_HOST "|" MAIL_IP ")"},
        {"idn-hostname", IDN_HOST},
        {"regex", RX_ANY(RX_GROUP(RX_GROUP(RX_TERM)))},
    };
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0)
            return formats[i].regex;
    return NULL; /* a format that the standard does not define is an annotation */
}
