"""From training to a file on a microcontroller: train clients at few bits, write one model as C, compile and run it.

    python examples/microcontroller.py

The C file needs no library and no heap. Any C99 compiler takes it: for a Cortex-M, `arm-none-eabi-gcc`.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from quped import Client, Federation, Quantization, QuPeD
from quped.data import subset
from quped.data.datasets import DATASETS
from quped.data.partition import split
from quped.models import build

MAIN = """
#include <stdio.h>
void sensor_predict(const float *input, float *scores);
int main(void) {
    float input[64], scores[10];
    for (;;) {
        for (int i = 0; i < 64; i++) if (scanf("%f", &input[i]) != 1) return 0;
        sensor_predict(input, scores);
        int best = 0;
        for (int i = 1; i < 10; i++) if (scores[i] > scores[best]) best = i;
        printf("%d\\n", best);
    }
}
"""

torch.manual_seed(0)
digits = DATASETS["digits"]()
network = build("mlp", digits.input_shape, digits.classes, hidden=(32, 64, 32))
clients = [
    Client(f"sensor-{i}", subset(digits.train, s.train), subset(digits.test, s.test), network, bits=1, end_bits=8)
    for i, s in enumerate(split(digits, "classes=5", 4, seed=0))
]
algorithm = QuPeD(lambda_p=0.5, warmup_epochs=12, quantization=Quantization(straight_through=True))
result = Federation(clients, algorithm).fit(epochs=24, local_steps=5, lr=0.3, progress=False)
first = result.clients[0]
print(f"{first.name}: {first.accuracy:.1%}, {first.bytes_packed} bytes of weights instead of {first.bytes_float32}")

folder = Path(tempfile.mkdtemp())
print(f"{folder / 'sensor.c'}: {result.export_c('sensor-0', folder / 'sensor.c')}")
if (compiler := shutil.which("cc")) is not None:
    (folder / "main.c").write_text(MAIN)
    subprocess.run([compiler, "-std=c99", "-Os", "sensor.c", "main.c", "-o", "sensor"], cwd=folder, check=True)
    batch = clients[0].test.batch(torch.arange(len(clients[0].test)))
    numbers = " ".join(map(str, batch.inputs[0].flatten().tolist()))
    answers = subprocess.run([folder / "sensor"], input=numbers, capture_output=True, text=True, check=True).stdout
    right = sum(int(answer) == label for answer, label in zip(answers.split(), batch.labels.tolist(), strict=True))
    print(f"The compiled program: {right / len(batch.labels):.1%}, the same network in C")
