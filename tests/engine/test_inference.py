"""examples/engine: exported nets, compiled into programs, score as `nnue eval` does, and updates equal refreshes."""

import ctypes
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cases import some
from engine_nets import EXTENDING, IN_HEADERS, INCLUDES, NETS, SEES_THROUGH
from inference_support import ENGINE, built, exported, nnue, positions, program_scores, scores

from nnue_trainer.errors import UserError

VECTORS = "-O1 -march=native"
PLAIN = "-O1 -DNNUE_PLAIN"
CHECKED = f"{VECTORS} -fsanitize=undefined -fno-sanitize-recover=all"


pytestmark = pytest.mark.compiler


@pytest.fixture(scope="module")
def fens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return positions("val.binpack", 500, tmp_path_factory.mktemp("positions") / "fens.txt")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "builds"),
    some(
        [
            ("simple", [VECTORS]),
            ("crelu of all boards", [VECTORS]),
            ("buckets", [VECTORS, PLAIN]),
            ("layered", [CHECKED, PLAIN]),
            ("whole products", [VECTORS]),
            ("queens", [CHECKED]),
            ("squared relu", [VECTORS]),
            ("products beyond 16 bits", [CHECKED]),
            ("floats behind bytes", [CHECKED, PLAIN]),
            ("floats of White's view", [CHECKED]),
            ("the mover's view", [VECTORS]),
            ("sfnnv18", [VECTORS, PLAIN]),
            ("sfnnv18 with other layers", [CHECKED]),
            ("win, draw, loss", [CHECKED]),
            ("win, draw, loss in floats of White's view", [VECTORS]),
            ("buckets by kings and passed pawns", [CHECKED]),
            ("sfnnv9", [CHECKED]),
            ("sfnnv5", [VECTORS]),
            ("sfnnv5 with other stacks", [CHECKED]),
            ("sfnnv1", [VECTORS]),
            ("kings without mirroring", [CHECKED]),
            ("Full_Threats_v2", [CHECKED]),
            ("K16Q2", [CHECKED]),
            ("a set in Python", [CHECKED]),
            ("a set in a header", [f"{CHECKED} {INCLUDES}"]),
            ("states in Python", [CHECKED]),
            ("activations beyond 16 bits", [CHECKED, PLAIN]),
            ("counted pieces in a header", [f"{CHECKED} {INCLUDES}"]),
            ("a net of a user", [VECTORS]),
        ],
        every=2,
    ),
)
def test_the_program_scores_as_the_evaluator_does(name: str, builds: list[str], fens: Path, tmp_path: Path) -> None:
    net = exported((NETS | IN_HEADERS)[name], tmp_path)
    expected = scores(tmp_path / "net.nnue", fens)
    assert len(expected) == 500
    assert len(set(expected)) > 100
    for flags in builds:
        assert program_scores(built("eval", net, flags), net, fens) == expected, flags


AVX512 = f"-O1 -I{Path(__file__).parent / 'avx512'} -D__AVX512F__ -D__AVX512BW__"


@pytest.mark.slow
@pytest.mark.parametrize("flags", [AVX512, f"{AVX512} -D__AVX512VNNI__"], ids=["avx512", "vnni"])
@pytest.mark.parametrize("name", some(["layered", "queens"], every=2))
def test_avx512_scores_as_the_evaluator_does(name: str, flags: str, fens: Path, tmp_path: Path) -> None:
    """The AVX-512 code with its intrinsics emulated, which runs on every CPU; where this one has them, also the real
    ones. Every compiler must take the real ones, and those of AVX-VNNI."""
    net = exported(NETS[name], tmp_path)
    expected = scores(tmp_path / "net.nnue", fens)
    assert program_scores(built("eval", net, flags), net, fens) == expected
    real = "-O1 -mavx512f -mavx512bw -mavx512vl" + (" -mavx512vnni" if "VNNI" in flags else "")
    cpu = Path("/proc/cpuinfo").read_text()
    if "avx512bw" in cpu and ("VNNI" not in flags or "avx512_vnni" in cpu):
        assert program_scores(built("eval", net, real), net, fens) == expected
    else:
        built("eval", net, f"{real} -fsyntax-only")
    if "avx_vnni" in cpu:
        assert program_scores(built("eval", net, "-O1 -mavx2 -mavxvnni"), net, fens) == expected
    else:
        built("eval", net, "-mavx2 -mavxvnni -fsyntax-only")


