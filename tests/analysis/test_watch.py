"""`nnue watch`: the page of a run that is going, that has ended and that is damaged, and its server."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser import PHONE, started
from waiting import SECONDS

from nnue_trainer.analysis import watch
from nnue_trainer.analysis.runs import read_run
from nnue_trainer.errors import UserError
from nnue_trainer.files.pages.page import as_text, render
from nnue_trainer.training.run_folder import LOCK, RunFolder, owner_of

Train = Callable[..., Path]


@contextmanager
def served(path: Path, every: int = 7) -> Iterator[watch.Server]:
    with watch.Server(path, every) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def got(server: watch.Server, path: str = "/", host: str = "127.0.0.1") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=SECONDS)
    try:
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def cut(folder: Path, records: int) -> None:
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:records]))
    shutil.rmtree(folder / "checkpoints")


def test_a_run_that_is_going_and_its_end(trained: Train) -> None:
    folder = trained("going")
    assert watch.state_of(read_run(folder)) == "finished"
    cut(folder, 46)
    run = read_run(folder)
    assert run.step == 45
    assert watch.state_of(run) == "stopped"
    with RunFolder(folder):
        assert owner_of(folder) == (os.getpid(), socket.gethostname())
        assert watch.state_of(run) == f"running, pid {os.getpid()}"
        text = as_text(watch.build(folder))
        rate = run.train.last("run_positions_per_second")
        assert watch.seconds_left(run) == pytest.approx(45 * 100 / rate)
        assert "time left             –" not in text
    assert text.startswith("going: 50%\n")
    assert "45 of 90" in text
    assert owner_of(folder) is None
    text = as_text(watch.build(folder))
    assert "stopped, last record" in text
    assert "time left             –" in text
    # Another host, and a process that was killed.
    (folder / LOCK).write_text(json.dumps({"pid": 12, "host": "elsewhere"}))
    assert watch.state_of(run) == "running, pid 12 on elsewhere"
    (folder / LOCK).write_text(json.dumps({"pid": 2**22 + 1, "host": socket.gethostname()}))
    assert watch.state_of(run) == "stopped"


def test_the_last_games(trained: Train) -> None:
    folder = trained()
    games = [
        {"game": n, "white": "step-1", "black": "<b>", "result": "1-0", "reason": "checkmate", "plies": 50 + n}
        for n in range(1, 31)
    ]
    for name, chosen in (("step-000000001", games[:3]), ("step-000000090", games)):
        (folder / "matches" / name).mkdir(parents=True)
        (folder / "matches" / name / "match.json").write_text(json.dumps({"games": chosen}))
    page = watch.build(folder)
    (table,) = next(section for section in page.sections if section.title == "Matches").tables
    assert table.title == "Last games, step-000000090"
    assert [row[0] for row in table.rows] == [str(n) for n in range(30, 20, -1)]
    assert "<b>" not in render(page)
    newest = folder / "matches" / "step-000000090" / "match.json"
    for damaged in ("{", "[]", '{"games": 3}', '{"games": [{}]}', '{"games": [3]}', "[" * 100_000):
        newest.write_text(damaged)
        assert "step-000000090/match.json: cannot be read" in as_text(watch.build(folder)), damaged


def test_the_server(trained: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = trained("served")
    built: list[int] = []
    whole = watch.build

    def build(path: Path, refresh: int) -> object:
        built.append(refresh)
        return whole(path, refresh)

    monkeypatch.setattr(watch, "build", build)
    with served(folder) as server:
        status, text = got(server)
        assert status == 200
        assert '<meta http-equiv="refresh" content="7">' in text
        assert "<script" not in text
        assert "<h3>Validation loss</h3>" in text
        assert got(server, "/?again", "localhost:9")[1] == text
        assert built == [7]
        assert got(server, "/../etc/passwd")[0] == got(server, "/metrics.jsonl")[0] == 404
        assert got(server, host="evil.example")[0] == got(server, host="127.0.0.1.evil.example")[0] == 403
        cut(folder, 46)
        assert "served: 50%" in got(server)[1]
        shutil.rmtree(folder)
        status, text = got(server)
        assert status == 200
        assert "waiting for the first file of the run" in text
        assert "no such folder" in text
        assert '<meta http-equiv="refresh"' in text
    assert len(built) == 3


def test_a_run_that_has_not_begun(trained: Train, tmp_path: Path) -> None:
    """From a folder that does not exist to the first file; a run owns its folder before it writes that file."""
    folder, finished = tmp_path / "later", trained()
    with served(folder / "checkpoints" / "best.safetensors") as server:
        assert "no such folder" in got(server)[1]
        with RunFolder(folder) as run:
            run.will_write(run.recipe)
            text = got(server)[1]
            assert "waiting for the first file of the run" in text
            assert "not the folder of a run" in text
            assert '<meta http-equiv="refresh"' in text
            (folder / "notes.txt").touch()
            assert watch.may_begin(folder)
            shutil.copy(finished / "recipe.yaml", folder)
            text = got(server)[1]
            assert "waiting for" not in text
            assert "later: 0%" in text


@pytest.mark.slow
def test_the_command_waits_for_a_run(tmp_path: Path, project_root: Path) -> None:
    command = [sys.executable, "-m", "nnue_trainer", "watch", "runs/later"]
    environment = os.environ | {"PYTHONPATH": str(project_root)}
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert " shows runs/later and renews itself" in process.stdout.readline()
        assert process.stdout.readline() == "runs/later: waiting for the first file of a run in this folder\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, errors) == (0, "")
    assert not any(tmp_path.iterdir())


def test_bad_input_is_one_line(trained: Train, tmp_path: Path, nnue: Callable[..., tuple[int, str, str]]) -> None:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "file").touch()
    for path, reason in ((tmp_path / "file", "not a folder"), (tmp_path / "runs", "not the folder of a run")):
        status, _, error = nnue("watch", path)
        assert (status, error.count("\n")) == (1, 1)
        assert reason in error
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, _, error = nnue("watch", trained(), "--port", str(port))
        assert (status, error.count("\n")) == (1, 1)
        assert f"port {port}: " in error
        assert "--port" in error
        with pytest.raises(UserError, match="in use"):
            watch.Server(trained(), 1, port)
    assert nnue("watch", trained(), "--port", "70000")[0] == 2


@pytest.mark.slow
def test_the_command_ends_with_ctrl_c(trained: Train, project_root: Path) -> None:
    command = [sys.executable, "-m", "nnue_trainer", "watch", str(trained()), "--every", "3"]
    environment = os.environ | {"PYTHONPATH": str(project_root)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        found = re.match(r"http://127\.0\.0\.1:(\d+)/ shows .* every 3 s; Ctrl-C ends this$", process.stdout.readline())
        assert found is not None
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.slow
@pytest.mark.browser
def test_the_page_in_a_browser(trained: Train, tmp_path: Path) -> None:
    page = tmp_path / "watch.html"
    page.write_text(render(watch.build(trained(), 600)))
    with started() as browser:
        found = browser.open(page, PHONE)
    assert found["console"] == []
    assert found["scrollWidth"] <= found["width"]
    assert found["beyond"] == []
    assert len(found["plots"]) >= 5
    assert "finished, last record" in found["text"]
