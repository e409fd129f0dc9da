"""Metrics against the official scorers' own cases and outputs."""

import hashlib
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from model.eval.metrics.ptb import tokenize_ptb
from model.eval.scorer import PredictionScores, Scorer

CASES = Path(__file__).parents[4].parent / "shared" / "data" / "metric_parity"

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not CASES.is_dir(), reason="needs ../shared/data/metric_parity"),
]

DIGESTS = {
    "flickr8k": "f4534258bb8eae314568156bc8c60c0b52e6601aea7cd9fbb77f8809687ef7fb",
    "opencqa generated": "9898954adebaf81b1f2e064186169d3bc43430c0182cab34871b8355a48fa414",
    "opencqa target": "f6c0722caebaa7db005e275ae622b219881c1fc7985c4cb49d9ffa9a623504ec",
    "clipscore": "764d8e63aca8dad1416bc1a2a946a532f15fdc3cddda9c5510fd164c57242046",
}
"""SHA-256 of the captions' words, a line each, as Stanford CoreNLP 3.4.1 and coco_caption's list of
dropped punctuation leave them; made with Java 17 on 21 November 2026."""


def read(name: str) -> Any:
    return json.loads((CASES / name).read_text("utf-8"))


def score(metric: str, rows) -> PredictionScores:
    scorer = Scorer(metric)
    for prediction, fields in rows:
        scorer.add(prediction, fields)
    return scorer.finish()


def flickr8k() -> list[tuple[int, str, list[str]]]:
    folder = "flickr8k_leave_one_out"
    references = defaultdict(list)
    for row in read(f"{folder}/annotations/captions_flickr8k.json")["annotations"]:
        references[row["image_id"]].append(row["caption"])
    results = read(f"{folder}/results/captions_flickr8k_human_results.json")
    return [(row["image_id"], row["caption"], references[row["image_id"]]) for row in results]


def opencqa(name: str) -> list[str]:
    return [row["caption"] for row in read(f"opencqa_cider_bertqa/{name}Answers.json")]


def captions(name: str) -> list[str]:
    if name == "flickr8k":
        annotations = read("flickr8k_leave_one_out/annotations/captions_flickr8k.json")
        return [r["caption"] for r in annotations["annotations"]] + [c for _, c, _ in flickr8k()]
    if name == "clipscore":
        references = read("clipscore_good/refs.json").values()
        written = read("clipscore_good/good_captions.json").values()
        return [caption for several in references for caption in several] + list(written)
    return opencqa(name.removeprefix("opencqa "))


@pytest.mark.parametrize("name", DIGESTS)
def test_every_caption_is_tokenized_as_stanford_does(name: str):
    words = "\n".join(tokenize_ptb(caption) for caption in captions(name))
    assert hashlib.sha256(words.encode()).hexdigest() == DIGESTS[name]


def check_captions(rows, expected: dict[str, float], tolerance: float) -> PredictionScores:
    """Holds corpus scores against those expected, in [0, 1] (CIDEr: [0, 10]); returns CIDEr's."""
    cider, bleu, rouge = (score(metric, rows) for metric in ("cider", "bleu", "rouge_l"))
    found = {f"Bleu_{n}": bleu.result.parts[f"bleu_{n}"].score / 100 for n in range(1, 5)}
    found["ROUGE_L"] = rouge.result.total.score / 100
    found["CIDEr"] = cider.result.total.score / 100
    assert found == pytest.approx({name: expected[name] for name in found}, abs=tolerance)
    return cider


def test_captions_of_flickr8k():
    expected = read("flickr8k_leave_one_out/expected.json")
    rows = [(caption, {"answers": references}) for _, caption, references in flickr8k()]
    cider = check_captions(rows, expected["corpus"], 1e-9)
    for (image, _, _), item in zip(flickr8k(), cider.items, strict=True):
        assert item.score == pytest.approx(expected["per_image_CIDEr"][str(image)], abs=1e-9)


def test_answers_of_opencqa():
    rows = [
        (written, {"answers": [wanted]})
        for written, wanted in zip(opencqa("generated"), opencqa("target"), strict=True)
    ]
    expected = read("opencqa_cider_bertqa/expected.json")["corpus"]
    cider = check_captions(rows, expected, 1e-9)
    each = read("opencqa_cider_bertqa/results.json")["CIDErD"]
    assert [item.score for item in cider.items] == pytest.approx(each, abs=1e-9)