ON_ARM = ("crelu of all boards", "layered", "floats behind bytes", "win, draw, loss", "sfnnv18", "Full_Threats_v2")


@pytest.mark.slow
@pytest.mark.arm
@pytest.mark.parametrize("name", some(NETS, kept=ON_ARM))
def test_arm_scores_as_the_evaluator_does(name: str, fens: Path, tmp_path: Path) -> None:
    """The NEON code, with and without its dot products, in an emulator."""
    net = exported(NETS[name], tmp_path)
    expected = scores(tmp_path / "net.nnue", fens)
    with_bytes = name in ("layered", "floats behind bytes", "sfnnv18")
    for flags in ("-O1 -static", "-O1 -static -march=armv8.2-a+dotprod")[: 1 + with_bytes]:
        program = built("eval", net, flags, "aarch64-linux-gnu-g++")
        assert program_scores(program, net, fens, "qemu-aarch64") == expected, flags
    if name not in ("crelu of all boards", "layered"):
        return
    net = exported({**NETS[name], "hidden": 16}, tmp_path)
    games = built("games", net, "-O1 -static", "aarch64-linux-gnu-g++")
    done = subprocess.run(["qemu-aarch64", games, net, "10"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("10 games, "), done.stdout


GAMES = ["crelu of all boards", "layered", "queens", "floats behind bytes", "kings without mirroring"]
GAMES += [
    "buckets by kings and passed pawns",
    "floats of White's view",
    "Full_Threats_v2",
    "a set in Python",
    "states in Python",
    *IN_HEADERS,
]


@pytest.mark.slow
@pytest.mark.parametrize("name", some(GAMES, every=2))
def test_updated_accumulators_equal_refreshed_ones(name: str, tmp_path: Path) -> None:
    hidden = 144 if name == "queens" else 16
    net = exported({**(NETS | IN_HEADERS)[name], "hidden": hidden}, tmp_path)
    games = built("games", net, f"{VECTORS} {INCLUDES}")
    done = subprocess.run([games, net, "50"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("50 games, "), done.stdout


def test_other_languages_reach_the_same_numbers(fens: Path, tmp_path: Path) -> None:
    net = exported({**NETS["layered"], "hidden": 16}, tmp_path)
    library = ctypes.CDLL(str(built("c_api", net, VECTORS)))
    library.nnue_accumulator_size.restype = ctypes.c_size_t
    assert library.nnue_load(net.read_bytes(), ctypes.c_size_t(net.stat().st_size - 1)) == 0
    assert library.nnue_load(net.read_bytes(), ctypes.c_size_t(net.stat().st_size)) == 1
    size = library.nnue_accumulator_size()
    memory = ctypes.create_string_buffer(2 * size + 64)
    begin = -ctypes.addressof(memory) % 64 + ctypes.addressof(memory)
    accumulators = [ctypes.c_void_p(begin), ctypes.c_void_p(begin + size)]
    found, before = [], None
    for number, line in enumerate(fens.read_text().splitlines()[2:]):
        rows, side = line.split()[:2]
        squares = "".join("." * int(c) if c.isdigit() else c for c in rows).split("/")
        board = bytes("PpNnBbRrQqKk".find(c) if c != "." else 15 for row in reversed(squares) for c in row)
        old, new = accumulators[number % 2 - 1], accumulators[number % 2]
        if before is None or number % 5 == 0:
            library.nnue_refresh(board, new)
        else:
            library.nnue_update(before, old, board, new)
        found.append(library.nnue_evaluate(board, int(side == "b"), new))
        before = board
    assert found == scores(tmp_path / "net.nnue", fens)


LITTLE_MEMORY = """
import ctypes, resource, sys
library, data = ctypes.CDLL(sys.argv[1]), open(sys.argv[2], "rb").read()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
most = resource.getrlimit(resource.RLIMIT_AS)[1]
resource.setrlimit(resource.RLIMIT_AS, (used, most))
without = library.nnue_load(data, ctypes.c_size_t(len(data)))
resource.setrlimit(resource.RLIMIT_AS, (most, most))
print(without, library.nnue_load(data, ctypes.c_size_t(len(data))))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_a_lack_of_memory_does_not_reach_other_languages_as_an_exception(tmp_path: Path) -> None:
    net = exported({**NETS["layered"], "hidden": 16}, tmp_path)
    command = [sys.executable, "-c", LITTLE_MEMORY, str(built("c_api", net, VECTORS)), str(net)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("0 1\n", 0), done.stderr


MAIN_RS = """
mod net;
mod nnue;
use std::io::BufRead;

fn main() {
    let network = nnue::Network::new(&net::NET, include_bytes!("net.bin")).unwrap();
    assert!(nnue::Network::new(&net::NET, &[0]).is_err());
    let mut before: Option<(nnue::Board, nnue::Accumulator)> = None;
    for line in std::io::stdin().lock().lines().map(|line| line.unwrap()).filter(|line| line.contains('/')) {
        let mut fields = line.split(' ');
        let mut board = [15u8; 64];
        let mut square = 56;
        for letter in fields.next().unwrap().chars() {
            match letter {
                '/' => square -= 16,
                '1'..='8' => square += letter as usize - '0' as usize,
                _ => {
                    board[square] = "PpNnBbRrQqKk".find(letter).unwrap() as u8;
                    square += 1;
                }
            }
        }
        let black = fields.next() == Some("b");
        let fresh = network.refresh(&board);
        if let Some((old_board, old)) = &before {
            let mut updated = network.empty();
            network.update(old_board, old, &board, &mut updated);
            assert!(updated == fresh);
        }
        println!("{}", network.evaluate(&fresh, &board, black));
        before = Some((board, fresh));
    }
}
"""


@pytest.mark.slow
@pytest.mark.rust
@pytest.mark.parametrize("name", some([*sorted(NETS), "counted pieces in a header"], every=3))
def test_rust_scores_as_the_evaluator_does(name: str, fens: Path, tmp_path: Path) -> None:
    """Each position is also an update from the one before, which equals the refresh."""
    net = exported((NETS | IN_HEADERS)[name], tmp_path, "--rust")
    if name == "simple":  # bytes in front of the tensors, and no padding
        (tmp_path / "raw.yaml").write_text("{kind: raw, skip: 7, align: 1}")
        nnue("export", tmp_path / "c.safetensors", net, "--format", tmp_path / "raw.yaml", "--rust", "--overwrite")
    (tmp_path / "main.rs").write_text(MAIN_RS)
    shutil.copy(ENGINE / "nnue.rs", tmp_path)
    command = ["rustc", "--edition", "2021", "-C", "opt-level=1", "main.rs", "-o", "engine"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    with fens.open() as lines:
        done = subprocess.run([tmp_path / "engine"], stdin=lines, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(map(int, done.stdout.split())) == scores(net.with_suffix(".nnue"), fens)


@pytest.mark.slow
def test_two_nets_in_one_program(fens: Path, tmp_path: Path) -> None:
    """Each in a namespace, one of them with a copy of the inference under another name and namespace."""
    nets, expected = [], []
    of_small = ["--header-namespace", "my::small", "--header-include", "n.h"]
    for number, (name, options) in enumerate([("queens", ["--header-namespace", "big"]), ("layered", of_small)]):
        folder = tmp_path / f"net{number}"
        folder.mkdir()
        nets.append(exported(NETS[name], folder, *options))
        expected.append(scores(folder / "net.nnue", fens))
    (tmp_path / "n.h").write_text(
        "#undef NNUE_NAMESPACE\n#define NNUE_NAMESPACE other\n" + (ENGINE / "nnue.h").read_text()
    )
    (tmp_path / "both.cpp").write_text(
        """
        #include <iostream>
        #include "fen.h"
        #include "net0/net.h"
        #include "net1/net.h"
        int main() {
            nnue::Network<big::Net> big;
            other::Network<my::small::Net> small;
            std::string error, line;
            if (!big.load("net0/net.bin", error) || !small.load("net1/net.bin", error)) return 1;
            nnue::Board board;
            while (std::getline(std::cin, line)) {
                if (!read_fen(line, board, error)) continue;
                other::Board same;
                for (int square = 0; square < 64; ++square) {
                    const int code = board.piece[square];
                    if (code != 15) same.put(square, other::Type(code / 2), other::Colour(code % 2));
                }
                same.black_to_move = board.black_to_move;
                nnue::Accumulator<big::Net> a;
                other::Accumulator<my::small::Net> b;
                big.refresh(board, a);
                small.refresh(same, b);
                std::cout << big.evaluate(a, board) << " " << small.evaluate(b, same) << "\\n";
            }
        }
        """
    )
    command = ["g++", "-std=c++17", "-O1", "-march=native", "-Wall", f"-I{ENGINE}", "-I.", "both.cpp", "-o", "both"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    with fens.open() as lines:
        done = subprocess.run(["./both"], stdin=lines, capture_output=True, text=True, check=True, cwd=tmp_path)
    found = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert found == list(zip(*expected, strict=True))


def test_probabilities_of_a_head_of_win_draw_and_loss(fens: Path, tmp_path: Path) -> None:
    """From a `Board`, and from an engine's own accumulator, which is that of one perspective, as the net has one."""
    net = exported(NETS["win, draw, loss in floats of White's view"], tmp_path)
    (tmp_path / "wdl.cpp").write_text(
        """
        #include <iostream>
        #include "fen.h"
        #include "net.h"
        static_assert(sizeof(nnue::Accumulator<Net>) == 64, "24 integers of 16 bits");
        int main() {
            nnue::Network<Net> network;
            std::string error, line;
            if (!network.load("net.bin", error)) return 1;
            nnue::Board board;
            nnue::Accumulator<Net> accumulator;
            while (std::getline(std::cin, line)) {
                if (!read_fen(line, board, error)) continue;
                network.refresh(board, accumulator);
                const nnue::Wdl wdl = network.wdl(accumulator, board);
                std::cout << wdl.loss << " " << wdl.draw << " " << wdl.win << "\\n";
                nnue::Material material;
                const auto pieces = [&](auto visit) {
                    for (int square = 0; square < 64; ++square) {
                        if (board.piece[square] != 15) visit(int{board.piece[square]}, square);
                    }
                };
                pieces([&](int code, int) { ++material.count[code]; });
                for (const int colour : {0, 1}) material.king[colour] = board.king[colour];
                network.refresh(material, pieces, accumulator);
                const nnue::Wdl same = network.wdl(accumulator, board.black_to_move, material, pieces);
                if (same.loss != wdl.loss || same.draw != wdl.draw || same.win != wdl.win) return 2;
            }
        }
        """
    )
    command = ["g++", "-std=c++17", "-O1", "-march=native", "-Wall", f"-I{ENGINE}", "-I.", "wdl.cpp", "-o", "wdl"]
    subprocess.run(command, check=True, cwd=tmp_path)
    with fens.open() as lines:
        done = subprocess.run(["./wdl"], stdin=lines, capture_output=True, text=True, check=True, cwd=tmp_path)
    found = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
    for (loss, draw, win), score in zip(found, scores(net.with_suffix(".nnue"), fens), strict=True):
        assert loss + draw + win == pytest.approx(1, abs=1e-5)
        points = min(max(win + draw / 2, 1e-5), 1 - 1e-5)
        if 0.001 < points < 0.999:
            assert 400 * math.log(points / (1 - points)) == pytest.approx(score, abs=3)


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    def make(*arguments: str) -> str:
        done = subprocess.run(
            ["make", "-s", "-C", str(ENGINE), "eval", *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "PWD": str(tmp_path), "LC_ALL": "C"},
        )
        assert done.returncode == 2
        return done.stderr

    assert "pass the net: make eval NET=net.bin" in make()
    assert "nowhere.bin: no such file" in make("NET=nowhere.bin")
    (tmp_path / "other.bin").write_bytes(b"")
    assert f"{tmp_path}/other.h: no such file; `nnue export" in make("NET=other.bin")

    net = exported(NETS["simple"], tmp_path)
    program = built("eval", net, "-O0")

    def run(path: Path, text: str) -> str:
        done = subprocess.run([program, path], input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        return done.stderr

    size = net.stat().st_size
    (tmp_path / "short.bin").write_bytes(net.read_bytes()[:-1])
    (tmp_path / "long.bin").write_bytes(net.read_bytes() + b"x")
    assert f"short.bin: found {size - 1} bytes, expected {size}" in run(tmp_path / "short.bin", "")
    assert f"long.bin: found more than {size} bytes, expected {size}" in run(tmp_path / "long.bin", "")
    assert "nowhere.bin: cannot be opened" in run(tmp_path / "nowhere.bin", "")
    start = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
    for wrong in (
        "startpos",
        start.replace(" w", " x"),
        start.replace("8/8/", "8/", 1),
        start.replace("K", "Q"),
        "8/8",
    ):
        assert "line 2: no position: expected a FEN" in run(net, f"{start}\n{wrong}\n")


@pytest.mark.slow
def test_header_with_states_in_engines(fens: Path, tmp_path: Path) -> None:
    """A set of a header whose buckets depend on the board and whose features on what stands between: the program scores
    as the evaluator does, updates equal refreshes, and Rust refuses it in one line."""
    (tmp_path / "sees.h").write_text(SEES_THROUGH)
    inputs = f"{tmp_path}/sees.h:SeesThrough + Chess768"
    architecture = {"kind": "layered", "inputs": inputs, "hidden": 32, "psqt": True}
    net = exported(architecture, tmp_path)
    assert program_scores(built("eval", net, CHECKED), net, fens) == scores(tmp_path / "net.nnue", fens)
    done = subprocess.run([built("games", net, VECTORS), net, "30"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[:9]) == (0, "30 games,"), done.stderr
    with pytest.raises(
        UserError, match=r"sees.h:SeesThrough.*depend on more than .*nnue.rs reads.*; export it for nnue.h$"
    ):
        nnue("export", tmp_path / "c.safetensors", tmp_path / "rust.bin", "--format", "raw", "--rust")
    assert not (tmp_path / "rust.bin").exists()


def test_a_set_in_python_that_is_no_table(tmp_path: Path) -> None:
    inputs = f"Chess768 + {EXTENDING}/my_features.py:KingDistance(both_kings=true)"
    with pytest.raises(
        UserError, match=r"KingDistance\(both_kings=true\).*depend on more than .*; write it as a C\+\+ header"
    ):
        exported({"kind": "layered", "inputs": inputs, "hidden": 8}, tmp_path)
    assert not (tmp_path / "net.bin").exists()


def test_a_net_whose_arithmetic_is_numpy_has_no_header(tmp_path: Path) -> None:
    numpy_net = Path(__file__).parents[1] / "nets" / "my_net.py"
    with pytest.raises(UserError, match=r"examples/engine does not support nets like this one \(.*MyNet of Half"):
        exported({"kind": f"{numpy_net}:MyNet"}, tmp_path)
    assert not (tmp_path / "net.bin").exists()
    (tmp_path / "simple").mkdir()
    exported(NETS["simple"], tmp_path / "simple")
    with pytest.raises(UserError, match=r"net.h: expected another name: the header"):
        nnue("export", tmp_path / "simple" / "c.safetensors", tmp_path / "net.h", "--format", "raw", "--header")
