// SPDX-FileCopyrightText: 2026 The torch-nnue developers
// SPDX-License-Identifier: MIT

//! NNUE inference in one Rust file, without dependencies, for nets that `nnue export --format raw --rust` writes.
//!
//! The file beside a net (net.rs) describes it in a `static NET: Net`; `mod nnue; mod net;` includes both in a program.
//! All integers equal those of `nnue eval`. How to use this in an engine: docs/engine-rust.md.
//!
//!     let network = Network::new(&net::NET, include_bytes!("net.bin")).unwrap();
//!     let mut root = network.refresh(&board);
//!     network.update(&before, &old, &after, &mut accumulator);
//!     network.evaluate(&accumulator, &board, black_to_move);

#![allow(dead_code)]

/// a1 first: 2 · type + colour (P N B R Q K = 0 … 5, white 0), or 15 for an empty square.
pub type Board = [u8; 64];
const EMPTY: u8 = 15;

pub enum Set {
    PieceSquares {
        planes: usize,
        /// features before the planes of a bucket
        unused: usize,
        /// Black's squares are xored with it: 56 flips the ranks, 63 rotates the board
        turn: usize,
        /// 0: never mirrored, 1: own king to files a–d, 2: to e–h
        mirror: usize,
        interleaved: bool,
        enemy_first: bool,
        states: usize,
        /// (bits of the codes that count, where own pieces have even codes; the largest count)
        counters: &'static [(u32, usize)],
        of_square: [usize; 64],
    },
    /// Full_Threats: the number of blocks of features of each attacker, and the block of each attacker and victim, -1
    /// for none. Own pieces of the perspective have even codes.
    Threats { slots: [usize; 12], blocks: [[i32; 12]; 12], pushes: bool, merged: bool },
    PawnPairs,
    /// A feature is the sum of `index`, by square of the own king, code and square from the perspective's view (-1: no
    /// feature), and `offsets`, by states · square of the own king + state; counters as in `PieceSquares`.
    Table { index: &'static [[[i32; 64]; 12]; 64], counters: &'static [(u32, usize)], offsets: &'static [i32] },
}

#[derive(Clone, Copy, PartialEq)]
pub enum Scalar {
    I8,
    I16,
    I32,
    F32,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Activation {
    None,
    Crelu,
    Screlu,
    Dual,
    Pairwise,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Sides {
    Both,
    Mover,
    White,
}

#[derive(Clone, Copy, PartialEq)]
pub enum BucketsBy {
    Pieces,
    Queens,
    Weights,
    Squares,
}

/// A part of the first layer; `at`: the offsets of its weights and of its PSQT columns in the file.
pub struct Part {
    pub set: Set,
    pub features: usize,
    pub weights: Scalar,
    pub at: usize,
    pub psqt_at: usize,
}

/// y = Σ weight · x / divide + bias, or with `is_float`: y = Σ weight · x · factor + bias. Bit k of `vectors` is set if
/// vector k is an input; vector 0 has the first activations, vector k + 1 those of layer k.
pub struct Layer {
    pub vectors: u32,
    pub columns: usize,
    pub outputs: usize,
    pub activated: usize,
    pub activation: Activation,
    pub weights: Scalar,
    pub biases: Scalar,
    pub divide: i64,
    pub shift: u32,
    pub square_shift: u32,
    pub clip: i64,
    pub is_float: bool,
    pub factor: f64,
    pub at: usize,
    pub bias_at: usize,
}

pub struct Skip {
    pub layer: usize,
    pub plus: usize,
    pub minus: Option<usize>,
    pub multiply: i64,
    pub divide: i64,
    pub wraps: bool,
}

pub struct Net {
    pub parts: &'static [Part],
    pub hidden: usize,
    pub activation: Activation,
    pub sides: Sides,
    pub clip: i64,
    pub product_shift: u32,
    pub accumulator_shift: u32,
    pub psqt: bool,
    pub buckets: usize,
    pub buckets_by: BucketsBy,
    pub piece_weights: [usize; 10],
    pub square_weights: &'static [usize],
    pub bucket_mirror: usize,
    pub bucket_of: &'static [usize],
    pub layers: &'static [Layer],
    pub skips: &'static [Skip],
    pub multiply: i64,
    pub divide: i64,
    pub score_multiply: i64,
    pub score_divide: i64,
    pub score_apart: bool,
    pub wdl: bool,
    pub bias_at: usize,
    pub file_size: usize,
}

/// One per ply of the search.
#[derive(Clone, PartialEq)]
pub struct Accumulator {
    /// the second one is empty for a net from White's view
    pub values: [Vec<i16>; 2],
    pub psqt: [Vec<i32>; 2],
}

enum Numbers {
    I8(Vec<i8>),
    I16(Vec<i16>),
    I32(Vec<i32>),
    F32(Vec<f32>),
}

impl Numbers {
    fn of(data: &[u8], at: usize, count: usize, scalar: Scalar) -> Self {
        let bytes = &data[at..];
        match scalar {
            Scalar::I8 => Self::I8(bytes[..count].iter().map(|&byte| byte as i8).collect()),
            Scalar::I16 => {
                Self::I16(bytes[..2 * count].chunks_exact(2).map(|b| i16::from_le_bytes([b[0], b[1]])).collect())
            }
            Scalar::I32 => {
                let four = bytes[..4 * count].chunks_exact(4);
                Self::I32(four.map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
            }
            Scalar::F32 => {
                let four = bytes[..4 * count].chunks_exact(4);
                Self::F32(four.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
            }
        }
    }
    fn whole(&self, at: usize) -> i64 {
        match self {
            Self::I8(values) => values[at] as i64,
            Self::I16(values) => values[at] as i64,
            Self::I32(values) => values[at] as i64,
            Self::F32(_) => unreachable!("floats are no integers"),
        }
    }
    fn real(&self, at: usize) -> f64 {
        match self {
            Self::F32(values) => values[at] as f64,
            _ => self.whole(at) as f64,
        }
    }
    fn is_float(&self) -> bool {
        matches!(self, Self::F32(_))
    }
    /// Adds row `row` of `width` numbers to `values`, or subtracts it.
    fn add_row(&self, row: usize, width: usize, adds: bool, values: &mut [i16]) {
        fn change<W: Copy + Into<i16>>(values: &mut [i16], row: &[W], adds: bool) {
            for (value, &weight) in values.iter_mut().zip(row) {
                let weight: i16 = weight.into();
                *value = if adds { value.wrapping_add(weight) } else { value.wrapping_sub(weight) };
            }
        }
        let range = row * width..(row + 1) * width;
        match self {
            Self::I8(weights) => change(values, &weights[range], adds),
            Self::I16(weights) => change(values, &weights[range], adds),
            _ => unreachable!("weights of the first layer have at most 16 bits"),
        }
    }
}

/// Σ weight · x of integers, in 64 bits.
fn dot(weights: &Numbers, begin: usize, x: &[i64]) -> i64 {
    fn sum<W: Copy + Into<i64>>(weights: &[W], x: &[i64]) -> i64 {
        weights.iter().zip(x).map(|(&weight, &value)| weight.into() * value).sum()
    }
    let range = begin..begin + x.len();
    match weights {
        Numbers::I8(values) => sum(&values[range], x),
        Numbers::I16(values) => sum(&values[range], x),
        _ => unreachable!("integer layers have weights of at most 16 bits"),
    }
}

/// Vectors between layers.
enum Vector {
    Whole(Vec<i64>),
    Real(Vec<f32>),
}

/// A net with its weights. It is read-only, so all threads can share it.
pub struct Network {
    net: &'static Net,
    weights: Vec<Numbers>,
    psqt: Vec<Numbers>,
    bias: Vec<i16>,
    layers: Vec<(Numbers, Numbers)>,
    tables: ThreatTables,
}

impl Network {
    /// `data` is the raw file. Err, with both sizes, if it does not have this net's size.
    pub fn new(net: &'static Net, data: &[u8]) -> Result<Self, String> {
        if data.len() != net.file_size {
            return Err(format!("found {} bytes, expected {}", data.len(), net.file_size));
        }
        let Numbers::I16(bias) = Numbers::of(data, net.bias_at, net.hidden, Scalar::I16) else { unreachable!() };
        let of_part = |part: &Part| Numbers::of(data, part.at, part.features * net.hidden, part.weights);
        let psqt_of = |part: &Part| Numbers::of(data, part.psqt_at, part.features * net.buckets, Scalar::I32);
        let of_layer = |layer: &Layer| {
            let rows = net.buckets * layer.outputs;
            let weights = Numbers::of(data, layer.at, rows * layer.columns, layer.weights);
            (weights, Numbers::of(data, layer.bias_at, rows, layer.biases))
        };
        let pushes = net.parts.iter().any(|part| matches!(part.set, Set::Threats { pushes: true, .. }));
        Ok(Self {
            net,
            weights: net.parts.iter().map(of_part).collect(),
            psqt: if net.psqt { net.parts.iter().map(psqt_of).collect() } else { Vec::new() },
            bias,
            layers: net.layers.iter().map(of_layer).collect(),
            tables: ThreatTables::new(pushes),
        })
    }

    pub fn refresh(&self, board: &Board) -> Accumulator {
        let mut accumulator = self.empty();
        for perspective in 0..self.perspectives() {
            self.refresh_one(board, perspective, &mut accumulator);
        }
        accumulator
    }

    /// An accumulator for `update` to fill.
    pub fn empty(&self) -> Accumulator {
        let columns = if self.net.psqt { self.net.buckets } else { 0 };
        let second = if self.perspectives() == 2 { self.bias.clone() } else { Vec::new() };
        Accumulator { values: [self.bias.clone(), second], psqt: [vec![0; columns], vec![0; columns]] }
    }

    /// Computes the accumulator of `after` from that of `before`, one or more moves earlier.
    pub fn update(&self, before: &Board, old: &Accumulator, after: &Board, accumulator: &mut Accumulator) {
        for perspective in 0..self.perspectives() {
            let same = self.net.parts.iter().all(|part| key(&part.set, before, perspective) == key(&part.set, after, perspective));
            if !same {
                self.refresh_one(after, perspective, accumulator);
                continue;
            }
            accumulator.values[perspective].copy_from_slice(&old.values[perspective]);
            accumulator.psqt[perspective].copy_from_slice(&old.psqt[perspective]);
            for (number, part) in self.net.parts.iter().enumerate() {
                let (mut was, mut is) = (Vec::new(), Vec::new());
                if let Set::PieceSquares { .. } = part.set {
                    let changed = |square: &usize| before[*square] != after[*square];
                    pieces(&part.set, before, perspective, (0..64).filter(changed), &mut was);
                    pieces(&part.set, after, perspective, (0..64).filter(changed), &mut is);
                } else {
                    self.list(&part.set, before, perspective, &mut was);
                    self.list(&part.set, after, perspective, &mut is);
                    keep_differences(&mut was, &mut is);
                }
                was.iter().for_each(|&feature| self.change(number, feature, false, perspective, accumulator));
                is.iter().for_each(|&feature| self.change(number, feature, true, perspective, accumulator));
            }
        }
    }

    /// Engine units, side to move's view: `score` of `nnue eval --json`.
    pub fn evaluate(&self, accumulator: &Accumulator, board: &Board, black_to_move: bool) -> i64 {
        let (net, us) = (self.net, black_to_move as usize);
        let bucket = self.bucket(board, us);
        let mut vectors = vec![Vector::Whole(self.first_activations(accumulator, us))];
        let (mut skip, mut real_skip, mut output, mut real_output) = (0i64, 0f64, 0i64, 0f64);
        let is_float = net.layers[net.layers.len() - 1].is_float;
        for (number, layer) in net.layers.iter().enumerate() {
            let (whole, real) = self.sums(number, bucket, &vectors);
            for one in net.skips.iter().filter(|one| one.layer == number) {
                let at = |o: usize| if layer.is_float { real[o] as f64 } else { whole[o] as f64 };
                if is_float {
                    let skipped = at(one.plus) - one.minus.map_or(0.0, at);
                    real_skip += skipped * one.multiply as f64 / one.divide as f64;
                } else {
                    let skipped = (whole[one.plus] - one.minus.map_or(0, |o| whole[o])) * one.multiply;
                    skip += if one.wraps { skipped as i32 as i64 } else { skipped } / one.divide;
                }
            }
            if number == net.layers.len() - 1 {
                if net.wdl {
                    let logit = |o: usize| (if layer.is_float { real[o] as f64 } else { whole[o] as f64 }) / net.divide as f64;
                    real_output = log_odds(logit(0), logit(1), logit(2));
                } else if is_float {
                    real_output = real[0] as f64
                } else {
                    output = whole[0]
                }
            } else if layer.is_float {
                vectors.push(Vector::Real(activated_floats(layer, &real)));
            } else {
                vectors.push(Vector::Whole(activated(layer, &whole)));
            }
        }
        let mut positional = if net.wdl {
            (real_output * net.multiply as f64).clamp(-1073741824.0, 1073741824.0) as i64
        } else if is_float {
            let value = (real_output + real_skip) * net.multiply as f64 / net.divide as f64;
            value.clamp(-1073741824.0, 1073741824.0) as i64
        } else {
            (output + skip) * net.multiply / net.divide
        };
        if net.sides == Sides::White && black_to_move {
            positional = -positional;
        }
        let scaled = |raw: i64| raw * net.score_multiply / net.score_divide;
        if !net.psqt {
            return scaled(positional);
        }
        let psqt = (accumulator.psqt[us][bucket].wrapping_sub(accumulator.psqt[us ^ 1][bucket]) / 2) as i64;
        if net.score_apart { scaled(psqt) + scaled(positional) } else { scaled(psqt + positional) }
    }

    fn perspectives(&self) -> usize {
        if self.net.sides == Sides::White { 1 } else { 2 }
    }

    fn refresh_one(&self, board: &Board, perspective: usize, accumulator: &mut Accumulator) {
        accumulator.values[perspective].copy_from_slice(&self.bias);
        accumulator.psqt[perspective].fill(0);
        for (number, part) in self.net.parts.iter().enumerate() {
            let mut features = Vec::new();
            self.list(&part.set, board, perspective, &mut features);
            features.iter().for_each(|&feature| self.change(number, feature, true, perspective, accumulator));
        }
    }

    fn change(&self, part: usize, feature: usize, adds: bool, perspective: usize, accumulator: &mut Accumulator) {
        self.weights[part].add_row(feature, self.net.hidden, adds, &mut accumulator.values[perspective]);
        if let Some(Numbers::I32(columns)) = self.psqt.get(part) {
            let row = &columns[feature * self.net.buckets..][..self.net.buckets];
            for (value, &column) in accumulator.psqt[perspective].iter_mut().zip(row) {
                *value = if adds { value.wrapping_add(column) } else { value.wrapping_sub(column) };
            }
        }
    }

    fn bucket(&self, board: &Board, us: usize) -> usize {
        let count = |code: usize| board.iter().filter(|&&piece| piece as usize == code).count();
        let pieces = board.iter().filter(|&&piece| piece != EMPTY).count();
        match self.net.buckets_by {
            BucketsBy::Pieces => self.net.bucket_of[pieces],
            BucketsBy::Queens => {
                self.net.bucket_of[16 * pieces + 4 * count(8 + us).min(3) + count(8 + (us ^ 1)).min(3)]
            }
            BucketsBy::Weights => {
                let weight = |i: usize| self.net.piece_weights[i] * count((2 * (i % 5) + i / 5) ^ us);
                self.net.bucket_of[(0..10).map(weight).sum::<usize>().min(self.net.bucket_of.len() - 1)]
            }
            BucketsBy::Squares => {
                let turned = orientation(56, self.net.bucket_mirror, us, king_of(board, us));
                let weight = |square: usize| {
                    let (kind, other) = (board[square] as usize / 2, board[square] as usize % 2 ^ us);
                    self.net.square_weights[64 * (6 * other + kind) + (square ^ turned)]
                };
                let sum: usize = (0..64).filter(|&square| board[square] != EMPTY).map(weight).sum();
                self.net.bucket_of[sum.min(self.net.bucket_of.len() - 1)]
            }
        }
    }

    fn first_activations(&self, accumulator: &Accumulator, us: usize) -> Vec<i64> {
        let net = self.net;
        let clipped = |value: i16| ((value << net.accumulator_shift) as i64).clamp(0, net.clip);
        let sides: &[usize] = match net.sides {
            Sides::Both => &[us, us ^ 1],
            Sides::Mover => &[us],
            Sides::White => &[0],
        };
        let mut x = Vec::new();
        for &side in sides {
            let values = &accumulator.values[side];
            match net.activation {
                Activation::Pairwise => {
                    let (left, right) = values.split_at(net.hidden / 2);
                    let product = |(&a, &b): (&i16, &i16)| clipped(a) * clipped(b) >> net.product_shift;
                    x.extend(left.iter().zip(right).map(product));
                }
                Activation::Screlu => x.extend(values.iter().map(|&a| clipped(a) * clipped(a) >> net.product_shift)),
                _ => x.extend(values.iter().map(|&a| clipped(a))),
            }
        }
        x
    }

    /// The y of all outputs of a layer: integers or floats.
    fn sums(&self, number: usize, bucket: usize, vectors: &[Vector]) -> (Vec<i64>, Vec<f32>) {
        let (layer, (weights, biases)) = (&self.net.layers[number], &self.layers[number]);
        let (mut x, mut real, mut is_whole) = (Vec::new(), Vec::new(), !weights.is_float());
        for (_, vector) in vectors.iter().enumerate().filter(|(k, _)| layer.vectors >> k & 1 == 1) {
            match vector {
                Vector::Whole(values) => {
                    x.extend_from_slice(values);
                    real.extend(values.iter().map(|&value| value as f64));
                }
                Vector::Real(values) => {
                    is_whole = false;
                    real.extend(values.iter().map(|&value| value as f64));
                }
            }
        }
        let (mut whole, mut floats) = (Vec::new(), Vec::new());
        for output in 0..layer.outputs {
            let row = bucket * layer.outputs + output;
            let begin = row * layer.columns;
            if !layer.is_float {
                let sum = dot(weights, begin, &x) / layer.divide;
                whole.push((sum as i32).wrapping_add(biases.whole(row) as i32) as i64);
                continue;
            }
            let sum: f64 = if is_whole {
                dot(weights, begin, &x) as i32 as f64
            } else {
                real.iter().enumerate().map(|(i, value)| value * weights.real(begin + i)).sum()
            };
            let y = sum * layer.factor + biases.real(row);
            floats.push(y.clamp(-f32::MAX as f64, f32::MAX as f64) as f32);
        }
        (whole, floats)
    }

    fn list(&self, set: &Set, board: &Board, perspective: usize, found: &mut Vec<usize>) {
        match set {
            Set::PieceSquares { .. } => pieces(set, board, perspective, 0..64, found),
            Set::Threats { .. } => self.tables.list(set, board, perspective, found),
            Set::PawnPairs => pawn_pairs(board, perspective, found),
            Set::Table { index, counters, offsets } => tabled(index, counters, offsets, board, perspective, found),
        }
    }
}

fn activated(layer: &Layer, y: &[i64]) -> Vec<i64> {
    let y = &y[..layer.activated];
    let squares = 2 * layer.shift + layer.square_shift;
    let clamped = |&value: &i64| (value >> layer.shift).clamp(0, layer.clip);
    match layer.activation {
        Activation::None => y.iter().map(|&value| (value >> layer.shift).clamp(-32768, 32767)).collect(),
        Activation::Screlu => y.iter().map(|&value| value.clamp(0, layer.clip << layer.shift).pow(2) >> squares).collect(),
        Activation::Dual => {
            y.iter().map(|&value| (value * value >> squares).min(layer.clip)).chain(y.iter().map(clamped)).collect()
        }
        _ => y.iter().map(clamped).collect(),
    }
}

/// ln(E / (1 − E)), where E = win + draw / 2 by the softmax of the three logits.
fn log_odds(loss: f64, draw: f64, win: f64) -> f64 {
    let log_sum = |a: f64, b: f64| a.max(b) + (-(a - b).abs()).exp().ln_1p();
    let half = draw - std::f64::consts::LN_2;
    log_sum(win, half) - log_sum(loss, half)
}

fn activated_floats(layer: &Layer, y: &[f32]) -> Vec<f32> {
    let (y, most) = (&y[..layer.activated], layer.clip as f32);
    let clamped = |&value: &f32| value.clamp(0.0, most);
    match layer.activation {
        Activation::None => y.to_vec(),
        Activation::Screlu => y.iter().map(|value| clamped(value) * clamped(value)).collect(),
        Activation::Dual => y.iter().map(|value| (value * value).min(most)).chain(y.iter().map(clamped)).collect(),
        _ => y.iter().map(clamped).collect(),
    }
}

// ---- input features

fn king_of(board: &Board, perspective: usize) -> usize {
    board.iter().position(|&code| code as usize == 10 + perspective).expect("a king of each side on the board")
}

/// The number with which squares are xored, so that the perspective's own side is below and its king on the files of
/// `mirror`; `mirror` and `turn` are as in `Set`.
fn orientation(turn: usize, mirror: usize, perspective: usize, king: usize) -> usize {
    let east = king % 8 > 3;
    let mirrored = (mirror == 1 && east) || (mirror == 2 && !east);
    (if perspective == 1 { turn } else { 0 }) ^ if mirrored { 7 } else { 0 }
}

/// As long as it does not change, moves only add and remove features.
fn key(set: &Set, board: &Board, perspective: usize) -> (usize, usize) {
    let king = king_of(board, perspective);
    match set {
        Set::PieceSquares { turn, mirror, .. } => {
            (bucket_offset(set, board, perspective), orientation(*turn, *mirror, perspective, king))
        }
        _ => (0, orientation(56, 1, perspective, king)),
    }
}

fn state_of(counters: &[(u32, usize)], board: &Board, perspective: usize) -> usize {
    let mut state = 0;
    for &(codes, most) in counters {
        let counts = |&&code: &&u8| code != EMPTY && codes >> (code as usize ^ perspective) & 1 == 1;
        state = state * (most + 1) + board.iter().filter(counts).count().min(most);
    }
    state
}

fn bucket_offset(set: &Set, board: &Board, perspective: usize) -> usize {
    let Set::PieceSquares { planes, unused, turn, mirror, states, counters, of_square, .. } = set else { return 0 };
    let (king, state) = (king_of(board, perspective), state_of(counters, board, perspective));
    (64 * planes + unused) * (states * of_square[king ^ orientation(*turn, *mirror, perspective, king)] + state)
}

fn pieces(set: &Set, board: &Board, perspective: usize, squares: impl Iterator<Item = usize>, found: &mut Vec<usize>) {
    let Set::PieceSquares { planes, unused, turn, mirror, interleaved, enemy_first, .. } = set else { return };
    let first = bucket_offset(set, board, perspective);
    let turned = orientation(*turn, *mirror, perspective, king_of(board, perspective));
    for square in squares.filter(|&square| board[square] != EMPTY) {
        let (kind, colour) = (board[square] as usize / 2, board[square] as usize % 2);
        let second = colour ^ perspective ^ *enemy_first as usize;
        let plane = match (kind, *planes) {
            (5, 10) => continue,
            (5, 11) => 10,
            _ if *interleaved => 2 * kind + second,
            _ => kind + planes / 2 * second,
        };
        found.push(first + unused + 64 * plane + (square ^ turned));
    }
}

fn pawn_pairs(board: &Board, perspective: usize, found: &mut Vec<usize>) {
    let turned = orientation(56, 1, perspective, king_of(board, perspective));
    let mut pawns: Vec<(usize, usize)> = Vec::new();
    for square in (8..56).filter(|&square| board[square] / 2 == 0) {
        let number = 48 * (board[square] as usize ^ perspective) + (square ^ turned) - 8;
        for &(other, file) in pawns.iter().filter(|(_, file)| file.abs_diff(square % 8) <= 1) {
            let _ = file;
            let (high, low) = (number.max(other), number.min(other));
            found.push(high * (high - 1) / 2 + low);
        }
        pawns.push((number, square % 8));
    }
}

fn tabled(
    index: &[[[i32; 64]; 12]; 64],
    counters: &[(u32, usize)],
    offsets: &[i32],
    board: &Board,
    perspective: usize,
    found: &mut Vec<usize>,
) {
    let turned = if perspective == 1 { 56 } else { 0 };
    let king = king_of(board, perspective) ^ turned;
    let offset = offsets[offsets.len() / 64 * king + state_of(counters, board, perspective)];
    for square in (0..64).filter(|&square| board[square] != EMPTY) {
        let feature = index[king][board[square] as usize ^ perspective][square ^ turned];
        if feature >= 0 {
            found.push((offset + feature) as usize);
        }
    }
}

/// Removes the features that both lists have; a feature may occur several times.
fn keep_differences(was: &mut Vec<usize>, is: &mut Vec<usize>) {
    was.sort_unstable();
    is.sort_unstable();
    let (old, new) = (std::mem::take(was), std::mem::take(is));
    let (mut i, mut j) = (0, 0);
    while i < old.len() || j < new.len() {
        if j == new.len() || (i < old.len() && old[i] < new[j]) {
            was.push(old[i]);
            i += 1;
        } else if i == old.len() || new[j] < old[i] {
            is.push(new[j]);
            j += 1;
        } else {
            (i, j) = (i + 1, j + 1);
        }
    }
}

/// Calls found(to) for each square that the piece attacks. Sliders stop at the first piece, if a board is given.
fn for_each_attack(kind: usize, colour: usize, from: usize, board: Option<&Board>, mut found: impl FnMut(usize)) {
    const STEPS: [(i32, i32); 8] = [(1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1)];
    const JUMPS: [(i32, i32); 8] = [(1, 2), (2, 1), (2, -1), (1, -2), (-1, -2), (-2, -1), (-2, 1), (-1, 2)];
    let (file, rank) = (from as i32 % 8, from as i32 / 8);
    let inside = |f: i32, r: i32| (0..8).contains(&f) && (0..8).contains(&r);
    if kind == 0 {
        let ahead = if colour == 0 { rank + 1 } else { rank - 1 };
        for side in [-1, 1] {
            if rank != 0 && rank != 7 && inside(file + side, ahead) {
                found((8 * ahead + file + side) as usize);
            }
        }
        return;
    }
    let directions = if kind == 2 { 4..8 } else if kind == 3 { 0..4 } else { 0..8 };
    for (df, dr) in directions.map(|i| if kind == 1 { JUMPS[i] } else { STEPS[i] }) {
        let (mut f, mut r) = (file + df, rank + dr);
        while inside(f, r) {
            let to = (8 * r + f) as usize;
            found(to);
            if kind == 1 || kind == 5 || board.is_some_and(|board| board[to] != EMPTY) {
                break;
            }
            (f, r) = (f + df, r + dr);
        }
    }
}

/// The first index of each pair of pieces, and of each square of an attacker; own pieces have even codes.
struct ThreatTables {
    reach: [[u64; 64]; 12],
    offset: [[usize; 64]; 12],
    total: [usize; 12],
}

impl ThreatTables {
    fn new(pushes: bool) -> Self {
        let mut tables = Self { reach: [[0; 64]; 12], offset: [[0; 64]; 12], total: [0; 12] };
        for code in 0..12 {
            for square in 0..64 {
                let mut bits = 0u64;
                for_each_attack(code / 2, code % 2, square, None, |to| bits |= 1 << to);
                if pushes && code < 2 && (8..56).contains(&square) {
                    bits |= 1 << if code == 0 { square + 8 } else { square - 8 };
                }
                tables.reach[code][square] = bits;
                tables.offset[code][square] = tables.total[code];
                tables.total[code] += bits.count_ones() as usize;
            }
        }
        tables
    }

    fn list(&self, set: &Set, board: &Board, perspective: usize, found: &mut Vec<usize>) {
        let Set::Threats { slots, blocks, pushes, merged } = set else { return };
        let mut base = [0; 12];
        let mut next = 0;
        for code in [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11] {
            base[code] = next;
            next += slots[code] * self.total[code];
        }
        let turned = orientation(56, 1, perspective, king_of(board, perspective));
        for from in (0..64).filter(|&from| board[from] != EMPTY) {
            let code = board[from] as usize;
            let (kind, attacker) = (code / 2, code ^ perspective);
            let mut threat = |to: usize, is_push: bool| {
                if board[to] == EMPTY {
                    return;
                }
                let victim = board[to] as usize ^ perspective;
                // Only a pawn ahead is a victim of a push; it has the block of the first victim.
                if is_push && victim / 2 != 0 {
                    return;
                }
                let block = blocks[attacker][victim];
                let (mut f, mut t) = (from ^ turned, to ^ turned);
                let is_mutual = kind == victim / 2 && !(kind == 0 && attacker == victim);
                if block < 0 || (is_mutual && f < t) {
                    return;
                }
                if *merged && is_mutual && kind != 0 && attacker != victim {
                    (f, t) = (t, f);
                }
                let below = (self.reach[attacker][f] & ((1u64 << t) - 1)).count_ones() as usize;
                found.push(base[attacker] + block as usize * self.total[attacker] + self.offset[attacker][f] + below);
            };
            for_each_attack(kind, code % 2, from, Some(board), |to| threat(to, false));
            if *pushes && kind == 0 {
                threat(if code % 2 == 1 { from - 8 } else { from + 8 }, true);
            }
        }
    }
}
