/* schema.h - JSON schemas to graphs; private to lib/grammar.
 *
 *     want     a schema that a value must match, or must not match
 *     goal     a set of wants: all of them hold for one value
 *     spec     what a value may be: its types, and bounds for each type.  Keywords of several wants
 *              are merged into one spec; anyOf and the like make a list of specs, of which a value
 *              matches at least one
 *
 * schema_expand turns a goal into specs, schema_emit a goal into a rule of the graph: one rule for
 * each different goal, so recursion of schemas becomes recursion of rules.
 *
 * All memory is the build's. What cannot be enforced goes through schema_refuse. */
#ifndef GRAMMAR_SCHEMA_H
#define GRAMMAR_SCHEMA_H

#include "base/json.h"
#include "grammar/dfa.h"
#include "grammar/numeral.h"

struct textbuf;

/* A part of a document that has its own address ("$id"), against which references are resolved. */
struct resource {
    const char *uri; /* "" if the document has none */
    const struct json *root;
};

struct want {
    const struct json *schema; /* an object or a boolean; NULL: nothing matches */
    const struct resource *base;
    bool negated;
};

struct goal {
    struct want *at;
    uint32_t n, cap;
};

enum {
    TYPE_NULL = 1,
    TYPE_BOOL = 2,
    TYPE_NUMBER = 4,
    TYPE_STRING = 8,
    TYPE_ARRAY = 16,
    TYPE_OBJECT = 32,
    TYPE_ALL = 63,
};

/* properties, patternProperties and additionalProperties of one schema object. */
struct object_part {
    const struct object_part *next;           /* the part before it */
    const struct json *properties, *patterns; /* objects of schemas, or NULL */
    const struct want *additional;            /* NULL: anything */
    const struct resource *base;
    const struct want *only_name; /* one key and its schema, instead of properties */
    const char *name;
    bool
        evaluates_all; /* of unevaluatedProperties: its keys are those of the parts before `end` */
    const struct object_part *end;
};

struct array_part {
    const struct array_part *next;
    const struct json *prefix; /* array of schemas, or NULL */
    const struct want *rest;   /* NULL: anything */
    const struct resource *base;
    const struct want
        *only_item; /* of the element `at` alone, instead of prefix and rest */
    uint32_t at;
};

struct text_list {
    const struct text_list *next;
    const char *text;
};

struct dfa_list {
    const struct dfa_list *next;
    const struct dfa *dfa;
};

struct want_list {
    const struct want_list *next;
    struct want want;
    int64_t min, max; /* of contains: numbers of elements; max -1: no bound */
};

struct value_list {
    const struct value_list *next;
    const struct json *value;
};

struct spec {
    struct spec *next; /* of the list of alternatives */
    unsigned types;
    struct number_set number;
    int32_t min_length, max_length; /* of strings; REPEAT_ENDLESS: no bound */
    const struct dfa_list *texts;   /* sets of strings; the string is in all */
    const struct array_part *arrays;
    int32_t min_items, max_items;
    bool unique_items;
    const struct want_list *contains;
    const struct object_part *objects;
    const struct text_list *required;
    int32_t min_properties, max_properties;
    const struct want_list *names; /* schemas of all keys */
    bool has_values;               /* only `values` */
    const struct value_list *values;
    const struct value_list *excluded; /* numbers and strings that are left out */
};

struct anchor {
    const struct anchor *next;
    const struct resource *base;
    const char *name;
    const struct json *schema;
    bool dynamic;
};

struct pattern {
    struct pattern *next;
    const char *text;
    size_t n;
    bool whole, counted;
    const struct dfa *dfa;
    int32_t min, max; /* counted: lengths besides */
};

/* The DFA of a spec's strings, made once for what decides it. */
struct strings {
    struct strings *next;
    const struct dfa_list *texts;
    const struct value_list *excluded;
    int32_t min, max;
    const struct dfa *dfa;
    const struct dfa_lengths
        *lengths; /* NULL: the DFA alone decides; else also min and max */
};

/* A DFA in the graph: as characters of a JSON string. */
struct embedded {
    struct embedded *next;
    const struct dfa *dfa;
    int32_t min, max;
    uint32_t rule;
};

/* All keys but some. */
struct other_keys {
    struct other_keys *next;
    const char *const *names;
    uint32_t n;
    const struct dfa *dfa;
};

