//! Wrong variants of the reference: each a mistake that a real engine could make.
//!
//! A mutant is the table of formulas with one entry replaced (or the few that one mistake
//! touches), run through the same forward pass. A gate that cannot tell any mutant from the
//! reference proves nothing about the clause. Deliberately not here: mistakes that change no
//! number (the order of the mix's sources, a mix of one source, the 1e-20 of the renormalisation),
//! and mistakes of the engine's own arithmetic (order of sums, rounding points), which have mutants
//! of their own.

use super::formulas::Formulas;

/// One wrong variant of the reference.
#[derive(Debug, Clone, Copy)]
pub struct ReferenceMutant {
    /// Unique, stable, lower case with hyphens; begins with what it breaks (`decay-…`).
    pub id: &'static str,
    /// The clauses of MODEL.md section 2 that it breaks, such as `K7`.
    pub clauses: &'static [&'static str],
    /// The mistake, as one sentence without a full stop.
    pub what: &'static str,
    /// The formulas with the mistake in them, for [`super::Model::open_with`].
    pub formulas: Formulas,
}

/// A row of an area's list.
const fn mutant(
    id: &'static str,
    clauses: &'static [&'static str],
    what: &'static str,
    formulas: Formulas,
) -> ReferenceMutant {
    ReferenceMutant { id, clauses, what, formulas }
}

mod kda;
mod kda_decay;
mod kda_recurrence;
mod mla;
mod model;
mod moe;
mod mxfp4;
mod norms;
mod residual;
mod router;

/// Every mutant of the reference, by area in the order of the forward pass.
#[must_use]
pub fn mutants() -> Vec<ReferenceMutant> {
    let areas: [&[ReferenceMutant]; 12] = [
        model::ALL,
        norms::ALL,
        norms::EPS_SLIPS,
        norms::ONE_PLACE,
        residual::ALL,
        kda::ALL,
        kda_decay::ALL,
        kda_recurrence::ALL,
        mla::ALL,
        router::ALL,
        moe::ALL,
        mxfp4::ALL,
    ];
    areas.concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::formulas::RELEASED;
    use super::super::moe::decode_mxfp4;
    use super::*;

    /// A clause without a mutant is a clause that no gate is known to see.
    #[test]
    fn every_clause_of_the_forward_pass_has_a_mutant() {
        let numbers = [('L', 3), ('N', 3), ('R', 7), ('K', 13), ('M', 8), ('E', 10), ('S', 2)];
        let all = mutants();
        for (letter, count) in numbers.into_iter().chain([('Q', 4)]) {
            for number in 1..=count {
                let clause = format!("{letter}{number}");
                let hit = all.iter().any(|m| m.clauses.contains(&clause.as_str()));
                assert!(hit, "no mutant breaks {clause}");
            }
        }
    }

    /// Reports and ratchets name mutants by id.
    #[test]
    fn ids_are_unique_and_plain() {
        let all = mutants();
        let ids: BTreeSet<&str> = all.iter().map(|m| m.id).collect();
        assert_eq!(ids.len(), all.len());
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        for mutant in all {
            assert!(mutant.id.chars().all(plain), "{}", mutant.id);
            assert!(!mutant.what.is_empty() && !mutant.what.ends_with('.'), "{}", mutant.id);
        }
    }

    fn formulas(id: &str) -> Formulas {
        mutants().into_iter().find(|m| m.id == id).unwrap().formulas
    }

    /// Two mistakes that logits show rarely or never, seen in the formula itself: a tie, and a
    /// scale byte of 0, whose 2^−127 no sum of a forward pass can feel.
    #[test]
    fn mistakes_that_logits_hardly_show() {
        let (scores, bias) = ([0.25, 0.5, 0.5, 0.5], [0.0; 4]);
        assert_eq!((RELEASED.select)(&scores, &bias, 2), [1, 2]);
        assert_eq!((formulas("router-ties-to-higher").select)(&scores, &bias, 2), [2, 3]);
        let (packed, scales) = ([0x22; 16], [0]);
        let decoded = |f: &Formulas| decode_mxfp4(f, 32, &packed, &scales).unwrap();
        assert_eq!(decoded(&RELEASED), [2f64.powi(-127); 32]);
        assert_eq!(decoded(&formulas("mxfp4-scale-zero-flushed")), [0.0; 32]);
    }
}
