#!/usr/bin/env bash
# sqlite-vec 0.1.9 with SQLite 3.40.1 (seen on 1 December 2026).
#
# A row that is refused is stored. An INSERT into a vec0 table whose metadata column of type text gets
# NULL raises an error, as it should; but the row is there afterwards, with its vector and an empty text:
# later searches have it. And a zero vector that was stored first is the nearest neighbour of everything:
# its cosine distance is NULL, and one that is stored later does not take its place, not even the
# vector that was asked for, at distance 0. An embedding that failed and was stored as zeros hides the
# answer of a search for one row.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
/usr/bin/python3 -m venv "$dir/v" # a python whose SQLite loads extensions
"$dir/v/bin/pip" install -q sqlite-vec==0.1.9
"$dir/v/bin/python" - <<'PY'
import sqlite3

import sqlite_vec

db = sqlite3.connect(":memory:")
db.enable_load_extension(True)
sqlite_vec.load(db)
db.execute("create virtual table v using vec0(e float[2] distance_metric=cosine, label text)")
db.execute("insert into v(e, label) values ('[1,0]', 'a')")
try:
    db.execute("insert into v(e, label) values ('[1,1]', null)")
    raise SystemExit("changed")
except sqlite3.OperationalError as e:
    print("refused:", e)
rows = db.execute("select rowid, label, vec_to_json(e) from v").fetchall()
print("stored all the same:", rows)
assert rows == [(1, "a", "[1.000000,0.000000]"), (2, "", "[1.000000,1.000000]")], "changed"
db.execute("insert into v(e, label) values ('[0,0]', 'zeros')")
db.execute("create virtual table z using vec0(e float[2] distance_metric=cosine)")
for text in "[0,0]", "[1,0]", "[0,0]":
    db.execute("insert into z(e) values (?)", (text,))
for k in 1, 3:
    found = db.execute("select vec_to_json(e), distance from z where e match '[1,0]' and k = ?", (k,)).fetchall()
    print(f"the {k} nearest to [1,0]:", found)
    assert found[0] == ("[0.000000,0.000000]", None), "changed"
PY
