"""A net whose first activations need more than 15 bits, though products are shifted, for tests of engines."""

from torch import Tensor, nn

from nnue_trainer.data import Batch
from nnue_trainer.nets import FirstLayer, IntegerForward, IntegerLayer, Net, NetTensor, NnueModel, transformer
from nnue_trainer.schema import section

CLIP, SHIFT = 400, 1  # activations of 0 … 80,000


@section
class Wide(Net):
    """768 → hidden, for both perspectives, squared → 8 → 1."""

    hidden: int = 32

    feature_set = "Chess768"
    score_scale = 400.0

    def model(self) -> NnueModel:
        return WideModel(self)

    def tensors(self) -> tuple[NetTensor, ...]:
        return (
            NetTensor("first.weight", "<i2", (768, self.hidden), CLIP, 800),
            NetTensor("first.bias", "<i2", (self.hidden,), CLIP, 800),
            NetTensor("second.weight", "<i2", (8, 2 * self.hidden), 64, 127),
            NetTensor("second.bias", "<i4", (8,), 64 * 200, 2**31 - 1),
            NetTensor("output.weight", "<i2", (1, 8), 64, 127),
            NetTensor("output.bias", "<i4", (1,), 64 * 200, 2**31 - 1),
        )

    def integer_forward(self) -> IntegerForward:
        first = FirstLayer("first.bias", ("first.weight",), "screlu", clip=CLIP, product_shift=SHIFT)
        second = IntegerLayer("second.weight", "second.bias", 8, (0,), CLIP, 8, "crelu", shift=6, clip=200)
        output = IntegerLayer("output.weight", "output.bias", 1, inputs=(1,))
        return IntegerForward(first, (second, output), score_multiply=400, score_divide=64 * 200)


class WideModel(NnueModel):
    def __init__(self, net: Wide) -> None:
        super().__init__(net)
        self.first = transformer(net.feature_set, net.hidden, "screlu")
        self.second = nn.Linear(2 * net.hidden, 8)
        self.output = nn.Linear(8, 1)

    def forward(self, batch: Batch) -> Tensor:
        x, _ = self.first.of_batch(batch)
        y: Tensor = self.output(self.second(x).clamp(0, 1))
        return y.squeeze(1)
