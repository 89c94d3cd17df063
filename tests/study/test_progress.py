"""What a sweep shows while it runs: on a terminal, in a pipe, and when it is interrupted."""

import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

import fljax as fl
from fljax._core.devices import on_cpu
from fljax.study import executor, progress
from fljax.study.batched_program import Program
from fljax.study.collection import Collection
from fljax.study.progress import Progress

ROOT = Path(__file__).parents[2]
LINE = r"fljax: \d+% done after \d\d:\d\d(, about \d\d:\d\d to go)? \(.+\)"
WAITING = (
    r"fljax: interrupted; waiting for 1 running block, {}\. Ctrl-C again leaves them behind\.\n"
)

pytestmark = pytest.mark.core


def scenario(key):
    return fl.Simulation(
        problem=fl.problems.ridge(key, clients=4, samples=5, dim=2),
        algorithm=fl.algorithms.FedAvg(0.05, epochs=1),
        metrics=["normalized_error"],
    )


def sweep(**options):
    """A sweep in four calls, one after the other."""
    return fl.sweep(scenario, rounds=4, seeds=8, block=1, workers=1, **options)


def calls_take(*seconds, before=lambda _: None):
    """Make calls of programs take these seconds; ``before`` is called with the number of each call.

    Returns the method that this replaces.
    """
    replaced = Program.compile
    calls = []

    def slower(self, *args):
        compiled, took = replaced(self, *args)

        def call(*arguments):
            calls.append(True)
            before(len(calls))
            time.sleep(seconds[min(len(calls), len(seconds)) - 1])
            return compiled.call(*arguments)

        return compiled._replace(call=call), took

    Program.compile = slower
    return replaced


@pytest.fixture(autouse=True)
def heeded():
    """A shell's background jobs, as tests may be, ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def slowly():
    replaced = []
    yield lambda *args, **kwargs: replaced.append(calls_take(*args, **kwargs))
    Program.compile = replaced[0]


def child(code, stderr=subprocess.PIPE):
    head = "import logging, sys, time; from tests.study.test_progress import *\n"
    head += "from fljax.study import executor, progress\n"
    command = [sys.executable, "-c", head + code]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True)


def test_the_time_left_does_not_count_compilation(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    bar = Progress(100, 20, is_visible=True)
    now[0] = 100.0
    bar.update()
    bar.start()
    now[0] = 110.0
    bar.advance(8, "not a minute later")
    now[0] = 165.0
    bar.advance(2, "1/8 seeds")
    bar.close()
    first, second = capsys.readouterr().err.splitlines()
    assert first == "fljax: 20% done after 01:40 (compiling)"
    assert second == "fljax: 30% done after 02:45, about 07:35 to go (1/8 seeds)"


@pytest.mark.slow
def test_a_short_study_in_a_pipe_prints_nothing(capfd):
    sweep()
    sweep(progress=True)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_pipe_gets_one_line_a_minute(monkeypatch, capfd, slowly):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.3)
    slowly(0.4)
    sweep()
    out, err = capfd.readouterr()
    assert not out
    lines = err.splitlines()
    assert len(lines) >= 2
    assert all(re.fullmatch(LINE, line) for line in lines), err
    sweep(progress=False)
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def announcement(monkeypatch):
    """An event that is set when an interrupted study has announced the blocks it waits for."""
    announced = threading.Event()
    say = executor.StudyRun._report_running_blocks

    def saying(run, jobs):
        say(run, jobs)
        announced.set()

    monkeypatch.setattr(executor.StudyRun, "_report_running_blocks", saying)
    return announced


def test_ctrl_c_announces_the_running_blocks(capfd, slowly, announcement):
    waits = []

    def interrupt(number):
        if number == 4:
            os.kill(os.getpid(), signal.SIGINT)
            waits.append(announcement.wait(60))  # while the block runs

    slowly(0.1, 0.1, 0.1, 0.1, before=interrupt)
    done = 8 if on_cpu() else 4  # where each of the eight runs is a call
    with pytest.raises(fl.Interrupted, match=rf"{done} of 8 runs are done\.") as caught:
        sweep()
    assert waits == [True]
    assert caught.value.results.normalized_error.notnull().all("round").sum() == done
    assert re.fullmatch(WAITING.format(r"about \d+ s"), capfd.readouterr().err)


def test_ctrl_c_while_a_block_is_kept_does_not_lose_it(monkeypatch):
    add = Collection.add
    blocks = []

    def interrupted(self, block):
        blocks.append(block)
        if len(blocks) == 2:
            raise KeyboardInterrupt
        add(self, block)

    monkeypatch.setattr(Collection, "add", interrupted)
    with pytest.raises(fl.Interrupted) as caught:
        sweep()
    results = caught.value.results
    assert results.normalized_error.sel(seed=blocks[1].seeds).notnull().all()


def test_ctrl_c_does_not_wait_for_the_compiler(capfd, monkeypatch):
    compiling = threading.Event()
    done = threading.Event()
    ended = []

    def slow(*_):
        compiling.set()
        done.wait(60)
        ended.append(True)
        raise RuntimeError("of no use to anybody")

    def interrupt():
        compiling.wait()
        time.sleep(0.5)  # until it waits for the compiler
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Program, "compile", slow)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(fl.Interrupted, match=r"0 of 8 runs are done\."):
        sweep()
    assert not ended
    done.set()
    thread.join()
    assert "interrupted; the compiler" in capfd.readouterr().err


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait(slowly, announcement):
    left = threading.Event()
    ended = []

    def twice(number):
        if number == 3:
            os.kill(os.getpid(), signal.SIGINT)
            announcement.wait(60)
            time.sleep(0.5)  # until it waits for this block
            os.kill(os.getpid(), signal.SIGINT)
            left.wait(60)
            ended.append(True)

    slowly(0.1, before=twice)
    with pytest.raises(fl.Interrupted, match=r"4 of 8 runs are done\."):
        sweep()
    assert not ended
    left.set()


@pytest.mark.slow
def test_at_a_prompt_the_message_appears_while_the_block_runs(tmp_path):
    read = tmp_path / "read"
    process = child(f"""
