//! The row product and what enters it (A1, A2, A3, A12).
//!
//! Most of these change no f32 of an ordinary model: only the f64 sum before its rounding tells.
//! They are run through the single row product and through every matrix product alike.

use super::{EngineMutant, Mistake};
use k3_engine::kernels::contract::fold_lanes;
use k3_engine::kernels::products::{self, Product, RowBlock};
use k3_engine::kernels::rows::{self, Row};
use k3_engine::kernels::table::Kernels;
use k3_engine::kernels::threads::Threads;

/// Matrix products as single row products.
pub(super) fn products_by_rows(kernels: &Kernels, threads: &Threads, products: Vec<Product<'_>>) {
    let blocks = products::row_blocks(products, threads);
    threads.for_each(blocks, &|mut block: RowBlock<'_>| {
        let vectors = block.vectors.chunks_exact(block.matrix.columns());
        for (x, out) in vectors.zip(&mut block.out) {
            for (row, out) in out.iter_mut().enumerate() {
                *out = kernels.row_product(block.matrix.row(row), x);
            }
        }
    });
}

/// A row product by another rule over the widened weights.
fn by(sum: impl Fn(&[f64], &[f32]) -> f64, row: Row<'_>, x: &[f32]) -> f64 {
    let mut weights = vec![0.0; x.len()];
    rows::widen(row, &mut weights);
    sum(&weights, x)
}

/// Products in rising order.
fn terms<'a>(weights: &'a [f64], x: &'a [f32]) -> impl DoubleEndedIterator<Item = f64> + 'a {
    let pairs = weights.iter().zip(x);
    pairs.map(|(weight, x)| weight * f64::from(*x))
}

/// Lane sums with another number of lanes.
fn lanes<const N: usize>(terms: impl Iterator<Item = f64>) -> [f64; N] {
    let mut lanes = [0.0; N];
    for (place, term) in terms.enumerate() {
        lanes[place % N] += term;
    }
    lanes
}

