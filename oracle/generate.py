"""Writes everything under fixtures/, or proves that the committed files come from here.

    python oracle/generate.py              writes
    python oracle/generate.py --check      regenerates elsewhere, compares; exit 1 on a difference
    python oracle/generate.py --output DIR writes to, or checks, another folder

Answers are computed from the files just written, read back. Generation refuses weights and ids
whose margins are too small to tell a wrong implementation from rounding.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import recipe
from answers import (
    greedy, margins, noise, sha256, stage_tensors, teacher_forcing,
)
from carried import Carried
from compose import compose
from fixture_check import check
from integer_generator import check_test_vector
from k3 import Model, load_model
from kernel_fixtures import write_kernels
from manifest import write_manifest
from sensitivity import sensitivities, too_small
from tensor_files import read_checkpoint, safetensors_bytes

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
INDEX = "model.safetensors.index.json"
SHARD_NAMES = [f"model-{i:05d}-of-{3:06d}.safetensors" for i in (1, 2, 3)]
STAGE_ROWS = 4
LIMITS = {
    "tiny": {"router_gap": 5e-4, "top_gap": 0.05, "bias_share": 0.15},
    "mild": {"router_gap": 8e-3, "top_gap": 0.15, "bias_share": 0.15},
    "faint": {"router_gap": 8e-3, "top_gap": 0.15, "bias_share": 0.15},
}
MAX_LOGIT = 40.0
MIN_DISTINCT_GREEDY_IDS = 12
WRONG_EPSILON = 1e-5
MIN_WRONG_MLA_EPSILON_EFFECT = 0.05
MAX_CARRIED_DIFFERENCE = 1e-12
# What a BF16 engine is judged by is 8 floors; a wrong epsilon shows however the engine rounds when
# it moves a logit by at least two budgets.
MIN_FAINT_EPSILON_EFFECT_IN_FLOORS = 16.0
FAINT_EPSILONS = {"MLA low ranks": ("q_a", "kv_a"), "l2norm": ("l2_q", "l2_k")}
TENSOR_TEXTS = {
    "logits.f64": "[T,V] F64, teacher forcing on full_ids; the one tensor that gates",
    "router_ids.f64": "[MoE layers,T,k] I32, ascending expert id",
    "router_weights.f64": "[MoE layers,T,k] F64, same order, renormalised and scaled",
}
TINY_TEXTS = {
    "long.logits.f64": "[200,V] F64, teacher forcing on long_ids",
    "long.router_ids.f64": "[MoE layers,200,k] I32, as router_ids.f64",
    "logits.mla_norm_eps_1e-5": "[T,V] F64, as logits.f64 with 1e-5 in the two MLA low-rank norms",
    "embed, layers.N.*, final_mix, final_norm":
        "stage tensors of the pass over the first stage_rows ids of full_ids; state and conv "
        "after the last of them",
}


def json_text(value):
    """One line per entry, two levels deep; lists stay on their line."""
    lines = []
    for key, entry in value.items():
        if isinstance(entry, dict) and entry:
            inner = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in entry.items())
            text = "{\n" + inner + "\n }"
        else:
            text = json.dumps(entry)
        lines.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write_model(folder):
    """The tiny checkpoint: config, three shards, index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(recipe.root_config(), indent=1) + "\n")
    weight_map, total = {}, 0
    for shard, entries in zip(SHARD_NAMES, recipe.layout()):
        tensors = {name: (dtype, recipe.tensor(recipe.TINY, name, dtype, shape))
                   for name, dtype, shape in entries}
        (folder / shard).write_bytes(safetensors_bytes(tensors, {"format": "pt"}))
        weight_map.update({name: shard for name in tensors})
        total += sum(array.nbytes for _, array in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=0, separators=(",", ":")) + "\n")