def before(number):
    print(number, flush=True)
    for _ in range(600 * (number == 3)):
        if Path({str(read)!r}).exists():
            return
        time.sleep(0.1)
    if number == 3:
        print("the block ended before its message was read", flush=True)
calls_take(0.1, before=before)
sweep()
""")
    for number in "123":
        assert process.stdout.readline() == f"{number}\n"
    process.send_signal(signal.SIGINT)
    message = process.stderr.readline()
    read.touch()
    assert re.fullmatch(WAITING.format(r"about \d+ s"), message)
    out, rest = process.communicate(timeout=60)
    assert out == ""
    assert "6 of 8 runs are done." in rest.splitlines()[-1]


@pytest.mark.slow
def test_on_a_terminal_there_is_one_bar_and_log_lines_go_above_it():
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 120))
    process = child(
        """
logging.basicConfig()
executor.FLUSH_SECONDS = 0.0
calls_take(0.3)
sweep(callback=lambda _: logging.warning("a line of the log"))
""",
        stderr=theirs,
    )
    os.close(theirs)
    output = b""
    while True:
        try:
            if not (more := os.read(ours, 4096)):
                break
        except OSError:  # how Linux says that the other end is closed
            break
        output += more
    assert process.wait() == 0
    # Each line shows its last text.
    lines = [line.split("\r")[-1] for line in output.decode().replace("\r\n", "\n").split("\n")]
    logged = [line for line in lines if "log" in line]
    assert len(logged) >= 4
    assert set(logged) == {"WARNING:root:a line of the log"}
    (bar,) = [line for line in lines if line not in logged and line.strip()]
    assert bar.startswith("100%")
    assert "8/8 seeds" in bar


NOTEBOOK = """
import types
shell = types.SimpleNamespace(config={"IPKernelApp": {}})
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)
sys.modules["ipykernel.zmqshell"] = types.ModuleType("ipykernel.zmqshell")
"""


@pytest.mark.slow
def test_a_notebook_without_widgets_has_a_bar_of_text_and_no_warning():
    """Stub modules replace the notebook; the widgets' modules are blocked."""
    code = f"{NOTEBOOK}sys.modules['ipywidgets'] = None\n"
    code += "from fljax.study.progress import Progress\n"
    code += "bar = Progress(8, 0, True)\nbar.start()\nbar.advance(8, '8/8 seeds')\nbar.close()\n"
    command = [sys.executable, "-c", f"import sys\n{code}"]
    options = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run(command, check=False, **options)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("100%")
    assert "8/8 seeds" in last
    assert "IProgress" not in done.stderr
    assert "Warning" not in done.stderr
