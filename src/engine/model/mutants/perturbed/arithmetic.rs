//! Sites of stored weights and of the arithmetic (Q1, Q3, A1, A2, A4, A6, A9, A10), and the head.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::rows::products_by_rows;
use super::{Delta, Maker, Site};
use crate::kernels::contract::fold_lanes;
use crate::kernels::mxfp4;
use crate::kernels::path::KernelPath;
use crate::kernels::products;
use crate::kernels::products::Product;
use crate::kernels::rows;
use crate::kernels::rows::Row;
use crate::kernels::simd::compiled;
use crate::kernels::sums::Vectors;
use crate::kernels::threads::Threads;
use crate::model::{Contract, Operations};

/// The products, and those of chosen matrices off by δ.
fn perturbed_products(
    delta: Delta,
    threads: &Threads,
    mut products: Vec<Product<'_>>,
    chosen: impl Fn(Row<'_>) -> bool,
) {
    let reborrow = |product| {
        let Product { matrix, vectors, out }: &mut Product<'_> = product;
        Product { matrix: *matrix, vectors, out }
    };
    let same = products.iter_mut().map(reborrow).collect();
    products::products(KernelPath::detect(), threads, same);
    for product in products {
        if chosen(product.matrix.row(0)) {
            delta.all(product.out);
        }
    }
}

fn widen(delta: Delta, row: Row<'_>, out: &mut [f64], chosen: impl Fn(usize) -> bool) {
    row.widen(0, out);
    for (column, out) in out.iter_mut().enumerate() {
        if chosen(column) {
            *out = delta.of(*out);
        }
    }
}

/// Whether a column has the code of the largest magnitude, 7 or 15.
fn has_largest_code(row: Row<'_>, column: usize) -> bool {
    matches!(row, Row::Mxfp4 { packed, .. } if mxfp4::code(packed, column) & 7 == 7)
}

fn is_mxfp4(row: Row<'_>) -> bool {
    matches!(row, Row::Mxfp4 { .. })
}

fn is_bf16(row: Row<'_>) -> bool {
    matches!(row, Row::Bf16(_))
}

sites! {
    "q1-largest-code" "Q1" "the value of codes 7 and 15" {
        fn widen_row(&self, row: Row<'_>, out: &mut [f64]) {
            widen(self.0, row, out, |column| has_largest_code(row, column));
        }
        fn row_sum(&self, row: Row<'_>, x: &[f32]) -> f64 {
            if !is_mxfp4(row) {
                return rows::row_sum_on(self.path(), row, x);
            }
            let mut weights = vec![0.0; x.len()];
            self.widen_row(row, &mut weights);
            let mut lanes = [0.0; 16];
            for (column, (weight, x)) in weights.iter().zip(x).enumerate() {
                lanes[column % 16] += weight * f64::from(*x);
            }
            fold_lanes(lanes)
        }
        fn products(&self, threads: &Threads, products: Vec<Product<'_>>) {
            let by_rows = |product: &Product<'_>| is_mxfp4(product.matrix.row(0));
            let (slow, fast) = products.into_iter().partition(by_rows);
            products_by_rows(self, threads, slow);
            products::products(self.path(), threads, fast);
        }
    }
    "q3-scale" "Q3" "every MXFP4 scale" {
        fn widen_row(&self, row: Row<'_>, out: &mut [f64]) {
            widen(self.0, row, out, |_| is_mxfp4(row));
        }
        fn row_sum(&self, row: Row<'_>, x: &[f32]) -> f64 {
            let sum = rows::row_sum_on(self.path(), row, x);
            if is_mxfp4(row) { self.0.of(sum) } else { sum }
        }
        fn products(&self, threads: &Threads, products: Vec<Product<'_>>) {
            perturbed_products(self.0, threads, products, is_mxfp4);
        }
    }
    "a1-bf16" "A1" "every BF16 weight" {
        fn widen_row(&self, row: Row<'_>, out: &mut [f64]) {
            widen(self.0, row, out, |_| is_bf16(row));
        }
        fn row_sum(&self, row: Row<'_>, x: &[f32]) -> f64 {
            let sum = rows::row_sum_on(self.path(), row, x);
            if is_bf16(row) { self.0.of(sum) } else { sum }
        }
        fn products(&self, threads: &Threads, products: Vec<Product<'_>>) {
            perturbed_products(self.0, threads, products, is_bf16);
        }
    }
    "a2-row-product" "A2" "every row product" {
        fn row_sum(&self, row: Row<'_>, x: &[f32]) -> f64 {
            self.0.of(rows::row_sum_on(self.path(), row, x))
        }
        fn products(&self, threads: &Threads, products: Vec<Product<'_>>) {
            perturbed_products(self.0, threads, products, |_| true);
        }
    }
    "a4-weighted-sum" "A4" "the weighted sum of vectors in the absorbed query" {
        fn weighted_sum(&self, weights: &[f32], vectors: Vectors<'_>, out: &mut [f32]) {
            compiled::weighted_sum_over(self.path(), weights, vectors, 1.0, out);
            self.0.all(out);
        }
    }
    "a6-softmax" "A6" "every softmax-weighted sum" {
        fn softmax_sum(&self, scores: &mut [f32], vectors: Vectors<'_>, out: &mut [f32]) {
            Contract { path: self.path() }.softmax_sum(scores, vectors, out);
            self.0.all(out);
        }
    }
    "a9-expert-sum" "A9" "the weighted sum over experts" {
        fn expert_sum(
            &self, ids: &[usize], weights: &[f32], outputs: Vectors<'_>, out: &mut [f32],
        ) {
            compiled::expert_sum(self.path(), ids, weights, outputs, out);
            self.0.all(out);
        }
    }
    "a10-exp" "A10" "every exp" {
        fn exp_all(&self, values: &mut [f32]) {
            compiled::exp_all(self.path(), values);
            self.0.all(values);
        }
    }
    "a10-tanh" "A10" "every tanh" {
        fn tanh_all(&self, values: &mut [f32]) {
            compiled::tanh_all(self.path(), values);
            self.0.all(values);
        }
    }
    "a10-logistic" "A10" "every logistic" {
        fn sigmoid_all(&self, values: &mut [f32]) {
            compiled::sigmoid_all(self.path(), values);
            self.0.all(values);
        }
    }
}

/// L3: the head's product. It is the one that follows the choice of the head's input.
#[derive(Debug)]
struct Head {
    delta: Delta,
    next_is_head: AtomicBool,
}

impl Operations for Head {
    fn as_dyn(&self) -> &dyn Operations {
        self
    }

    fn head_input<'a>(&self, normed: &'a [f32], _mixed: &'a [f32]) -> &'a [f32] {
        self.next_is_head.store(true, Ordering::Relaxed);
        normed
    }

    fn products(&self, threads: &Threads, products: Vec<Product<'_>>) {
        let head = self.next_is_head.swap(false, Ordering::Relaxed);
        perturbed_products(self.delta, threads, products, |_| head);
    }
}

/// The head's site; not in the table because its operations carry a mark from call to call.
pub(super) fn head() -> Site {
    Site {
        id: "l3-head",
        clause: "L3",
        what: "the logits",
        make: Maker::Plain(|delta| Arc::new(Head { delta, next_is_head: AtomicBool::new(false) })),
    }
}