def write_twin(folder, rules):
    """The delta: every tensor whose bytes differ between the two rule sets, and the config."""
    folder.mkdir(parents=True, exist_ok=True)
    delta = {}
    for entries in recipe.layout():
        for name, dtype, shape in entries:
            other = recipe.tensor(rules, name, dtype, shape)
            if other.tobytes() != recipe.tensor(recipe.TINY, name, dtype, shape).tobytes():
                delta[name] = (dtype, other)
    (folder / "delta.safetensors").write_bytes(safetensors_bytes(delta))
    (folder / "config.json").write_text(json.dumps(recipe.root_config(), indent=1) + "\n")


def refuse_small_margins(name, found, greedy_ids):
    limits = LIMITS[name]
    complaints = [
        (found["min_router_gap"] < limits["router_gap"], "router gap"),
        (found["min_top1_top2_gap"] < limits["top_gap"], "top-1/top-2 gap"),
        (found["rows_where_the_bias_changes_the_selection"] < limits["bias_share"], "bias share"),
        (not found["logit_absmax"] < MAX_LOGIT, "largest logit"),
        (len(set(greedy_ids)) < MIN_DISTINCT_GREEDY_IDS, "distinct greedy ids"),
        (min(greedy_ids) < recipe.FIRST_ORDINARY_ID, "special id generated"),
    ]
    for failed, what in complaints:
        if failed:
            raise SystemExit(f"refused: {name}: {what} out of bounds: {found} {greedy_ids}")


def refuse_lost_state(model, ids, logits):
    """Carried state, token by token, has to give the logits of the full pass (K13, M8)."""
    carried = Carried(model.config, model.weights)
    worst = max(np.abs(carried.step([token])[0] - row).max() for token, row in zip(ids, logits))
    if not worst <= MAX_CARRIED_DIFFERENCE:
        raise SystemExit(f"refused: carried state moves a logit by {worst:.3e}")


def refuse_blind_answers(folder, ids):
    """Every wrong variant has to show in the logits."""
    rows = sensitivities(*read_checkpoint(folder / "model"), ids)
    print(f"tiny: {len(rows)} wrong variants, the least visible: {rows[0][3]} {rows[0][2]}")
    if too_small(rows):
        raise SystemExit(f"refused: hardly visible: {[row[2] for row in too_small(rows)]}")


def refuse_fragile_twin(found):
    """The twin's decisions have to survive BF16 activations."""
    if found["bf16"]["argmax_agree"] < 1 or found["bf16"]["router_rows_agree"] < 1:
        raise SystemExit(f"refused: BF16 rounding changes a decision of the twin: {found}")


def refuse_hidden_epsilons(model, ids, logits, floor):
    """1e-5 in the low ranks, or in l2norm, has to show in a BF16 engine; returns the effects."""
    effects = {}
    for what, sites in FAINT_EPSILONS.items():
        wrong = Model(model.config, model.weights)
        wrong.epsilon.update(dict.fromkeys(sites, WRONG_EPSILON))
        effects[what] = float(np.abs(wrong.forward(ids) - logits).max())
        print(f"faint: 1e-5 in {what} moves a logit by up to {effects[what]:.3f}")
        if effects[what] < MIN_FAINT_EPSILON_EFFECT_IN_FLOORS * floor:
            raise SystemExit(f"refused: the epsilon of {what} hides behind BF16 rounding")
    return effects


def expected_json(name, model, prompt_ids, sequences, tensors):
    """What every set says; `sequences` starts with full_ids."""
    full = sequences[0]
    logits = tensors["logits.f64"][1]
    greedy_ids = full[len(prompt_ids):]
    found = margins(model, sequences)
    refuse_small_margins(name, found, greedy_ids)
    return {
        "set": name,
        "seed": recipe.WEIGHT_SEED,
        "prompt_ids": prompt_ids,
        "greedy_ids": greedy_ids,
        "full_ids": full,
        "argmax_per_position": logits.argmax(1).tolist(),
        "moe_layers": list(range(model.config.dense_layers, model.config.layers)),
        "tensors": dict(TENSOR_TEXTS),
        "margins": found,
        "noise": noise(model, full),
        # Outer limits: rounding to F32 leaves a tenth of the first or less (see "noise").
        "suggested_tolerance": {
            "float32_engine_max_abs_vs_f64": 2e-3, "float64_engine_max_abs_vs_f64": 1e-9,
        },
    }


