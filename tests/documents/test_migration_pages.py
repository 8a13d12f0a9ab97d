"""Every key of a recipe that the migration pages name exists, in the kind that they name with it."""

import re
from collections import defaultdict
from pathlib import Path

import pytest
from needs import ROOT

from nnue_trainer import config, schema

PAGES = ("from-nnue-pytorch.md", "from-bullet.md")
KEYS = {key.replace(".N", "") for key, *_ in schema.describe(config.Recipe)}
SECTIONS = {key.split(".")[0] for key in KEYS}


def kinds() -> dict[tuple[str, str], set[str]]:
    """The fields of each kind of a section."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    now: dict[str, str] = {}
    for key, kind, *_ in schema.describe(config.Recipe):
        section, _, field = key.partition(".")
        if field == "kind" and kind.startswith("="):
            now[section] = kind.removeprefix("=").strip()
        if section in now:
            found[section, now[section]].add(field.split(".")[0])
    return found


KINDS = kinds()


def rows(page: str) -> list[tuple[str, str]]:
    """(theirs, ours) of every table row."""
    lines = [line for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [(row[0], row[1]) for row in cells if set(row[0]) != {"-"}]


def wrong_in(cell: str) -> list[str]:
    """Names in a cell that no recipe has."""
    wrong, section = [], ""
    for span in re.findall(r"`([^`]+)`", cell):
        flow = re.fullmatch(r"(?:(\w+): )?\{(kind: \w+.*)\}", span)
        dotted = re.fullmatch(r"(\w+(?:\.\w+)+)(?:: .*)?", span)
        if flow:
            sections = [flow[1]] if flow[1] else ["schedule", "lambda", "optimizer", "average"]
            text = re.sub(r"\{[^{}]*\}|\[[^\[\]]*\]|\([^()]*\)|…", "0", flow[2])
            names = re.findall(r"(?:^|, )(\w+):", text)
            kind = re.match(r"kind: (\w+)", text)[1]  # type: ignore[index]
            if not any(set(names) <= KINDS.get((each, kind), set()) for each in sections):
                wrong.append(span)
        elif dotted and dotted[1].split(".")[0] in SECTIONS:
            key = dotted[1]
            section = key.rpartition(".")[0]
            value = re.search(r"\.kind: (\w+)", span)
            known = key in KEYS or any(other.startswith(f"{key}.") for other in KEYS)
            if not known or (value and (section, value[1]) not in KINDS):
                wrong.append(span)
        elif section and (word := re.fullmatch(r"([a-z]\w*)(?:: .*)?", span)):
            known = f"{section}.{word[1]}" in KEYS or (section, word[1]) in KINDS
            if not known and word[1] not in SECTIONS and not any(key.endswith(f".{word[1]}") for key in KEYS):
                wrong.append(span)
    return wrong


THEIRS = {
    "from-nnue-pytorch.md": """
        features l1 l2 batch-size epoch-size max_epochs max_time seed threads num-workers gpus compile-backend lr gamma
        one-cycle-steps one-cycle-warmup-pct one-cycle-start-div one-cycle-final-div lambda start-lambda end-lambda
        lambda-schedule-steps lambda-cycle-delta lambda-cycle-warmup-pct lambda-cycle-jitter jitter-lambda-sample
        jitter-lambda-batch jitter-lambda-batch-decay in-scaling in-offset out-scaling out-offset pow-exp qp-asymmetry
        w1 w2 random-fen-skipping early-fen-skipping simple-eval-skipping soft-early-fen-skipping ply-x1 pc-y0
        optimizer-name lookahead-k lookahead-alpha pnm-momentum ft-weight-decay dense-weight-decay
        factorized-weight-decay swa-start-epoch network-save-period save-top-k save-last-network param-index
        check-val-every-n-epoch default_root_dir resume-from-model resume-from-checkpoint validation-data
        validation-size
    """,
    "from-bullet.md": """
        batch_size batches_per_superbatch start_superbatch end_superbatch save_rate output_directory net_id test_set
        ConstantLR StepLR DropLR LinearDecayLR CosineDecayLR ExponentialDecayLR Warmup Sequence ConstantWDL LinearWDL
        wdl_adjust_function AdamW RAdam Ranger beta1 beta2 decay min_weight max_weight eval_scale squared_error
        power_error use_win_rate_model datapoint_weight_function Chess768 ChessBuckets ChessBucketsMirrored Factorised
        MaterialCount wdl_output save_format raw.bin quantised.bin optimiser_state log.txt load_from_checkpoint
        load_weights_from_file filter threads dual_perspective single_perspective stop-gradient
    """,
}


@pytest.mark.parametrize("page", PAGES)
def test_every_option_of_theirs_is_named(page: str) -> None:
    named = " ".join(theirs for theirs, _ in rows(page))
    dashes = "--" if "pytorch" in page else ""
    assert [
        option for option in THEIRS[page].split() if not re.search(rf"`[^`]*{dashes}{re.escape(option)}\b", named)
    ] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_key_of_the_tables_exists(page: str) -> None:
    table = rows(page)
    assert len(table) > 25
    named = [theirs for theirs, ours in table if any(section in ours for section in SECTIONS)]
    assert len(named) > 20, "the tables are not read"
    assert {theirs: wrong for theirs, ours in table if (wrong := wrong_in(ours))} == {}


@pytest.mark.parametrize("page", PAGES)
def test_the_whole_recipe_of_a_page_is_one(page: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    recipes = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert recipes
    for recipe in recipes:
        (tmp_path / "mine.yaml").write_text(recipe, encoding="utf-8")
        config.load(tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    "cell", ["`loss.in_scale`", "`{kind: linear, final_rate: …}`", "`average: {kind: mean}`", "`optimizer.kind: sgd`"]
)
def test_a_wrong_key_is_found(cell: str) -> None:
    assert wrong_in(cell)
