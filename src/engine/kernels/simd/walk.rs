//! Walks a block of rows and all its tokens.
//!
//! A token alone takes some rows at a time and widens their weights on the way into the registers.
//! Every row is a stream of its own, too short for the hardware's prefetcher, so the lines ahead
//! are asked for here. With AVX-512, 32 BF16 weights are 64 bytes and 16 operations (2 permute, 10
//! widen, 4 multiply): bound by memory. 32 MXFP4 weights are 17 bytes and 12 operations (2 shift, 2
//! look up, 4 part two values, 4 multiply): bound by the operations.
//!
//! Several tokens take the weights from a panel that is widened once for all of them, and whose
//! columns meet those of four tokens from the first-level cache: 24 multiplications need 10 loads
//! with AVX-512, 12 need 7 with AVX2. So this is bound by the multiplications as long as the
//! second-level cache delivers the tokens' columns and takes the lanes' sums back: 320 lines in
//! 768 cycles. A lane's sum waits in memory from one panel to the next; it still adds in rising
//! order.

use std::ops::Range;

use super::BLOCK_COLUMNS;
use crate::kernels::contract::LANES;

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// A row of packed weights, in blocks of 32 columns.
pub(super) trait PackedRow: Copy {
    /// Bytes of a block.
    const BLOCK_BYTES: usize;
    /// How far ahead, in bytes, lines are asked for.
    const AHEAD: usize;
    /// The first `blocks` blocks, so that an index below that needs no check.
    fn first(self, blocks: usize) -> Self;
    /// Where a block starts.
    fn at(&self, block: usize) -> *const u8;
}

impl PackedRow for &[[u16; BLOCK_COLUMNS]] {
    const BLOCK_BYTES: usize = 2 * BLOCK_COLUMNS;
    const AHEAD: usize = 1024;

    fn first(self, blocks: usize) -> Self {
        &self[..blocks]
    }

    fn at(&self, block: usize) -> *const u8 {
        self[block].as_ptr().cast()
    }
}

/// The codes of a row and its scales.
impl PackedRow for (&[[u8; BLOCK_COLUMNS / 2]], &[u8]) {
    const BLOCK_BYTES: usize = BLOCK_COLUMNS / 2;
    const AHEAD: usize = 512;

    fn first(self, blocks: usize) -> Self {
        (&self.0[..blocks], &self.1[..blocks])
    }

    fn at(&self, block: usize) -> *const u8 {
        self.0[block].as_ptr()
    }
}

/// Rows and columns of the panel: with the same columns of four tokens it fills two thirds of a
/// first-level cache of 48 KiB.
pub(super) const PANEL_ROWS: usize = 12;
pub(super) const PANEL_COLUMNS: usize = 256;
pub(super) const PANEL_STEPS: usize = PANEL_COLUMNS / LANES;

/// A row of the panel.
pub(super) type PanelRow = [[f64; LANES]; PANEL_STEPS];

/// Tokens of a tile.
pub(super) const TILE_TOKENS: usize = 4;

/// How many panels are taken one after the other before the next columns. Their sums, at most
/// half a MiB, stay in the second-level cache with the tokens' columns, which are read from
/// further away but once for them all.
pub(super) fn panels_at_once(tokens: usize) -> usize {
    (4096 / PANEL_ROWS / tokens).clamp(1, 4)
}

/// A tile of ROWS rows of a panel.
pub(super) struct TilePlace {
    /// Its first row in the panel.
    pub row: usize,
    /// Its first token.
    pub token: usize,
    /// Its tokens.
    pub width: usize,
    /// Its sums, which are contiguous.
    pub sums: Range<usize>,
}

/// The tiles of a panel of at most `height` rows.
pub(super) fn tiles<const ROWS: usize>(
    tokens: usize,
    height: usize,
) -> impl Iterator<Item = TilePlace> {
    (0..tokens).step_by(TILE_TOKENS).flat_map(move |token| {
        let width = TILE_TOKENS.min(tokens - token);
        (0..height.min(PANEL_ROWS)).step_by(ROWS).map(move |row| {
            let first = (token * PANEL_ROWS + row * width) * LANES;
            TilePlace { row, token, width, sums: first..first + ROWS * width * LANES }
        })
    })
}

