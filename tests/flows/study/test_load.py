"""Configs: what is accepted, and the one line that says why something is not."""

import copy
import json
import os
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from flows.study.load import apply_overrides, load
from infra.errors import ConfigError

CONFIGS = sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"))


def test_demo_compares_four_methods_over_three_shared_seeds():
    demo = load()
    assert demo.methods == ("vanilla", "m3", "mqt", "parcel")
    assert len(set(demo.seeds)) == 3
    assert all(10_000 <= seed <= 100_000 for seed in demo.seeds)
    assert load().seeds == demo.seeds
    assert load(overrides=["seed=1"]).seeds != demo.seeds


@pytest.mark.parametrize("source", [None, *CONFIGS], ids=lambda p: p.stem if p else "demo")
def test_short_studies_train_elastic_methods_on_the_budgets_of_their_table(source: Path | None):
    study = load(source)
    if study.model.text.width > 2000:  # Of 3B, in steps enough for the paper's uniform draw.
        assert study.train_budgets == {}
        return
    for method in (m for m in study.methods if m not in study.variants):
        table = None if method == "vanilla" else study.budgets_of(method)
        assert study.train_config_for(study.intermediary, method).budgets == table
        for benchmark in study.fine_tunings:
            assert study.fine_tuning_of(benchmark, method).budgets == table
    assert study.stage1.budgets is None


def test_a_budget_that_no_training_draws_is_a_warning():
    def warnings(*overrides: str) -> list[str]:
        return list(load(overrides=overrides).describe_undrawn_budgets())

    assert warnings() == []
    # m3 serves neither of the two.
    (line,) = warnings("budgets=[32,128,256]")
    assert re.match("warning: budgets 32, 128 .*mqt, parcel", line)
    assert warnings("budgets=[32,128,256]", "train_budgets={}") == []  # From all, as in the paper.
    # What one draws, those that are not named draw, too.
    (line,) = warnings("budgets=[32,256]", "train_budgets={mqt: [16, 256]}")
    assert re.search("budgets 32 .*mqt, parcel", line)
    stage = "transfers.chartqa.train.budgets=[32]"  # One training of two draws it.
    assert warnings("budgets=[32,256]", "train_budgets={}", stage) == []


def test_elastic_methods_draw_alike():
    # One that is not named, as a sweep adds it, draws as those that are.
    study = load(overrides=["methods=[vanilla,m3,parcel,mqt_sa,parcel_fixed2,avgpool4]"])
    assert study.train_config_for(study.intermediary, "mqt_sa") == replace(
        study.intermediary, budgets=(16, 64, 256)
    )
    assert study.fine_tuning_of("chartqa", "parcel_fixed2").budgets == (64, 256)
    # Nothing is drawn where there is one budget, and keys stay as they are.
    for method in ("vanilla", "avgpool4"):
        assert study.fine_tuning_of("chartqa", method) == study.fine_tunings["chartqa"]
    # Without any stated, all draw from all that they serve.
    free = load(overrides=["train_budgets={}"])
    assert free.fine_tuning_of("chartqa", "parcel") == free.fine_tunings["chartqa"]
    assert [*study.describe_budgets(), *free.describe_budgets()] == []


def test_elastic_methods_that_do_not_draw_alike_are_a_warning():
    study = load(overrides=["train_budgets={m3: [16], parcel: [16, 64, 256]}"])
    assert study.fine_tuning_of("chartqa", "mqt") == study.fine_tunings["chartqa"]
    assert study.draws() == {"m3": (16,), "mqt": (), "parcel": (16, 64, 256)}
    (line,) = study.describe_draws()
    assert "m3 from 16; mqt from all that they serve; parcel from 16, 64, 256" in line
    uniform = load(overrides=["variants={wide: {of: parcel}}", "methods=[vanilla,parcel,wide]"])
    assert uniform.draws() == {"parcel": (16, 64, 256), "wide": ()}
    # M³ serves 4, which PARCEL does not: from [4, 16] both draw what they serve.
    alike = ["train_budgets={m3: [4, 16], parcel: [16]}", "methods=[vanilla,m3,parcel]"]
    assert load(overrides=alike).draws() == {}


