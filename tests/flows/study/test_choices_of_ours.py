"""What is ours in the paper's study: one list; marks in configs and code, runs and pages agree."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from flows.study.choices_of_ours import DEVIATIONS, choices_of_ours
from flows.study.load import load
from flows.study.paper_deviations import describe_paper_deviations

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "configs"
STUDIES = ("paper_448", "paper_224", "paper_ablations")
LISTED = Path(__file__).with_name("choices_of_ours.txt")
"""What the lists say. A line for each choice: its number of keys in each of `STUDIES`, then its
subject in the first that has it. Made by `python -m tests.flows.study.test_choices_of_ours`."""

MARK = re.compile(r"(?<!\w)\[(inferred|ours|unverified)\]|(not|does not|never) publish|unpublished")
MARKED_CODE = {
    "model/connector/budgets.py": ["methods parcel_fixed4, methods parcel_fixed2", "budgets"],
    "model/connector/config.py": [
        "model.connector.query_std 0.02, model.connector.parcel_key_positions false"
    ],
    # `mqt_keys: content`, which no study of the paper has; `describe_paper_deviations` tells of it.
    "model/connector/mqt.py": ["methods mqt_sa"],
    "model/connector/m3.py": ["methods m3_sa"],
    "model/connector/parcel.py": [
        "methods parcel",
        "methods parcel_fixed4, methods parcel_fixed2",
        "methods parcel_vit_only",
        "methods parcel_dual",
    ],
    "model/train/resolution.py": ["stage2.train.warmup 0"],
    "pipelines/sources/documents/pages.py": [
        "transfers.stvqa.eval_splits, stage2.transfers.stvqa.eval_splits val"
    ],
    "pipelines/video/sampling.py": [
        "transfers.activitynet_cap.frame_stride 30, transfers.activitynet_qa.frame_stride 70, "
        "transfers.msrvtt_cap.frame_stride 9 and 3 more"
    ],
    # Of other papers' methods, which are not in this one's tables.
    "model/connector/id_selection.py": [],
    "model/connector/tokenflex.py": [],
    # Answers of MMMU's test split, which nobody can score; and the order of OCR-VQA's validation
    # split, of which the study trains on all.
    "pipelines/sources/vqa/mmmu.py": [],
    "pipelines/sources/documents/book_covers.py": [],
}
"""File with a choice of ours, by its comments -> subjects of the list that tell of it."""


def ours(name: str, *words: str) -> dict[str, str]:
    return dict(choices_of_ours(load(CONFIGS / f"{name}.yaml", words)))


def listed_text() -> str:
    """The text of `LISTED`, of the lists as they are."""
    studies = [load(CONFIGS / f"{name}.yaml") for name in STUDIES]
    lines = []
    for deviation in DEVIATIONS:
        counts = [len(deviation.find(study)) for study in studies]
        subjects = [
            deviation.subject(study) for study, num in zip(studies, counts, strict=True) if num
        ]
        if subjects:
            lines.append("".join(f"{num:3}" for num in counts) + f"  {subjects[0]}\n")
    return "".join(lines)


def found_keys(name: str) -> set[str]:
    """All keys that the list of a study is made from; of items of a list, with their value."""
    study = load(CONFIGS / f"{name}.yaml")
    found = [pair for deviation in DEVIATIONS for pair in deviation.find(study)]
    return {f"{key} {value}" if key == "methods" else key for key, value in found}


def test_the_lists_of_the_papers_three_studies_say_what_is_written_beside_this_test():
    assert listed_text() == LISTED.read_text()
    # What `--explain` prints is these deviations, and no others.
    for place, name in enumerate(STUDIES):
        num = sum(line.split()[place] != "0" for line in LISTED.read_text().splitlines())
        assert len([*choices_of_ours(load(CONFIGS / f"{name}.yaml"))]) == num


def stated_keys(node: yaml.Node, path: str = "") -> Iterator[tuple[int, str]]:
    """Yields (line from 0, full key) of each value in a config, "methods mqt_sa" of an item."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = f"{path}.{key.value}".removeprefix(".")
            # An alias leads to a line above, which has been there.
            is_alias = value.start_mark.line < key.start_mark.line
            of_value = [] if is_alias else [*stated_keys(value, inner)]
            if key.value != "<<":
                yield from of_value or [(key.start_mark.line, inner)]
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            if isinstance(value, yaml.MappingNode):
                yield from stated_keys(value, f"{path}.{i}")
            elif value.start_mark.line > node.start_mark.line:
                yield value.start_mark.line, f"{path} {value.value}"


@pytest.mark.parametrize("name", STUDIES)
def test_every_mark_in_the_papers_configs_is_on_the_list(name: str):
    text = (CONFIGS / f"{name}.yaml").read_text()
    keys: dict[int, set[str]] = {}
    for line, key in stated_keys(yaml.compose(text)):
        keys.setdefault(line, set()).add(key)
    # The header speaks of the whole study.
    marks = [i for i, line in enumerate(text.splitlines()) if "[ours]" in line and i > min(keys)]
    assert len(marks) > 2
    for i in marks:
        # A comment alone in its line is on the key below it. A line of several keys would leave
        # open which of them is ours.
        (key,) = keys[min(line for line in keys if line >= i)]
        assert key in found_keys(name), key


