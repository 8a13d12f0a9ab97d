"""The programs of docs/engine*.md, examples/engine/rust and engine.c: they compile, and score as `nnue eval` does."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from inference_support import ENGINE, ROOT, exported, positions, scores

from nnue_trainer import config
from nnue_trainer.files import presets

LAYERED: dict[str, Any] = {
    "kind": "layered",
    "inputs": [{"kings": [0, 1, 2, 2] + [1] * 4 + [2] * 24, "mirror": "e-h"}, "PP_3Wide"],
    "hidden": 16,
    "output_buckets": {"count": 4},
    "layers": [{"outputs": 8}],
}


def blocks(page: str, language: str = "") -> list[str]:
    text = (ROOT / "docs" / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def compiled(*command: str | Path, cwd: Path) -> None:
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def boards(fens: Path) -> str:
    """A line for each position: 64 numbers as the engine has them, then 1 if black is to move."""
    lines = []
    for line in fens.read_text().splitlines()[2:]:
        rows, side = line.split()[:2]
        squares = "".join("." * int(c) if c.isdigit() else c for c in rows).split("/")
        codes = ["PpNnBbRrQqKk".find(c) if c != "." else 15 for row in reversed(squares) for c in row]
        lines.append(" ".join(map(str, [*codes, int(side == "b")])))
    return "\n".join(lines) + "\n"


def printed(*program: str | Path, lines: str, cwd: Path, env: dict[str, str] | None = None) -> list[int]:
    done = subprocess.run(program, cwd=cwd, env=env, input=lines, capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.splitlines()]


READ = """
fn main() {
    START
    for line in std::io::stdin().lines() {
        let numbers: Vec<u8> = line.unwrap().split(' ').map(|word| word.parse().unwrap()).collect();
        let board: [u8; 64] = numbers[..64].try_into().unwrap();
        let black_to_move = numbers[64] == 1;
        EACH
    }
}
"""


@pytest.mark.rust
@pytest.mark.compiler
def test_rust_through_c(tmp_path: Path) -> None:
    exported(LAYERED, tmp_path)
    fens = positions("val.binpack", 200, tmp_path / "fens.txt")
    (tmp_path / "src").mkdir()
    (tmp_path / "nnue").mkdir()
    for name in ("nnue.h", "c_api.h", "c_api.cpp"):
        shutil.copy(ENGINE / name, tmp_path / "nnue" / name)
    (tmp_path / "Cargo.toml").write_text('[package]\nname = "engine"\nversion = "0.1.0"\nedition = "2021"\n')
    shutil.copy(ENGINE / "rust" / "build.rs", tmp_path / "build.rs")
    shutil.copy(ENGINE / "rust" / "through_c.rs", tmp_path / "src" / "nnue.rs")
    start = "nnue::load(); let mut stack = nnue::Accumulators::new(2); let mut before: Option<nnue::Board> = None;"
    # Every other position is reached by an update of the one before, however far it is from it.
    each = """
        match before.take() {
            None => {
                stack.refresh(0, &board);
                println!("{}", stack.evaluate(0, &board, black_to_move));
                before = Some(board);
            }
            Some(old) => {
                stack.update(1, &old, &board);
                println!("{}", stack.evaluate(1, &board, black_to_move));
            }
        }"""
    (tmp_path / "src" / "main.rs").write_text("mod nnue;\n" + READ.replace("START", start).replace("EACH", each))
    compiled("cargo", "build", "--offline", "--quiet", cwd=tmp_path)
    found = printed(tmp_path / "target" / "debug" / "engine", lines=boards(fens), cwd=tmp_path)
    assert found == scores(tmp_path / "net.nnue", fens)


@pytest.mark.rust
def test_rust_alone(tmp_path: Path) -> None:
    """The preset buckets."""
    exported(config.load(presets.path("buckets")).model.architecture, tmp_path)
    fens = positions("val.binpack", 100, tmp_path / "fens.txt")
    each = """
        let mut accumulator: Accumulator = [NET.bias; 2];
        let mut pieces = 0;
        for perspective in 0..2 {
            let king = board.iter().position(|&code| code as usize == 10 + perspective).unwrap();
            for square in 0..64 {
                if board[square] != 15 {
                    let (kind, colour) = (board[square] as usize / 2, board[square] as usize % 2);
                    change(&mut accumulator[perspective], feature(perspective, king, kind, colour, square), true);
                    pieces += 1;
                }
            }
        }
        println!("{}", evaluate(&accumulator, black_to_move as usize, pieces / 2));"""
    (tmp_path / "src").mkdir()
    program = (ENGINE / "rust" / "one_net.rs").read_text() + READ.replace("START", "").replace("EACH", each)
    (tmp_path / "src" / "main.rs").write_text(program)
    compiled("rustc", "--edition", "2021", "-O", "src/main.rs", "-o", "engine", cwd=tmp_path)
    assert printed(tmp_path / "engine", lines=boards(fens), cwd=tmp_path) == scores(tmp_path / "net.nnue", fens)


# Each position is reached by changes of the one before, except a perspective whose king moved.
CHANGES_IN_C = """
#define main of_engine
#include "engine.c"
#undef main
int main(int argc, char** argv) {
    static Accumulator accumulator;
    uint8_t old[64], board[64];
    if (argc != 2 || !load(argv[1])) return 1;
    for (int first = 1, code; scanf("%d", &code) == 1; first = 0) {
        int pieces = 0;
        for (int square = 0; square < 64; ++square, scanf("%d", &code) == 1) {
            board[square] = (uint8_t)code;
            pieces += code != 15;
        }
        for (int perspective = 0; perspective < 2; ++perspective) {
            const uint8_t* king = memchr(board, 10 + perspective, 64);
            if (first || old[king - board] != *king) {
                refresh(&accumulator, perspective, board);
                continue;
            }
            for (int square = 0; square < 64; ++square) {
                const int piece[2] = {old[square], board[square]};
                for (int now = 0; now < 2 && piece[0] != piece[1]; ++now)
                    if (piece[now] != 15)
                        change(&accumulator, perspective,
                               feature(perspective, (int)(king - board), piece[now] / 2, piece[now] % 2, square),
                               now ? 1 : -1);
            }
        }
        memcpy(old, board, 64);
        printf("%d\\n", evaluate(&accumulator, code, pieces));
    }
    return argc == 0 ? of_engine(argc, argv) : 0;
}
"""
GCC = ("gcc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-O1")


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("architecture", "sizes"),
    [
        pytest.param({"preset": "buckets"}, (), id="buckets"),
        pytest.param({"kind": "simple", "hidden": 40}, (40, 1, 1, 0), id="simple"),
    ],
)
def test_c(architecture: dict[str, Any], sizes: tuple[int, ...], tmp_path: Path) -> None:
    """examples/engine/engine.c, with sanitizers: the program, and changes of accumulators."""
    if name := architecture.get("preset"):
        architecture = config.load(presets.path(name)).model.architecture
    net = exported(architecture, tmp_path)
    fens = positions("val.binpack", 200, tmp_path / "fens.txt")
    names = ("HIDDEN", "KING_BUCKETS", "OUTPUT_BUCKETS", "MIRROR") if sizes else ()
    gcc: tuple[str, ...] = (*GCC, "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{ENGINE}")
    gcc = (*gcc, *(f"-D{name}={size}" for name, size in zip(names, sizes, strict=True)))
    (tmp_path / "changes.c").write_text(CHANGES_IN_C)
    compiled(*gcc, ENGINE / "engine.c", "-o", "engine", cwd=tmp_path)
    compiled(*gcc, "changes.c", "-o", "changes", cwd=tmp_path)
    expected = scores(tmp_path / "net.nnue", fens)
    assert len(set(expected)) > 20
    assert printed(tmp_path / "engine", net, lines=fens.read_text(), cwd=tmp_path) == expected
    assert printed(tmp_path / "changes", net, lines=boards(fens), cwd=tmp_path) == expected


@pytest.mark.compiler
def test_c_refuses_bad_input(tmp_path: Path) -> None:
    sizes = ("-DHIDDEN=8", "-DKING_BUCKETS=1", "-DOUTPUT_BUCKETS=1", "-DMIRROR=0")
    net = exported({"kind": "simple", "hidden": 8}, tmp_path)
    compiled(*GCC, *sizes, "-fsanitize=address,undefined", ENGINE / "engine.c", "-o", "engine", cwd=tmp_path)
    (tmp_path / "short.bin").write_bytes(net.read_bytes()[:-1])
    (tmp_path / "long.bin").write_bytes(net.read_bytes() + bytes(64))

    def error(file: str, fen: str = "") -> str:
        command = (tmp_path / "engine", tmp_path / file)
        done = subprocess.run(command, input=fen, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr.replace(str(tmp_path / file), file)

    assert {file: error(file) for file in ("none.bin", "short.bin", "long.bin")} == {
        file: f"engine: error: {file}: no net of this size\n" for file in ("none.bin", "short.bin", "long.bin")
    }
    for fen in (
        "9/8/8/8/8/8/8/K6k w - -", "K6k/8/8/8/8/8/8/8", "8/8/8/8/8/8/8/K6k x", "8/8/8/8/8/8/8/KK5k w",
        "K6k/8/8 w", "8/8/8/8/8/8/8/8/K6k w", f"{'QQQQQQQQ/' * 7}K6k w", "x" * 1000,
    ):  # fmt: skip
        assert "engine: error: line 1: no position" in error("net.bin", fen)


@pytest.mark.compiler
def test_cpp(tmp_path: Path) -> None:
    """The four places, and the net built into the executable: each position is a move from the one before."""
    exported(LAYERED, tmp_path)
    fens = positions("val.binpack", 200, tmp_path / "fens.txt")
    whole, built_in = blocks("engine.md", "cpp")
    includes, rest = whole.split("\n", 1)
    load, stack, places, evaluate = (block.strip() for block in rest.strip().split("\n\n"))
    root, after = places.split("\n")
    network, error, loading = load.split("\n")
    symbols, loaded = built_in.strip().rsplit("\n", 1)
    program = f"""
