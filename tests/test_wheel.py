"""A built wheel carries conf/, weights and templates, and runs from any working directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str, cwd: Path, **env: str) -> subprocess.CompletedProcess:
    done = subprocess.run(command, cwd=cwd, env=os.environ | env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.slow
def test_an_installed_wheel_works_from_elsewhere(tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "-q", "--no-deps", "-w", str(tmp_path / "dist"), str(ROOT), cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    run(*pip, "install", "-q", "--no-deps", "--target", str(tmp_path / "site"), str(wheel), cwd=tmp_path)
    site = tmp_path / "site"
    assert (site / "fastcache" / "conf" / "config.yaml").is_file()
    assert (site / "fastcache" / "training" / "card_template.md").is_file()
    where = run(sys.executable, "-c", "import fastcache; print(fastcache.__file__)", cwd=tmp_path, PYTHONPATH=str(site))
    assert where.stdout.startswith(str(site))
    dry = run(
        sys.executable, "-m", "fastcache.run", "method=motioncache", "thresh=0.3", "dry=true", "device=cpu",
        cwd=tmp_path, PYTHONPATH=str(site),
    )  # fmt: skip
    assert "motioncache" in dry.stdout and "weights" in dry.stdout
    assert not (tmp_path / "outputs").exists()
