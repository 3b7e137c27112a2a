#!/usr/bin/env bash
# qdrant-client 1.20.0 (seen on 1 December 2026).
#
# The client's local mode (QdrantClient(":memory:") or path=...) accepts the datatypes uint8 and
# float16 of a collection, and get_collection names them. The mode keeps f32 all the same: 300 and
# -5 stay in a collection of uint8, and 70000, which no float16 is, in one of float16. Scores and
# the order of neighbours differ from those of numbers of that type. A quantization_config is
# dropped: the collection then says that it has none. Nothing warns. Tests against the local mode
# therefore say nothing about what these types lose.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q qdrant-client==1.20.0
"$dir/v/bin/python" -W error::UserWarning - <<'PY'
from qdrant_client import QdrantClient, models as m

client = QdrantClient(":memory:")


def kept(name, datatype, numbers):
    binary = m.BinaryQuantization(binary=m.BinaryQuantizationConfig())
    vectors = m.VectorParams(size=2, distance=m.Distance.DOT, datatype=datatype)
    client.create_collection(name, vectors, quantization_config=binary)
    client.upsert(name, [m.PointStruct(id=i, vector=[x, 0]) for i, x in enumerate(numbers)])
    config = client.get_collection(name).config
    assert config.quantization_config is None, "changed"
    out = [p.vector[0] for p in client.retrieve(name, range(len(numbers)), with_vectors=True)]
    best = client.query_points(name, query=[1.0, 0.0], limit=1).points[0]
    said = config.params.vectors.datatype.value
    print(f"{name}: {numbers} became {out}; it says {said}; the best score is {best.score}")
    return out


assert kept("small", m.Datatype.UINT8, [7.0, 300.0, -5.0]) == [7, 300, -5], "changed"
assert kept("half", m.Datatype.FLOAT16, [1.0, 70000.0]) == [1, 70000], "changed"
PY