#include <cstdio>
#include <cstdlib>
#include <iostream>
{includes}
{symbols}
{network}
{stack}
using Move = nnue::Board;
nnue::Board board_after(const Move& move) {{ return move; }}
[[noreturn]] void fail(const std::string& error) {{ std::puts(error.c_str()); std::exit(1); }}
bool read(nnue::Board& board) {{
    board = nnue::Board();
    for (int square = 0, code; square < 64; ++square) {{
        if (!(std::cin >> code)) return false;
        if (code != 15) board.put(square, nnue::Type(code / 2), nnue::Colour(code % 2));
    }}
    int black;
    std::cin >> black;
    board.black_to_move = black;
    return true;
}}
int main() {{
    {error}
    {loading}
    {loaded}
    int ply = 0;
    nnue::Board root;
    if (!read(root)) return 1;
    {root}
    // Searches of 100 plies.
    for (Move move = root;; ++ply) {{
        {{
            {evaluate}
            std::printf("%d\\n", score);
        }}
        if (!read(move)) return 0;
        if (ply == 100) ply = -1;
        if (ply < 0) {{
            stack.set(0, move);
            continue;
        }}
        {after}
    }}
}}
"""
    (tmp_path / "main.cpp").write_text(program)
    compiled("g++", "-std=c++17", "-O1", "-Wall", f"-I{ENGINE}", "main.cpp", "-o", "engine", cwd=tmp_path)
    assert printed(tmp_path / "engine", lines=boards(fens), cwd=tmp_path) == scores(tmp_path / "net.nnue", fens)


@pytest.mark.rust
def test_the_rust_file(tmp_path: Path) -> None:
    """docs/engine-rust.md: each position is a move from the one before."""
    exported(LAYERED, tmp_path, "--rust")
    fens = positions("val.binpack", 100, tmp_path / "fens.txt")
    shutil.copy(ENGINE / "nnue.rs", tmp_path)
    program = blocks("engine-rust.md", "rust")[0]
    main = """
