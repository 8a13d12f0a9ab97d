"""The progress line: what it shows, what it leaves out, and that it never fails."""

from __future__ import annotations

import io
import itertools
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl

import pytest
from rich.cells import cell_len

from nnue_trainer.base.progress import (
    Part,
    TrainingProgress,
    Unfailing,
    counted,
    duration,
    positions,
    progress_bar,
    render,
    size,
)

TRAINING = [
    Part("epoch 123/800", 6),
    Part("step 18,311/4,883,000", 8),
    Part("loss 0.012345", 3),
    Part("val 0.012345", 7),
    Part("1.23 M pos/s", 2, "1.23 M/s"),
    Part("data pass 2", 9),
    Part("elapsed 5 d 2 h", 4),
    Part("ETA 22 d 5 h", 1),
]


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (20, " 37%  ETA 22 d 5 h"),
        (40, " 37%  1.23 M/s  ETA 22 d 5 h"),
        (80, "█████▉░░░░░░░░░   37%  loss 0.012345  1.23 M/s  elapsed 5 d 2 h  ETA 22 d 5 h"),
        (
            100,
            "██▉░░░░░   37%  epoch 123/800  loss 0.012345  val 0.012345  1.23 M/s  elapsed 5 d 2 h  ETA 22 d 5 h",
        ),
        (
            180,
            "███████████████▉░░░░░░░░░░░░░░░░░░░░░░░░   37%  epoch 123/800  step 18,311/4,883,000  loss 0.012345  "
            "val 0.012345  1.23 M pos/s  data pass 2  elapsed 5 d 2 h  ETA 22 d 5 h",
        ),
    ],
)
def test_the_least_important_goes_first(width, expected):
    line = render(TRAINING, 0.37, width)
    assert re.sub("[▏▎▍▌▋▊▉█░]+", "", line) == re.sub("[▏▎▍▌▋▊▉█░]+", "", expected)
    assert ("█" in line) == ("█" in expected)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999, 1.0, 1.5, -1.0])
def test_a_line_fits_every_terminal(share):
    for width in range(20, 250):
        line = render(TRAINING, share, width)
        assert cell_len(line) < width
    assert render(TRAINING, 1.0, 100).startswith("████████  100%")


def test_times_are_short():
    times = [0, 45.4, 59.7, 200, 18_720, 1_915_200, 1e7, 1e12, float("inf"), float("nan")]
    expected = ["0 s", "45 s", "1 m 0 s", "3 m 20 s", "5 h 12 m", "22 d 4 h", "115 d", *["more than 1000 years"] * 3]
    assert [duration(seconds) for seconds in times] == expected


def test_numbers_are_short():
    assert [positions(n) for n in (0, 950, 999.9, 12_345, 4.5e6, 3e9, 1e16)] == [
        *["0", "950", "1.00 k", "12.3 k", "4.50 M", "3.00 G", "10,000 T"]
    ]
    assert [size(n) for n in (10, 1e6, 3 << 30)] == ["10 B", "977 KiB", "3.00 GiB"]
    assert [size(n << 10) for n in (999, 1000, 1010, 1023)] == ["999 KiB", "1,000 KiB", "1,010 KiB", "1,023 KiB"]
    assert [counted(n, "chunk") for n in (0, 1, 2000)] == ["0 chunks", "1 chunk", "2,000 chunks"]


@pytest.fixture
def clock(monkeypatch):
    """A clock that advances one second at each reading."""
    seconds = itertools.count(100)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))


def plain_lines(capsys):
    return capsys.readouterr().err.splitlines()


def test_elsewhere_there_is_a_line_for_each_record_and_none_twice(capsys, clock):
    shown = TrainingProgress(steps=6, steps_per_epoch=3, batch_size=10, step=0, passes=lambda: 2)
    for step in range(1, 7):
        shown.update(step)
        if step % 2 == 0:
            shown.update(step, loss=f"0.{step}")
        if step % 3 == 0:
            shown.update(step, val="0.5")
    shown.update(6, loss="0.6")
    shown.close()
    lines = plain_lines(capsys)
    assert [line.split("  ")[2] for line in lines] == [f"step {step}/6" for step in (2, 3, 4, 6)]
    assert [line.split("  ")[1] for line in lines] == ["epoch 1/2", "epoch 1/2", "epoch 2/2", "epoch 2/2"]
    assert lines[0].startswith("33%  epoch 1/2  step 2/6  loss 0.2  ")
    for line in lines:
        assert re.search(r"  [\d.]+ pos/s  data pass 2  elapsed \d+ s  ETA \d+ s$", line)


