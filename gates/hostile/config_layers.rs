//! Layer lists of a config that name no layer, one twice, or leave one out.

use k3_checkpoint::config::ConfigProblem;
use serde_json::json;

use super::config::{LINEAR, problem};

#[test]
fn h06_layers_out_of_range_name_the_index_and_one_based() {
    for (list, written) in [(json!([0, 1, 2, 3]), "0"), (json!([1, 2, 999]), "999")] {
        let parts = ["kda_layers", written, "ONE-based", "1..=4"];
        let found = problem(&format!("{LINEAR}.kda_layers"), list, &parts);
        assert!(matches!(found, ConfigProblem::LayerOutOfRange { .. }));
    }
    for layer in [json!(-1), json!(5), json!(18_446_744_073_709_551_615_u64)] {
        let found = problem(
            &format!("{LINEAR}.full_attn_layers"),
            json!([layer]),
            &["full_attn_layers[0]"],
        );
        assert!(matches!(found, ConfigProblem::LayerOutOfRange { .. }));
    }
}

#[test]
fn h06_an_unsorted_list_is_refused() {
    let parts = ["kda_layers[2]", "layer 2 after 3", "ONE-based"];
    let found = problem(&format!("{LINEAR}.kda_layers"), json!([1, 3, 2]), &parts);
    assert!(matches!(found, ConfigProblem::LayersNotRising { position: 2, .. }));
}

#[test]
fn a_layer_twice_in_one_list() {
    for list in [json!([1, 2, 2, 3]), json!([1, 2, 3, 1])] {
        let found = problem(&format!("{LINEAR}.kda_layers"), list, &["kda_layers[", "twice"]);
        assert!(matches!(found, ConfigProblem::LayerTwice { .. }));
    }
}

#[test]
fn h06_a_layer_in_both_lists_or_in_none_is_refused() {
    let key = format!("{LINEAR}.full_attn_layers");
    let parts = ["layer 3", "ONE-based", "kda_layers", "full_attn_layers"];
    let found = problem(&key, json!([3, 4]), &parts);
    assert_eq!(found, ConfigProblem::LayerInBothLists { layer: 3 });
    let found = problem(&key, json!([]), &["layer 4", "ONE-based", "kda_layers"]);
    assert_eq!(found, ConfigProblem::LayerInNoList { layer: 4 });
}