/// Halves, quarters, pairs.
fn fold<const N: usize>(mut lanes: [f64; N]) -> f64 {
    let mut width = N / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Neighbouring lanes first: 0+1, 2+3, …
fn fold_neighbours(mut lanes: [f64; 16]) -> f64 {
    for width in [8, 4, 2, 1] {
        for lane in 0..width {
            lanes[lane] = lanes[2 * lane] + lanes[2 * lane + 1];
        }
    }
    lanes[0]
}

/// Each lane has a run of neighbouring elements.
fn contiguous(weights: &[f64], x: &[f32]) -> f64 {
    let run = x.len().div_ceil(16).max(1);
    let mut sums = [0.0; 16];
    for (place, term) in terms(weights, x).enumerate() {
        sums[place / run] += term;
    }
    fold_lanes(sums)
}

/// The tail after the last whole block is added to the folded sum.
fn tail_apart(weights: &[f64], x: &[f32]) -> f64 {
    let whole = x.len() / 16 * 16;
    let sum = fold_lanes(lanes(terms(&weights[..whole], &x[..whole])));
    terms(&weights[whole..], &x[whole..]).fold(sum, |sum, term| sum + term)
}

/// The tail is masked out altogether.
fn tail_dropped(weights: &[f64], x: &[f32]) -> f64 {
    let whole = if x.len() < 16 { x.len() } else { x.len() / 16 * 16 };
    fold_lanes(lanes(terms(&weights[..whole], &x[..whole])))
}

/// Two halves of the row, each folded, then added.
fn split_in_two(weights: &[f64], x: &[f32]) -> f64 {
    let half = x.len() / 2;
    let (first, second) =
        (terms(&weights[..half], &x[..half]), terms(&weights[half..], &x[half..]));
    fold_lanes(lanes(first)) + fold_lanes(lanes(second))
}

/// f32 lanes and f32 products.
fn single_lanes(weights: &[f64], x: &[f32]) -> f64 {
    let mut sums = [0.0_f32; 16];
    for (place, (weight, x)) in weights.iter().zip(x).enumerate() {
        sums[place % 16] += *weight as f32 * x;
    }
    let mut width = 8;
    while width > 0 {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
        width /= 2;
    }
    f64::from(sums[0])
}

/// Products are rounded to f32 before they are added.
fn rounded_products(weights: &[f64], x: &[f32]) -> f64 {
    fold_lanes(lanes(terms(weights, x).map(|term| f64::from(term as f32))))
}

/// f32 subnormals count as zero.
fn flushed(weights: &[f64], x: &[f32]) -> f64 {
    let flush = |value: f64| {
        if value.abs() < f64::from(f32::MIN_POSITIVE) { 0.0 } else { value }
    };
    let pairs = weights.iter().zip(x);
    fold_lanes(lanes(pairs.map(|(weight, x)| flush(*weight) * flush(f64::from(*x)))))
}

/// Weights pass through f32: some MXFP4 values overflow there.
fn weights_through_f32(weights: &[f64], x: &[f32]) -> f64 {
    let pairs = weights.iter().zip(x);
    fold_lanes(lanes(pairs.map(|(weight, x)| f64::from(*weight as f32) * f64::from(*x))))
}

macro_rules! row_mutants {
    ($($id:literal [$($clause:literal)+] $what:literal $sum:expr;)*) => {
        vec![$(EngineMutant {
            id: $id,
            clauses: &[$($clause),+],
            what: $what,
            mistake: Mistake::Kernels(|right| Kernels {
                row_sum: |row, x| by($sum, row, x),
                products: products_by_rows,
                ..right
            }),
        }),*]
    };
}

/// The mutants of this file.
pub(super) fn list() -> Vec<EngineMutant> {
    row_mutants! {
        "a1-weights-through-f32" ["A1"] "MXFP4 weights are formed in f32" weights_through_f32;
        "a2-one-lane" ["A2"] "one accumulator" |w, x| terms(w, x).fold(0.0, |sum, t| sum + t);
        "a2-four-lanes" ["A2"] "four lanes" |w, x| fold(lanes::<4>(terms(w, x)));
        "a2-eight-lanes" ["A2"] "eight lanes" |w, x| fold(lanes::<8>(terms(w, x)));
        "a2-thirty-two-lanes" ["A2"] "thirty-two lanes" |w, x| fold(lanes::<32>(terms(w, x)));
        "a2-contiguous-lanes" ["A2"] "each lane takes a run of neighbours" contiguous;
        "a2-falling" ["A2"] "lanes take their elements from the end"
            |w, x| {
                let mut sums = [0.0; 16];
                let places = (0..x.len()).rev();
                for (place, term) in places.zip(terms(w, x).rev()) {
                    sums[place % 16] += term;
                }
                fold_lanes(sums)
            };
        "a2-tail-after-the-fold" ["A2"] "a short tail is added after the fold" tail_apart;
        "a2-tail-dropped" ["A2"] "a short tail is masked out" tail_dropped;
        "a3-neighbours-first" ["A3"] "lanes 0 and 1 are folded first, then 2 and 3"
            |w, x| fold_neighbours(lanes(terms(w, x)));
        "a3-lane-after-lane" ["A3"] "lanes are added one after the other"
            |w, x| lanes::<16>(terms(w, x)).iter().fold(0.0, |sum, lane| sum + lane);
        "a3-split-sum" ["A3" "A11"] "two halves of the row are summed apart" split_in_two;
        "a12-f32-accumulators" ["A2" "A12"] "lanes and products are f32" single_lanes;
        "a12-products-rounded" ["A12"] "each product is rounded to f32" rounded_products;
        "a12-subnormals-flushed" ["A1" "A12"] "subnormal weights and activations are zero" flushed;
        "a2-starts-at-the-first-product" ["A2"] "lane 0 is counted twice for its first element"
            |w, x| {
                let mut sums = lanes::<16>(terms(w, x));
                sums[0] += terms(w, x).next().unwrap_or(0.0);
                fold_lanes(sums)
            };
    }
}
