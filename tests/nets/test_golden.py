"""Golden nets of every version: known checksums, recognised by their shape, read back, evaluated as the engines do.

Everything about one net is one test, because the nets are large and take seconds to make.
"""

import hashlib

import numpy as np
import pytest
from golden import golden_net
from net_support import batch_of, fnv1a64, vectors
from typed import present

from nnue_trainer import _data
from nnue_trainer.export import Evaluator, checkpoint_from_net, evaluate, net_from_checkpoint, read_net, to_bytes
from nnue_trainer.nets.integer_forward import first_activations

# docs/net-files.md, "Golden nets".
GOLDEN = {
    "sfnnv1": (21022540, "9098c78151425cce672f1bfd11d71be68849735beb1d073f4cf482a82ad31453"),
    "sfnnv2": (47721316, "1c3b246ef6cbe16a5e728eb3d2c2bb8c623f2c99511d92c1658a0557245e0df1"),
    "sfnnv3": (47001188, "74d5c7986b427e767aefa447edbacf1be3b1afd8e775b7518c29fd670f0d738f"),
    "sfnnv4": (47001444, "cf03a24e8d75cb4f7d74e06747cf8d77a9a5bc151139cfe332958702fd4cc6cb"),
    "sfnnv5": (47001444, "8fe584b6953569b297ff4584a7b972dd7b8705a5bd5c17210b785b7b78d2a499"),
    "sfnnv6": (35187115, "fbc672318d514455c479e15c6e94a6a95d8dd0b27d71be3bf67ddc1a5bd5d696"),
    "sfnnv8": (58388241, "c0af83ad093bce4569c0a79a875b333aaa2ab0efa30419d26e856123c42a21aa"),
    "sfnnv9": (69988824, "eb685df1f699cb7fb524b90267aed9d4792592341487b9e2b7c6a073a32f9b60"),
    "small128": (3285560, "6963585beab9826de4ecf091ac14ae6209ae57cf0088b082fdea2867f9d2760d"),
    "sfnnv10-sf18": (111416612, "9db6badd00af43166ae7449379bddc77ed7ed9775f9d8ce62ca0e3c0f63f0247"),
    "sfnnv15": (91645123, "9fe69890fba60f4da524df6fb743cdb1ef6383ba778245b03504910c46aea04e"),
    "sfnnv16": (95436745, "543814f5ed1c716d016c5de2f6c79b6b4ced50c92804d1a4c1f40608ee9418cb"),
    "sfnnv17": (93993716, "e718ce282170fb2196d47e306aa1612dd2af48967a99706c6d6b7aef413d5d76"),
}
# Stockfish 14 … 16.1 divide PSQT and layers together, later ones each by itself.
SUMS_PARTS = ("sfnnv1", "sfnnv2", "sfnnv3", "sfnnv4", "sfnnv5", "sfnnv6", "sfnnv8")


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_net(name: str, tmp_path) -> None:
    net = golden_net(name)
    file = to_bytes(net)
    assert (len(file), hashlib.sha256(file).hexdigest()) == GOLDEN[name]
    path = tmp_path / "golden.nnue"
    path.write_bytes(file)
    again = read_net(path, name if name == "sfnnv4" else None)
    path.unlink()
    assert (again.net, again.layout, again.description) == (net.net, net.layout, net.description)
    for tensor, values in net.tensors.items():
        np.testing.assert_array_equal(again.tensors[tensor], values, err_msg=tensor)

    positions = vectors(f"golden_{name}")
    assert len(positions) == 106
    batch = batch_of(net, [p["fen"] for p in positions])
    found = evaluate(net, batch)
    np.testing.assert_array_equal(found.bucket, [p["bucket"] for p in positions])
    for isa in _data.isas():
        same = Evaluator(net, isa=isa).evaluate([p["fen"] for p in positions])
        np.testing.assert_array_equal(same.positional_raw, found.positional_raw, err_msg=isa)
        np.testing.assert_array_equal(same.score, found.score, err_msg=isa)
    psqt, positional = net.net.evaluate(net.tensors, batch)
    np.testing.assert_array_equal(psqt, found.psqt_raw)
    np.testing.assert_array_equal(positional, found.positional_raw)
    np.testing.assert_array_equal(found.psqt_raw, [p["psqt_raw"] for p in positions])
    np.testing.assert_array_equal(found.positional_raw, [p["positional_raw"] for p in positions])
    for i, p in enumerate(positions):
        psqt, positional = p["psqt_raw"][p["bucket"]], p["positional_raw"][p["bucket"]]
        apart = int(psqt / 16) + int(positional / 16)
        assert found.score[i] == (int((psqt + positional) / 16) if name in SUMS_PARTS else apart)
    hashes = [p["ft_act_fnv1a64"] for p in positions if "ft_act_fnv1a64" in p]
    assert len(hashes) == (106 if name in ("sfnnv5", "sfnnv16", "sfnnv17") else 0)
    if hashes:
        assert [
            fnv1a64(row) for row in first_activations(present(net.net.integer_forward()), net.tensors, batch)
        ] == hashes


def test_a_whole_net_is_imported_and_exported_unchanged() -> None:
    net = golden_net("sfnnv17")
    again = net_from_checkpoint(checkpoint_from_net(net, "golden"), "golden")
    assert (again.net, again.layout, again.description) == (net.net, net.layout, net.description)
    for tensor, values in net.tensors.items():
        np.testing.assert_array_equal(again.tensors[tensor], values, err_msg=tensor)
