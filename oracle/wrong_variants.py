"""Wrong implementations of single clauses: what the tiny model's answers have to expose.

A variant is either a subclass of Model that overrides one step, or a function that changes a
copied model (its own `config` and `epsilon`, shared weights). They stand in the modules named
`wrong_...`; here is the list they enter. `sensitivity.py` runs them all.
"""

PREFILL_ROWS = 12
VARIANTS = []


def wrong(clause, text):
    """Registers a variant under the clause it breaks."""
    def register(change):
        VARIANTS.append((clause, text, change))
        return change
    return register


def epsilon_variant(clause, text, value, *sites):
    """The epsilon of some norms replaced; `value` may be a function of the config."""
    def change(model):
        epsilon = value(model.config) if callable(value) else value
        model.epsilon.update(dict.fromkeys(sites, epsilon))
    VARIANTS.append((clause, text, change))


def config_variant(clause, text, **values):
    def change(model):
        for name, value in values.items():
            setattr(model.config, name, value)
    VARIANTS.append((clause, text, change))
