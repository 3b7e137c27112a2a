/* store_key.c - see store_key.h. */
#include "apps/store_key.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"

int store_key_read(const char *from, uint8_t out[HCACHE_STORE_KEY_BYTES], struct err *err)
{
    bool in_env = strcmp(from, "env") == 0;
    const char *text = getenv(STORE_KEY_VARIABLE);
    char *file = NULL;
    struct sha256 key;
    struct stat st;
    size_t n = text != NULL ? strlen(text) : 0;
    int rc = in_env ? 0 : file_read(from, 4096, &file, &n, err);
    if (rc != 0)
        return rc;
    if (!in_env)
        text = file;
    if (!in_env && stat(from, &st) == 0 && (st.st_mode & (S_IRGRP | S_IROTH)) != 0)
        log_warn("--store-key: other users can read the key in %s (chmod 600)", from);
    bool is_key = text != NULL && sha256_parse(text, &key);
    if (!is_key || SHA256_HEX + strspn(text + SHA256_HEX, "\r\n") != n)
        rc = err_set(
            err, ERR_USAGE,
            "--store-key: %s must hold %d lower-case hexadecimal digits and nothing "
            "else, as openssl rand -hex 32 prints them",
            in_env ? STORE_KEY_VARIABLE : from, SHA256_HEX);
    else
        memcpy(out, key.b, sizeof key.b);
    explicit_bzero(&key, sizeof key);
    if (file != NULL)
        explicit_bzero(file, n);
    free(file);
    return rc;
}
