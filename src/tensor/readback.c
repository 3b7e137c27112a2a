/* readback.c - see readback.h. */
#include "tensor/readback.h"

#include "base/check.h"

int readback_init(struct device *d, size_t bytes, struct readback *out, struct err *err)
{
    *out = (struct readback){.dev = d};
    return d->unified ? 0 : buf_alloc(d, MEM_PINNED, bytes, &out->copy, err);
}

void readback_deinit(struct readback *r)
{
    if (r->dev != NULL)
        buf_free(r->dev, &r->copy);
}

int readback_start(struct readback *r, struct stream *s, const void *dev, size_t bytes,
                   const void **host)
{
    *host = r->dev->unified ? dev : r->copy.ptr;
    if (r->dev->unified)
        return 0;
    CHECK(bytes <= r->copy.bytes);
    return stream_copy(s, r->copy.ptr, dev, bytes);
}
