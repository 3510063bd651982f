//! The bytes of any part of a shard: weights by the rules, or the zeros of a hole.
//!
//! A piece is a run of elements of one tensor, or of rows of one MXFP4 matrix, whose two tensors
//! are drawn together. Writing takes all pieces, checking a few.

use super::SynthError;
use super::layout::ShardPlan;
use super::rules::Rule;
use super::values::{Quantised, fill, stream};
use k3_checkpoint::{Dtype, Problem, Role};
use k3_core::config::MXFP4_GROUP_COLUMNS;

/// Most elements of a piece that is written: 4 MiB of BF16.
const MAX_PIECE_ELEMENTS: u64 = 2 << 20;
/// Elements looked at in each place where a shard is checked.
const CHECKED_ELEMENTS: u64 = 64;

/// What the bytes of a checkpoint are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Drawn from this seed.
    Weights {
        /// The seed.
        seed: u64,
        /// H: how many values of `A_log` are drawn.
        kda_heads: usize,
    },
    /// Never written: a hole, which reads as zeros.
    Holes,
}

/// A run of elements of a tensor, or of rows of an MXFP4 matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Index in the plan; of an MXFP4 matrix the packed codes, and the scales are the next one.
    pub tensor: usize,
    /// First element, or first row.
    pub first: u64,
    /// How many.
    pub count: u64,
}

/// Bytes that belong at an offset of the file.
#[derive(Debug, Default)]
pub struct Drawn {
    /// Elements, or the codes of an MXFP4 matrix.
    pub data: Vec<u8>,
    /// Where they start in the file.
    pub data_offset: u64,
    /// The scales of an MXFP4 matrix.
    pub scales: Vec<u8>,
    /// Where they start in the file.
    pub scales_offset: u64,
}

/// A shard with the place of every tensor.
#[derive(Debug)]
pub struct PlacedShard<'a> {
    /// The plan.
    pub plan: &'a ShardPlan,
    /// Absolute offset of each tensor.
    pub offsets: Vec<u64>,
}

impl<'a> PlacedShard<'a> {
    /// Adds up the sizes.
    #[must_use]
    pub fn new(plan: &'a ShardPlan) -> Self {
        let mut end = plan.layout.head.len() as u64;
        let offsets = plan.layout.tensor_bytes.iter().map(|bytes| {
            let start = end;
            end += bytes;
            start
        });
        Self { offsets: offsets.collect(), plan }
    }

    /// Pieces that cover every tensor.
    #[must_use]
    pub fn all_pieces(&self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        self.visit_tensors(|tensor, units, width| {
            let step = (MAX_PIECE_ELEMENTS / width).max(1);
            let starts = (0..units).step_by(step as usize);
            pieces.extend(starts.map(|first| Piece {
                tensor,
                first,
                count: step.min(units - first),
            }));
        });
        pieces
    }

    /// Pieces at the beginning, in the middle and at the end of every tensor.
    #[must_use]
    pub fn checked_pieces(&self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        self.visit_tensors(|tensor, units, width| {
            let count = (CHECKED_ELEMENTS / width).clamp(1, units);
            let last = units - count;
            let mut starts = vec![0, last / 2, last];
            starts.dedup();
            pieces.extend(starts.into_iter().map(|first| Piece { tensor, first, count }));
        });
        pieces
    }

    /// Index, number of units and elements in a unit, of everything drawn by itself.
    fn visit_tensors(&self, mut visit: impl FnMut(usize, u64, u64)) {
        for (index, tensor) in self.plan.tensors.iter().enumerate() {
            let elements = tensor.shape.iter().product::<usize>() as u64;
            match tensor.role.map(matrix_part) {
                Some(MatrixPart::Codes) => {
                    let rows = tensor.shape[0] as u64;
                    visit(index, rows, 2 * elements / rows);
                }
                Some(MatrixPart::Scales) => {}
                Some(MatrixPart::None) | None => visit(index, elements, 1),
            }
        }
    }

    /// Draws a piece into `drawn`, whose buffers are used again.
    ///
    /// # Errors
    /// [`SynthError::ZeroBlock`].
    pub fn draw(
        &self,
        content: Content,
        piece: Piece,
        drawn: &mut Drawn,
    ) -> Result<(), SynthError> {
        let tensor = &self.plan.tensors[piece.tensor];
        let offset = self.offsets[piece.tensor];
        let codes = tensor.role.map(matrix_part) == Some(MatrixPart::Codes);
        let unit_bytes = if codes { tensor.shape[1] as u64 } else { tensor.dtype.bits() / 8 };
        drawn.data_offset = offset + piece.first * unit_bytes;
        drawn.data.clear();
        drawn.data.resize((piece.count * unit_bytes) as usize, 0);
        drawn.scales.clear();
        if codes {
            let groups = (2 * tensor.shape[1] / MXFP4_GROUP_COLUMNS) as u64;
            drawn.scales_offset = self.offsets[piece.tensor + 1] + piece.first * groups;
            drawn.scales.resize((piece.count * groups) as usize, 0);
        }
        let (Content::Weights { seed, kda_heads }, Some(role)) = (content, tensor.role) else {
            return Ok(());
        };
        match Rule::of(role, &tensor.shape, kda_heads) {
            Rule::Quantised { gain } => self.draw_matrix(seed, piece, gain, drawn),
            rule => {
                let from = stream(seed, &tensor.name);
                fill(rule, tensor.dtype, from, piece.first, &mut drawn.data);
                Ok(())
            }
        }
    }

    fn draw_matrix(
        &self,
        seed: u64,
        piece: Piece,
        gain: f32,
        drawn: &mut Drawn,
    ) -> Result<(), SynthError> {
        let tensor = &self.plan.tensors[piece.tensor];
        let columns = 2 * tensor.shape[1];
        let name = tensor.name.strip_suffix("_packed").unwrap_or(&tensor.name);
        let matrix = Quantised {
            seed,
            name,
            columns,
            deviation: super::rules::deviation(f64::from(gain), &[columns]),
        };
        let drawn = matrix.fill(piece.first as usize, &mut drawn.data, &mut drawn.scales);
        drawn.map_err(|(row, reason)| {
            let problem = Problem::new(format!("{name}, row {row}"), reason.to_string());
            SynthError::ZeroBlock(problem)
        })
    }
}

/// Which half of an MXFP4 matrix a tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MatrixPart {
    None,
    Codes,
    Scales,
}

fn matrix_part(role: Role) -> MatrixPart {
    debug_assert!(role.dtype() != Dtype::U8 || !role.expert_suffix().is_empty());
    match role {
        Role::RoutedW1Packed | Role::RoutedW2Packed | Role::RoutedW3Packed => MatrixPart::Codes,
        Role::RoutedW1Scale | Role::RoutedW2Scale | Role::RoutedW3Scale => MatrixPart::Scales,
        _ => MatrixPart::None,
    }
}