def test_a_budget_that_no_method_of_the_study_serves_is_refused():
    with pytest.raises(ConfigError, match=r"budgets: .*\[32\]"):
        load(overrides=["methods=[vanilla,m3]", "budgets=[16,32,64,256]"])
    # Vanilla alone has the budgets of its base.
    (line,) = load(overrides=["methods=[vanilla]"]).describe_budgets()
    assert line.startswith("warning: budgets 16, 64: no method ")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_shipped_configs_load(path: Path):
    assert load(path).methods
    assert load(path).data_root is None  # Where the data lie is for who runs it to say.


def test_file_states_only_what_differs_from_its_base(tmp_path: Path):
    (tmp_path / "a.yaml").write_text("base: demo\nname: mine\nstage1: {total_steps: 7}\n")
    study = load(tmp_path / "a.yaml", ["stage1.batch_size=3"])
    assert (study.name, study.stage1.total_steps, study.stage1.batch_size) == ("mine", 7, 3)
    assert study.stage1.text_len == load().stage1.text_len


def test_null_drops_a_benchmark_in_a_file_and_in_an_override(tmp_path: Path):
    (tmp_path / "a.yaml").write_text("base: demo\ntransfers: {chartqa: null}\n")
    dropped = load(tmp_path / "a.yaml")
    assert set(load().transfers) - set(dropped.transfers) == {"chartqa"}
    assert load(overrides=["transfers.chartqa=null"]).transfers == dropped.transfers
    (tmp_path / "b.yaml").write_text("base: a.yaml\ntransfers: {chartqa: null}\n")
    assert load(tmp_path / "b.yaml").transfers == dropped.transfers
    (tmp_path / "c.yaml").write_text("base: a.yaml\ntransfers: {mine: null}\n")
    with pytest.raises(ConfigError, match=r"c\.yaml: transfers\.mine: null drops .* are refcoco"):
        load(tmp_path / "c.yaml")
    (tmp_path / "d.yaml").write_text("transfers: {mine: null}\n")
    with pytest.raises(ConfigError, match=r"d\.yaml: transfers\.mine: null drops .* are none"):
        load(tmp_path / "d.yaml")


def test_a_file_that_is_its_own_base_or_no_text_is_told(tmp_path: Path):
    a, b = tmp_path / "a.yaml", tmp_path / "b.yaml"
    a.write_text("base: b.yaml\n")
    b.write_text("base: a.yaml\n")
    with pytest.raises(ConfigError, match=r"b\.yaml: base .* got .*a\.yaml"):
        load(a)
    a.write_bytes(b"name: caf\xe9\n")
    with pytest.raises(ConfigError, match=r"a\.yaml must be UTF-8, .* at byte 9"):
        load(a)


def test_what_is_no_file_or_far_too_large_is_told_at_once(tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.symlink_to(path)
    with pytest.raises(ConfigError, match=r"got .*a\.yaml: Too many levels"):
        load(path)
    (tmp_path / "b.yaml").write_text("base: a.yaml\n")
    with pytest.raises(ConfigError, match=r"got .*a\.yaml: Too many levels"):
        load(tmp_path / "b.yaml")
    path.unlink()
    os.mkfifo(path)  # Nobody writes to it: whoever opens it waits.
    with pytest.raises(ConfigError, match=r"a\.yaml: a pipe or a device"):
        load(path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match=r"a\.yaml: a pipe or a device"):
        load(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match=r"a\.yaml: Is a directory"):
        load(path)
    path.rmdir()
    with path.open("wb") as file:
        file.truncate(100 * 2**20)  # No byte of it is stored, or read.
    with pytest.raises(ConfigError, match=r"at most 1 MiB, got .*a\.yaml: 100\.0 MiB"):
        load(path)


def test_values_that_overrides_change_stay_as_they_were():
    values = {"transfers": {"mine": {"reader": "mine.py:read", "metric": "accuracy"}}}
    before = copy.deepcopy(values)
    with pytest.raises(ConfigError):  # Much is missing.
        apply_overrides(values, ["transfers.mine.path=x"], source="values")
    assert values == before


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "base: demo\nstage1: &s {total_steps: 7}\nintermediary: {<<: *s, total_steps: 3}\n"
    )
    assert load(path).intermediary.total_steps == 3
    path.write_text("base: demo\nstage1:\n  total_steps: 7\n  total_steps: 8\n")
    with pytest.raises(ConfigError, match=r"a\.yaml, line 4: total_steps .*twice"):
        load(path)
    with pytest.raises(ConfigError, match=r"stage1: total_steps .*twice"):
        load(overrides=["stage1={total_steps: 7, total_steps: 8}"])


