"""The whole output of releases and development builds of Stockfish for `eval`.

Of 15.1 this is the text of the binary; of the others, that of Stockfish's pull requests and issues that show it (3562,
3579, 5190, 6743), and from 17 on what its source (evaluate.cpp, nnue_misc.cpp) prints. Only the table and the values
below it depend on `found`:
{"cells": [[…] per bucket], "used": N, "white": "+0.25", "exact": N or None, "check": bool}. Lists of terms and of piece
values are cut short.
"""

from typing import Any

Found = dict[str, Any]

TERMS_OF_13 = """
     Term    |    White    |    Black    |    Total
             |   MG    EG  |   MG    EG  |   MG    EG
 ------------+-------------+-------------+------------
    Material |  ----  ---- |  ----  ---- |  0.00  0.00
   Imbalance |  ----  ---- |  ----  ---- |  0.00  0.00
       Pawns |  0.38 -0.08 |  0.38 -0.08 |  0.00  0.00
 King safety |  0.91 -0.10 |  0.91 -0.10 |  0.00  0.00
 ------------+-------------+-------------+------------
       Total |  ----  ---- |  ----  ---- |  0.00  0.00
"""
TERMS = """
 Contributing terms for the classical eval:
+------------+-------------+-------------+-------------+
|    Term    |    White    |    Black    |    Total    |
|            |   MG    EG  |   MG    EG  |   MG    EG  |
+------------+-------------+-------------+-------------+
|   Material |  ----  ---- |  ----  ---- |  0.06 -0.08 |
|  Imbalance |  ----  ---- |  ----  ---- |  0.00  0.00 |
|      Pawns |  0.12 -0.02 |  0.13 -0.02 | -0.02  0.00 |
|King safety |  0.53 -0.06 |  0.46 -0.06 |  0.07  0.00 |
+------------+-------------+-------------+-------------+
|      Total |  ----  ---- |  ----  ---- |  0.59  0.50 |
+------------+-------------+-------------+-------------+
"""
PIECES = """
 NNUE derived piece values:
+-------+-------+-------+-------+-------+-------+-------+-------+
|   r   |   n   |   b   |   q   |   k   |   b   |   n   |   r   |
| -5.27 | -4.08 | -4.26 | -12.4 |       | -4.53 | -4.29 | -5.53 |
+-------+-------+-------+-------+-------+-------+-------+-------+
|       |       |       |       |   P   |       |       |       |
|       |       |       |       | +1.52 |       |       |       |
+-------+-------+-------+-------+-------+-------+-------+-------+
"""
# The small net of builds that print both nets: a table like the other one, with another bucket in use.
OF_SMALL_NET: Found = {"cells": [["+0.11", "-0.22", "-0.11"]] * 8, "used": 3}


def _table(found: Found, title: str) -> list[str]:
    columns = {1: ["Evaluation"], 3: ["Material", "Positional", "Total"]}[len(found["cells"][0])]
    rule = "+------------" * (1 + len(columns)) + "+"
    rows = []
    for bucket, row in enumerate(found["cells"]):
        cells = "".join(f" |  {text[0] if text[0] in '+-' else ' '}{text.lstrip('+-'):>6}  " for text in row)
        rows.append(f"|  {bucket}        {cells} |" + (" <-- this bucket is used" if bucket == found["used"] else ""))
    heads = ["".join(f"| {name:^10} " for name in ["Bucket", *columns]) + "|"]
    if len(columns) == 3:
        heads.append("|            |   (PSQT)   |  (Layers)  |            |")
    return [title, rule, *heads, rule, *rows, rule, ""]


def nets_of(release: str, net: str) -> list[str]:
    """The lines about the files that it has loaded."""
    small = "info string NNUE evaluation using nn-37f18f62d772.nnue"
    using = f"info string NNUE evaluation using {net}"
    if release in ("12", "13", "14", "14.1", "15", "15.1", "16"):
        return [f"{using} enabled"]
    if release == "16.1":
        return [using, small]
    sizes = "(133MiB, (22528, 3072, 15, 32, 1))"
    both = release in ("17", "17.1", "18") or _has_two_nets(release)
    return [f"{using} {sizes}", *([f"{small} (6MiB, (22528, 128, 15, 32, 1))"] if both else [])]


def _has_two_nets(release: str) -> bool:
    """Whether it prints its small net too, as builds from 2026-04-19 until 2026-05-04 do."""
    return release.startswith("dev-2026") and "dev-20260419" <= release < "dev-20260504"


def evaluation(release: str, found: Found, *, black_to_move: bool = False) -> list[str]:
    """The lines for a position. `release`: "12" to "19", or dev-DATE of a build."""
    if found["check"]:
        return ["", "Final evaluation: none (in check)"]
    side = "Black to move" if black_to_move else "White to move"
    white, final = f"{found['white']} (white side)", "+0.18 (white side)"
    if release in ("12", "13"):
        classical = ["", "Classical evaluation: +0.58 (white side)"]
        return [
            *TERMS_OF_13.splitlines(),
            *classical,
            "",
            f"NNUE evaluation:      {white}",
            "",
            f"Final evaluation:     {final}",
        ]
    if found["exact"] is None:
        terms = TERMS.splitlines() if release in ("14", "14.1", "15", "15.1") else []
        classical = ["Classical evaluation   +0.58 (white side)"] if terms else []
        words = "[with scaled NNUE, hybrid, ...]" if terms else "[with scaled NNUE, ...]"
        table = _table(found, f" NNUE network contributions ({side})")
        below = [*classical, f"NNUE evaluation        {white}", f"Final evaluation       {final} {words}"]
        return [*terms, *PIECES.splitlines(), "", *table, "", *below, ""]
    title = f"NNUE network contributions (Normalized, {side})"
    exact = f"{found['exact']:+} (side to move, internal units)"
    final = f"Final evaluation      {final} [with scaled NNUE, ...]"
    if _has_two_nets(release):
        tables = [*_table(OF_SMALL_NET, f"(Small net) {title}"), *_table(found, f"(Big net) {title}")]
        small = "(Small net) NNUE evaluation        -1234 (side to move, internal units)"
        return ["", *tables, "", small, f"(Big net) NNUE evaluation          {exact}", final, ""]
    below = [f"NNUE evaluation          {exact}", f"NNUE evaluation        {white}", final]
    return ["", *_table(found, title), "", *below, ""]
