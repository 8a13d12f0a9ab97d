"""A set of four functions on the list of built-in ones, general_sets.h. The list is empty so far; here it gets one, as
its header, which gives the same rows as the same set from outside."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from nnue_trainer.data import RecordLoader, expand, feature_set

PROGRAM = """
#include <cstdio>
#include <vector>
#include "chess/fen.h"
#include "chess/record.h"
#include "features/feature_sets.h"

using namespace nnue::data;

int main(int, char** arguments) {
    const FeatureSet& set = feature_set(arguments[1]);
    std::vector<Record> records(%(count)d);
    if (std::fread(records.data(), sizeof(Record), records.size(), stdin) != records.size()) return 1;
    std::vector<std::int32_t> white(records.size() * set.max_active), black(white.size());
    std::vector<std::int16_t> counts(records.size());
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(records.data());
    for (std::size_t i = 0; i < records.size(); ++i) {
        counts[i] = expand_rows(set, bytes + 32 * i, pieces_of_record(bytes + 32 * i), &white[i * set.max_active],
                                &black[i * set.max_active]);
    }
    set.append(bytes, records.size(), {white.data(), black.data(), counts.data(), set.max_active, 0});
    for (const auto* rows : {&white, &black}) {
        std::printf("[");
        for (std::size_t i = 0; i < rows->size(); ++i) std::printf(i ? ",%%d" : "%%d", (*rows)[i]);
        std::printf("]\\n");
    }
    for (const std::string& name : basic_feature_sets()) std::printf("%%s\\n", name.c_str());
}
"""


@pytest.mark.slow
@pytest.mark.compiler
def test_a_set_on_the_list(project_root: Path, tmp_path: Path) -> None:
    records = next(iter(RecordLoader(project_root / "samples" / "val.binpack", 200))).numpy()
    source = project_root / "examples" / "extending" / "my_features.h"
    outside = expand(records, feature_set(f"HalfKAv2_hm+{source}:Neighbours", may_import=True))

    headers = tmp_path / "features"
    headers.mkdir()
    name = 'struct Neighbours {\n    static constexpr const char* kName = "Neighbours";'
    (headers / "neighbours.h").write_text(source.read_text().replace("struct Neighbours {", name))
    table = (project_root / "data_loader" / "features" / "general_sets.h").read_text()
    assert table.count("GeneralSetList<>") == 1
    table = table.replace("GeneralSetList<>", "GeneralSetList<::Neighbours>")
    table = table.replace("#pragma once", '#pragma once\n#include "features/neighbours.h"')
    (headers / "general_sets.h").write_text(table)
    (tmp_path / "main.cpp").write_text(PROGRAM % {"count": len(records)})
    data_loader = project_root / "data_loader"
    command: list[str | Path] = ["g++", "-std=c++20", "-O0", f"-I{tmp_path}", f"-I{data_loader}", "-pthread"]
    command += ["-o", tmp_path / "main"]
    parts = ("base/system.cpp", "chess/fen.cpp", "features/feature_set.cpp")
    sources = [tmp_path / "main.cpp", *(data_loader / part for part in parts)]
    subprocess.run([*command, *sources, "-ldl"], check=True)

    run = subprocess.run(
        [tmp_path / "main", "HalfKAv2_hm+Neighbours"], input=records.tobytes(), capture_output=True, check=True
    )
    white, black, *names = run.stdout.decode().splitlines()
    assert names[-1] == "Neighbours"
    assert np.array_equal(np.array(json.loads(white)), outside.white.numpy().ravel())
    assert np.array_equal(np.array(json.loads(black)), outside.black.numpy().ravel())
