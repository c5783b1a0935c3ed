"""What is advised where a program reported no metric: the names of the numbers that it printed."""

import time
from pathlib import Path

import pytest

from hpcml.agent.metrics.printed import StdoutScanner
from hpcml.commands.after_run import named_numbers
from hpcml.model.metric_sources import MetricRule

KERAS = """Epoch 1/2
12/12 ━━━━━━━━━━ 1s 2ms/step - accuracy: 0.5100 - loss: 0.9066 - val_accuracy: 0.6000 - val_loss: 0.8081
Epoch 2/2
12/12 ━━━━━━━━━━ 0s 2ms/step - accuracy: 0.7100 - loss: 0.5066 - val_accuracy: 0.8000 - val_loss: 0.7081
"""
TRAINER = """{'loss': '0.69', 'grad_norm': '1.25', 'learning_rate': '5e-05', 'epoch': '1.0'}
{'eval_loss': '0.5', 'eval_runtime': '0.21', 'eval_samples_per_second': '48.1', 'epoch': '1.0'}
{'train_runtime': '5.1', 'train_samples_per_second': '9.9', 'train_loss': '0.69', 'epoch': '1.0'}
"""
LIGHTNING = (
    "┃  Test metric  ┃ DataLoader 0 ┃\n│   test_acc    │     0.552    │\n│   test_loss   │     1.25     │\n└──┘\n"
)
NANOGPT = """step 0: train loss 6.2401, val loss 6.2218
iter 0: loss 6.2306, time 203.23ms, mfu -100.00%
step 20: train loss 5.7770, val loss 5.7835
iter 20: loss 5.7918, time 109.75ms, mfu 0.00%
"""
TIMM = """Train: 1 [  10/40 ( 25%)]  Loss: 6.90 (6.91)  Time: 0.5s,  812.50/s  LR: 1.0e-05  Data: 0.01 (0.02)
 * Acc@1 70.100 (29.900) Acc@5 90.250 (9.750)
"""
MNIST = """Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.300000

Test set: Average loss: 0.0300, Accuracy: 9420/10000 (94%)

"""
REWARDS = 2 * "|    ep_rew_mean      | 22.3     |\n|    loss             | 5.1      |\n"
IMAGENET = (
    "".join(
        f"Epoch: [0][ {n}/10]\tTime  0.1 ( 0.2)\tLoss 6.9e+00 (7.0e+00)\tAcc@1   {n}.12 (  2.5)\n" for n in range(9)
    )
    + "".join(f"Test: [{n}/2]\tTime  0.1 ( 0.2)\tLoss 7.1e+00 (7.1e+00)\tAcc@1   {n}.50 (  2.5)\n" for n in range(2))
    + " *   Acc@1 3.300 Acc@5 11.100\n"
)
# what was printed: names and last values that are listed, and what --metric reads of the first, with steps
EXAMPLES = [
    (KERAS, "val_loss 0.7081, val_accuracy 0.8000, loss 0.5066", ["0 0.8081", "1 0.7081"]),
    (TRAINER, "eval_loss 0.5, loss 0.69, train_loss 0.69", ["0 0.5"]),
    (LIGHTNING, "test_loss 1.25, test_acc 0.552", ["0 1.25"]),
    (NANOGPT, "val_loss 5.7835, train_loss 5.7770, mfu 0.00", ["0 6.2218", "20 5.7835"]),
    (TIMM, "Loss 6.90, Acc@1 70.100, Acc@5 90.250", ["0 6.9"]),
    (MNIST, "Average_loss 0.0300, Accuracy 9420/10000, Loss 2.300000", ["0 0.03"]),
    (REWARDS, "ep_rew_mean 22.3, loss 5.1", ["0 22.3", "1 22.3"]),
    (IMAGENET, "Acc@5 11.100", ["0 11.1"]),  # the others stand in lines of the training and of the test
    ("FOM  =  32.76 (z/s)\nTime in seconds = 0.04\n", "FOM 32.76, Time_in_seconds 0.04", ["0 32.76"]),
    ("epoch,loss,val acc\n0,0.5,0.25\n1,,0.75\n2,0.4,nan\n", "val_acc 0.75, loss 0.4", ["0 0.25", "1 0.75", "2 nan"]),
]


@pytest.mark.parametrize(("printed", "listed", "read"), EXAMPLES)
def test_what_was_printed_is_listed_the_most_telling_first_and_its_name_alone_reads_it(
    tmp_path: Path, printed: str, listed: str, read: list[str]
) -> None:
    found = named_numbers(printed)
    (tmp_path / "out").write_text(printed)
    scanner = StdoutScanner(path=tmp_path / "out", rules=[MetricRule(name=next(iter(found)))])

    assert ", ".join(f"{name} {value}" for name, value in found.items()) == listed
    assert [f"{one.step} {one.value}" for one in scanner.scan(to_the_end=True)] == read


def test_counts_settings_and_sizes_are_no_results() -> None:
    for printed in (
        *("", "done", "loading data 100%", "loss", "no error 404.html was lost", "pid 12", "threads: 4"),
        *("version: 3.3.1", "dt = 0.01\nlr: 0.1", "http://x:80.html", "10:32:11.5 start", "loss after 5 steps"),
        *("1 2 3\n2 3 4\n", "memory: 12.5 GB", "took: 2.5 s", "epoch: 3.0", "total used free\n1 2 3\n"),
    ):
        assert named_numbers(printed) == {}, printed


def test_a_line_without_end_is_looked_at_in_no_time() -> None:
    begun_s = time.process_time()
    for line in ("word " * 6000, "a" * 30000, "loss " * 6000, ("a" * 399 + "5\n") * 160, "loss 0.5 acc 0.5 " * 900):
        assert next(iter(named_numbers(f"{line}\nval_acc=0.93\n"))) == "val_acc"
    assert time.process_time() - begun_s < 10
