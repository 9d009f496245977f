"""What a run prints: help, one header line, one progress bar, one table. Imports no torch."""

import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fastcache import catalog
from fastcache.settings import Settings, guided, number

EXAMPLES = """\
python -m fastcache.run method=motioncache thresh=0.3
python -m fastcache.run -m method=teacache,motioncache thresh=0.2,0.3,0.4,0.6
python -m fastcache.run method=reuse schedule=Fxxx prompt="a red circle moves left, a blue square stays"
"""
LOG = logging.getLogger("fastcache")
TELLING = (
    *("model", "engine", "sampler", "renoise", "rescale"),
    *("guidance_scale", "guidance_decisions", "seed", "num_videos"),
)
WIDTH = 120  # of what goes to a file or a pipe
_kept: list[str] | None = None  # instead of being said
live = True  # whether this process has the terminal to itself, so that it may draw a bar


def console(stderr: bool = False) -> Console:
    """A console of now: tests and job launchers exchange the standard streams."""
    file = sys.stderr if stderr else sys.stdout
    made = Console(file=file, highlight=False, soft_wrap=True)
    return made if made.is_terminal else Console(file=file, highlight=False, soft_wrap=True, width=WIDTH)


def say(text: str) -> None:
    if _kept is None:
        console().print(Text(text))
    else:
        _kept.append(text)


@contextmanager
def kept() -> Iterator[list[str]]:
    """Have another process say what is said in the block: it is collected, and said only where the block fails."""
    global _kept
    said: list[str] = []
    _kept = said
    try:
        yield said
    except BaseException:
        _kept = None
        for text in said:
            say(text)
        raise
    finally:
        _kept = None


def error(message: object) -> None:
    """The one message of a command that cannot be done."""
    console(stderr=True).print(Text(f"error: {message}"))


def help_text() -> str:
    """Three examples, one line a method, the other choices."""
    rows = [(m.name, "-" if m.dial is None else f"{m.dial}={m.default:g}", m.idea) for m in catalog.methods()]
    wide = [max(len(row[i]) for row in rows) for i in (0, 1)]
    lines = [f"  {name:<{wide[0]}}  {dial:<{wide[1]}}  {idea}" for name, dial, idea in rows]
    groups = [group for group in catalog.GROUPS if group != "method" and catalog.options(group)]
    choices = [f"  {group}={', '.join(n for n in catalog.options(group) if n != 'file')}" for group in groups]
    plain = ", ".join(key for key in catalog.KEYS if key not in catalog.GROUPS)
    return "\n".join(
        [
            "Generate videos with a cache method and score them against the run that computes everything.",
            "",
            *(f"  {line}" for line in EXAMPLES.splitlines()),
            "",
            "method=        dial       idea",
            *lines,
            "",
            "Other choices:",
            *choices,
            "  target_speedup=1.4 or max_lpips=0.05: method, dial and schedule that a finished study says are best",
            f"  prompts=FILE (one prompt a line), rescale=FILE, metric=[psnr,lpips]; values of: {plain}",
            "",
            "Options of the chosen method, engine, ...: method.KEY=, engine.KEY=, ...; conf/GROUP/NAME.yaml has them.",
            "dry=true says what a command would do; --cfg job prints its configuration; conf/ holds every default.",
        ]
    )