def test_captions_of_nlg_eval_to_the_printed_digits():
    lines = [
        (CASES / "nlg_eval_example/examples" / name).read_text().splitlines()
        for name in ("hyp.txt", "ref1.txt", "ref2.txt")
    ]
    rows = [(h, {"answers": [a, b]}) for h, a, b in zip(*lines, strict=True) if h]
    check_captions(rows, read("nlg_eval_example/expected.json"), 5e-7)


def test_captions_of_clipscore_to_the_printed_digits():
    references = read("clipscore_good/refs.json")
    written = read("clipscore_good/good_captions.json")
    published = read("clipscore_good/expected.json")
    expected = {f"Bleu_{n}": published[f"BLEU-{n}"] for n in range(1, 5)}
    expected |= {"ROUGE_L": published["ROUGE"], "CIDEr": published["CIDER"]}
    check_captions([(written[k], {"answers": references[k]}) for k in written], expected, 5.1e-5)


def test_vqa_accuracy():
    given = read("vqa_accuracy/cases.json")
    answers = {
        question: [answer["answer"] for answer in annotation["answers"]]
        for question, annotation in given["annotations"].items()
    }
    rows = [(c["prediction"], {"answers": answers[str(c["question_id"])]}) for c in given["cases"]]
    found = [100 * item.score for item in score("vqav2", rows).items]
    assert found == pytest.approx([c["accuracy_percent"] for c in given["cases"]], abs=1e-9)


def test_anls():
    given = read("anls_docvqa/cases.json")
    done = score("anls", [(c["prediction"], {"answers": c["answers"]}) for c in given["cases"]])
    assert [i.score for i in done.items] == pytest.approx(
        [c["anls"] for c in given["cases"]], abs=1e-9
    )
    assert done.result.total.score == pytest.approx(100 * given["mean_anls"], abs=1e-9)


def test_relaxed_accuracy():
    given = read("relaxed_accuracy_chartqa/cases.json")
    rows = [(c["prediction"], {"answers": [c["label"]]}) for c in given["cases"]]
    done = score("relaxed_accuracy", rows)
    assert [i.score == 1 for i in done.items] == [c["relaxed_correct"] for c in given["cases"]]
    assert done.result.total.score == pytest.approx(100 * given["accuracy"], abs=1e-9)


def test_nlvr2():
    lines = (CASES / "nlvr2/predictions.csv").read_text().split()
    said = dict(line.split(",") for line in lines)
    examples = [json.loads(line) for line in (CASES / "nlvr2/dev.json").read_text().splitlines()]
    rows = [
        (said[e["identifier"]], {"answers": [e["label"]], "identifier": e["identifier"]})
        for e in examples
    ]
    result = score("nlvr", rows).result
    printed = dict(
        line.split("=")
        for line in (CASES / "nlvr2/expected.txt").read_text().split()
        if "=" in line
    )
    assert result.total.score == pytest.approx(100 * float(printed["accuracy"]), abs=1e-9)
    consistency = result.parts["consistency"].score
    assert consistency == pytest.approx(100 * float(printed["consistency"]), abs=1e-9)


def test_activitynet_qa():
    wanted = read("activitynet_qa/dataset/val_a.json")
    said = {
        r["question_id"]: r["answer"]
        for r in read("activitynet_qa/evaluation/pred_val_example.json")
    }
    rows = [(said[w["question_id"]], {"answers": [w["answer"]]}) for w in wanted]
    done = score("vqa", rows)
    printed = (CASES / "activitynet_qa/expected.txt").read_text()
    assert f"All: {done.result.total.score / 100:.4f}" in printed
    names = ["Motion", "Spatial Relation", "Temporal Relation", "Yes/No", "Color", "Object",
             "Location", "Number", "Other"]  # fmt: skip
    for number, name in enumerate(names):
        scores = [i.score for i, w in zip(done.items, wanted, strict=True) if w["type"] == number]
        assert f"{name}: {sum(scores) / len(scores):.4f}" in printed
