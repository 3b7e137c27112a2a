"""The goals of the kernels, checked against a CSV of `hcache bench kernels --csv FILE`.

  kernel_goals.py FILE.csv ...

For each goal the worst row is shown twice: by the best repetitions of both sides (limits are the
best ones, too), and by the median repetitions. A goal is "met" if both meet it. The number of rows
that meet it is counted by the best repetitions."""
import csv
import re
import sys

PLAIN = ("matmul bf16", "matmul f16", "matmul f32")


def size(shape):
    """Returns m, n and k of a product's shape, as in "m16 n4096 k4096"."""
    return tuple(int(re.search(letter + r"(\d+)", shape)[1]) for letter in "mnk")


class Bench:
    """The rows of one file: (kernel, shape, threads) -> speeds and share of the limit."""

    def __init__(self, path):
        with open(path) as file:
            rows = list(csv.DictReader(file))
        self.isa = rows[0]["isa"]
        self.rows = {(r["kernel"].strip(), r["shape"], int(r["threads"])): r for r in rows}

    def of(self, kernels, wanted=lambda shape: True):
        """kernels: a tuple of names, or the beginning of names."""
        whole = isinstance(kernels, tuple)
        return [key for key in self.rows
                if (key[0] in kernels if whole else key[0].startswith(kernels)) and wanted(key[1])]

    def speed(self, key, how):
        return float(self.rows[key][how])

    def share(self, key, how):
        return float(self.rows[key]["share"]) * self.speed(key, how) / self.speed(key, "max")

    def of_row(self, key, kernel, shape, threads, how):
        """Returns the row's speed divided by that of another row, or None if there is no such row."""
        other = (kernel or key[0], shape or key[1], threads or key[2])
        return self.speed(key, how) / self.speed(other, how) if other in self.rows else None

    def of_blas(self, key, how):
        return self.of_row(key, "OpenBLAS f32", None, None, how)

    def of_one_thread(self, key, how):
        return self.of_row(key, None, None, 1, how) if key[2] == 2 else None

    def of_one_row(self, key, how):
        """Returns the time of m = 4 over that of m = 1."""
        ratio = self.of_row(key, None, key[1].replace("m4 ", "m1 "), None, how)
        return 1 / ratio if ratio else None

    def attention_in_layer(self, key, how):
        """Returns the share of attention in the time of a layer of bench-220m over 4096 tokens."""
        products = self.of(("matmul bf16",), lambda shape: shape.startswith("m4096 "))
        seconds = sum(2 * m * n * k / self.speed(p, how)
                      for p in products if p[2] == key[2] for m, n, k in [size(p[1])])
        attention = 4 * 16 * 64 * 4096 * 4097 / 2 / self.speed(key, how)
        return attention / (attention + seconds) if seconds else None


def rows_from(low, high=1 << 20):
    return lambda shape: low <= size(shape)[0] <= high


# name, goal (a negative goal is an upper bound), kernels, shapes, function that measures it
GOALS = (
    ("m = 1, bf16 and q8: of reading memory", 0.95, ("matmul bf16", "matmul q8"), rows_from(1, 1), Bench.share),
    ("m = 4: time over that of m = 1", -1.3, "matmul", rows_from(4, 4), Bench.of_one_row),
    ("m = 8: of the roofline", 0.7, PLAIN, rows_from(8, 8), Bench.share),
    ("m = 16: of the roofline", 0.7, PLAIN, rows_from(16, 16), Bench.share),
    ("m = 16: of OpenBLAS", 1.5, ("matmul bf16",), rows_from(16, 16), Bench.of_blas),
    ("m >= 64: of OpenBLAS", 0.97, ("matmul bf16",), rows_from(64), Bench.of_blas),
    ("m >= 256: of the FMA peak", 0.88, PLAIN, rows_from(256), Bench.share),
    ("m >= 64: two threads over one", 1.8, PLAIN, rows_from(64), Bench.of_one_thread),
    ("attention, prefill: of a layer's time", -0.35, "attention", lambda s: s.endswith("p0+4096"),
     Bench.attention_in_layer),
    ("attention, decode: of reading memory", 0.8, "attention decode", lambda s: True, Bench.share),
)


def line(bench, what, goal, kernels, wanted, measure):
    sign = 1 if goal > 0 else -1
    seen = [(sign * best, sign * measure(bench, key, "median"), key) for key in bench.of(kernels, wanted)
            if (best := measure(bench, key, "max")) is not None]
    if not seen:
        return f"{bench.isa:8} {what:40} {abs(goal):5.2f}  not measured"
    best, _, (kernel, shape, threads) = min(seen)
    median = min(row[1] for row in seen)
    verdict = "met" if median >= goal else "met, not by the median" if best >= goal else "missed"
    n_met = sum(row[0] >= goal for row in seen)
    return (f"{bench.isa:8} {what:40} {abs(goal):5.2f}  {abs(best):5.2f} {abs(median):6.2f}  {verdict}, {n_met} of "
            f"{len(seen)} rows (worst: {kernel} {shape}, {threads} t)")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print(f"{'isa':8} {'what':40} {'goal':>5}  {'best':>5} {'median':>6}")
    for path in sys.argv[1:]:
        for goal in GOALS:
            print(line(Bench(path), *goal))
