/* page.c - the built-in page at "/": the files of src/server/page, as they are, inside the program.
 *
 * They hold nothing of anybody, so they need no key; what the page then asks for does. */
#include "server/call.h"

/* The assembler puts a file between two symbols, with a zero behind it.  (The Makefile tells make of
 * the dependency, and where the files are.) */
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
EMBED(lanes, "lanes.js");
EMBED(js, "page.js");

void api_page(struct call *c)
{
    call_text(c, 200, "text/html; charset=utf-8", page_html);
}

void api_page_css(struct call *c)
{
    call_text(c, 200, "text/css; charset=utf-8", page_css);
}

void api_page_lanes(struct call *c)
{
    call_text(c, 200, "text/javascript; charset=utf-8", page_lanes);
}

void api_page_js(struct call *c)
{
    call_text(c, 200, "text/javascript; charset=utf-8", page_js);
}
