/* page.c - the built-in page at "/": the files of src/server/page, embedded unchanged. Two are other
 * projects' libraries (tools/page_libs.py).
 *
 * The files hold no user's data, so they need no key. The page's own requests do. */
#include <string.h>

#include "server/call.h"

/* Defines page_NAME: the bytes of the file, and a zero. (The Makefile makes the object depend on
 * the file.) */
#define EMBED(name, file)                                                                  \
    __asm__(".section .rodata\n"                                                           \
            ".globl page_" #name "\n"                                                      \
            "page_" #name ":\n"                                                            \
            ".incbin \"src/server/page/" file "\"\n"                                       \
            ".byte 0\n"                                                                    \
            ".previous\n");                                                                \
    extern const char page_##name[]

EMBED(html, "index.html");
EMBED(css, "page.css");
EMBED(api, "api.js");
EMBED(highlight, "highlight.js");
EMBED(katex, "katex.js");
EMBED(markdown, "markdown.js");
EMBED(lanes, "lanes.js");
EMBED(files, "files.js");
EMBED(talk, "talk.js");
EMBED(js, "page.js");

#define SCRIPT "text/javascript; charset=utf-8"

static const struct {
    const char *path, *type, *text;
} page[] = {
    {"/", "text/html; charset=utf-8", page_html},
    {"/page.css", "text/css; charset=utf-8", page_css},
    {"/api.js", SCRIPT, page_api},
    {"/highlight.js", SCRIPT, page_highlight},
    {"/katex.js", SCRIPT, page_katex},
    {"/markdown.js", SCRIPT, page_markdown},
    {"/lanes.js", SCRIPT, page_lanes},
    {"/files.js", SCRIPT, page_files},
    {"/talk.js", SCRIPT, page_talk},
    {"/page.js", SCRIPT, page_js},
};

void api_page(struct call *c)
{
    size_t i = 0;
    /* The loop ends, because every route that leads here has a file. */
    while (strcmp(page[i].path, c->route->path) != 0)
        i++;
    call_text(c, 200, page[i].type, page[i].text);
}