struct made_rule {
    struct made_rule *next; /* with the same hash */
    struct goal goal;
    bool plain;
    uint32_t rule;
};

struct schema {
    struct build *b;
    struct textbuf *loose; /* NULL: what cannot be enforced is refused */
    int draft;             /* 4, 6, 7, 2019, 2020 */
    struct resource *resources[1024];
    uint32_t n_resources;
    const struct anchor *anchors;
    int depth;           /* of expansions */
    uint32_t n_branches; /* counts anyOf, if and the like that were applied */
    struct made_rule **rules, *rules_by_hash[256];
    uint32_t n_rules, cap_rules, n_emitted;
    uint32_t number_rules[4]; /* of any number and any integer: rule + 1; 0: not made yet */
    bool plain; /* the rule that is made has one spelling for each value, but for blanks */
    struct pattern *patterns; /* DFAs that were made */
    struct strings *strings;
    struct embedded *embedded;
    struct other_keys *other_keys;
    /* the last set of propertyNames and the DFA of its keys */
    const struct want_list *names;
    const struct dfa *names_dfa;
};

/* Refuses a keyword, or notes its name if the schema is taken loosely. */
void schema_refuse(struct schema *c, const char *what);

/* Finds the schema of a reference. Does not return if there is none. */
struct want schema_resolve(struct schema *c, const struct resource *base, const char *ref);
/* Returns the resource that begins at this schema, or base. */
const struct resource *schema_base(const struct schema *c, const struct json *schema,
                                   const struct resource *base);

/* Adds a want to a goal, unless it is there. */
void goal_add(struct schema *c, struct goal *g, struct want w);

/* Returns the alternatives of a goal. NULL: no value matches. */
struct spec *schema_expand(struct schema *c, const struct goal *g);
/* Returns false if it is certain that no value matches the spec; looks `depth` levels deep. */
bool spec_is_possible(struct schema *c, const struct spec *s, int depth);
/* Returns whether a value matches. */
bool schema_fits(struct schema *c, const struct goal *g, const struct json *value);
/* The same for one spec, without regard to its values. */
bool spec_fits(struct schema *c, const struct spec *s, const struct json *value);
/* Returns whether two values are equal as JSON schemas mean it: 1 and 1.0 are. */
bool schema_values_equal(struct schema *c, const struct json *a, const struct json *b);

/* Returns the goal of the value of an object's key, and of an array's element. */
struct goal spec_property(struct schema *c, const struct spec *s, const char *name);
struct goal spec_item(struct schema *c, const struct spec *s, uint32_t i);
uint32_t spec_prefix_items(const struct spec *s);
/* Returns the properties of a part that allows no others, or NULL. */
const struct json *spec_all_keys(const struct spec *s);
/* Returns the strings that a spec allows, or NULL if only lengths bound them. Their DFA is empty if
 * there is none. */
const struct strings *spec_strings(struct schema *c, const struct spec *s);
/* Returns the DFA of the keys that propertyNames allows, or NULL for all. */
const struct dfa *spec_names(struct schema *c, const struct spec *s);
/* Returns the DFA of a pattern, which is made once. */
const struct dfa *schema_pattern(struct schema *c, const char *text, size_t n, bool whole);
/* The same where its lengths may be apart: see dfa_of_counted. */
const struct pattern *schema_counted_pattern(struct schema *c, const char *text, size_t n);
/* Returns whether a key matches one of patternProperties; NULL: none. */
bool schema_matches_pattern(struct schema *c, const struct json *patterns,
                            const char *name);
bool goal_is_possible(struct schema *c, const struct goal *g, int depth);

/* Returns how many values match, in the spelling of unique items; DFA_MANY: that many or more; -1:
 * not known. depth: of the goal in the one that is counted. */
int64_t goal_count(struct schema *c, const struct goal *g, int depth);

/* Returns the rule whose texts are the goal's values. plain: each value has one spelling, but for
 * blanks. Its nodes are made by schema_emit_all. */
uint32_t schema_rule(struct schema *c, const struct goal *g, bool plain);
void schema_emit_all(struct schema *c);

/* Returns the regular expression of a format; NULL: it is an annotation. */
const char *schema_format(const char *name);

#endif
