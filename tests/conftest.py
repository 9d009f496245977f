import copy
import gc
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hydra._internal.core_plugins import file_config_source
from omegaconf import OmegaConf

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


def pytest_collection_modifyitems(config, items):
    """Checks of files that the --golden folder does not hold, and of programs that are not here, are left out, and said
    to be."""
    folder = config.getoption("--golden")
    marks = {item: item.get_closest_marker("golden") for item in items}
    absent = [item for item, mark in marks.items() if mark and not (folder / mark.args[0]).is_file()]
    if absent:
        config.hook.pytest_deselected(items=absent)
        items[:] = [item for item in items if item not in absent]
        config.golden_absent = sorted({marks[item].args[0] for item in absent})
    programs = {item: mark.args[0] for item in items if (mark := item.get_closest_marker("program"))}
    absent = [item for item, name in programs.items() if shutil.which(name) is None]
    if absent:
        config.hook.pytest_deselected(items=absent)
        items[:] = [item for item in items if item not in absent]
        config.programs_absent = sorted({programs[item] for item in absent})


def pytest_terminal_summary(terminalreporter, config):
    if absent := getattr(config, "golden_absent", None):
        terminalreporter.write_line(f"{config.getoption('--golden')} lacks {', '.join(absent)}: not checked")
    if absent := getattr(config, "programs_absent", None):
        terminalreporter.write_line(f"{', '.join(absent)} not installed: what needs it is not checked")


@pytest.fixture(scope="session", autouse=True)
def parsed_once():
    """Hydra parses some twenty files for each job that is composed, a sixth of the time; here each of them once."""
    parsed = {}

    def load(file):
        state = os.fstat(file.fileno())
        key = file.name, state.st_mtime_ns, state.st_size
        if key not in parsed:
            parsed[key] = OmegaConf.load(file)
        return copy.deepcopy(parsed[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_config_source, "OmegaConf", SimpleNamespace(load=load))
        yield


@pytest.fixture(scope="module", autouse=True)
def light_heap():
    """A run collects garbage after each of its folders, which takes longer than a toy's video where all that the suite
    has imported is looked through."""
    gc.collect()
    gc.freeze()


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
