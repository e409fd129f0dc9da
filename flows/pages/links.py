"""Keys and paths of the lineage pages in the Prefect UI, and ours about the same."""

from flows.pages.page import Page


def page_key(key: str) -> str:
    """Returns the Prefect artifact key of an artifact's lineage page."""
    return f"lineage-{key}"


def page_link(key: str) -> str:
    """Returns the UI path of an artifact's lineage page; `/v2` renders Mermaid, `/` may not."""
    return f"/v2/artifacts/key/{page_key(key)}"


def page_about(ui_key: str) -> Page | None:
    """Returns our page about what a page of a key in the Prefect UI shows; None for others."""
    sort, _, name = ui_key.partition("-")
    match sort:
        case "lineage" | "progress":
            return Page("artifact", (name,))
        case "results":
            return Page("results", (name,))
        case "explain" | "next":
            return Page("runs", query=(("study", name),))
        case _:
            return None
