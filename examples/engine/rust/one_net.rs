// Code for one net, that of the preset `buckets`: SCReLU, king and output buckets, no hidden layers. The loop of `evaluate`
// is written for clarity: production code uses 16-bit products there. A move takes two to four calls of `change` for each
// perspective. If `KINGS[…]` or the flip of a king changes, start that perspective from `NET.bias` and add every piece.
const HIDDEN: usize = 1024;
const OUTPUT_BUCKETS: usize = 8;
const KINGS: [usize; 64] = [
    0, 1, 2, 3, 0, 0, 0, 0,
    4, 4, 5, 5, 0, 0, 0, 0,
    6, 6, 6, 6, 0, 0, 0, 0,
    6, 6, 6, 6, 0, 0, 0, 0,
    7, 7, 7, 7, 0, 0, 0, 0,
    7, 7, 7, 7, 0, 0, 0, 0,
    7, 7, 7, 7, 0, 0, 0, 0,
    7, 7, 7, 7, 0, 0, 0, 0,
];
const KING_BUCKETS: usize = 8;
const QA: i64 = 255;
const QB: i64 = 64;
const SCALE: i64 = 400;

/// The raw file as it lies on disk; i16 are little-endian, so this needs a little-endian target.
#[repr(C, align(64))]
struct Net {
    weights: [[i16; HIDDEN]; 768 * KING_BUCKETS],
    bias: [i16; HIDDEN],
    output_weights: [[[i16; HIDDEN]; 2]; OUTPUT_BUCKETS],
    output_bias: [i16; OUTPUT_BUCKETS],
}

static NET: Net = unsafe { std::mem::transmute(*include_bytes!("../net.bin")) };

/// `kind` P N B R Q K = 0 … 5, `colour` white 0, black 1, squares from a1 = 0; `king` is that of the perspective.
fn feature(perspective: usize, king: usize, kind: usize, colour: usize, square: usize) -> usize {
    let flip = if perspective == 1 { 56 } else { 0 } ^ if king % 8 > 3 { 7 } else { 0 };
    768 * KINGS[king ^ flip] + 64 * (kind + 6 * (colour ^ perspective)) + (square ^ flip)
}

type Accumulator = [[i16; HIDDEN]; 2];

fn change(accumulator: &mut [i16; HIDDEN], feature: usize, adds: bool) {
    for (value, weight) in accumulator.iter_mut().zip(&NET.weights[feature]) {
        *value = if adds { value.wrapping_add(*weight) } else { value.wrapping_sub(*weight) };
    }
}

/// Engine units, side to move's view.
fn evaluate(accumulator: &Accumulator, side_to_move: usize, pieces: usize) -> i64 {
    let bucket = (pieces - 2) / ((32 + OUTPUT_BUCKETS - 1) / OUTPUT_BUCKETS);
    let mut sum = 0i64;
    for side in 0..2 {
        for (value, weight) in accumulator[side_to_move ^ side].iter().zip(&NET.output_weights[bucket][side]) {
            let clipped = (*value as i64).clamp(0, QA);
            sum += clipped * clipped * *weight as i64;
        }
    }
    (sum / QA + NET.output_bias[bucket] as i64) * SCALE / (QA * QB)
}
