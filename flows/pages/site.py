"""The pages of a store as HTML text, for the server and for folders of files."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2

from flows.lineage.data_rejects import rejects_of
from flows.lineage.runs import outcome
from flows.pages.cards import Cards
from flows.pages.curves import curves_of, curves_png
from flows.pages.history import Uses, draw
from flows.pages.items import SHOWS, is_right
from flows.pages.masks import mask_of, veil_png
from flows.pages.page import Page
from flows.pages.study import Column, Study, study_of
from flows.report.layout import report_blocks, report_notes
from infra.errors import one_line_message
from infra.store.records import run_records
from infra.store.store import Store
from pipelines.records.holdings import reject_lines

_HERE = Path(__file__).parent
STYLE = (_HERE / "style.css").read_text(encoding="utf-8")

_SAMPLES = 8
"""Number of sample records or answers on an artifact's page."""
_PLOTS = ("results", "pareto")
"""Plots of a results artifact; artifacts of earlier versions have the first one only."""
_NAMED = 200
"""Largest number of inputs listed on an artifact's page, and of users."""


class NoPageError(LookupError):
    """A page does not exist; the message says why."""


Link = Callable[[Page], str | None]
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
      is_folder: whether the pages are files without a server: choices are then links, not forms.
    """

    def __init__(
        self,
        store: Store,
        link: Link,
        *,
        prefect: str | None = None,
        page_size: int = 24,
        is_folder: bool = False,
    ) -> None:
        self._store = store
        self._page_size = page_size
        self.uses = Uses(store)
        self._cards = Cards(store)
        # Kind -> (number of parts in the address, function that returns the template's values).
        self._pages: Mapping[str, tuple[int, Callable[..., Mapping[str, Any]]]] = {
            "studies": (0, self._studies),
            "results": (1, self._results),
            "cell": (4, self._cell),
            "items": (2, self._items),
            "item": (2, self._item),
            "artifact": (1, self._artifact),
            "diff": (0, self._diff),
            "seen": (1, self._sample_uses),
        }

        # Templates write `link("cell", run, benchmark, method, budget)`, and whoever built the site
        # decides what that is: an address of the server, a file of a folder, or no link.
        def address(kind: str, *parts: object, **query: object) -> str | None:
            chosen = tuple((name, str(value)) for name, value in query.items() if value)
            return link(Page(kind, tuple(map(str, parts)), chosen))

        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals |= {
            "link": address,
            "prefect": prefect,
            "is_folder": is_folder,
            "outcome": outcome,
        }
        self._templates.filters |= {"number": _number, "short": lambda digest: digest[:12]}

    def html(self, page: Page) -> str:
        """Returns a page as HTML.

        Raises:
          NoPageError: if there is no page of that kind, or its subject does not exist.
        """
        # An address that nobody serves, a run that is not there and files that `gc` let go are all
        # one thing to a reader, a page that does not exist: it says why, and nothing breaks.
        num_parts, values = self._pages.get(page.kind, (None, None))
        if values is None or len(page.parts) != num_parts:
            raise NoPageError(f"There is no page {'/'.join((page.kind, *page.parts))!r}.")
        try:
            given = values(page, *page.parts)
        except KeyError as error:
            raise NoPageError(str(error.args[0])) from error
        except (ValueError, FileNotFoundError) as error:  # A malformed name, or gc let it go.
            raise NoPageError(one_line_message(error)) from error
        return self._templates.get_template(f"{page.kind}.html").render(page=page, **given)

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
        #   plot of=loss           curves of a training, drawn now
        #   plot of=results        the PNG of a results artifact
        #   mask codes=3-17-…      a mask that a model wrote, decoded by its codec
        #   mask id=… n=0          a record's mask
        #   picture id=… n=0       a record's image, as it is stored
        try:
            (key,) = page.parts
            if page.kind == "plot" and (of := page.get("of")) not in ("", *_PLOTS):
                return curves_png(of, curves_of(self._store.get(key))[of])
            if page.kind == "plot":
                plot = page.get("of") or _PLOTS[0]
                return (self._store.get(key).path / f"{plot}.png").read_bytes()
            if page.kind == "mask" and page.get("codes"):
                codes = [int(number) for number in page.get("codes").split("-")]
                inside = self._cards.masks.written(key, codes)
                return veil_png(inside, int(page.get("color") or 0))
            if record := self._cards.records.find(key, page.get("id")):
                number = int(page.get("n") or 0)
                if page.kind == "mask":
                    return veil_png(mask_of(record, number), int(page.get("color") or 0))
                return record.images[number]
        except (KeyError, ValueError, IndexError, FileNotFoundError):
            pass
        raise NoPageError(f"There is no such picture in {self._store.uri}.")

    def _studies(self, page: Page) -> Mapping[str, Any]:
        records = run_records(self._store.files).items()
        runs = sorted(records, key=lambda run: run[1]["finished"] or run[1]["began"], reverse=True)
        # A search looks at keys alone, which are listed at once; only hits have their manifest
        # read.
        sought = page.get("find").strip()
        known = self._store.keys() if sought else []
        keys = [key for key in known if sought in key][:50]
        names = {key: self._store.get_cached(key).manifest.name for key in keys}
        return {"runs": runs, "find": sought, "found": names, "store": self._store.uri}

    def _results(self, page: Page, run: str) -> Mapping[str, Any]:
        study = study_of(self._store, run)
        return {
            "study": study,
            "blocks": report_blocks(study.report),
            "notes": report_notes(study.report),
            "plots": [plot for plot in _PLOTS if f"{plot}.png" in study.results.manifest.files],
        }

    def _cell(
        self, page: Page, run: str, benchmark: str, method: str, budget: str
    ) -> Mapping[str, Any]:
        study = study_of(self._store, run)
        column = self._column(study, benchmark, f"{method}@{budget}")
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
        }

    def _items(self, page: Page, run: str, benchmark: str) -> Mapping[str, Any]:
        # What the address chose, checked first: one column, or two to compare, and which items to
        # show.
        study = study_of(self._store, run)
        columns = study.columns(benchmark)
        if not columns:
            raise KeyError(f"No cell of {benchmark} was scored.")
        first = self._column(study, benchmark, page.get("a") or next(iter(columns)))
        second = page.get("b") and self._column(study, benchmark, page.get("b"))
        show = page.get("show") or "all"
        if show not in SHOWS or (show == "changed" and not second):
            raise KeyError(
                f"show must be one of {', '.join(SHOWS)}, and changed needs two columns, got "
                f"{show!r}."
            )
        chosen = [column for column in (first, second) if column]
        found = self._cards.answers.items(chosen, show, page.get("find"))
        # Only the items of this page get a card, which opens a record and its picture.
        number = max(int(page.get("page") or 1), 1)  # From 1.
        start = (number - 1) * self._page_size
        data = self._data_of(first)
        cards = []
        for item in found[start : start + self._page_size]:
            card = self._cards.of(data, item.id)
            for column, score in zip(chosen, item.scores, strict=True):
                told = self._cards.answers.rows(column, item.id)
                card.add(column, score, told, self._codec_of(column))
            cards.append(card)
        return {
            "study": study,
            "benchmark": benchmark,
            "columns": columns,
            "first": first,
            "second": second,
            "pairs": _pairs(columns),
            "shows": SHOWS,
            "show": show,
            "find": page.get("find"),
            "cards": cards,
            "total": len(found),
            "start": start,
            "number": number,
            # Rounded up; a list without items has one page, too.
            "last": max(-(-len(found) // self._page_size), 1),
            "is_right": is_right,
        }

    def _item(self, page: Page, run: str, benchmark: str) -> Mapping[str, Any]:
        study = study_of(self._store, run)
        item = page.get("id")
        columns = study.columns(benchmark).values()
        card = self._cards.of(self._data_of(next(iter(columns))), item) if columns else None
        # Every column that answered this item, each with its mean over the seeds that did.
        for column in columns:
            answers = list(self._cards.answers.rows(column, item))
            if card and answers:
                mean = sum(row["score"] for _, row in answers) / len(answers)
                card.add(column, mean, answers, self._codec_of(column))
        if not card or not card.columns:
            raise KeyError(f"{benchmark} of {study.run} has no item {item!r}.")
        return {"study": study, "benchmark": benchmark, "card": card, "is_right": is_right}

    def _artifact(self, page: Page, key: str) -> Mapping[str, Any]:
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
            "users": dict(list(users.items())[:_NAMED]),
            "num_users": len(users),
            "curves": list(curves_of(artifact)),
            "samples": list(self._cards.samples(artifact, _SAMPLES)),
            "is_right": is_right,
            "rejects": list(reject_lines(rejects_of(artifact))),
        }

    def _diff(self, page: Page) -> Mapping[str, Any]:
        from flows.lineage.diff import compare_lineages
        from flows.lineage.target import find_lineage_target

        sides = tuple(page.get(side).strip() for side in ("a", "b"))
        a, b = (find_lineage_target(self._store, side) if side else None for side in sides)
        return {"sides": sides, "found": compare_lineages(self._store, a, b) if a and b else None}

    def _sample_uses(self, page: Page, run: str) -> Mapping[str, Any]:
        # Imported here, since it imports JAX, which other pages do not need.
        from flows.lineage.sample_trace import trace_sample
        from flows.lineage.target import find_lineage_target

        study = study_of(self._store, run)
        found = trace_sample(
            self._store, find_lineage_target(self._store, study.run), page.get("id")
        )
        return {"study": study, "sample": page.get("id"), "found": found}

    def _column(self, study: Study, benchmark: str, name: str) -> Column:
        columns = study.columns(benchmark)
        if name not in columns:
            raise KeyError(
                f"{benchmark} of {study.run} has no column {name!r}. It has: "
                f"{', '.join(columns) or 'none'}."
            )
        return columns[name]

    def _codec_of(self, column: Column) -> str:
        """Returns the key of the mask codec for a column's answers; "" if it has none."""
        return self._cards.masks.codec_of(next(iter(column.artifacts.values())))

    def _data_of(self, column: Column) -> str:
        """Returns the key of the dataset that a column was scored on."""
        key = next(iter(column.artifacts.values()))
        return self._store.get_cached(key).manifest.inputs["data"].key


def _pairs(columns: Mapping[str, Column]) -> list[tuple[Column, Column]]:
    """Returns the pairs of columns that a folder compares: methods at the same budget."""
    listed = list(columns.values())
    return [(a, b) for i, a in enumerate(listed) for b in listed[i + 1 :] if a.budget == b.budget]


def _number(value: object) -> str:
    """Returns a number with one decimal, or a dash; tables of earlier versions lack some."""
    return f"{value + 0.0:.1f}" if isinstance(value, int | float) else "–"
