"""The same comparison as a W&B report: Pareto scatter, run table, media, per-chunk curves. No torch.

Needs the extra ``[report]`` (wandb-workspaces). The report shows runs that are on W&B already: those made with
tracking=online, and offline ones after ``wandb sync outputs/*/wandb/offline-run-*``. A run's id is its signature.
"""

from typing import Any

from fastcache import terminal, track
from fastcache.errors import UserError
from fastcache.report.study import Study
from fastcache.report.tables import interval
from fastcache.report.words import counted, verb
from fastcache.track import SYNC

COLUMNS = ("label", "method", "dial", "schedule", "renoise", "forward_fraction", "speedup", "lpips", "ssim", "psnr")
TITLE = "fastcache: quality against compute"


def publish(study: Study, project: str) -> str:
    """Save the report in ENTITY/PROJECT (or PROJECT of the default entity); its address.

    Raises UserError without the extra, without a login, without an answer and without a run to show.
    """
    entity, _, name = project.rpartition("/")
    _library()
    track.connect("--wandb", "the local report is complete without it")
    try:
        entity = entity or track.entity()
        missing = _missing(study, entity, name)
        report = build(study, name, entity)
        report.save()
    except UserError:
        raise
    except Exception as error:  # no network, no such project, a server's own error
        told = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"the W&B report was not saved: {told}; the local report is complete") from error
    if missing:
        count = f"{len(missing)} of {counted(len(study.runs), 'run')} {verb(len(missing))}"
        terminal.say(f"{count} not on W&B: {_some(missing)}; upload {verb(len(missing), 'it', 'them')}: {SYNC}")
    return str(report.url)


def _missing(study: Study, entity: str, project: str) -> list[str]:
    """The runs of the study that W&B does not have. Raises UserError where that is all of them."""
    names = [run.path.name for run in study.runs]
    try:
        there = track.known_runs(entity, project, names)
    except ValueError:  # no such project
        there = set()
    if not there:
        raise UserError(
            f"--wandb: none of these runs is in {entity}/{project} on W&B; upload them with `{SYNC}`, or make them "
            "with tracking=online; the local report is complete"
        )
    return [name for name in names if name not in there]


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def build(study: Study, project: str, entity: str) -> Any:
    """The report object, nothing sent. An empty entity leaves its run sets without a project, for reading offline."""
    wr = _library()
    runset = _runset(wr, study, project, entity)
    blocks: list[Any] = [wr.P(text) for text in _words(study)]
    blocks += [wr.H2("Quality against cost"), wr.PanelGrid(runsets=[runset], panels=_scatters(wr))]
    blocks += [
        wr.H2("Quality per chunk"),
        wr.PanelGrid(runsets=[_runset(wr, study, project, entity)], panels=_curves(wr)),
    ]
    blocks += [wr.H2("Videos"), wr.PanelGrid(runsets=[_runset(wr, study, project, entity)], panels=[_media(wr)])]
    blocks += [wr.H2("Differences from the baseline"), wr.MarkdownBlock(_differences(study))]
    return wr.Report(project=project, entity=entity or "offline", title=TITLE, blocks=blocks, width="fluid")


def spec(report: Any) -> str:
    """The JSON that save() sends."""
    return str(report._to_model().spec.model_dump_json(by_alias=True, exclude_none=True))


def _library() -> Any:
    try:
        import wandb_workspaces.reports.v2 as wr
    except ImportError:
        raise UserError('--wandb needs wandb-workspaces: pip install "fastcache[report]"') from None
    return wr


def _runset(wr: Any, study: Study, project: str, entity: str) -> Any:
    """The runs of the study by their names, as a table: nothing else of the project enters the plots."""
    names = [run.path.name for run in study.runs]
    where = {"project": project, "entity": entity} if entity else {}
    filters = f"Metric('displayName') in {names!r}"
    order = [wr.OrderBy(name=wr.SummaryMetric("forward_fraction"), ascending=False)]
    visible = ["run:displayName", *(f"summary:{name}" for name in COLUMNS)]
    return wr.Runset(
        **where, name="runs", filters=filters, order=order, pinned_columns=visible[:1], visible_columns=visible
    )


def _scatters(wr: Any) -> list[Any]:
    pairs = [(q, c) for q in ("lpips", "psnr") for c in ("speedup", "forward_fraction")]
    return [
        wr.ScatterPlot(
            title=f"{quality} against {cost}",
            x=wr.SummaryMetric(cost),
            y=wr.SummaryMetric(quality),
            running_ymin=quality == "lpips",
            running_ymax=quality == "psnr",
            layout=wr.Layout(x=12 * (i % 2), y=10 * (i // 2), w=12, h=10),
        )
        for i, (quality, cost) in enumerate(pairs)
    ]


def _curves(wr: Any) -> list[Any]:
    """Curves over the table "chunks" that every run logs."""
    query = {"summaryTable": {"tableKey": "chunks"}}
    return [
        wr.CustomChart(
            query=query,
            chart_name="wandb/line/v0",
            chart_fields={"x": "chunk", "y": name, "stroke": "video"},
            chart_strings={"title": f"{name} per chunk", "x-axis-title": "chunk", "y-axis-title": name},
            layout=wr.Layout(x=12 * i, y=0, w=12, h=10),
        )
        for i, name in enumerate(("lpips", "psnr"))
    ]


def _media(wr: Any) -> Any:
    keys = ["sheet", *(f"video_{i}" for i in range(3))]
    return wr.MediaBrowser(
        title="reference | run | difference", media_keys=keys, num_columns=2, layout=wr.Layout(w=24, h=16)
    )


def _words(study: Study) -> list[str]:
    first = f"{counted(len(study.runs), 'run')}. Quality is measured against the run that computes everything (FFFF)."
    return [first, *study.told()]


def _differences(study: Study) -> str:
    """Markdown: paired differences with intervals, a table a protocol."""
    parts = []
    bases = [(study.paired(g)["lpips"], *pair) for g in study.groups for pair in study.baselines_of(g)]
    for found, part, base in bases:
        rows = [
            f"| {part.title(r)} | {r['forward_fraction']:.3f} | {interval(found[r.signature])} |"
            for r in part.compared
            if r.signature in found
        ]
        head = f"{part.told}\n\n" if part.told else ""
        title = f"| run | forward fraction | LPIPS against {part.label(base)} |\n|---|---|---|\n"
        parts.append(head + title + "\n".join(rows))
    return "\n\n".join(parts) or "No baseline among these runs."
