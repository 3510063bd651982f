"""exp, tanh and the logistic function of float64 numbers, exact or correctly rounded to float64.

In decimal arithmetic with enough digits for the smallest argument; no platform library takes part,
so the values are the same everywhere.
"""

from decimal import Context, Decimal

import numpy as np

# tanh of 2^-149 (about 1e-45) loses 45 digits in a difference; some fifty are left.
CONTEXT = Context(prec=100, Emin=-10**6, Emax=10**6)


def exact_exp(x):
    return CONTEXT.exp(Decimal(x))


def exact_sigmoid(x):
    return CONTEXT.divide(Decimal(1), CONTEXT.add(Decimal(1), exact_exp(-x)))


def exact_tanh(x):
    if x == 0:
        return x
    if abs(x) > 1000:
        return 1.0 if x > 0 else -1.0
    square = exact_exp(2 * x)
    return CONTEXT.divide(CONTEXT.subtract(square, Decimal(1)), CONTEXT.add(square, Decimal(1)))


def rounded(function, values):
    """The function over an array, each value rounded once to float64."""
    flat = [float(function(float(value))) for value in np.ravel(values)]
    return np.array(flat).reshape(np.shape(values))
