"""Keys and paths of the lineage pages in the Prefect UI."""


def page_key(key: str) -> str:
    """Returns the Prefect artifact key of an artifact's lineage page."""
    return f"lineage-{key}"


def page_link(key: str) -> str:
    """Returns the UI path of an artifact's lineage page; `/v2` renders Mermaid, `/` may not."""
    return f"/v2/artifacts/key/{page_key(key)}"
