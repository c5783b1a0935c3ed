"""What is advised where a program reported no metric: a rule that reads what it printed."""

import re
import time
from pathlib import Path

from hpcml.agent.metrics.numbers import number_or_share, plain
from hpcml.commands.unread_metrics import named_numbers
from hpcml.config.compose import compose_from_cli
from hpcml.model.failure_causes import printed_lines

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
# what was printed: names and last values that are shown, and what the rule for the first reads (with steps)
EXAMPLES: dict[str, tuple[str, list[str]]] = {
    KERAS: ("val_loss 0.7081, val_accuracy 0.8000, loss 0.5066", ["0.8081", "0.7081"]),
    TRAINER: ("eval_loss 0.5, loss 0.69, train_loss 0.69", ["0.5"]),
    LIGHTNING: ("test_loss 1.25, test_acc 0.552", ["1.25"]),
    NANOGPT: ("val_loss 5.7835, loss 5.7918, train_loss 5.7770", ["0 6.2218", "20 5.7835"]),
    TIMM: ("loss 6.90, acc_1 70.100, acc_5 90.250", ["6.90"]),
    MNIST: ("test_average_loss 0.0300, test_accuracy 9420/10000, loss 2.300000", ["0.03"]),
    TUTORIAL: ("val_loss 0.4, val_acc 0.85, train_loss 0.4", ["0.3", "0.4"]),
    REWARDS: ("ep_rew_mean 22.3, loss 5.1", ["22.3", "22.3"]),
    "so the final average loss 0.5\nloss 0.4 or so\nso the final average loss 0.3\n": (
        "loss 0.4, the_final_average_loss 0.3",
        ["0.4"],
    ),
    "it is the final average loss 0.5\n": ("the_final_average_loss 0.5", ["0.5"]),
    "Accuracy of the network on the 10000 test images: 54 %\n": ("test_images 54 %", ["54"]),
    "epoch 1 loss 0.5\nepoch 2 loss 0.4\n": ("loss 0.4", ["1 0.5", "2 0.4"]),
    "epoch 1 loss 0.5\nepoch 1 loss 0.4\n": ("loss 0.4", ["0.5", "0.4"]),
    "Epoch 1 loss: tensor(0.75, grad_fn=<MseLossBackward0>)\n": ("loss 0.75", ["1 0.75"]),
    "global_step=512, episodic_return=[16.]\n": ("episodic_return 16.", ["16"]),
    "Time in seconds = 0.04\nFOM  =  32.76 (z/s)\n": ("fom 32.76, time_in_seconds 0.04", ["32.76"]),
    "Lookups/s:   975,159\n": ("lookups_per_s 975,159", ["975159"]),
    "Total energy =   -1.25\nnorm= 1.D-03\n": ("total_energy -1.25, norm 1.D-03", ["-1.25"]),
    '{"step":19,"loss":5.76,"time":1795620561000}\n': ("loss 5.76, time 1795620561000", ["19 5.76"]),
    "Step 2 perte_validée loss: 0.25 | lr 0.1\n": ("perte_validée_loss 0.25", ["2 0.25"]),
}


def test_what_was_printed_is_shown_the_most_telling_first_by_a_rule_that_reads_all_of_its_kind(tmp_path: Path) -> None:
    firsts = [named_numbers(printed)[0] for printed in EXAMPLES]
    rules = f"workload.metrics=[{', '.join(one.rule for one in firsts)}]"

    (point,) = compose_from_cli(["workload.command=true", rules], project=tmp_path)

    for rule, (printed, (shown, read)) in zip(point.run.workload.metrics, EXAMPLES.items(), strict=True):
        found = named_numbers(printed)
        assert ", ".join(f"{one.name} {one.value}" for one in found) == shown
        assert rule.name == found[0].name
        matches = [match.groupdict() for match in map(re.compile(rule.pattern).search, printed_lines(printed)) if match]
        numbers = [f"{number_or_share(plain(match['value'], rule.name)):.9g}" for match in matches]
        steps = [f"{match['step']} " if "step" in match else "" for match in matches]
        assert [f"{step}{number}" for step, number in zip(steps, numbers, strict=True)] == [
            f"{one.rpartition(' ')[0]} ".lstrip() + f"{float(one.rpartition(' ')[2]):.9g}" for one in read
        ], printed


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
