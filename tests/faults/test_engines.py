"""Engines that print for ever, hang, die, lie or print garbage: one line, bounded memory and time, nothing left."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from command import Done
from waiting import SECONDS, wait_for

from nnue_trainer.base import process_groups
from nnue_trainer.data.generate import GenerateOptions, generate
from nnue_trainer.engines import uci
from nnue_trainer.engines.uci import Engine, find_engine
from nnue_trainer.errors import UserError
from nnue_trainer.export.engine_check import EngineWithNet

FEN = "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1"
FakeEngine = Callable[..., str]


def options(engine: str, **changes: object) -> GenerateOptions:
    base = {"engine": engine, "positions": 60, "nodes": 1, "score_scale": 1.0, "max_ply": 30, "opening_score": 2000}
    return GenerateOptions(**(base | changes))  # type: ignore[arg-type]


def processes_of(path: str) -> list[int]:
    """The processes that have `path` in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if path.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def group_of(pid: int) -> int | None:
    """The process group; None where the process, as one of another test, has ended meanwhile."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def test_a_short_limit_for_answers_is_none_for_the_start(tmp_path: Path) -> None:
    """A program that starts on a loaded machine, or loads its net, takes longer than a move may."""
    path = tmp_path / "slow"
    answers = [f"read -r line; sleep 0.3; echo {answer}" for answer in ("uciok", "readyok")]
    path.write_text("\n".join(["#!/bin/sh", *answers, "cat >/dev/null", ""]))
    path.chmod(0o755)
    with (
        Engine(str(path), timeout=0.1, start_timeout=300.0) as engine,
        pytest.raises(UserError, match=r"'isready' within 0\.1 s"),
    ):
        engine.wait_until_ready()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("dies", r"ended at 'go nodes 1' \(exit status 3\): .*\\x1b\[31mout of cheese"),
        ("hangs", "no 'bestmove' for 'go nodes 1' within 1 s"),
        ("deaf", "no 'bestmove' for 'go nodes 1' within 1 s"),
        ("endless-lines", "no 'bestmove' for 'go nodes 1' in the first 16,777,216 bytes of its answer"),
        ("endless-drip", "no 'bestmove' for 'go nodes 1' within 1 s"),
        ("endless-line", "no 'bestmove' for 'go nodes 1', but a line of more than 65,536 bytes: 'xxx"),
        ("no-move", "answered 'go nodes 1' with 'bestmove', expected 'bestmove' and a move"),
        ("none-move", r"answered 'go nodes 1' with 'bestmove \(none\)', expected 'bestmove' and a move"),
        ("control-move", r"with 'bestmove \\x1b\[2Je2e4', expected 'bestmove' and a move"),
        ("twice", "answered with 'bestmove' twice"),
        ("score=cp_abc", "with 'info depth 1 score cp abc', expected 'score cp' and a number"),
        ("score=cp", "with 'info depth 1 score cp', expected 'score cp' and a number"),
        ("score=", "with 'info depth 1 score', expected 'score cp' and a number"),
        ("score=banana_12", "with 'info depth 1 score banana 12', expected"),
        ("score=cp_nan", "with 'info depth 1 score cp nan', expected"),
        ("score=cp_1e9", "with 'info depth 1 score cp 1e9', expected"),
        ("score=cp_99999999999999999999", "score cp 99999999999999999999', expected"),
        ("score=mate_100000", "score mate 100000', expected"),
    ],
)
def test_a_bad_answer_is_one_line(fake_engine: FakeEngine, mode: str, message: str) -> None:
    path = fake_engine(mode)
    # The answers that come have all the time that a loaded machine may take.
    with Engine(path, timeout=1.0 if "within 1 s" in message else 300.0, start_timeout=300.0) as engine:
        if mode == "twice":
            engine.search(FEN, [], "nodes 1")
        with pytest.raises(UserError, match=message) as caught:
            engine.search(FEN, [], "nodes 1")
    assert str(caught.value).isprintable()
    assert f"engine {path}: " in str(caught.value)
    assert processes_of(path) == []


def test_an_answer_that_came_while_this_process_was_stopped_counts(
    fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-Z does not stop the engine. Its answer is read after the limit."""
    stopped: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(stopped), sleep=time.sleep)
    with Engine(fake_engine(), timeout=300.0, start_timeout=300.0) as engine:
        exchange = engine._exchange

        def exchange_and_stop(seconds: float) -> None:
            sends = bool(engine._outgoing)
            exchange(seconds)
            if sends:
                wait_for(engine.has_printed)
                stopped.append(1000.0)

        monkeypatch.setattr(uci, "time", clock)
        monkeypatch.setattr(engine, "_exchange", exchange_and_stop)
        assert engine.search(FEN, [], "nodes 1")[1] == "cp"
    assert len(stopped) == 1


