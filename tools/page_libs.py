"""Writes the page's kept libraries, src/server/page/highlight.js and katex.js, from the packages of Debian 12.

    apt-get download libjs-highlight.js libjs-katex, dpkg -x each into DIR; then python3 tools/page_libs.py DIR

Of highlight.js it takes the core and the languages below. Each file begins with its licence."""
import re
import sys

LANGUAGES = ("bash cmake cpp cs css dart diff dockerfile elixir go haskell http ini java javascript json julia kotlin lua makefile "
             "markdown nix objectivec perl php powershell properties python r ruby rust scala scss shell sql swift typescript xml "
             "yaml").split()


def licence(dir, package, name):
    """Returns the text of a licence in the package's copyright file, as a comment."""
    text = open(f"{dir}/usr/share/doc/{package}/copyright", encoding="utf-8").read()
    who = re.search(r"^Files: \*\nCopyright: ((?:.+\n)(?: .+\n)*)", text, re.M)[1]
    body = re.search(rf"^License: {name}\n((?: .*\n)+)", text, re.M)[1]
    lines = ["Copyright: " + " ".join(who.split()), ""] + [re.sub(r"^\.$", "", x.strip()) for x in body.splitlines()]
    return lines


def write(out, head, version, code):
    with open(f"src/server/page/{out}", "w", encoding="utf-8") as f:
        f.write("/*! " + version + "\n" + "".join((" * " + x).rstrip() + "\n" for x in head) + " */\n" + code.strip() + "\n")


d = sys.argv[1]
parts = re.split(r'(?=hljs\.registerLanguage\(")', open(f"{d}/usr/share/javascript/highlight.js/highlight.min.js", encoding="utf-8").read())
of = {re.match(r'hljs\.registerLanguage\("([^"]+)"', p)[1]: p for p in parts[1:]}
write("highlight.js", licence(d, "libjs-highlight.js", "BSD-3-clause"), "highlight.js 9.18.5, some of its languages",
      parts[0] + "\n" + "\n".join(of[name].rstrip().rstrip(";") + ";" for name in LANGUAGES))
write("katex.js", licence(d, "libjs-katex", "Expat"), "KaTeX 0.16.4",
      open(f"{d}/usr/share/javascript/katex/katex.min.js", encoding="utf-8").read())
