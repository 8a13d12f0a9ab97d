// A net through the C interface of ../c_api.h, which build.rs compiles: src/nnue.rs of an engine.
use std::alloc::{alloc_zeroed, Layout};

static NET: &[u8] = include_bytes!("../net.bin");

extern "C" {
    fn nnue_load(data: *const u8, size: usize) -> i32;
    fn nnue_accumulator_size() -> usize;
    fn nnue_refresh(board: *const u8, accumulator: *mut u8);
    fn nnue_update(before: *const u8, old: *const u8, after: *const u8, accumulator: *mut u8);
    fn nnue_evaluate(board: *const u8, black_to_move: i32, accumulator: *const u8) -> i32;
}

/// a1 first: 2 · type + colour (P N B R Q K = 0 … 5), or 15 where a square is empty.
pub type Board = [u8; 64];

pub fn load() {
    assert_eq!(unsafe { nnue_load(NET.as_ptr(), NET.len()) }, 1, "net.bin is not of the net in net.h");
}

/// One accumulator per ply of the search.
pub struct Accumulators {
    memory: *mut u8,
    size: usize,
}

impl Accumulators {
    pub fn new(plies: usize) -> Self {
        let size = unsafe { nnue_accumulator_size() };
        let layout = Layout::from_size_align(plies * size, 64).unwrap();
        Self { memory: unsafe { alloc_zeroed(layout) }, size }
    }
    fn at(&self, ply: usize) -> *mut u8 {
        unsafe { self.memory.add(ply * self.size) }
    }
    pub fn refresh(&mut self, ply: usize, board: &Board) {
        unsafe { nnue_refresh(board.as_ptr(), self.at(ply)) }
    }
    /// After a move: `before` is the board at `ply - 1`, `after` that at `ply`.
    pub fn update(&mut self, ply: usize, before: &Board, after: &Board) {
        unsafe { nnue_update(before.as_ptr(), self.at(ply - 1), after.as_ptr(), self.at(ply)) }
    }
    /// Engine units, side to move's view.
    pub fn evaluate(&self, ply: usize, board: &Board, black_to_move: bool) -> i32 {
        unsafe { nnue_evaluate(board.as_ptr(), black_to_move as i32, self.at(ply)) }
    }
}
