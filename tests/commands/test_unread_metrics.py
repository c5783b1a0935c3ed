"""What is advised where a program reported no metric: a rule that reads what it printed."""

import time
from pathlib import Path

import pytest

from hpcml.agent.metrics.printed import StdoutScanner
from hpcml.commands.unread_metrics import named_numbers
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
TUTORIAL = """Epoch 0/1
train Loss: 0.6 Acc: 0.7
val Loss: 0.3 Acc: 0.9
Epoch 1/1
train Loss: 0.4 Acc: 0.8
val Loss: 0.4 Acc: 0.85
"""
REWARDS = 2 * "|    ep_rew_mean      | 22.3     |\n|    loss             | 5.1      |\n"
IMAGENET = (
    "".join(
        f"Epoch: [0][ {n}/10]\tTime  0.1 ( 0.2)\tLoss 6.9e+00 (7.0e+00)\tAcc@1   {n}.12 (  2.5)\n" for n in range(9)
    )
    + "".join(f"Test: [{n}/2]\tTime  0.1 ( 0.2)\tLoss 7.1e+00 (7.1e+00)\tAcc@1   {n}.50 (  2.5)\n" for n in range(2))
    + " *   Acc@1 3.300 Acc@5 11.100\n"
)
# what was printed: names and last values that are shown, and what --metric reads of the first (with steps); None: no
# name alone tells the lines apart
EXAMPLES: list[tuple[str, str, list[str] | None]] = [
    (KERAS, "val_loss 0.7081, val_accuracy 0.8000, loss 0.5066", ["0 0.8081", "1 0.7081"]),
    (TRAINER, "eval_loss 0.5, loss 0.69, train_loss 0.69", ["0 0.5"]),
    (LIGHTNING, "test_loss 1.25, test_acc 0.552", ["0 1.25"]),
    (NANOGPT, "val_loss 5.7835, loss 5.7918, train_loss 5.7770", ["0 6.2218", "20 5.7835"]),
    (TIMM, "Loss 6.90, Acc@1 70.100, Acc@5 90.250", ["0 6.9"]),
    (MNIST, "Average_loss 0.0300, Accuracy 9420/10000, Loss 2.300000", ["0 0.03"]),
    (TUTORIAL, "val_Loss 0.4, val_Acc 0.85, train_Loss 0.4", ["0 0.3", "1 0.4"]),
    (REWARDS, "ep_rew_mean 22.3, loss 5.1", ["0 22.3", "1 22.3"]),
    (IMAGENET, "Test_Loss 7.1e+00, Test_Acc@1 1.50, Loss 6.9e+00, Acc@1 3.300, Acc@5 11.100, Test_Time 0.1", None),
    ("so the final average loss 0.5\nloss 0.4 or so\n", "loss 0.4, the_final_average_loss 0.5", ["0 0.4"]),
    ("final loss: 0.5\n", "final_loss 0.5", ["0 0.5"]),
    ("train: loss 0.5\nvalid: loss 0.4\n", "valid_loss 0.4, loss 0.5", None),
    ("Accuracy of the network on the 10000 test images: 54 %\n", "test_images 54 %", ["0 54.0"]),
    ("epoch 1 loss 0.5\nepoch 2 loss 0.4\n", "loss 0.4", ["1 0.5", "2 0.4"]),
    ("Epoch 1 loss: tensor(0.75, grad_fn=<MseLossBackward0>)\n", "loss 0.75", ["1 0.75"]),
    ("global_step=512, episodic_return=[16.]\n", "episodic_return 16.", ["512 16.0"]),
    ("Time in seconds = 0.04\nFOM  =  32.76 (z/s)\n", "FOM 32.76, Time_in_seconds 0.04", ["0 32.76"]),
    ("Lookups/s:   975,159\n", "Lookups/s 975,159", ["0 975159.0"]),
    ("Total energy =   -1.25\nnorm= 1.D-03\n", "Total_energy -1.25, norm 1.D-03", ["0 -1.25"]),
    ('{"step":19,"loss":5.76,"time":1795620561000}\n', "loss 5.76, time 1795620561000", ["19 5.76"]),
    ("Step 2 perte_validée loss: 0.25 | lr 0.1\n", "perte_validée_loss 0.25", ["2 0.25"]),
    ("epoch,loss,val acc\n0,0.5,0.25\n1,,0.75\n2,0.4,nan\n", "val_acc 0.75, loss 0.4", ["0 0.25", "1 0.75", "2 nan"]),
]


@pytest.mark.parametrize(("printed", "shown", "read"), EXAMPLES)
def test_what_was_printed_is_shown_the_most_telling_first_and_its_name_alone_reads_it(
    tmp_path: Path, printed: str, shown: str, read: list[str] | None
) -> None:
    found = named_numbers(printed)
    (tmp_path / "out").write_text(printed)
    scanner = StdoutScanner(path=tmp_path / "out", rules=[MetricRule(name=found[0].name)])

    assert ", ".join(f"{one.name} {one.value}" for one in found[: 3 if read else 6]) == shown
    assert found[0].is_clear is (read is not None)
    if read is not None:
        assert [f"{one.step} {one.value}" for one in scanner.scan(to_the_end=True)] == read


def test_counts_settings_and_sizes_are_no_results() -> None:
    for printed in (
        *("", "done", "loading data 100%", "loss", "no error 404.html was lost", "pid 12", "threads: 4"),
        *("version: 3.3.1", "dt = 0.01\nlr: 0.1", "http://x:80.html", "10:32:11.5 start", "loss after 5 steps"),
        *("1 2 3\n2 3 4\n", "memory: 12.5 GB", "took: 2.5 s", "epoch: 3.0", "total used free\n1 2 3\n"),
    ):
        assert named_numbers(printed) == [], printed


def test_a_line_without_end_is_looked_at_in_no_time() -> None:
    begun_s = time.process_time()
    for line in ("word " * 6000, "a" * 30000, "loss " * 6000, ("a" * 399 + "5\n") * 160, "loss 0.5 acc 0.5 " * 900):
        assert named_numbers(f"{line}\nval_acc=0.93\n")[0].name == "val_acc"
    assert time.process_time() - begun_s < 10
