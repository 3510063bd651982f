//! Layer-cycle on generated traces with seeds that played no part in choosing it.
//!
//! It was chosen on seeds 1000 and 2000; here are others. The table is kept as a snapshot: it is
//! what the policy is worth on this family, and says nothing about real routing.

use k3_cache::policy::PolicyName;
use k3_cache::shape::ModelShape;
use k3_cache::slot_table::{Requests, Reserve};
use k3_simcache::generator::{ZipfSpec, zipf};
use k3_simcache::optimum;
use k3_simcache::replay::replay;
use k3_simcache::stack_distance::{distances, lru_curve};
use k3_simcache::workload::{ByWindow, Window, Workload, sum_over};
use rayon::prelude::*;

use crate::support::snapshot;

/// A token's working set of K3: 92 layers, 16 experts each.
const WORKING_SET: usize = 1472;
/// Capacities as tenths of the working set; then some above it.
const TENTHS: [usize; 9] = [2, 3, 4, 5, 6, 7, 8, 9, 10];
const ABOVE: [usize; 5] = [1823, 2208, 2944, 4416, 7294];
const SEEDS: [u64; 3] = [9001, 9002, 9003];
const OTHERS: [PolicyName; 3] = [PolicyName::S3Fifo, PolicyName::Random, PolicyName::LayerCycle];

fn capacities() -> Vec<usize> {
    TENTHS.iter().map(|tenths| WORKING_SET * tenths / 10).chain(ABOVE).collect()
}

/// Decode hit rates of one trace: LRU, S3-FIFO, random, ours, the optimum; by capacity.
fn rates(exponent_quarters: u32, kept_share: (u64, u64), seed: u64) -> Vec<[f64; 5]> {
    let trace = zipf(&ZipfSpec {
        shape: ModelShape::K3,
        prefill_positions: 5,
        decode_positions: 16,
        exponent_quarters,
        kept_share,
        seed,
    });
    let workload = Workload::new(&trace, Requests::Batch);
    let lru = lru_curve(&workload, &distances(&workload));
    let optimum = optimum::curve(&workload);
    let requests = sum_over(Window::DECODE, &workload.request_counts) as f64;
    let rate = |hits: &ByWindow| 100.0 * sum_over(Window::DECODE, hits) as f64 / requests;
    capacities()
        .par_iter()
        .map(|&slots| {
            let [s3, random, ours] = OTHERS.map(|name| {
                let policy = name.build(&workload.shape, slots);
                rate(&replay(&workload, slots, policy, Reserve::Late).unwrap())
            });
            [rate(&lru.by_window(slots)), s3, random, ours, rate(&optimum.by_window(slots))]
        })
        .collect()
}

#[test]
fn layer_cycle_beats_the_others_where_memory_is_short_and_never_loses_a_point() {
    let mut table = String::from(
        "Decode hit rates in percent, means over seeds 9001 to 9003: K3's shape, 5 prompt positions\
         \n\
         and 16 single ones, Zipf popularity per layer, a share of a layer's experts kept.\n",
    );
    for (quarters, kept) in
        [(2, (1, 3)), (3, (1, 3)), (4, (1, 3)), (5, (1, 3)), (3, (0, 3)), (3, (2, 3))]
    {
        let mut means = vec![[0.0; 5]; capacities().len()];
        for seed in SEEDS {
            for (place, rates) in rates(quarters, kept, seed).into_iter().enumerate() {
                let [lru, s3, random, ours, _] = rates;
                let at = format!("exponent {quarters}/4, kept {kept:?}, seed {seed}, {place}");
                if place < TENTHS.len() {
                    assert!(ours > lru && ours > s3 && ours > random, "{at}: {rates:?}");
                }
                assert!(ours > lru - 1.0, "{at}: {rates:?}");
                for (mean, rate) in means[place].iter_mut().zip(rates) {
                    *mean += rate / SEEDS.len() as f64;
                }
            }
        }
        table += &format!("\nexponent {quarters}/4, kept {}/{}\n   slots", kept.0, kept.1);
        table += &format!(
            "{:>9}{:>9}{:>9}{:>13}{:>9}\n",
            "lru", "s3-fifo", "random", "layer-cycle", "optimum"
        );
        for (slots, [lru, s3, random, ours, optimum]) in capacities().iter().zip(&means) {
            table +=
                &format!("{slots:>8}{lru:>9.2}{s3:>9.2}{random:>9.2}{ours:>13.2}{optimum:>9.2}\n");
        }
    }
    snapshot("simcache", "held-out", &table);
}