def test_every_choice_of_ours_that_the_code_speaks_of_is_on_the_list_or_not_the_papers():
    found = {
        str(path.relative_to(ROOT))
        for root in ("model", "pipelines")
        for path in (ROOT / root).rglob("*.py")
        # A sentence goes on in the next line.
        if MARK.search(re.sub(r"\s+", " ", path.read_text()))
    }
    assert found == {*MARKED_CODE}
    listed = {subject for name in STUDIES for subject in ours(name)}
    for file, subjects in MARKED_CODE.items():
        assert {*subjects} <= listed, file


def test_what_the_papers_study_leaves_open_is_listed_with_its_values():
    low, both = ours("paper_224"), ours("paper_448")
    for subject in (
        "prepare.augment_resize 1, prepare.augment_jpeg 0.5, prepare.augment_crop 0.1",
        "prepare.encoding jpeg",
        "prepare.examples_per_task 1",
        "intermediary.rsqrt_shift 0",
        "transfers.msvd_qa.num_frames 8",
        "num_seeds 3",
    ):
        assert subject in low
        assert subject in both
    assert "stage1.grad_clip, intermediary.grad_clip 1" in low
    assert "stage1.grad_clip, intermediary.grad_clip, stage2.train.grad_clip 1" in both
    assert "stage2.train.warmup 0" in {*both} - {*low}
    (rates,) = (subject for subject, why in low.items() if why.startswith("ties"))
    for rate in ("gqa.train.peak_lr 3e-06", "tallyqa.train.peak_lr 6e-06", "and 1 more"):
        assert rate in rates
    (frozen,) = (subject for subject in low if ".freeze_vision" in subject)
    assert frozen.endswith("and 1 more all")


@pytest.mark.parametrize(
    ("words", "gone"),
    [
        (["prepare.encoding=png"], "prepare.encoding"),
        (["intermediary.rsqrt_shift=12085", "intermediary.warmup=0"], "intermediary.rsqrt_shift"),
        (["methods=[vanilla,m3]"], "transfers.activitynet_cap.train.freeze_vision"),
        (["transfers.msvd_qa=null"], "transfers.msvd_qa"),
    ],
)
def test_what_is_set_as_the_paper_has_it_is_no_longer_listed(words: list[str], gone: str):
    def starts(subjects: dict[str, str]) -> list[str]:
        return [subject for subject in subjects if subject.startswith(gone)]

    assert starts(ours("paper_224"))
    assert not starts(ours("paper_224", *words))


def test_a_mixture_that_is_not_screened_against_all_splits_is_listed():
    likeness = "hygiene.min_likeness 0.3, hygiene.candidates 8"
    assert [key for key in ours("paper_224") if key.startswith("hygiene")] == [likeness]
    assert "hygiene.splits evaluation" in ours("paper_224", "hygiene.splits=evaluation")
    unscreened = ours("paper_224", "hygiene=null")
    assert [key for key in unscreened if key.startswith("hygiene")] == ["hygiene.contamination"]


def test_a_variant_is_of_its_methods_kind():
    long = ours("paper_224", "methods=[vanilla,long]", "variants={long: {of: parcel}}")
    assert "methods parcel" in long
    pools = ours("paper_224", "methods=[vanilla,pools]", "variants={pools: {of: m3}}")
    assert not [key for key in pools if "freeze_vision" in key or key.startswith("methods")]


def test_a_run_of_the_papers_study_counts_what_is_ours_in_one_line_and_no_other_run_does():
    study = load(CONFIGS / "paper_448.yaml")
    (line,) = describe_paper_deviations(study)
    assert f"note: {len(ours('paper_448'))} choices " in line
    assert not [*describe_paper_deviations(study, listed=True)]
    for path in sorted(CONFIGS.glob("*.yaml")):
        other = load(path)
        if path.stem.startswith("paper"):
            assert other.paper
        else:
            assert not [*choices_of_ours(other)], path.stem
    assert not [*describe_paper_deviations(load())]


def test_explain_prints_the_list_before_anything_is_opened(parcel, tmp_path):
    words = [str(CONFIGS / "paper_448.yaml"), f"--store={tmp_path}/store"]
    code, out, err = parcel("run", *words, "--explain")
    printed = [line for line in out.splitlines() if line.startswith("[ours]")]
    assert len(printed) == len(ours("paper_448"))
    assert "[ours]    prepare.encoding jpeg: " in out
    assert "choices of this study" not in err
    # What it needs is not there.
    assert (code, "data_root must be given" in err) == (2, True)
    code, out, err = parcel("run", *words)
    assert code == 2
    assert "[ours]" not in out + err
    assert "choices of this study" in err


if __name__ == "__main__":
    print(listed_text(), end="")