/// The walks of one instruction set, in the module that has its registers.
macro_rules! walks {
    ($features:literal) => {
        /// R rows from `first` on with one token.
        #[target_feature(enable = $features)]
        fn lone<W: PackedRow, const R: usize>(
            row: &impl Fn(usize) -> W,
            decode: &impl Fn(&W, usize) -> [Register; PARTS],
            first: usize,
            x: &[f64],
        ) -> [[f64; LANES]; R] {
            let (blocks, _) = x.as_chunks::<BLOCK_COLUMNS>();
            let mut rows = [row(first); R];
            for (offset, place) in rows.iter_mut().enumerate() {
                *place = row(first + offset).first(blocks.len());
            }
            let mut sums = [[zero(); LANES / WIDTH]; R];
            let bytes = blocks.len() * W::BLOCK_BYTES;
            for (block, x) in blocks.iter().enumerate() {
                let (x, _) = x.as_chunks::<WIDTH>();
                let at = block * W::BLOCK_BYTES;
                // After a row's end comes the row that is R rows further.
                let further = if at + W::AHEAD < bytes { 0 } else { (R - 1) * bytes };
                for (row, sums) in rows.iter().zip(&mut sums) {
                    if at.is_multiple_of(LINE) {
                        prefetch(row.at(block).wrapping_add(W::AHEAD + further));
                    }
                    for (part, weights) in decode(row, block).into_iter().enumerate() {
                        let sum = &mut sums[part % (LANES / WIDTH)];
                        *sum = multiply_add(weights, load(&x[part]), *sum);
                    }
                }
            }
            let mut lanes = [[0.0; LANES]; R];
            for (sums, lanes) in sums.into_iter().zip(&mut lanes) {
                for (sum, lanes) in sums.into_iter().zip(lanes.as_chunks_mut().0) {
                    store(sum, lanes);
                }
            }
            lanes
        }

        /// Adds the products of a tile's rows with T tokens to the sums of their lanes: one
        /// register's lanes after the other, so that all sums of these stay in registers.
        #[target_feature(enable = $features)]
        fn tile<const T: usize>(panel: &[PanelRow], x: &[&[[f64; LANES]]], sums: &mut [f64]) {
            let steps = x[0].len().min(PANEL_STEPS);
            let mut tokens = [x[0]; T];
            for (token, x) in tokens.iter_mut().zip(x) {
                *token = &x[..steps];
            }
            let mut rows = [&panel[0]; TILE_ROWS];
            for (row, panel) in rows.iter_mut().zip(panel) {
                *row = panel;
            }
            let (sums, _) = sums.as_chunks_mut::<WIDTH>();
            for (part, sums) in sums.chunks_exact_mut(TILE_ROWS * T).enumerate() {
                let mut lanes = [[zero(); T]; TILE_ROWS];
                for (lanes, sums) in lanes.as_flattened_mut().iter_mut().zip(&*sums) {
                    *lanes = load(sums);
                }
                for step in 0..steps {
                    let mut weights = [zero(); TILE_ROWS];
                    for (weights, row) in weights.iter_mut().zip(rows) {
                        *weights = load(&row[step].as_chunks().0[part]);
                    }
                    for (token, x) in tokens.iter().enumerate() {
                        let x = load(&x[step].as_chunks().0[part]);
                        for (lanes, weights) in lanes.iter_mut().zip(weights) {
                            lanes[token] = multiply_add(weights, x, lanes[token]);
                        }
                    }
                }
                for (lanes, sums) in lanes.as_flattened().iter().zip(sums) {
                    store(*lanes, sums);
                }
            }
        }

        /// Widens some blocks of a row.
        #[target_feature(enable = $features)]
        fn widen<W: PackedRow>(
            row: W,
            decode: &impl Fn(&W, usize) -> [Register; PARTS],
            blocks: Range<usize>,
            out: &mut PanelRow,
        ) {
            let (out, _) = out.as_flattened_mut().as_chunks_mut::<BLOCK_COLUMNS>();
            for (block, out) in blocks.zip(out) {
                if (block * W::BLOCK_BYTES).is_multiple_of(LINE) {
                    prefetch(row.at(block).wrapping_add(W::AHEAD));
                }
                for (part, out) in decode(&row, block).into_iter().zip(out.as_chunks_mut().0) {
                    store(part, out);
                }
            }
        }

        /// All rows with several tokens, panel by panel.
        #[target_feature(enable = $features)]
        fn panels<W: PackedRow>(
            row: impl Fn(usize) -> W,
            decode: impl Fn(&W, usize) -> [Register; PARTS],
            rows: usize,
            vectors: &Prepared,
            emit: &mut impl FnMut(usize, usize, [f64; LANES]),
        ) {
            let (blocks, tokens) = (vectors.columns / BLOCK_COLUMNS, vectors.tokens);
            let mut panel = Aligned::zeros(PANEL_ROWS * PANEL_COLUMNS);
            let (panel, _) = panel.as_chunks_mut::<LANES>().0.as_chunks_mut();
            let panels = panels_at_once(tokens);
            let mut sums = Aligned::zeros(panels * PANEL_ROWS * tokens * LANES);
            for group in (0..rows).step_by(panels * PANEL_ROWS) {
                let firsts = (group..rows).step_by(PANEL_ROWS);
                sums.fill(0.0);
                for start in (0..blocks).step_by(PANEL_COLUMNS / BLOCK_COLUMNS) {
                    let blocks = start..blocks.min(start + PANEL_COLUMNS / BLOCK_COLUMNS);
                    let columns = start * BLOCK_COLUMNS..blocks.end * BLOCK_COLUMNS;
                    let x = |token| vectors.row(token)[columns.clone()].as_chunks().0;
                    let x: Vec<&[[f64; LANES]]> = (0..tokens).map(x).collect();
                    let sums = sums.chunks_exact_mut(PANEL_ROWS * tokens * LANES);
                    for (first, sums) in firsts.clone().zip(sums) {
                        for (row_index, out) in (first..rows).zip(&mut *panel) {
                            widen(row(row_index), &decode, blocks.clone(), out);
                        }
                        for at in tiles::<TILE_ROWS>(tokens, rows - first) {
                            let panel = &panel[at.row..][..TILE_ROWS];
                            let (x, sums) = (&x[at.token..], &mut sums[at.sums]);
                            match at.width {
                                1 => tile::<1>(panel, x, sums),
                                2 => tile::<2>(panel, x, sums),
                                3 => tile::<3>(panel, x, sums),
                                _ => tile::<TILE_TOKENS>(panel, x, sums),
                            }
                        }
                    }
                }
                let sums = sums.chunks_exact(PANEL_ROWS * tokens * LANES);
                for (first, sums) in firsts.zip(sums) {
                    for at in tiles::<TILE_ROWS>(tokens, rows - first) {
                        let (sums, _) = sums[at.sums].as_chunks::<WIDTH>();
                        let (row, token) = (first + at.row, at.token);
                        for output in 0..TILE_ROWS.min(rows - row) * at.width {
                            let mut lanes = [0.0; LANES];
                            for (part, lanes) in lanes.chunks_exact_mut(WIDTH).enumerate() {
                                let place = part * TILE_ROWS * at.width + output;
                                lanes.copy_from_slice(&sums[place]);
                            }
                            emit(row + output / at.width, token + output % at.width, lanes);
                        }
                    }
                }
            }
        }

        #[target_feature(enable = $features)]
        fn walk<W: PackedRow, const R: usize>(
            row: impl Fn(usize) -> W,
            decode: impl Fn(&W, usize) -> [Register; PARTS],
            rows: usize,
            vectors: &Prepared,
            emit: &mut impl FnMut(usize, usize, [f64; LANES]),
        ) {
            match vectors.tokens {
                0 => {}
                1 => {
                    let (x, whole) = (vectors.row(0), rows / R * R);
                    for first in (0..whole).step_by(R) {
                        let sums: [_; R] = lone(&row, &decode, first, x);
                        for (offset, lanes) in sums.into_iter().enumerate() {
                            emit(first + offset, 0, lanes);
                        }
                    }
                    for first in whole..rows {
                        let [lanes] = lone(&row, &decode, first, x);
                        emit(first, 0, lanes);
                    }
                }
                _ => panels(row, decode, rows, vectors, emit),
            }
        }

        /// Every sum of the matrix's rows with the vectors.
        #[target_feature(enable = $features)]
        pub(in crate::kernels) fn row_sums(
            matrix: &MatrixRef<'_>,
            vectors: &Prepared,
            emit: &mut Emit<'_>,
        ) {
            let (rows, columns) = (matrix.rows(), matrix.columns());
            let whole = columns / BLOCK_COLUMNS * BLOCK_COLUMNS;
            // Takes the lane sums of a row and a token over the whole blocks of columns.
            let mut emit = |row: usize, token: usize, mut lanes: [f64; LANES]| {
                for column in whole..columns {
                    let product = matrix.row(row).value(column) * vectors.row(token)[column];
                    lanes[column % LANES] += product;
                }
                emit(row, token, fold_lanes(lanes));
            };
            match matrix.values {
                Values::Bf16(values) => {
                    let row = |row| values[row * columns..][..columns].as_chunks().0;
                    let bf16 = bf16();
                    let decode = |row: &&[_], block: usize| bf16(&row[block]);
                    walk::<_, BF16_ROWS>(row, decode, rows, vectors, &mut emit);
                }
                Values::Mxfp4 { packed, scales } => {
                    let (bytes, groups) = (columns / 2, columns / BLOCK_COLUMNS);
                    let row = |row| {
                        let codes = packed[row * bytes..][..bytes].as_chunks().0;
                        (codes, &scales[row * groups..][..groups])
                    };
                    let decode =
                        |row: &(&[_], &[u8]), block: usize| mxfp4(&row.0[block], row.1[block]);
                    walk::<_, MXFP4_ROWS>(row, decode, rows, vectors, &mut emit);
                }
                Values::F32(_) => unreachable!("F32 rows take the scalar path"),
            }
        }
    };
}
