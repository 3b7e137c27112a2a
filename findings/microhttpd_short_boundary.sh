#!/usr/bin/env bash
# libmicrohttpd 0.9.75 (Debian 12), its post processor for multipart/form-data (seen on 30 November
# 2026).
#
# RFC 2046 allows boundaries of 1 to 70 characters. The post processor takes no form whose boundary
# has one character: MHD_post_process returns MHD_NO at the first call, and no field arrives. The
# same form with a boundary of two characters is read whole. A client that counts its boundaries from
# 0 up works from the eleventh form on.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
version=0.9.75-6
apt-get download -qq "libmicrohttpd-dev=$version" "libmicrohttpd12=$version"
for p in *.deb; do dpkg -x "$p" .; done
cat >x.c <<'C'
#include <microhttpd.h>
#include <stdio.h>
#include <string.h>

struct form {
    struct MHD_PostProcessor *p;
    char fields[256];
    int whole;
};

static enum MHD_Result field(void *arg, enum MHD_ValueKind kind, const char *key, const char *file, const char *type,
                             const char *encoding, const char *data, uint64_t at, size_t n)
{
    struct form *f = arg;
    (void)kind, (void)file, (void)type, (void)encoding, (void)at;
    snprintf(f->fields + strlen(f->fields), sizeof f->fields - strlen(f->fields), "%s=%.*s ", key, (int)n, data);
    return MHD_YES;
}

static struct form form;

static enum MHD_Result answer(void *arg, struct MHD_Connection *c, const char *url, const char *method,
                              const char *version, const char *data, size_t *n, void **state)
{
    (void)arg, (void)url, (void)method, (void)version;
    if (*state == NULL) {
        memset(&form, 0, sizeof form);
        form.p = MHD_create_post_processor(c, 4096, field, &form);
        form.whole = form.p != NULL;
        *state = &form;
        return MHD_YES;
    }
    if (*n > 0) {
        form.whole = form.whole && MHD_post_process(form.p, data, *n) == MHD_YES;
        *n = 0;
        return MHD_YES;
    }
    if (form.p != NULL)
        MHD_destroy_post_processor(form.p);
    char text[300];
    snprintf(text, sizeof text, "%s: %s", form.whole ? "whole" : "refused", form.fields);
    struct MHD_Response *r = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_COPY);
    enum MHD_Result done = MHD_queue_response(c, 200, r);
    MHD_destroy_response(r);
    return done;
}

int main(void)
{
    struct MHD_Daemon *d = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD, 0, NULL, NULL, answer, NULL, MHD_OPTION_END);
    printf("%u\n", MHD_get_daemon_info(d, MHD_DAEMON_INFO_BIND_PORT)->port);
    fflush(stdout);
    getchar();
    MHD_stop_daemon(d);
    return 0;
}
C
cc -Iusr/include -o x x.c usr/lib/x86_64-linux-gnu/libmicrohttpd.so.12
cat >ask.py <<'P'
import http.client, subprocess, sys
p = subprocess.Popen(["./x"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
port = int(p.stdout.readline())
want = {"0": "refused: ", "9": "refused: ", "10": "whole: a=1 b=2 ", "x" * 70: "whole: a=1 b=2 "}
bad = 0
for b, expected in want.items():
    parts = "".join(f'--{b}\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in (("a", 1), ("b", 2)))
    c = http.client.HTTPConnection("127.0.0.1", port)
    c.request("POST", "/", f"{parts}--{b}--\r\n", {"Content-Type": f"multipart/form-data; boundary={b}"})
    got = c.getresponse().read().decode()
    print(f"boundary {b[:10]} ({len(b)} characters): {got}")
    bad |= got != expected
p.communicate("\n")
sys.exit("changed" if bad else 0)
P
LD_LIBRARY_PATH=$PWD/usr/lib/x86_64-linux-gnu python3 ask.py
