"""Graphs of studies that are given files."""

from flows.graph.graph import Phase, graph_of
from flows.graph.inputs import check_study, read_inputs
from flows.graph.nodes import StudyGraph
from flows.study.study import StudyConfig


def checked_graph(config: StudyConfig, until: Phase = "report") -> StudyGraph:
    """Returns a study's graph, once what it names was checked and looked at, as commands do."""
    check_study(config)
    return graph_of(config, until, read_inputs(config))