def answer_tiny(folder):
    model = load_model(folder / "model")
    prompt_ids, long_ids = recipe.tiny_prompt(), recipe.long_ids()
    full = prompt_ids + greedy(model, prompt_ids, recipe.GREEDY_IDS)
    logits, tensors = teacher_forcing(model, full)
    refuse_lost_state(model, full, logits)
    long_logits, long_tensors = teacher_forcing(model, long_ids, "long.")
    del long_tensors["long.router_weights.f64"]
    wrong = load_model(folder / "model", WRONG_EPSILON).forward(full)
    effect = float(np.abs(wrong - logits).max())
    print(f"tiny: 1e-5 in the MLA low-rank norms moves a logit by up to {effect:.3f}")
    if effect < MIN_WRONG_MLA_EPSILON_EFFECT:
        raise SystemExit("refused: the MLA epsilon hardly shows")
    tensors |= long_tensors
    tensors["logits.mla_norm_eps_1e-5"] = ("F64", wrong)
    expected = expected_json("tiny", model, prompt_ids, [full, long_ids], tensors)
    expected["tensors"] |= TINY_TEXTS
    expected["long_ids"] = long_ids
    expected["long_argmax_per_position"] = long_logits.argmax(1).tolist()
    expected["stage_rows"] = STAGE_ROWS
    expected["wrong_mla_epsilon_effect"] = effect
    tensors |= stage_tensors(model, full[:STAGE_ROWS])
    files = sorted((folder / "model").iterdir())
    expected["sha256"] = {f"model/{path.name}": sha256(path) for path in files}
    write_answers(folder, expected, tensors)
    return full


def answer_twin(name, folder, tiny_model):
    """A twin's answers, from the composed files."""
    with tempfile.TemporaryDirectory() as place:
        composed = Path(place)
        compose(tiny_model, folder / "delta.safetensors", folder / "config.json", composed)
        model = load_model(composed)
        digests = {f"model/{path.name}": sha256(path) for path in sorted(composed.iterdir())}
    prompt_ids = recipe.twin_prompt(name)
    full = prompt_ids + greedy(model, prompt_ids, recipe.GREEDY_IDS)
    logits, tensors = teacher_forcing(model, full)
    expected = expected_json(name, model, prompt_ids, [full], tensors)
    refuse_fragile_twin(expected["noise"])
    if name == "faint":
        floor = expected["noise"]["bf16"]["max_abs_vs_f64"]
        effects = refuse_hidden_epsilons(model, full, logits, floor)
        expected["wrong_epsilon_effects"] = effects
    expected["sha256"] = digests
    write_answers(folder, expected, tensors)


def write_answers(folder, expected, tensors):
    (folder / "expected.json").write_text(json_text(expected))
    (folder / "expected.safetensors").write_bytes(safetensors_bytes(tensors))
    print(f"{expected['set']}: margins {expected['margins']}")
    print(f"{expected['set']}: noise {expected['noise']}")


def generate(folder, judge_variants):
    """Writes the sets, the kernel fixtures and the manifest below `folder`."""
    write_model(folder / "tiny" / "model")
    full_ids = answer_tiny(folder / "tiny")
    for name, (rules, _) in recipe.TWINS.items():
        write_twin(folder / name, rules)
        answer_twin(name, folder / name, folder / "tiny" / "model")
    write_manifest(folder, write_kernels(folder))
    if judge_variants:
        refuse_blind_answers(folder / "tiny", full_ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files")
    parser.add_argument("--output", type=Path, default=FIXTURES, metavar="DIR")
    arguments = parser.parse_args()
    check_test_vector()
    started = time.monotonic()
    passed = True
    if arguments.check:
        with tempfile.TemporaryDirectory() as place:
            generate(Path(place), judge_variants=False)
            passed = check(arguments.output, Path(place))
    else:
        generate(arguments.output, judge_variants=True)
    print(f"{time.monotonic() - started:.1f} s")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