fn main() {
    let lines: Vec<String> = std::io::stdin().lines().map(|line| line.unwrap()).collect();
    let boards: Vec<_> = lines.iter().map(|line| {
        let numbers: Vec<u8> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        (<[u8; 64]>::try_from(&numbers[..64]).unwrap(), numbers[64] == 1)
    }).collect();
    scores(&network(), &boards).iter().for_each(|score| println!("{score}"));
}
"""
    (tmp_path / "main.rs").write_text(program + main)
    compiled("rustc", "--edition", "2021", "-C", "opt-level=1", "main.rs", "-o", "engine", cwd=tmp_path)
    assert printed(tmp_path / "engine", lines=boards(fens), cwd=tmp_path) == scores(tmp_path / "net.nnue", fens)


@pytest.mark.skipif(shutil.which("x86_64-w64-mingw32-windres") is None, reason="needs MinGW: g++-mingw-w64-x86-64")
def test_weights_as_a_windows_resource(tmp_path: Path) -> None:
    """docs/engine-boards.md: compiled and linked for Windows; the weights are in the executable. Where Wine is
    installed, it also runs: its scores are those of `nnue eval`. CI has no Wine, so this part is left out there, also
    under NNUE_REQUIRE_ALL=1."""
    exported(LAYERED, tmp_path)
    resource, program = (block for block in blocks("engine-boards.md") if "NNUE_NET" in block)
    (tmp_path / "net.rc").write_text(resource)
    main = """
