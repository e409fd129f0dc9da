"""The pages of a store as HTML text, for the server and for folders of files."""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from flows.lookup.data_rejects import rejects_of
from flows.lookup.runs import describe_ends, larger_run, run_outcome
from flows.pages.chart import (
    COLOR_RULES,
    Chart,
    LossReader,
    method_colors,
    score_chart,
)
from flows.pages.compare_page import (
    Side,
    chart_of_sides,
    charts_of_section,
    column_of,
    common_cells,
    compare_cells,
    find_sides,
    incomparable_reason,
    lineage_target,
    run_differences,
)
from flows.pages.downloads import (
    FIGURE_FORMS,
    TABLE_FORMS,
    Download,
    item_rows,
    pair_rows,
    report_file,
    run_rows,
    table_file,
)
from flows.pages.figures import FIGURES, draw_figure
from flows.pages.history_drawing import UsageIndex, distinct_names, draw
from flows.pages.item_scores import ITEM_FILTERS, OF_TWO, ScoredItem
from flows.pages.links import page_about
from flows.pages.mask_overlays import overlay_png, page_mask
from flows.pages.overview import (
    Overview,
    OverviewReader,
    differences_text,
    run_seconds,
    server_errors_text,
    when,
)
from flows.pages.page import Page
from flows.pages.record_cards import Card, Cards
from flows.pages.run_results import Column, Study, has_scores, study_of
from flows.pages.trainings import (
    find_training,
    run_values,
    training_values,
    unfinished_values,
)
from flows.report.cells import Section
from flows.report.durations import age_text, duration_text, time_left_text
from flows.report.items_table import is_right
from flows.report.layout import overall_blocks, report_notes, section_block
from flows.report.text_lists import abbreviate_list
from infra.errors import one_line_message
from infra.store.store import Artifact, Store

_HERE = Path(__file__).parent
SHARED_TEXTS = {
    "style": ((_HERE / "style.css").read_text(encoding="utf-8") + COLOR_RULES, "text/css"),
    "script": ((_HERE / "tables.js").read_text(encoding="utf-8"), "text/javascript"),
}
"""Kind of page that all others load -> its text and media type."""

_SAMPLES = 8
"""Number of sample records or answers on an artifact's page."""
_PLOTS = ("results", "pareto")
"""Figures of a report; the second is in results artifacts but those of earlier versions."""
_RUNS = 100
"""Number of runs on one page of their list."""
_LISTED = 30
"""Most nodes, runs or studies that a part of the start page shows; the others are counted."""
_ROWS = 25
"""Number of pairs of cells on one page of a comparison: the items of each are read."""
_MAX_SIDES = 6
"""Most cells, methods or runs that are compared on one page."""
_REJECTS = 20
"""Number of rejects of one kind that a dataset's page names; the others are counted."""
_NAMED = 200
"""Largest number of inputs listed on an artifact's page, and of users."""


class NoPageError(LookupError):
    """A page does not exist; the message says why."""


UIKeys = Callable[[str, str], Sequence[str]]
"""Function from "task-run" or "artifact", and its id in Prefect, to the keys of its pages there."""

PageLink = Callable[[Page], str | None]
"""Function from a page to its address, or None if the page is not available."""