def test_pauses_do_not_count_for_the_speed_but_for_the_end(capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    shown = TrainingProgress(steps=101, steps_per_epoch=10, batch_size=100, step=0)
    shown.update(1)
    now = 10.0
    with shown.pause():
        now = 40.0
        shown.update(11, loss="1")
    now = 41.0
    shown.update(12, loss="1")
    first, second = plain_lines(capsys)
    assert "  100 pos/s  elapsed 40 s  ETA 6 m 0 s" in first
    assert "  100 pos/s  elapsed 41 s  ETA 5 m 32 s" in second


def test_what_is_said_cannot_forge_a_line(capsys):
    shown = TrainingProgress(steps=6, steps_per_epoch=3, batch_size=10, step=0)
    shown.say("a\x1b[2Jb\nfinished [bold]step[/bold] \u202e 6")
    assert plain_lines(capsys) == ["a\\x1b[2Jb\\nfinished [bold]step[/bold] \\u202e 6"]


def test_a_long_command_says_something_now_and_then(capsys, clock):
    with progress_bar("reading \x1b[1m", "positions") as show:
        for done in range(0, 1001, 100):
            show(done * 1000, 1_000_000)
        show(1, 7, "writing")
    assert plain_lines(capsys) == []
    with progress_bar("reading \x1b[1m", "positions") as show:
        for done in range(0, 1001, 5):
            show(done * 1000, 1_000_000)
    lines = plain_lines(capsys)
    assert len(lines) == 3
    assert re.match(r"\d+%  reading \\x1b\[1m  [\d,]+ of 1,000,000 positions  [\d.]+ k positions/s  elapsed", lines[0])


class Broken(io.StringIO):
    def write(self, _: str) -> int:
        raise BrokenPipeError


def test_nothing_fails_when_nobody_listens(monkeypatch):
    for stream in (Broken(), io.StringIO()):
        stream.close() if not isinstance(stream, Broken) else None
        monkeypatch.setattr(sys, "stderr", stream)
        shown = TrainingProgress(steps=6, steps_per_epoch=3, batch_size=10, step=0)
        shown.update(1, loss="1")
        shown.say("something")
        shown.close()
        with progress_bar("x") as show:
            show(1, 2)


def test_what_cannot_be_encoded_is_escaped():
    raw = io.BytesIO()
    out = Unfailing(io.TextIOWrapper(raw, encoding="ascii", errors="strict"))
    print("█ é \udcff", file=out, flush=True)
    assert raw.getvalue() == b"\\u2588 \\xe9 \\udcff\n"


SCRIPT = """
import time
from nnue_trainer.base.progress import TrainingProgress, progress_bar
shown = TrainingProgress(steps=4000, steps_per_epoch=100, batch_size=16384, step=0, passes=lambda: 3)
for step in range(1, 41):
    shown.update(step)
    if step % 10 == 0:
        shown.update(step, loss="0.012345", val="0.012340")
    time.sleep(0.02)
shown.say("epoch 1: validation loss 0.5")  # prose: allow
shown.close()
with progress_bar("reading") as show:
    for done in range(40):
        show(done << 20, 40 << 20)
        time.sleep(0.02)
"""


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 80])
def test_on_a_terminal(columns):
    """Drawn in a terminal of that width, no line is ever wider, and what matters is there."""
    main, terminal = pty.openpty()
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    environment |= {"TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment) as process:
        os.close(terminal)
        output = b""
        try:
            while data := os.read(main, 1 << 16):
                output += data
        except OSError:  # the terminal's other side is closed
            pass
        os.close(main)
    assert process.returncode == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode())
    lines = [line for line in re.split("[\r\n]+", text) if line.strip()]
    assert max(map(cell_len, lines)) < columns
    assert "epoch 1: validation loss 0.5" in lines
    last = next(line for line in reversed(lines) if "/s  " in line and "B/s" not in line)
    assert "ETA" in last
    assert " k/s" in last or " M/s" in last
    assert ("elapsed" in last) == ("loss 0.012345" in last) == ("░" in last) == (columns == 80)
    assert any("reading" in line and "ETA" in line for line in lines)
