"""Looks for ids with safe margins; prints constants for `recipe.py`.

    python oracle/search.py tiny|mild|faint|long [FIRST_SEED [COUNT]]

Run by a person after the weights change; nothing else depends on it.
"""

import sys

import numpy as np

import recipe
from answers import greedy, margins, noise, router_gaps, top_gaps
from carried import Carried
from k3 import Config, Model, Weights


def build(rules):
    """A model straight from the rules, without files."""
    tensors = {name: (dtype, recipe.tensor(rules, name, dtype, shape))
               for shard in recipe.layout() for name, dtype, shape in shard}
    config = Config(recipe.root_config())
    return Model(config, Weights(tensors, config))


def too_close(model, router_gap, top_gap):
    """Tells whether the newest row of a greedy run is too near to another decision."""
    def refuse(row):
        ranked = np.sort(row)
        return (ranked[-1] - ranked[-2] < top_gap
                or router_gaps(model)[:, -1].min() < router_gap
                or row.argmax() < recipe.FIRST_ORDINARY_ID)
    return refuse


def search_tiny(model, seeds, router_gap, top_gap):
    """Prints every seed whose prompt and greedy ids keep both gaps."""
    for seed in seeds:
        prompt = recipe.prompt(seed, "tiny prompt", recipe.PROMPT_IDS)
        logits = model.forward(prompt)
        if top_gaps(logits).min() < top_gap or router_gaps(model).min() < router_gap:
            continue
        ids = greedy(model, prompt, recipe.GREEDY_IDS, too_close(model, router_gap, top_gap))
        if ids is None:
            continue
        found = margins(model, [prompt + ids])
        if found["min_router_gap"] < router_gap or found["min_top1_top2_gap"] < top_gap:
            continue
        print(f"seed {seed}: router gap {found['min_router_gap']:.2e}, top gap "
              f"{found['min_top1_top2_gap']:.3f}, {len(set(ids))} distinct", flush=True)


def repaired(model, draw, passed_over, router_gap, top_gap):
    """Passes over draws at the first offending position until the sequence keeps both gaps."""
    while True:
        logits = model.forward(draw(passed_over))
        bad = (top_gaps(logits) < top_gap) | (router_gaps(model) < router_gap).any(axis=0)
        if not bad.any():
            return passed_over
        position = int(np.argmax(bad))
        passed_over[position] = passed_over.get(position, 0) + 1


def row_is_safe(model, logits, router_gap, top_gap):
    """[B]: whether the newest row of every carried sequence keeps both gaps."""
    return ((top_gaps(logits) >= top_gap) & (router_gaps(model).min(axis=0) >= router_gap)
            & (logits.argmax(axis=1) >= recipe.FIRST_ORDINARY_ID))


def search_twin(name, model, attempts, router_gap, top_gap):
    """Repairs the prompt but for its last id, then tries every last id at once, carried."""
    last = recipe.PROMPT_IDS - 1
    for attempt in range(attempts):
        passed_over = repaired(model, lambda skipped: recipe.twin_prompt(name, skipped)[:last],
                               {last - 1: attempt}, router_gap, top_gap)
        carried = Carried(model.config, model.weights)
        for token in recipe.twin_prompt(name, passed_over)[:last]:
            carried.step([token])
        candidates = np.arange(recipe.FIRST_ORDINARY_ID, recipe.VOCABULARY)
        carried.keep_rows(np.zeros(len(candidates), int))
        newest, depth = candidates, 0
        while len(newest) and depth <= recipe.GREEDY_IDS:
            logits = carried.step(newest)
            safe = row_is_safe(carried, logits, router_gap, top_gap)
            carried.keep_rows(safe)
            candidates, newest = candidates[safe], logits.argmax(axis=1)[safe]
            depth += 1
        print(f"attempt {attempt}: {len(candidates)} left after {depth} rows", flush=True)
        for token in candidates:
            report_twin(name, model, passed_over | {last: first_draw(name, last, token)})


def first_draw(name, position, token):
    """The index of the first draw at a position that gives this id."""
    index = 0
    while recipe.drawn_id(name, position, index) != token:
        index += 1
    return index


def report_twin(name, model, passed_over):
    prompt = recipe.twin_prompt(name, passed_over)
    ids = prompt + greedy(model, prompt, recipe.GREEDY_IDS)
    print(f"{margins(model, [ids])} {noise(model, ids)['bf16']}")
    print(f"{len(set(ids[len(prompt):]))} distinct, {name} passes over {passed_over}", flush=True)


def main():
    what = sys.argv[1]
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 50
    if what in recipe.TWINS:
        search_twin(what, build(recipe.TWINS[what][0]), count, 8e-3, 0.15)
    elif what == "long":
        model = build(recipe.TINY)
        found = repaired(model, recipe.long_ids, {}, 5e-4, 0.05)
        print(f"LONG_PASSED_OVER = {found}")
    else:
        model = build(recipe.TINY)
        search_tiny(model, range(first, first + count), 4e-4, 0.05)


if __name__ == "__main__":
    main()