@pytest.mark.parametrize("mode", ["", "late", "garbage", "chatty-stderr", "string-score", "multipv", "latin-1"])
def test_what_is_only_odd_is_no_obstacle(fake_engine: FakeEngine, mode: str) -> None:
    with Engine(fake_engine(mode), {"hash": "1"}, timeout=300.0, start_timeout=300.0) as engine:
        for _ in range(2):
            move, kind, value = engine.search(FEN, [], "nodes 1")
            assert len(move) == 4
            assert kind == "cp"
            assert abs(value) <= 1000


def test_an_engine_that_prints_for_ever_takes_no_memory(fake_engine: FakeEngine) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for mode in ("endless-lines", "endless-line"):
        with Engine(fake_engine(mode), timeout=300.0, start_timeout=300.0) as engine, pytest.raises(UserError):
            engine.search(FEN, [], "nodes 1")
    path = fake_engine("no-uciok")
    with pytest.raises(UserError, match="no 'uciok' for 'uci' in the first 1,048,576 bytes"):
        Engine(path, start_timeout=300.0)
    assert processes_of(path) == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10  # KiB


def test_a_wrapper_that_does_not_exec_is_ended_with_its_engine(fake_engine: FakeEngine) -> None:
    path = fake_engine("hangs", run="")
    with Engine(path, timeout=1.0, start_timeout=300.0) as engine:
        script = str(Path(__file__).parents[1] / "data" / "fake_engine.py")
        own = [pid for pid in processes_of(script) if group_of(pid) == engine._process.pid]
        assert len(own) == 1
        with pytest.raises(UserError, match="within 1 s"):
            engine.search(FEN, [], "nodes 1")
    wait_for(lambda: own[0] not in processes_of(script))  # it may be adopted, and is not waited for before the end


@pytest.mark.parametrize("text", ["a\nquit", "a\rb", "a\0b", "a\x1b[2J", "a\x85b"])
def test_no_option_or_position_becomes_a_second_command(fake_engine: FakeEngine, text: str) -> None:
    with Engine(fake_engine()) as engine:
        for attempt in (
            lambda: engine.set_option("Hash", text),
            lambda: engine.search(FEN + text, [], "nodes 1"),
            lambda: engine.search(FEN, [text], "nodes 1"),
        ):
            with pytest.raises(UserError, match="holds a line break or another control character") as caught:
                attempt()
            assert str(caught.value).isprintable()
        assert engine.search(FEN, [], "nodes 1")[1] == "cp"  # nothing of it was sent


def test_a_net_whose_path_holds_a_line_break(tmp_path: Path) -> None:
    """`verify` once sent it to the engine, which took what followed for a command."""
    engine, heard = tmp_path / "engine", tmp_path / "heard"
    engine.write_text(
        "#!/bin/sh\nwhile read -r line; do\n"
        f'echo "$line" >> {heard}\n'
        'case "$line" in\n'
        "uci) echo id name Stockfish 15.1; echo option name EvalFile type string default x; echo uciok;;\n"
        "isready) echo readyok;;\nesac\ndone\n"
    )
    engine.chmod(0o755)
    net = tmp_path / "net\nbench\n.nnue"
    with pytest.raises(UserError, match=r"/net\\nbench\\n\.nnue' holds a line break or another control character"):
        EngineWithNet(str(engine), net)
    assert heard.read_text().split() == ["uci", "isready"]


