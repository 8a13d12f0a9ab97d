#!/usr/bin/env bash
# Builds the wheel twice from the source distribution, in folders with other names, and compares the bytes. On a
# difference it prints the files of the wheel that differ.
set -euo pipefail
cd "$(dirname "$0")/.."
builds=$(mktemp -d)
trap 'rm -rf "$builds"' EXIT
for build in first the-second-one; do
    mkdir -p "$builds/$build/tmp" "$builds/$build/dist"
    # A compiler cache would return the first build's objects.
    CCACHE_DISABLE=1 TMPDIR="$builds/$build/tmp" make --no-print-directory wheel DIST="$builds/$build/dist"
done
.venv/bin/python - "$builds"/*/dist/*.whl <<'PY'
import sys, zipfile
from pathlib import Path

one, two = map(Path, sys.argv[1:])
assert one.name == two.name, (one, two)
if one.read_bytes() == two.read_bytes():
    print(f"{one.name}: two builds have the same {one.stat().st_size:,} bytes")
    sys.exit()
first, second = ({entry.filename: entry for entry in zipfile.ZipFile(path).infolist()} for path in (one, two))
print(f"{one.name}: two builds differ")
if list(first) != list(second):
    print("  the names of the files, or their order")
for name in first.keys() & second.keys():
    facts = [(e.CRC, e.date_time, e.external_attr) for e in (first[name], second[name])]
    if facts[0] != facts[1]:
        print(f"  {name}: {facts[0]} and {facts[1]} (CRC, time, mode)")
sys.exit(1)
PY
