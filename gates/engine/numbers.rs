//! NaN, infinities, subnormals and damaged files through the whole model: defined, never a token.

use std::sync::Arc;

use crate::support::bits;
use crate::support::engine::Tiny;
use k3_engine::kernels::table::Kernels;
use k3_engine::model::{Engine, EngineError, EngineOptions, EngineSequence, Shape};

const LAYER: &str = "language_model.model.layers.";

/// An engine on the tiny checkpoint after a change, or the error of loading it.
fn changed(
    tiny: &mut Tiny,
    name: &str,
    change: impl FnOnce(&mut [u8]),
) -> Result<EngineSequence, EngineError> {
    tiny.checkpoint.edit(name, change);
    let (shape, options) = (Shape::derive(&tiny.checkpoint.raw)?, EngineOptions::default());
    let engine = Engine::resident(Kernels::SCALAR, shape, &tiny.checkpoint, options)?;
    Ok(EngineSequence::new(Arc::new(engine)))
}

/// A NaN that reaches the logits is an error with position and count, and the state is spent.
#[test]
fn a_nan_weight_is_an_error_and_never_a_token() {
    let mut tiny = Tiny::open();
    // The last layer's output projection, one NaN: every logit from position 0 on.
    let name = format!("{LAYER}12.self_attn.o_proj.weight");
    let mut sequence =
        changed(&mut tiny, &name, |bytes| bytes[..2].copy_from_slice(&[0xC0, 0x7F])).unwrap();
    let error = sequence.feed(&tiny.prompt_ids).unwrap_err();
    // It meets the router of the same layer first.
    assert!(
        matches!(error, EngineError::RouterNan { layer: 12, position: 0, expert: 0 }),
        "{error}"
    );
    let error = sequence.feed(&[1]).unwrap_err();
    assert!(matches!(error, EngineError::InterruptedState { position: 0 }), "{error}");
}

/// NaN and infinity in the final norm and in one row of the head.
#[test]
fn non_finite_logits_name_position_and_count() {
    let mut tiny = Tiny::open();
    let name = "language_model.lm_head.weight";
    for pattern in [[0xC0, 0x7F], [0x80, 0x7F], [0x80, 0xFF]] {
        let mut sequence =
            changed(&mut tiny, name, |bytes| bytes[..2].copy_from_slice(&pattern)).unwrap();
        let error = sequence.feed(&tiny.prompt_ids).unwrap_err();
        let EngineError::NonFiniteLogits { position, count, .. } = error else {
            panic!("{error}");
        };
        assert_eq!((position, count), (0, 1));
    }
}

/// A NaN in the table is met only by the token that reads it: the one before it is fine.
#[test]
fn a_nan_embedding_row_is_found_at_its_position() {
    let mut tiny = Tiny::open();
    let (fine, damaged) = (tiny.prompt_ids[0], tiny.prompt_ids[1]);
    let place = damaged as usize * 128 * 2;
    let name = "language_model.model.embed_tokens.weight";
    let mut sequence =
        changed(&mut tiny, name, |bytes| bytes[place..place + 2].copy_from_slice(&[0xC0, 0x7F]))
            .unwrap();
    assert!(sequence.feed(&[fine]).is_ok());
    let error = sequence.feed(&[damaged]).unwrap_err();
    assert!(matches!(error, EngineError::RouterNan { layer: 1, position: 1, .. }), "{error}");
}

/// Subnormal and huge embedding rows flow through: the norms bring them back.
#[test]
fn subnormal_and_huge_rows_give_finite_logits() {
    let mut tiny = Tiny::open();
    let id = tiny.prompt_ids[0];
    let place = id as usize * 128 * 2;
    let name = "language_model.model.embed_tokens.weight";
    for bits_of_value in [0x0001_u16, 0x8001, 0x0000, 0x7F7F] {
        let row = bits_of_value.to_le_bytes();
        let mut sequence = changed(&mut tiny, name, |bytes| {
            bytes[place..place + 256].as_chunks_mut::<2>().0.fill(row);
        })
        .unwrap();
        let logits = sequence.feed(&[id, id]).unwrap();
        assert!(logits.iter().all(|logit| logit.is_finite()), "{bits_of_value:#06x}");
    }
}

/// Q4: scale byte 255 is named by layer, expert, matrix, row and group; 0 and 254 are numbers.
#[test]
fn q4_a_nan_scale_is_refused_with_its_place() {
    let mut tiny = Tiny::open();
    let name = format!("{LAYER}3.block_sparse_moe.experts.5.w3.weight_scale");
    let error = changed(&mut tiny, &name, |bytes| bytes[2 * 7 + 1] = 255).unwrap_err();
    let text = "layer 3 expert 5 w3: scale byte 255 (NaN) in row 7, group 1";
    assert_eq!(error.to_string(), text);
    assert!(changed(&mut tiny, &name, |bytes| bytes[2 * 7 + 1] = 0).is_ok());
}

/// K8: a non-zero tail of A_log; A08: a missing norm.
#[test]
fn a08_k8_missing_and_damaged_tensors_are_named() {
    let mut tiny = Tiny::open();
    let name = format!("{LAYER}4.self_attn.A_log");
    let error = changed(&mut tiny, &name, |bytes| bytes[4 * 9 + 3] = 0x3F).unwrap_err();
    assert!(error.to_string().contains("element 9 of the padding"), "{error}");
    assert!(error.to_string().contains(&name));
    changed(&mut tiny, &name, |bytes| bytes[4 * 9 + 3] = 0).unwrap();
    let name = format!("{LAYER}2.block_sparse_moe.routed_expert_norm.weight");
    let before = {
        let mut sequence = changed(&mut tiny, &name, |_| ()).unwrap();
        bits(&sequence.feed(&[7, 8]).unwrap())
    };
    let doubled = |bytes: &mut [u8]| {
        // BF16 times two: one more in the exponent.
        bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|value| {
            *value = (u16::from_le_bytes(*value) + 0x80).to_le_bytes();
        });
    };
    let mut sequence = changed(&mut tiny, &name, doubled).unwrap();
    assert!(bits(&sequence.feed(&[7, 8]).unwrap()) != before);
    tiny.checkpoint.tensors.remove(&name);
    let (shape, options) = (Shape::derive(&tiny.checkpoint.raw), EngineOptions::default());
    let kernels = Kernels::SCALAR;
    let error = Engine::resident(kernels, shape.unwrap(), &tiny.checkpoint, options).unwrap_err();
    assert!(error.to_string().contains(&name), "{error}");
}

/// Ids outside the vocabulary and foreign states are refused before anything is computed.
#[test]
fn wrong_ids_and_foreign_states_are_refused() {
    let tiny = Tiny::open();
    let mut sequence = EngineSequence::new(tiny.engine(EngineOptions::default()));
    let error = sequence.feed(&[1, 256]).unwrap_err();
    assert!(matches!(error, EngineError::TokenId { id: 256, position: 1, vocabulary: 256 }));
    assert!(sequence.feed(&[1, 255]).is_ok());
    // A06: the state of two positions that claims one.
    sequence.state.position = 1;
    let error = sequence.feed(&[1]).unwrap_err();
    assert!(matches!(error, EngineError::ForeignState(_)), "{error}");
}