@pytest.mark.parametrize(
    ("override", "told"),
    [
        (
            "transfers.chartq=null",
            r"chartq: null drops .* none of that name; there are chartqa, ref",
        ),
        ("num_seed=2", r"num_seed: no such key; did you mean num_seeds\? Accepted: name, seed"),
        ("stage1.steps=5", r"stage1\.steps: no such key; did you mean total_steps\?"),
        ("transfers.chartqa.train.lr=3", r"transfers\.chartqa\.train\.lr: no such key.*peak_lr"),
        ("connectors.parcel.bucket=[62]", r"did you mean buckets\?"),
        ("num_seeds=0", r"num_seeds: must be greater than or equal to 1, got 0"),
        ("methods=[vanilla,parcl]", r"methods\.1 must be one of .*parcel, .* got 'parcl'"),
        ("methods=[parcel,parcel]", "methods must not repeat a value"),
        ("budgets=[16,17,256]", r"no method serves \[17\]\. Accepted: even ones from 2 to 256"),
        ("budgets=[16]", "budgets must hold 256"),
        (
            "train_budgets.m3=[16,17]",
            r"train_budgets\.m3 must be distinct budgets that m3 serves, "
            r"4, 16, 64, 256, got \[16, 17\]; without it all of them are drawn",
        ),
        ("train_budgets.parcel=[8,256]", r"that parcel serves, 16…256, even ones, got \[8, 256\]"),
        ("train_budgets.vanilla=[16,256]", r"that vanilla serves, 256, got \[16, 256\]"),
        ("train_budgets.mqt=[]", r"train_budgets\.mqt must be distinct budgets .* got \[\]"),
        ("train_budgets.mqt=[16,16]", r"train_budgets\.mqt must be distinct budgets"),
        ("train_budgets.mtq=[16]", r"train_budgets must be one of vanilla, .* got 'mtq'"),
        ("stage1.warmup=3", r"stage1: warmup must be .* got 3\.0"),
        ("transfers.vqa={}", r"transfers: no benchmark 'vqa'; did .* Accepted: activitynet_cap"),
        ("model.text.vocab_size=7", r"vocab_size must be tokenizer\.vocab_size \+ 1152"),
        ("name=My Study", "name: "),
        (
            "compute.ray_address=ray://head:10001",
            r"must not be Ray Client's, got 'ray://head:10001'",
        ),
        ("compute.ray_address=head", r'"host:port" of a head, or "auto", got \'head\''),
        ("compute.ray_address=http://head:8265/x", r"got 'http://head:8265/x'"),
        ("compute.cpus_per_evaluation=0", r"compute\.cpus_per_evaluation: must be greater"),
        ("stage1.peak_lr=.inf", r"demo: stage1\.peak_lr must be a finite number, got inf"),
        ("stage1.peak_lr=1e400", r"demo: stage1\.peak_lr must be a finite number, got inf"),
        ("stage1.peak_lr=.nan", "peak_lr must be positive, got nan"),
        ("compute.rebuild_limit=.inf", r"compute\.rebuild_limit must be a finite number, got inf"),
        ("num_seeds=.inf", "num_seeds: must be a finite number, got inf"),
        ('name="a\\nb"', r"name: .* got 'a\\nb'"),
        ("name=a%b", "name: .* got 'a%b'"),
        ("methods=[vanilla,parcl]", r"got 'parcl'; did you mean parcel\?$"),
        ("methods=vanilla", r"methods: must be a list, got 'vanilla'; write methods=\[vanilla\]$"),
        ("budgets=16,64", r"budgets: must be a list, got '16,64'; write budgets=\[16, 64\]$"),
        (
            "name=My_Study",
            r"name: must be small letters, digits and -, and begin with a letter or digit, got 'My",
        ),
        (f"name={'a' * 41}", "name: must have at most 40 characters, and has 41, got 'aaa"),
        ("num_seeds=two", "num_seeds: must be a whole number, got 'two'"),
        ("paper=perhaps", "paper: must be true or false, got 'perhaps'"),
        ("transfers.chartq={}", r"no benchmark 'chartq'; did you mean chartqa\? Accepted: "),
        ("sources=[{reader: webb}]", r"got 'webb'; did you mean web\?$"),
        ("transfers.chartqa.metric=anlss", r"got 'anlss'; did you mean anls\?$"),
        ("oops", "override must look like key.path=value, got 'oops'"),
    ],
)
def test_mistakes_are_named_with_their_cure(override: str, told: str):
    with pytest.raises(ConfigError, match=told) as refused:
        load(overrides=[override])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "",
            r"mine\.yaml is empty: it must hold `key: value` lines; `base: demo` alone is a study",
        ),
        (
            "a: [1\nb: 2\n",
            r"mine\.yaml, line 2: not YAML that can be read: while parsing .*, expected",
        ),
        (
            "base: demos\n",
            r"mine\.yaml: base must be demo or a YAML file, got 'demos'; did you mean d",
        ),
        ("base: othr.yaml\n", r"got 'othr\.yaml'; did you mean other\.yaml\?$"),
        ("7\n", r"mine\.yaml must hold `key: value` lines, got 7\."),
    ],
)
def test_a_file_that_is_no_study_is_named_with_its_cure(tmp_path: Path, text: str, told: str):
    (tmp_path / "other.yaml").write_text("base: demo\n")
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=told) as refused:
        load(tmp_path / "mine.yaml")
    assert "unicode string" not in str(refused.value)