def test_an_engine_without_a_hash_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All commands set the size of the table, which UCI does not require."""
    engine = tmp_path / "engine"
    engine.write_text(
        "#!/bin/sh\nwhile read -r line; do\ncase $line in\n"
        "uci) echo id name x; echo uciok;;\nisready) echo readyok;;\nquit) exit;;\nesac\ndone\n"
    )
    engine.chmod(0o755)
    for _ in range(2):
        with Engine(str(engine), options={"Hash": "4"}) as one:
            assert one.name == "x"
    assert [record.message.split(": ")[1] for record in caplog.records] == [
        "has no option 'Hash', so it chooses its memory itself"
    ]


def test_options_are_found_as_uci_spells_them(fake_engine: FakeEngine) -> None:
    with Engine(fake_engine()) as engine:
        engine.set_option("HASH", "4")
        with pytest.raises(UserError, match="has no option 'Colour'"):
            engine.set_option("Colour", "red")


def test_engines_are_found_on_path_and_where_debian_puts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_engine: FakeEngine
) -> None:
    path = fake_engine()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr("nnue_trainer.engines.uci._DEBIAN_FOLDER", str(tmp_path))
    assert find_engine("fake") == path == find_engine(path) == find_engine(default="fake")
    with pytest.raises(UserError, match=r"engine nothing: no such program on PATH or in "):
        find_engine("nothing")
    with pytest.raises(UserError, match=r"/nothing: no such program"):
        find_engine(str(tmp_path / "nothing"))
    with pytest.raises(UserError, match=r"it is a folder"):
        find_engine(str(tmp_path))
    (tmp_path / "text").write_text("x")
    with pytest.raises(UserError, match=r"it cannot be executed"):
        find_engine(str(tmp_path / "text"))
    with pytest.raises(UserError, match="apt-get install stockfish"):
        find_engine()


@pytest.mark.parametrize("mode", ["dies", "endless-lines", "no-move", "illegal", "score=cp_x"])
def test_a_run_ends_in_one_line_and_keeps_its_games(fake_engine: FakeEngine, tmp_path: Path, mode: str) -> None:
    """The engine goes wrong in mid-game; with a sound one the same command goes on, and makes the same file."""
    out = tmp_path / "out.binpack"
    with pytest.raises(UserError, match=r"engine .*fake"):
        generate(out, options(fake_engine(mode, start=35), positions=90))
    assert not out.exists()
    games: list[int] = []
    generate(out, options(fake_engine(), positions=90), concurrency=2, progress=lambda _, game: games.append(game))
    assert games[0] > 1
    generate(tmp_path / "whole.binpack", options(fake_engine(), positions=90))
    assert out.read_bytes() == (tmp_path / "whole.binpack").read_bytes()


def test_command_line(
    fake_engine: FakeEngine, tmp_path: Path, nnue: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "wait_until_ready", lambda engine: engine.ask("isready", "readyok", seconds=300.0))

    def run(*arguments: object) -> tuple[int, str]:
        command = ["data", "generate", tmp_path / "o.binpack", "--positions", "20", "--nodes", "1"]
        done = nnue(*command, "--score-scale", "1", "--max-ply", "10", "-j", "1", *arguments)
        return done.returncode, done.stderr

    status, error = run("--engine", fake_engine("endless-drip"), "--timeout", 1)
    assert status == 1
    assert error.count("\n") == 1
    assert "no 'bestmove' for 'go nodes 1' within 1 s" in error
    sound = fake_engine()
    for option, value in (("--timeout", "nan"), ("--timeout", "-1"), ("--score-scale", "nan"), ("--score-scale", "-1")):
        status, error = run("--engine", sound, option, value)
        assert status == 1
        assert error.count("\n") == 1
        assert "expected a positive number" in error
    for option in ("--positions", "--nodes", "--seed", "--hash", "--max-ply", "--opening-score", "--concurrency"):
        status, error = run("--engine", sound, option, 10**30)
        assert status == 2
        assert error.count("\n") == 1
    status, error = run("--engine", sound, "--option", "Hash=1\nquit")
    assert status == 1
    assert r"'setoption name Hash value 1\nquit' holds a line break" in error
    assert not (tmp_path / "o.binpack").exists()


def test_output_that_is_not_utf_8(fake_engine: FakeEngine, tmp_path: Path) -> None:
    """The engine's name goes into the journal and into messages, here on a terminal that takes ASCII alone."""
    command = [sys.executable, "-m", "nnue_trainer", "data", "generate", str(tmp_path / "o.binpack"), "--nodes", "1"]
    command += ["--engine", fake_engine("latin-1"), "--positions", "20"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert done.stderr == (
        "nnue: error: engine 'Fake J\\ufffdrg' does not report its internal units: give --score-scale (1 keeps "
        "centipawns)\n"
    )
    done = subprocess.run([*command, "--score-scale", "1"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_ctrl_c_while_an_engine_hangs(fake_engine: FakeEngine, tmp_path: Path) -> None:
    path = fake_engine("hangs", start=60)
    command = [sys.executable, "-m", "nnue_trainer", "data", "generate", str(tmp_path / "o.binpack"), "--engine", path]
    command += ["--positions", "1000", "--nodes", "1", "--score-scale", "1", "--max-ply", "10"]
    command += ["--opening-score", "2000", "-j", "2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    journal = tmp_path / "o.binpack.journal"
    wait_for(lambda: journal.exists() and journal.stat().st_size >= 1000, process)
    process.send_signal(signal.SIGINT)
    process.wait(timeout=SECONDS)
    assert process.returncode != 0
    assert processes_of(path) == []


HOLDS_AN_ENGINE = """
import sys
from nnue_trainer.engines.uci import Engine
engine = Engine(sys.argv[1], start_timeout=300.0)
engine.search("4k3/8/8/8/8/8/4P3/4K3 w - - 0 1", [], "nodes 1")
"""
RUNS_IT = """
import subprocess, sys
from nnue_trainer.base import process_groups
process_groups.run([sys.argv[1]], input=b"uci\\nposition fen 4k3/8/8/8/8/8/4P3/4K3 w - - 0 1\\ngo nodes 1\\n")
"""


@pytest.mark.parametrize("code", [HOLDS_AN_ENGINE, RUNS_IT])
def test_a_killed_program_leaves_no_engine_that_hangs(code: str, fake_engine: FakeEngine) -> None:
    path, script = fake_engine("hangs", run=""), str(Path(__file__).parents[1] / "data" / "fake_engine.py")
    process = subprocess.Popen([sys.executable, "-c", code, path])

    found: list[int] = []

    def runs() -> bool:
        """Whether there are the wrapper and its engine, and no copy of the wrapper that is to become the engine."""
        wrappers = [pid for pid in processes_of(path) if pid != process.pid]
        engines = [pid for pid in processes_of(script) if group_of(pid) in wrappers]
        found[:] = wrappers + engines
        return len(wrappers) == len(engines) == 1

    wait_for(runs, process)
    wrapper, engine = found
    process.kill()
    process.wait()
    wait_for(lambda: wrapper not in processes_of(path) and engine not in processes_of(script))


def test_a_watcher_that_was_killed_is_started_again(fake_engine: FakeEngine) -> None:
    with Engine(fake_engine(), start_timeout=300.0) as first:
        watcher = process_groups._watcher._process
        assert watcher is not None
        watcher.kill()
        watcher.wait()
        with Engine(fake_engine(), start_timeout=300.0) as second:
            assert process_groups._watcher._groups == {first._process.pid, second._process.pid}
            assert process_groups._watcher._process is not watcher
    assert not process_groups._watcher._groups


def test_a_watcher_whose_pipe_stays_open_elsewhere_is_killed(
    fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_groups, "_SECONDS", 0.2)
    with Engine(fake_engine(), start_timeout=300.0):
        watcher = process_groups._watcher._process
        assert watcher is not None
        assert watcher.stdin is not None
        kept = os.dup(watcher.stdin.fileno())
    os.close(kept)
    assert watcher.returncode == -signal.SIGKILL
    assert process_groups._watcher._process is None


def test_no_fork_while_another_thread_starts_a_watcher() -> None:
    """The child would keep the watcher's pipe open."""
    locked, done = threading.Event(), threading.Event()

    def start() -> None:
        with process_groups._watcher.lock:
            locked.set()
            time.sleep(0.5)
            done.set()

    thread = threading.Thread(target=start)
    thread.start()
    locked.wait()
    child = os.fork()
    if child == 0:
        os._exit(not done.is_set() or process_groups._watcher.lock.locked())
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_a_forked_child_has_its_own_watcher(fake_engine: FakeEngine) -> None:
    with Engine(fake_engine(), start_timeout=300.0) as engine:
        child = os.fork()
        if child == 0:
            os._exit(process_groups._watcher._process is not None)
        assert os.waitpid(child, 0)[1] == 0
        assert engine.search(FEN, [], "nodes 1")