#include <cstdio>
#include <iostream>
int main() {
    nnue::Network<Net> network;
    nnue::Accumulator<Net> accumulator;
    if (!load_embedded(network)) return 1;
    for (int code; std::cin >> code;) {
        nnue::Board board;
        for (int square = 0; square < 64; ++square, std::cin >> code)
            if (code != 15) board.put(square, nnue::Type(code / 2), nnue::Colour(code % 2));
        board.black_to_move = code;
        network.refresh(board, accumulator);
        std::printf("%d\\n", network.evaluate(accumulator, board));
    }
}
"""
    (tmp_path / "main.cpp").write_text(f'#define NOMINMAX\n#include "net.h"\n{program}{main}')
    compiled("x86_64-w64-mingw32-windres", "net.rc", "-O", "coff", "-o", "net.res", cwd=tmp_path)
    gcc = ("x86_64-w64-mingw32-g++", "-std=c++17", "-O1", "-mavx2", "-Wall", "-Werror", "-static", f"-I{ENGINE}")
    compiled(*gcc, "main.cpp", "net.res", "-o", "engine.exe", cwd=tmp_path)
    assert (tmp_path / "net.bin").read_bytes() in (tmp_path / "engine.exe").read_bytes()
    # Debian's wine64 is not on the search path.
    wine = shutil.which("wine64", path=f"{os.environ['PATH']}:/usr/lib/wine")
    if wine is not None and "avx2" in Path("/proc/cpuinfo").read_text():
        fens = positions("val.binpack", 200, tmp_path / "fens.txt")
        # The files that Wine writes for a new user take 700 MB, and its server ends some seconds later.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as prefix:
            settings = os.environ | {"WINEPREFIX": prefix, "WINEDEBUG": "-all", "DISPLAY": ""}
            try:
                found = printed(wine, "engine.exe", lines=boards(fens), cwd=tmp_path, env=settings)
            finally:
                subprocess.run([Path(wine).with_name("wineserver"), "-k"], env=settings, check=False)
        assert found == scores(tmp_path / "net.nnue", fens)