def test_a_study_knows_what_was_stated_of_it(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("base: demo\nnum_seeds: 2\nstage1: {b2: 0.9}\n")
    study = load(tmp_path / "mine.yaml", ["stage1.dropout=0.1", "transfers.refcoco=null"])
    stated = study.statements
    assert (stated["num_seeds"], stated["stage1"]["dropout"]) == (2, 0.1)
    assert stated["stage1"]["b2"] == 0.9
    assert stated["stage1"]["total_steps"] == load().statements["stage1"]["total_steps"]
    assert "grad_clip" not in stated["stage1"]
    assert "sampling" not in stated["transfers"]["chartqa"]["train"]  # Of the registry's recipe.
    assert "refcoco" not in stated["transfers"]
    assert study == load(tmp_path / "mine.yaml", ["stage1.dropout=0.1", "transfers.refcoco=null"])


def test_the_values_of_a_record_are_not_taken_for_statements():
    record = json.loads(json.dumps(asdict(load(overrides=["stage1.b2=0.9"]))))
    again = apply_overrides(record, ["stage1.dropout=0.1", "transfers.msvd_qa=null"], source="it")
    assert again.stage1 is not None
    assert (again.stage1.b2, again.stage1.dropout) == (0.9, 0.1)
    stated = again.statements["stage1"]
    assert (stated["b2"], stated["dropout"]) == (0.9, 0.1)
    assert "grad_clip" not in stated
    assert "msvd_qa" not in again.statements["transfers"]
    assert "dropout" not in record["statements"]["stage1"]


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("seed=010", r"seed: a number must not begin with 0, got 010: write 10"),
        ("num_seeds=yes", r"num_seeds: .* got 'yes'"),
        ("num_seeds=true", r"num_seeds: .* not true or false, got True"),
        ("num_seeds=1:30", r"num_seeds: .* got '1:30'"),
        ("stage1.peak_lr=true", r"stage1\.peak_lr: .* got True"),
        ("budgets=[true, 16]", r"budgets\.0: .* got True"),
        ("stage1.total_steps=1.5", r"stage1\.total_steps: must be a whole number, got 1\.5"),
    ],
)
def test_what_is_no_number_of_yaml_1_2_is_refused(override: str, told: str):
    with pytest.raises(ConfigError, match=told):
        load(overrides=[override])


def test_whole_numbers_may_have_exponents_and_files_name_the_line(tmp_path: Path):
    assert load(overrides=["stage1.total_steps=1e2"]).stage1.total_steps == 100
    path = tmp_path / "a.yaml"
    path.write_text("base: demo\nnum_seeds: 02\n")
    with pytest.raises(ConfigError, match=r"a\.yaml, line 2: .* got 02: write 2"):
        load(path)