def header(s: Settings, signature: str) -> str:
    """One line that says what runs."""
    choices = s["choices"]
    dial = next((f" {key}={number(s['dial'])}" for key in catalog.DIALS if key in s["method"]), "")
    rescale = [f"rescale {s['rescale']['name']}"] if "rescale" in s["method"] else []
    guidance = [f"guidance {number(s['guidance_scale'])}"] if guided(s) else []
    videos = f"{s['num_videos']} video{'s' if s['num_videos'] > 1 else ''} of {s['frames']} latent frames"
    parts = [choices["model"], choices["engine"], f"{choices['method']}{dial}", s["schedule"], choices["sampler"]]
    return f"{signature}  " + " · ".join([*parts, *rescale, *guidance, videos, f"seed {s['seed']}", s["device"]])


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """A log file for the time of a run: its messages, its warnings (shown as well), the traceback of its failure."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    LOG.propagate = False

    def show(message: Warning | str, *_: object, **__: object) -> None:
        LOG.warning(str(message))
        say(f"warning: {message}")

    try:
        with warnings.catch_warnings():
            warnings.showwarning = show  # type: ignore[assignment]
            yield
    except Exception:
        LOG.exception("failed")
        raise
    finally:
        LOG.removeHandler(handler)
        handler.close()


class Bar:
    """Progress over the chunks of all videos; a line a video where there is no terminal to draw on."""

    def __init__(self, videos: int, chunks: int, done: int = 0, title: str = "", draw: bool = True) -> None:
        self.videos, self.chunks, self.done, self.title = videos, chunks, done, title
        self.console = console()
        self.progress: Progress | None = None
        if draw and live and self.console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TimeRemainingColumn())
            self.progress = Progress(*columns, console=self.console, transient=True)
            self.task = self.progress.add_task("", total=videos * chunks, completed=done * chunks)

    def __enter__(self) -> "Bar":
        if self.progress is not None:
            self.progress.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.progress is not None:
            self.progress.stop()

    def on_step(self, idx: int) -> Callable[[int, Any], None]:
        """What the rollout of video ``idx`` calls with a chunk's index and its trace so far."""

        def step(chunk_idx: int, trace: Any) -> None:
            if self.progress is not None:
                where = f"video {idx + 1}/{self.videos}  chunk {chunk_idx + 1}/{self.chunks}"
                text = f"{self.title}{where}  trace {trace.letters:<4}  compute {trace.compute_fraction:.2f}"
                self.progress.update(self.task, description=text, completed=self.done * self.chunks + chunk_idx)

        return step

    def count(self, done: int) -> None:
        """``done`` videos without a trace are finished."""
        if self.progress is not None:
            text = f"{self.title}{done}/{self.videos}"
            self.progress.update(self.task, description=text, completed=done * self.chunks)

    def video(self, idx: int, letters: Sequence[str], compute: float, seconds: float) -> None:
        """A whole video is on disk."""
        self.done += 1
        if self.progress is None:
            text = f"{self.title}video {idx + 1}/{self.videos}  trace {' '.join(letters)}"
            say(f"{text}  compute {compute:.2f}  {seconds:.2f} s")


def table(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print scores.json objects, slowest first. A dash is a number that was not measured, never a zero.

    Settings that labels do not tell get a column where they differ.
    """
    rows = sorted(rows, key=lambda row: row["speedup"] or 0.0)
    told = [key for key in TELLING if len({row.get(key) for row in rows} - {None}) > 1]
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    made.add_column("run", no_wrap=True)
    titles = ["compute", "forward", "ceiling", "speedup", "method MB", "LPIPS ↓", "SSIM ↑", "PSNR ↑"]
    engines = any(row.get("engine_reference") for row in rows)  # the second quality: against the engine's own FFFF
    if engines:
        titles[5:5] = ["KV MB", "host MB", "s/video"]
        titles += ["own LPIPS ↓", "own SSIM ↑", "own PSNR ↑"]
    for title in (*told, *titles, "signature"):
        made.add_column(title, justify="right")
    for row in rows:
        is_reference = row["signature"] == row["reference"]
        cells = ["-" if row.get(key) is None else str(row[key]) for key in told]
        cells += [f"{row['compute_fraction']:.3f}", f"{row['forward_fraction']:.3f}", f"{row['ceiling']:.2f}x"]
        cells += [_cell(row, "speedup", "{:.2f}x"), f"{row['method_bytes'] / 1e6:.2f}"]
        if engines:
            sizes = [f"{row['kv_bytes'] / 1e6:.2f}", f"{row.get('kv_host_bytes', 0) / 1e6:.2f}"]
            cells += [*sizes, f"{row['s_per_video']:.2f}"]
        cells += _quality(row)
        if engines:
            cells += _quality(row.get("engine_reference") or {})
        made.add_row(row["label"] + (" (ref)" if is_reference else ""), *cells, row["signature"])
    show_whole(made)


def show_whole(made: Table) -> None:
    """Print a table with no column squeezed, however narrow the screen."""
    screen = console()
    whole = Measurement.get(screen, screen.options.update(max_width=10 * WIDTH), made).maximum
    screen.width = max(screen.width, whole)
    screen.print(made, crop=False)


def _quality(row: Mapping[str, Any]) -> list[str]:
    forms = {"lpips": "{:.4f}", "ssim": "{:.4f}", "psnr": "{:.2f}"}
    return [_cell(row, name, form) if name in row else "-" for name, form in forms.items()]


def _cell(row: Mapping[str, Any], name: str, form: str) -> str:
    if row[name] is not None:
        return form.format(row[name])
    return "exact" if row.get(f"{name}_why") == "identical" else "-"
