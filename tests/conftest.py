import os
import shutil
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # tiny tensors: a second thread only waits
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the same for the commands that tests start
# submitit gives its logger the stderr of the first test that imports it, which is closed in the next one
os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")


def pytest_addoption(parser):
    parser.addoption(
        "--golden",
        metavar="DIR",
        type=Path,
        default=Path(__file__).parent / "golden",
        help="folder of numeric fixtures to check against (default: tests/golden)",
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "golden(file): checks that file of the --golden folder; absent, not collected")
    config.addinivalue_line("markers", "program(name): needs that program; absent, not collected")
    config.addinivalue_line("markers", "package(name): needs that Python package; absent, not collected")


def pytest_collection_modifyitems(config, items):
    """Checks of files that the --golden folder does not hold, and of programs and packages that are not here, are left
    out, and said to be."""
    folder = config.getoption("--golden")
    marks = {item: item.get_closest_marker("golden") for item in items}
    absent = [item for item, mark in marks.items() if mark and not (folder / mark.args[0]).is_file()]
    if absent:
        config.hook.pytest_deselected(items=absent)
        items[:] = [item for item in items if item not in absent]
        config.golden_absent = sorted({marks[item].args[0] for item in absent})
    config.not_installed = set()
    for kind, find in (("program", shutil.which), ("package", find_spec)):
        names = {item: mark.args[0] for item in items if (mark := item.get_closest_marker(kind))}
        absent = [item for item, name in names.items() if find(name) is None]
        if absent:
            config.hook.pytest_deselected(items=absent)
            items[:] = [item for item in items if item not in absent]
            config.not_installed |= {names[item] for item in absent}


def pytest_terminal_summary(terminalreporter, config):
    if absent := getattr(config, "golden_absent", None):
        terminalreporter.write_line(f"{config.getoption('--golden')} lacks {', '.join(absent)}: not checked")
    if absent := getattr(config, "not_installed", None):
        terminalreporter.write_line(f"{', '.join(sorted(absent))} not installed: what needs it is not checked")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def golden(request):
    from golden_files import Golden

    return Golden(request.config.getoption("--golden"))


@pytest.fixture
def undrawn(monkeypatch):
    """Reports without their figures, which are nine tenths of a report's time; for tests of everything else."""
    monkeypatch.setattr("fastcache.report.figures.draw", lambda *_: [])


@pytest.fixture
def out(tmp_path, monkeypatch):
    """An empty outputs folder; the working directory beside it must stay empty."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "out"
    assert [path.name for path in tmp_path.iterdir()] in ([], ["out"])


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Commands in this process do without a second one, which takes seconds to start: that is for tests of it."""
    monkeypatch.setattr("fastcache.run.WORTH", 10**9)


@pytest.fixture
def spare(monkeypatch, alone):
    """A core to spare, and work worth one. Gives a list of the work that went to the second process."""
    from fastcache import job, launchers, run, worker

    monkeypatch.setattr(launchers, "free_cores", lambda device: 1)
    monkeypatch.setattr(run, "WORTH", 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    handed, submit = [], job.submit

    def watched(work, *args):
        if worker.is_apart():
            handed.append(work.__name__)
        return submit(work, *args)

    monkeypatch.setattr(job, "submit", watched)
    return handed


@pytest.fixture
def listening():
    """Ctrl-C is heard, also where the tests were started in the background, which turns it off."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)