class Site:
    """The pages of a store; safe to share between threads.

    Attributes:
      uses: artifacts made from each artifact.

    Args:
      store: the store of the artifacts and of the records of runs.
      link: function from a page to its address.
      prefect: path of Prefect's own pages, for example "/v2"; None without a server.
      page_size: number of items on one page of a list.
      max_cells: most cells in the tables of one page of results, but for a benchmark that has more.
      is_folder: whether the pages are files without a server: choices are then links, not forms.
      overview: reader of the facts of the start page; None makes one that knows no server.
    """

    def __init__(
        self,
        store: Store,
        link: PageLink,
        *,
        prefect: str | None = None,
        page_size: int = 24,
        max_cells: int = 1_000,
        is_folder: bool = False,
        overview: OverviewReader | None = None,
    ) -> None:
        self._store = store
        self._overview = overview or OverviewReader(store)
        self._losses = LossReader(store)
        self._page_size, self._max_cells = page_size, max_cells
        self._is_folder = is_folder
        self.uses = UsageIndex(store)
        self._cards = Cards(store)
        # Kind -> (number of parts in the address, function that returns the template's values).
        self._pages: Mapping[str, tuple[int, Callable[..., Mapping[str, Any]]]] = {
            "start": (0, self._start_page_values),
            "runs": (0, self._runs_page_values),
            "results": (1, self._results_page_values),
            "curves": (2, self._curves_page_values),
            "compare": (0, self._compare_page_values),
            "cell": (4, self._cell_page_values),
            "items": (2, self._items_page_values),
            "item": (2, self._item_page_values),
            "artifact": (1, self._artifact_page_values),
            "diff": (0, self._diff_page_values),
            "seen": (1, self._sample_uses),
        }

        # Templates write `link("cell", run, benchmark, method, budget)`, and whoever built the site
        # decides what that is: an address of the server, a file of a folder, or no link.
        # Several values of one name, those of ticked boxes, come as a list.
        def address(kind: str, *parts: object, **query: object) -> str | None:
            chosen = tuple(
                (name, str(one))
                for name, value in query.items()
                for one in (value if isinstance(value, list) else [value])
                if one
            )
            return link(Page(kind, tuple(map(str, parts)), chosen))

        def file_address(page: Page, form: str, of: str) -> str | None:
            chosen = [("of", of), ("as", form)] if of else [("as", form)]
            return link(page._replace(query=(*page.query, *chosen)))

        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals |= {
            "link": address,
            "file_link": file_address,
            "prefect": prefect,
            "is_folder": is_folder,
            "outcome": run_outcome,
            "ends": describe_ends,
            "changes": differences_text,
            "seconds": run_seconds,
            "has_scores": has_scores,
            "table_forms": list(TABLE_FORMS),
            "figure_forms": list(FIGURE_FORMS),
        }
        self._templates.filters |= {
            "number": _one_decimal_text,
            "short": lambda digest: digest[:12],
            "moment": _page_time_text,
            "age": age_text,
            "duration": duration_text,
            "left": time_left_text,
            "few": abbreviate_list,
            "server_errors": server_errors_text,
        }

    def overview(self) -> Overview:
        """Returns the facts of the start page as they are now."""
        return self._overview.read()

    def html(self, page: Page) -> str:
        """Returns a page as HTML.

        Raises:
          NoPageError: if there is no page of that kind, or its subject does not exist.
        """
        # An address that nobody serves, a run that is not there and files that `gc` pruned are all
        # one thing to a reader, a page that does not exist: it says why, and nothing breaks.
        num_parts, values = self._pages.get(page.kind, (None, None))
        if values is None or len(page.parts) != num_parts:
            raise NoPageError(f"There is no page {'/'.join((page.kind, *page.parts))!r}.")
        with _no_page():
            given = values(page, *page.parts)
        template = given.get("template", page.kind)
        return self._templates.get_template(f"{template}.html").render(page=page, **given)

    def download(self, page: Page) -> Download:
        """Returns the file of a page's table or figure, in the form that its choice "as" names.

        Raises:
          NoPageError: if the page has no such file, or its subject does not exist.
        """
        form, of = page.get("as"), page.get("of")
        forms = FIGURE_FORMS if of in FIGURES else TABLE_FORMS
        if form not in forms:
            raise NoPageError(f"as must be one of {', '.join(forms)}, got {form!r}.")
        # The rows are those that the page lists, after its search, its filters and its order, since
        # that is what a reader sees who asks for the file.
        with _no_page():
            match page.kind, *page.parts:
                case "results", run if of in FIGURES:
                    data = draw_figure(self._store, study_of(self._store, run).report, of, form)
                case "curves", run, benchmark if of in FIGURES:
                    study = study_of(self._store, run)
                    only = dataclasses.replace(study.report, sections=(study.section(benchmark),))
                    data = draw_figure(self._store, only, of, form)
                case "results", run:
                    data = report_file(study_of(self._store, run).report, form)
                case ("runs",):
                    data = table_file([*run_rows(self._runs_page_values(page)["listed"])], form)
                case ("compare",):
                    pairs = (
                        pair
                        for _, rows in self._compare_page_values(page)["pairs"]
                        for pair in rows
                    )
                    data = table_file([*pair_rows(pairs)], form)
                case "items", run, benchmark:
                    listed = self._items_page_values(page, run, benchmark)
                    chosen, found = listed["chosen"], listed["found"]
                    rows = item_rows(self._cards.answers, chosen, found) if found else ()
                    data = table_file([*rows], form)
                case _:
                    raise KeyError(f"The page {'/'.join((page.kind, *page.parts))!r} has no files.")
        name = re.sub(r"[^\w@.-]+", "-", "-".join((page.kind, *page.parts, of)).strip("-"))
        return Download(data, forms[form], f"{name}.{form}")

    def page_about(self, path: str, keys_of: UIKeys) -> Page:
        """Returns the page about what a page of Prefect's shows; the start page if there is none.

        Args:
          path: path of Prefect's page.
          keys_of: function that names the keys of pages in the UI.
        """
        # A step makes a checkpoint, its answers and their scores: the first leads to the others.
        #
        #   /v2/runs/flow-run/ID          the run
        #   /v2/runs/task-run/ID          what the step made, or is making
        #   /v2/artifacts/artifact/ID     what this version of a page is about
        #   /v2/artifacts/key/KEY         what all of them are about
        keys: Sequence[str] = ()
        match path.strip("/").split("/")[-2:]:
            case ["flow-run", run_id]:
                for run, record in self._overview.records.read().items():
                    if record.get("flow_run_id") == run_id:
                        return Page("results", (run,))
            case ["task-run" | "artifact" as sort, prefect_id]:
                keys = keys_of(sort, prefect_id)
            case ["key", key]:
                keys = [key]
        for page in map(page_about, sorted(keys, key=lambda key: "-checkpoint-" not in key)):
            # A training has a page before it is an artifact.
            if page and (page.kind != "artifact" or page.parts[0].startswith("checkpoint-")):
                return page
            with contextlib.suppress(KeyError, ValueError):
                if page and self._store.get_cached(page.parts[0]):
                    return page
        return Page("start")

    def lost(self, why: str) -> str:
        """Returns the page shown for an address without a page."""
        return self._templates.get_template("lost.html").render(why=why)

    def picture(self, page: Page) -> bytes:
        """Returns the bytes of an image: a record's, as it is stored; a mask on it; or a plot.

        Raises:
          NoPageError: if the image does not exist.
        """
        # The address alone says which picture it is:
        #
        #   plot of=results        the PNG of a results artifact
        #   mask codes=3-17-…      a mask that a model wrote, decoded by its codec
        #   mask id=… n=0          a record's mask
        #   picture id=… n=0       a record's image, as it is stored
        try:
            (key,) = page.parts
            if page.kind == "plot":
                plot = page.get("of") or _PLOTS[0]
                if plot not in _PLOTS:
                    raise KeyError(plot)
                return (self._store.get(key).path / f"{plot}.png").read_bytes()
            if page.kind == "mask" and page.get("codes"):
                codes = [int(number) for number in page.get("codes").split("-")]
                inside = self._cards.masks.written(key, codes)
                return overlay_png(inside, int(page.get("color") or 0))
            if record := self._cards.records.find(key, page.get("id")):
                number = int(page.get("n") or 0)
                if page.kind == "mask":
                    return overlay_png(page_mask(record, number), int(page.get("color") or 0))
                return record.images[number]
        except (KeyError, ValueError, IndexError, FileNotFoundError):
            pass
        raise NoPageError(f"There is no such picture in {self._store.uri}.")

    def _start_page_values(self, page: Page) -> Mapping[str, Any]:
        return {"facts": self.overview(), "most": _LISTED}

    def _runs_page_values(self, page: Page) -> Mapping[str, Any]:
        records = self._overview.records.read()
        study = page.get("study")
        runs = [(run, r) for run, r in records.items() if not study or r["name"] == study]
        runs.sort(key=lambda run: when(run[1]), reverse=True)
        number = _list_number(page)
        start = (number - 1) * _RUNS
        # A search looks at keys alone, which are listed at once; only hits have their manifest
        # read.
        sought = page.get("find").strip()
        known = self._store.keys() if sought else []
        keys = [key for key in known if sought in key][:50]
        names = {key: self._store.get_cached(key).manifest.name for key in keys}
        return {
            "listed": runs,
            "runs": runs[start : start + _RUNS],
            "total": len(runs),
            "start": start,
            "number": number,
            "last": max(-(-len(runs) // _RUNS), 1),
            "study": study,
            "studies": sorted({record["name"] for record in records.values()}),
            "find": sought,
            "found": names,
            "store": self._store.uri,
            "unreadable": self._overview.records.unreadable,
        }

    def _results_page_values(self, page: Page, run: str) -> Mapping[str, Any]:
        record = self._overview.records.read().get(run)
        if record is not None and not record["results"]:
            return run_values(self._store, self._losses, self.overview(), run, record)
        study = study_of(self._store, run)
        # What is over all benchmarks stands on the first page, before its benchmarks.
        pages = _in_pages(study.report.sections, self._max_cells)
        number = min(_list_number(page), len(pages))
        blocks = overall_blocks(study.report) if number == 1 else []
        filled = [s for s in study.report.sections if any(cell.scores for cell in s.cells)]
        charts: Iterable[Chart] = ()
        colors = method_colors(study.report)
        if filled and number == 1:
            charts = charts_of_section(self._store, self._losses, filled[0], colors)
        records = self._overview.records.read().values()
        tables = [r for r in records if r["results"] and r["name"] == study.record["name"]]
        return {
            "study": study,
            "larger": larger_run([study.record, *tables]),
            "blocks": blocks + [section_block(section) for section in pages[number - 1]],
            "pages": pages,
            "number": number,
            "notes": report_notes(study.report),
            "colors": colors,
            "has_costs": number == 1 and "pareto.png" in study.results.manifest.files,
            "score_charts": [c for s in pages[number - 1] if (c := score_chart(s, colors))],
            "charts": list(charts),
            "of_charts": filled,
        }

    def _curves_page_values(self, page: Page, run: str, benchmark: str) -> Mapping[str, Any]:
        study = study_of(self._store, run)
        section = study.section(benchmark)
        colors = method_colors(study.report)
        charts = list(charts_of_section(self._store, self._losses, section, colors))
        return {"study": study, "section": section, "charts": charts}

    def _compare_page_values(self, page: Page) -> Mapping[str, Any]:
        from flows.lineage.diff import compare_lineages

        sides = find_sides(self._store, page.all("side")[:_MAX_SIDES])
        given: dict[str, Any] = {"sides": sides, "pairs": [], "is_right": is_right}
        if len(sides) < 2:
            return given
        # Every other side is compared with the first, row by row; only the rows of this page have
        # their items read.
        first = sides[0]
        keys = {side.name: common_cells(first, side) for side in sides[1:]}
        number = _list_number(page)
        start = (number - 1) * _ROWS
        rows = [
            (
                side,
                [
                    compare_cells(self._store, first, side, key)
                    for key in keys[side.name][start : start + _ROWS]
                ],
            )
            for side in sides[1:]
        ]
        longest = max(map(len, keys.values()))
        given |= {
            "pairs": rows,
            "number": number,
            "last": max(-(-longest // _ROWS), 1),
            "total": longest,
        }
        common = [key for key in first.cells if all(key in side.cells for side in sides[1:])]
        if common:
            # The curves of a cell are those of its training; of a method, those of the first
            # benchmark that all have.
            given["chart"] = chart_of_sides(self._store, self._losses, sides, common[0])
            given["chart_of"] = first.cells[common[0]][0].benchmark
        second = sides[1]
        if first.sort == "run":
            given["settings"] = run_differences(first.study, second.study)
        elif common:
            a, b = (lineage_target(self._store, side, common[0]) for side in (first, second))
            given["lineage"] = compare_lineages(self._store, a, b)
            if first.sort == "cell":
                given |= self._changed_items(page, first, second)
        return given

    def _changed_items(self, page: Page, first: Side, second: Side) -> Mapping[str, Any]:
        """Returns the items that one of two cells has right and the other wrong, with pictures."""
        if incomparable_reason(self._store, first, second, ()):
            return {}
        columns = [column_of(side, ()) for side in (first, second)]
        found = self._cards.answers.items(columns, "changed", "")
        number = _list_number(page, "items")
        start = (number - 1) * self._page_size
        return {
            "cards": self._cards_of(found[start : start + self._page_size], columns),
            "changed": len(found),
            "items_number": number,
            "items_last": max(-(-len(found) // self._page_size), 1),
            "benchmark": first.cells[()][0].benchmark,
        }

    def _cards_of(self, items: Sequence[ScoredItem], columns: Sequence[Column]) -> list[Card]:
        """Returns a card of each item, with what each column's seeds wrote."""
        cards, data = [], self._data_of(columns[0])
        for item in items:
            card = self._cards.of(data, item.id)
            for column, score in zip(columns, item.scores, strict=True):
                told = self._cards.answers.rows(column, item.id)
                card.add(column, score, told, self._codec_key_of_column(column))
            cards.append(card)
        return cards

    def _cell_page_values(
        self, page: Page, run: str, benchmark: str, method: str, budget: str
    ) -> Mapping[str, Any]:
        study = study_of(self._store, run)
        column = self._find_table_column(study, benchmark, f"{method}@{budget}")
        section = study.section(benchmark)
        artifacts = [self._store.get_cached(key) for key in column.artifacts.values()]
        return {
            "study": study,
            "row": section,
            "cell": section.cell(method, column.budget),
            "column": column,
            "artifacts": {
                seed: (
                    artifact,
                    self._store.get_cached(artifact.manifest.inputs["predictions"].key),
                )
                for seed, artifact in zip(column.artifacts, artifacts, strict=True)
            },
            "drawing": draw(self._store, artifacts),
            "others": {} if self._is_folder else self._other_cells(study, section, column),
        }

    def _other_cells(self, study: Study, section: Section, column: Column) -> dict[str, str]:
        """Returns label -> side of the cells that one is compared with: its own benchmark's.

        Those of its run come first; then the same cell of other runs of the study, which may lack
        it.
        """
        here = {
            f"{method}@{budget}": f"{study.run}/{section.benchmark}/{method}/{budget}"
            for method, budget in ((c.method, c.budget) for c in section.cells if c.scores)
            if f"{method}@{budget}" != column.name
        }
        records = self._overview.records.read().items()
        runs = [
            (run, record)
            for run, record in records
            if record["name"] == study.record["name"] and record["results"] and run != study.run
        ]
        runs.sort(key=lambda run: when(run[1]), reverse=True)
        cell = f"{section.benchmark}/{column.method}/{column.budget}"
        there = {
            f"the same, in the run of {_page_time_text(record['finished'])} "
            f"({run.rpartition('-')[2]})": (f"{run}/{cell}")
            for run, record in runs[:_NAMED]
        }
        return here | there

    def _items_page_values(self, page: Page, run: str, benchmark: str) -> Mapping[str, Any]:
        # What the address chose, checked first: one column, or two to compare, and which items to
        # show.
        study = study_of(self._store, run)
        columns = study.columns(benchmark)
        if not columns:
            raise KeyError(f"No cell of {benchmark} was scored.")
        first = self._find_table_column(study, benchmark, page.get("a") or next(iter(columns)))
        second = page.get("b") and self._find_table_column(study, benchmark, page.get("b"))
        show = page.get("show") or "all"
        if show not in ITEM_FILTERS or (show in OF_TWO and not second):
            raise KeyError(
                f"show must be one of {', '.join(ITEM_FILTERS)}, and {', '.join(OF_TWO)} need two "
                f"columns, got {show!r}."
            )
        chosen = [column for column in (first, second) if column]
        types = sorted(set(self._cards.answers.types(first).values()))
        asked = page.get("type")
        if asked and asked not in types:
            raise KeyError(f"type must be one of {', '.join(types)}, got {asked!r}.")
        found = self._cards.answers.items(chosen, show, page.get("find"), asked)
        # Only the items of this page get a card, which opens a record and its picture.
        number = _list_number(page)
        start = (number - 1) * self._page_size
        cards = self._cards_of(found[start : start + self._page_size], chosen)
        return {
            "study": study,
            "benchmark": benchmark,
            "columns": columns,
            "first": first,
            "second": second,
            "pairs": _column_pairs(columns),
            "chosen": chosen,
            "found": found,
            "show": show,
            "types": types,
            # What the form's fields hold, for links to other pages of the list.
            "choices": {
                "a": first.name,
                "b": second.name if second else "",
                "show": show,
                "type": asked,
                "find": page.get("find"),
            },
            "cards": cards,
            "total": len(found),
            "start": start,
            "number": number,
            # Rounded up; a list without items has one page, too.
            "last": max(-(-len(found) // self._page_size), 1),
            "is_right": is_right,
        }

    def _item_page_values(self, page: Page, run: str, benchmark: str) -> Mapping[str, Any]:
        study = study_of(self._store, run)
        item = page.get("id")
        columns = study.columns(benchmark).values()
        card = self._cards.of(self._data_of(next(iter(columns))), item) if columns else None
        # Every column that answered this item, each with its mean over the seeds that did.
        for column in columns:
            answers = list(self._cards.answers.rows(column, item))
            if card and answers:
                mean = sum(row["score"] for _, row in answers) / len(answers)
                card.add(column, mean, answers, self._codec_key_of_column(column))
        if not card or not card.columns:
            raise KeyError(f"{benchmark} of {study.run} has no item {item!r}.")
        return {"study": study, "benchmark": benchmark, "card": card, "is_right": is_right}

    def _artifact_page_values(self, page: Page, key: str) -> Mapping[str, Any]:
        training = find_training(self._store, key)
        if training is not None and not training.is_finished:
            return unfinished_values(self._store, self._cards, self.overview(), training)
        artifact = self._store.get(key)
        users = self.uses.of(key)
        # A table of results has thousands of inputs: only those that are listed are looked up.
        read = sorted(artifact.manifest.inputs.items())
        inputs = {
            role: (entry, self._store.get_cached(entry.key).manifest.name)
            for role, entry in read[:_NAMED]
        }
        return {
            "artifact": artifact,
            "manifest": artifact.manifest,
            "drawing": draw(self._store, [artifact]),
            "inputs": inputs,
            "users": distinct_names(self._store, dict(list(users.items())[:_NAMED])),
            "num_users": len(users),
            "samples": list(self._cards.samples(artifact, _SAMPLES)),
            "is_right": is_right,
            "rejects": rejects_of(artifact, _REJECTS),
            **(training_values(self._cards, training) if training else {}),
            "namesakes": {} if self._is_folder else self._artifact_namesakes(artifact),
        }

    def _artifact_namesakes(self, artifact: Artifact) -> Mapping[str, str]:
        """Returns key -> label of the artifacts of the same step, of other runs or times."""
        keys = self.uses.namesakes(artifact)[:_NAMED]
        name = artifact.manifest.name
        labels = distinct_names(self._store, dict.fromkeys([artifact.key, *keys], name))
        return {key: labels[key] for key in keys}

    def _diff_page_values(self, page: Page) -> Mapping[str, Any]:
        from flows.lineage.diff import compare_lineages
        from flows.lookup.target import find_target

        sides = tuple(page.get(side).strip() for side in ("a", "b"))
        a, b = (find_target(self._store, side) if side else None for side in sides)
        return {"sides": sides, "found": compare_lineages(self._store, a, b) if a and b else None}

    def _sample_uses(self, page: Page, run: str) -> Mapping[str, Any]:
        # Imported here, since it imports JAX, which other pages do not need.
        from flows.lineage.sample_trace import trace_sample
        from flows.lookup.target import find_target

        study = study_of(self._store, run)
        found = trace_sample(self._store, find_target(self._store, study.run), page.get("id"))
        return {"study": study, "sample": page.get("id"), "found": found}

    def _find_table_column(self, study: Study, benchmark: str, name: str) -> Column:
        columns = study.columns(benchmark)
        if name not in columns:
            raise KeyError(
                f"{benchmark} of {study.run} has no column {name!r}. It has: "
                f"{', '.join(columns) or 'none'}."
            )
        return columns[name]

    def _codec_key_of_column(self, column: Column) -> str:
        """Returns the key of the mask codec for a column's answers; "" if it has none."""
        return self._cards.masks.codec_of(next(iter(column.artifacts.values())))

    def _data_of(self, column: Column) -> str:
        """Returns the key of the dataset that a column was scored on."""
        key = next(iter(column.artifacts.values()))
        return self._store.get_cached(key).manifest.inputs["data"].key


@contextlib.contextmanager
def _no_page() -> Iterator[None]:
    """Has whatever does not exist be a page that does not exist."""
    try:
        yield
    except KeyError as error:
        raise NoPageError(str(error.args[0])) from error
    except (ValueError, FileNotFoundError) as error:  # A malformed name, or gc deleted it.
        raise NoPageError(one_line_message(error)) from error


def _list_number(page: Page, name: str = "page") -> int:
    """Returns which page of a list is asked for, from 1."""
    return max(int(page.get(name) or 1), 1)


def _in_pages(sections: Sequence[Section], max_cells: int) -> list[list[Section]]:
    """Returns the benchmarks of each page of results: at least one, in their order."""
    pages: list[list[Section]] = [[]]
    num_cells = 0
    for section in sections:
        num_cells += len(section.cells)
        if pages[-1] and num_cells > max_cells:
            pages.append([])
            num_cells = len(section.cells)
        pages[-1].append(section)
    return pages


def _column_pairs(columns: Mapping[str, Column]) -> list[tuple[Column, Column]]:
    """Returns the pairs of columns that a folder compares: methods at the same budget."""
    listed = list(columns.values())
    return [(a, b) for i, a in enumerate(listed) for b in listed[i + 1 :] if a.budget == b.budget]


def _page_time_text(value: object) -> str:
    """Returns a time, or the text of one, as "2026-11-27 20:00"; "" for none."""
    return str(value or "")[:16].replace("T", " ")


def _one_decimal_text(value: object) -> str:
    """Returns a number with one decimal, or a dash; tables of earlier versions lack some."""
    return f"{value + 0.0:.1f}" if isinstance(value, int | float) else "–"
