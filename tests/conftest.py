from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # tiny tensors: a second thread only waits


def pytest_addoption(parser):
    parser.addoption(
        "--golden",
        metavar="DIR",
        default=str(Path(__file__).parent / "golden"),
        help="folder of numeric fixtures that test_golden.py checks against (default: tests/golden)",
    )


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
