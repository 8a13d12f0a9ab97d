"""Positions for comparing a net with an engine: random games, both sides to move, no position in check. The buckets by
number of pieces alternate, so that the first few positions cover all of them. Random games make more if needed."""

from __future__ import annotations

import random
from collections.abc import Iterator

from nnue_trainer import _data

_START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
_LONGEST_GAME = 200  # plies

CHECK_POSITIONS = (
    "rnbqk1nr/1ppp1ppp/p3p3/5P2/2P5/P7/P2PP1PP/RNBQKBNR b KQkq - 0 4",
    "rnb1k1nr/2pp1ppp/p7/1Q6/2P1p3/P7/P2PK1Pq/RNB2BNR w kq - 0 10",
    "rnbk3r/2pp1p1p/p5pn/8/2P1p1P1/P7/P2K3R/RNB2BN1 w - - 2 16",
    "1nb1k3/2bp2p1/4p2r/1p6/2P5/1P2Pp1P/r4P2/R1B2KR1 w - - 0 20",
    "1nb2B2/8/r2pkp2/p1p4P/4B3/N6N/P2K4/R7 b - - 1 30",
    "1nb2B2/8/r2p1p2/N5kP/8/8/P2K4/5R2 w - - 2 35",
    "8/8/3B1pk1/8/8/8/b7/4K3 b - - 7 46",
    "8/8/8/4p2k/8/8/2bK4/8 b - - 3 50",
    "rnbqkb1r/pp1ppppp/7n/2p5/6P1/2N1P3/PPPP1P1P/R1BQKBNR b KQkq - 1 3",
    "rnb1k1nr/2pp1ppp/p7/8/2Pqp3/P6N/P2PK1PR/RNB2B2 b kq - 3 12",
    "rnbk3r/2pp1p1p/p2n2p1/8/2P1p1P1/P7/P1K4R/RNB2BN1 w - - 6 18",
    "1nb1k3/2bp2p1/4p2r/1P4R1/8/1P2Pp1P/5P2/r1B2K2 b - - 0 21",
    "1nb1k2r/2bp2R1/4p3/1PB5/8/1P2Pp2/5P2/5K2 b - - 2 24",
    "1nb2B2/8/3p1p2/r5kP/8/8/P2K4/3R4 w - - 0 36",
    "2k5/3p2b1/P3p3/8/8/5pP1/8/5K2 b - - 0 38",
    "8/8/8/4p3/7k/8/8/5K2 w - - 5 55",
    "rnbqkb1r/pp1p1pp1/4p3/1Bp4p/6Q1/2N1P3/PPPP1P1P/R1B1K1NR w KQkq - 0 6",
    "rnbqk3/p2p1ppr/4p3/1BN1b3/8/4Pp1P/PPPP1P2/R1B1K2R w KQq - 1 12",
    "rnb5/2ppkp2/3n2p1/p6R/2P1p1P1/P7/P1K5/RNB2BN1 b - - 2 20",
    "1nb1k3/2bp2p1/4p2r/1P4R1/8/rP2Pp1P/5P2/2B2K2 w - - 1 22",
    "1nb1k2r/3p4/4p3/BP2b3/8/1P2Pp2/5P2/5K2 w - - 2 27",
    "2bk3b/3p3r/P3p3/8/1P6/5p2/5P2/4K3 w - - 1 33",
    "3k4/3p2b1/P3p3/8/8/5pP1/8/6K1 b - - 2 39",
    "8/8/8/8/4p2k/8/8/5K2 w - - 2 67",
    "r1bqkb1r/p1pppppp/1pn4B/8/2P5/3P4/PP2PPPP/RN1QKBNR b KQkq - 0 4",
    "rnbqk3/p1bp1pp1/2B1p2r/2N5/8/1P2Pp1P/P1PP1P2/R1B2K1R b q - 2 14",
    "rnb5/3pkp2/3n4/p1p4p/2P1p1P1/P2B4/P1K5/RNB3N1 b - - 1 22",
    "1nb1k3/2bp2R1/4p2r/1P6/8/rP2Pp1P/5P2/2B2K2 b - - 0 22",
    "5k2/7p/7p/P4P2/1P1N4/3B2P1/5P1P/2b2K1R b - - 0 39",
    "2bk3b/3p4/P3p3/1P6/8/5p1r/5P2/5K2 b - - 0 34",
    "4k3/3p2b1/P7/4p3/6P1/5p2/8/6K1 w - - 1 41",
    "8/8/8/6k1/4p3/8/8/4K3 w - - 4 68",
    "r1bqkb1r/p1pppp1p/1pn4p/8/2P5/3P4/PP2PPPP/RN1QKBNR w KQkq - 0 5",
    "2bq1b1r/2pppk1p/1pn4p/2P5/r3P3/3B2P1/PP1K1P1P/RN4NR w - - 0 12",
    "rnb1k3/p1bp1pp1/2B1N2r/8/8/1P2qp1P/P1PP1P2/R1B2K1R w q - 0 16",
    "2b2bn1/5kp1/1pp2p2/p1n2p2/4P2P/1P5R/P2B4/RN4K1 w - - 0 21",
    "rnn5/8/p1p2k1b/3p4/3P4/1KP5/P7/6N1 w - - 0 27",
    "3k4/3p2b1/P3p3/8/8/5p1r/5P2/4K3 b - - 2 36",
    "4kb2/3p4/P7/4p1P1/8/5K2/8/8 b - - 0 43",
    "8/8/5k2/8/4p3/8/8/5K2 w - - 16 74",
    "r1bqkb1r/p1ppp2p/1pn4p/5p2/2P5/3P2P1/PP1KPP1P/RN1Q1BNR b kq - 0 6",
    "2bq1b1r/2pppk1p/1Pn4p/8/r3P3/3B2P1/PP1K1P1P/RN4NR b - - 0 12",
    "rnb1k3/p1bp1pp1/2B1N2r/8/8/1P2qp1P/P1PP1P2/R1B2KR1 b q - 1 16",
    "rn2kb2/1p2n3/p1p2p2/3p4/3P4/N1P5/PP2K3/4R1Nb w q - 0 17",
    "rn6/8/p1pn2k1/3pb3/K2P4/2P5/P7/1N6 w - - 8 31",
    "1Nk5/8/P6p/1P3P1p/7P/3B1R1K/8/8 w - - 13 57",
    "4k3/3p4/P7/4p1P1/8/b4K2/8/8 w - - 1 44",
    "7k/8/8/8/8/8/8/2K5 b - - 12 82",
    "rnbqkbnr/1pppp1pp/5p2/p7/4P3/1P5P/P1PP1PP1/RNBQKBNR b KQkq - 0 3",
    "1nbq1bn1/5kp1/1ppppp2/p1P5/4P2P/1P6/P2P1P2/RNB3KR w - - 0 16",
    "1nb2bn1/5kp1/1ppqpp2/p7/4P2P/1P6/P2P1P2/RNB3KR w - - 0 17",
    "rn6/1p2n2b/p1p2k1b/3p4/1P1P4/N1P5/P7/3K2N1 w - - 0 22",
    "8/2N2Bk1/8/PP2p3/P6p/7P/R2P1K2/2B5 w - - 2 38",
    "8/5kp1/bBp2p2/4b3/7R/8/P4K2/RN6 b - - 0 28",
    "4k3/P2p4/8/4p1P1/1b6/4K3/8/8 b - - 0 46",
    "8/6k1/8/8/8/8/8/1K6 b - - 14 83",
    "r1bqkbnr/pppppp1p/2n5/6p1/5P2/4P2N/PPPP2PP/RNBQKB1R b KQkq - 1 3",
    "rn2kbn1/ppp1pp2/8/3p2p1/8/N1P5/PPQPb2r/R1B1K1NR w KQq - 0 10",
    "3qkb1r/2p1p2N/6rp/pP3R2/P4P2/2NBP2P/RPQP4/2B1K3 b k - 0 20",
    "4k3/2p1p3/7p/pP3r2/P4P2/1PN1P1rP/R2P4/2BK1B2 b - - 0 25",
    "6B1/2N5/3B4/PP6/P3k2p/4p2P/R2P4/6K1 w - - 2 44",
    "4k3/6p1/bBp2p2/8/7R/5K2/P7/bN6 w - - 0 30",
    "3R4/3p2k1/3b4/4p1P1/8/4K3/8/8 w - - 3 49",
    "8/7k/8/8/8/8/8/1K6 w - - 15 84",
    "r1bqkbnr/ppppp2p/2n5/5pp1/2P2PP1/4P2N/PP1P3P/RNBQKB1R w KQk - 1 6",
    "r2qkbnr/p1p1p2N/7p/1P1p1b2/3n1P2/4P2P/PP1P4/RNBQKBR1 b Qk - 2 11",
    "4kN1r/2p1p3/6rp/pP3q2/P4P2/2NBP2P/RPQP4/2B1K3 w k - 0 22",
    "4k3/2p1p3/7p/pP6/PP3r2/2N1P1rP/R2P4/2BK1B2 b - - 0 26",
    "r7/pbr5/5k2/7p/P4q2/5P1P/P3K3/R5NR b - - 0 25",
    "4k3/6p1/bB3p2/2p5/3R4/5K2/P7/bN6 b - - 1 31",
    "8/3k4/8/6P1/4K3/7R/8/2b5 w - - 7 61",
    "8/8/8/7k/8/8/8/2K5 w - - 25 89",
    "r1bqkbnr/pppppppp/8/8/1nP3P1/7B/PP1PPP1P/RNBQK1NR b KQkq - 2 3",
    "r2qkb1r/2p1p2N/7p/pP1p1b2/5P2/4P2P/PP1Pn3/RNBQKBR1 b Qk - 2 13",
    "4kN1r/2p1p3/6rp/pP3q2/P4P2/2N1P2P/RPQP4/2B1KB2 b k - 1 22",
    "2b1k2r/4n2p/1p1pQ3/6pP/2n5/R1p4N/4P2R/4KB2 b k - 0 27",
    "r7/pbr1k3/8/7p/P7/5P1P/P2q4/R4KNR w - - 3 27",
    "rn6/8/p1p3k1/3pPn2/K7/P1P5/8/1N6 b - - 0 32",
    "8/8/1k5p/5P2/6NP/7K/6B1/2R5 b - - 5 66",
    "8/8/8/7k/8/8/8/3K4 b - - 26 89",
    "rnbqkb1r/1p1ppppp/7n/2p5/p1P4P/1P1P4/P3PPP1/RNBQKBNR w KQkq - 1 5",
    "r1bq1b2/ppNpkp1r/8/3np1pp/3P4/5P1B/PP2Q2P/R1BK2NR w - - 1 14",
    "4kr2/2p1p3/6rp/pP3q2/P4P2/2N1P2P/RPQP4/2B1KB2 w - - 0 23",
    "4kbnr/3n3p/8/2pp1pP1/p4NPP/3P4/P1K5/1R3B1R w - - 0 23",
    "r2k4/pbr5/8/7p/P7/5P1P/P2q4/2R2KNR w - - 5 28",
    "rn6/8/p1p4k/3pPn2/K7/P1P5/3N4/8 b - - 2 33",
    "6N1/8/5P2/3B4/1k5P/6K1/8/R7 b - - 0 74",
    "8/8/8/8/5K2/8/6k1/8 b - - 40 96",
    "rnb1kb1r/1p1p1ppp/4p2n/q1p5/P1P4P/3P4/P2QPPP1/RNB1KBNR w KQkq - 1 7",
    "R1b1kb1r/3p1ppp/1pn1p3/7P/2Pp4/4n3/3BPPP1/2Q1KBNR w Kk - 1 16",
    "r1bq4/pp1k1p1r/8/3nQ1pp/3P4/b4P2/PP5P/R1BK2NR w - - 1 17",
    "4kbnr/3n3p/8/2pN2P1/p5pP/P2P4/2K5/1R3B1R b - - 0 24",
    "r1b5/p1k5/8/7p/P6P/5P1R/P2q4/5KN1 b - - 2 30",
    "1n2N3/r7/2pn3k/p7/K1p5/P1P5/8/8 b - - 0 37",
    "8/4Q3/1k5N/8/7P/8/7K/8 w - - 3 88",
    "8/8/8/8/8/6K1/8/5k2 b - - 52 102",
    "rnb1kb1r/1p1p1ppp/4p3/2p2n1P/2PP4/2N5/q2QPPP1/R1B1KBNR w KQkq - 0 10",
    "R1b1kb1r/3p2pp/1pn1pp2/B6P/2Pp2P1/4n3/4PP2/2Q1KBNR b Kk - 1 17",
    "1r2kbnr/3npp1p/8/2pP2P1/p7/3P3P/PBN1N1P1/1RK2B1R b - - 2 18",
    "4kbnr/3n3p/8/3N2P1/p1p3pP/P2P4/2K5/1R3B1R w - - 0 25",
    "2k5/b2b2pB/1p3pnp/3N4/1n4P1/8/5QR1/2BK4 b - - 0 38",
    "6B1/8/P7/PP6/5k1N/B6P/6R1/5K2 w - - 7 58",
    "4Q3/8/1k5N/8/7P/8/6K1/8 w - - 9 91",
    "8/8/8/8/8/8/7K/3k4 w - - 55 104",
)


def random_positions(seed: int) -> Iterator[str]:
    """Positions of random games, as a function of the seed: every few plies, so that all numbers of pieces occur. Some
    are in check."""
    rng = random.Random(seed)
    while True:
        game = _data.Game(_START)
        for ply in range(_LONGEST_GAME):
            if game.outcome():
                break
            if ply and rng.random() < 0.2:
                yield game.fen
            game.play(rng.choice(game.legal_moves()))
