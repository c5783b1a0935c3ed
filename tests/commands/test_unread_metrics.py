"""What is advised where a program reported no metric: a rule that reads what it printed."""

import re
import time
from pathlib import Path

import pytest

from hpcml.commands.unread_metrics import (
    rule_of_name,
    rule_of_numbers,
    rule_of_rows,
    rule_of_table,
    suggested_rule,
    suggested_rules,
)
from hpcml.config.compose import compose_from_cli
from hpcml.model.failure_causes import printed_lines

PRINTED = {
    "====> Test set loss: 309.7743": ("test_set_loss", "309.7743"),
    "Epoch 3/3\n 12/12 - 0s - loss: 0.5066 - mae: 0.51 - val_loss: 0.7081": ("val_loss", "0.7081"),
    " *   Acc@1 0.000 Acc@5 25.000": ("acc_5", "25.000"),
    "epoch 2: train loss 0.12, val loss 0.95 (4.1 s)": ("val_loss", "0.95"),
    "step 10 accuracy=93.5%": ("accuracy", "93.5%"),
    "Validation Accuracy : 0.93": ("validation_accuracy", "0.93"),
    '{"step":19,"loss":5.76,"time":1795620561000}': ("loss", "5.76"),
    "{'step': 19, 'eval_loss': 5.76}": ("eval_loss", "5.76"),
    '{"acc": 0.5}': ("acc", "0.5"),
    "Average Loss 1e-3 | lr 0.1": ("average_loss", "1e-3"),
    "The RMSE of prediction is: 0.445": ("the_rmse_of_prediction", "0.445"),
    "The ROC AUC of loaded model's prediction is: 0.79": ("the_roc_auc_of_loaded_model_s_prediction", "0.79"),
    "Accuracy on test set = 0.97": ("accuracy_on_test_set", "0.97"),
    "Accuracy of the network on the 10000 test images: 54 %": ("accuracy_of_the_network_on_the_test_images", "54"),
    "loss after 20 steps was 0.5": ("loss_after_steps", "0.5"),
    "Epoch 2 perte_validée loss: 0.25": ("perte_validée_loss", "0.25"),
    "Step   19: train CrossEntropyLoss | 0.25": ("train_crossentropyloss", "0.25"),
    "[ 40/40] train: 0.0026 | valid: 0.0029 | lr: 0.05": ("valid", "0.0029"),
    "train=0.5 test=0.75, 812.5 img/s": ("test", "0.75"),
    "global_step=512, episodic_return=[16.]": ("episodic_return", "[16.]"),
    "Grind time (us/z/c)  =  30.52 (per dom)\nFOM                  =  32.76 (z/s)": ("fom", "32.76"),
    "HPCG result is VALID with a GFLOP/s rating of=0.48": ("hpcg_result_is_valid_with_a_gflop_per_s", "0.48"),
    "[40]\tvalid_0's l2: 0.83": ("valid_0_s_l2", "0.83"),
    "achieved tok/s: 512.5": ("achieved_tok_per_s", "512.5"),
    "TFLOP/s/GPU: 46.2": ("tflop_per_s_per_gpu", "46.2"),
    "epoch 2 loss 0.5 throughput: 812.5 img/s": ("loss", "0.5"),
    "loss of precision in 3 layers: 7\nmean loss 0.25": ("mean_loss", "0.25"),
}


def test_a_rule_is_suggested_that_reads_the_last_value_printed(tmp_path: Path) -> None:
    suggested = ", ".join((suggested_rule(printed) or ("none", ""))[0] for printed in PRINTED)

    (point,) = compose_from_cli(["workload.command=true", f"workload.metrics=[{suggested}]"], project=tmp_path)

    for rule, (printed, (name, value)) in zip(point.run.workload.metrics, PRINTED.items(), strict=True):
        found = re.search(rule.pattern, printed.splitlines()[-1])
        assert found is not None, rule
        assert (rule.name, found["value"].rstrip(",")) == (name, value)


LLAMA2_C = """step 0: train loss 6.2401, val loss 6.2218
0 | loss 6.2306 | lr 0.000000e+00 | 203.23ms | mfu -100.00%
step 20: train loss 5.7770, val loss 5.7835
20 | loss 5.7918 | lr 3.056302e-04 | 109.75ms | mfu 0.00%
"""
LIGHTGBM = """[1]\tvalid's l2: 0.6
[2]\tvalid's l2: 0.4
[3]\tvalid's l2: 0.5
Early stopping, best iteration is:
[2]\tvalid's l2: 0.4
"""
BEST_LAST = """Epoch 0/1
train Loss: 0.6 Acc: 0.7
val Loss: 0.3 Acc: 0.9
Epoch 1/1
train Loss: 0.4 Acc: 0.8
val Loss: 0.4 Acc: 0.85
Best val Acc: 0.900000
"""
PYG = """Epoch: 001, Loss: 1.9, Train: 0.5, Val: 0.4, Test: 0.45
Epoch: 002, Loss: 1.8, Train: 0.6, Val: 0.5, Test: 0.55
Best Val: 0.5, Test: 0.55
"""
IGNITE = """Training Results - Epoch: 1 Avg loss: 2.26
Validation Results - Epoch: 1 Avg loss: 2.27
Training Results - Epoch: 2 Avg loss: 2.17
Validation Results - Epoch: 2 Avg loss: 2.19
"""


@pytest.mark.parametrize(
    "printed",
    [
        "Training on cpu\nepoch   loss    acc\n    1  0.523  81.2%\n    2  0.500  82.0%\ndone\n",
        "┏━━━━┳━━━━┓\n┃ Epoch ┃ Loss ┃ Acc ┃\n┡━━━━╇━━━━┩\n│ 1 │ 0.523 │ 81.2% │\n│ 2 │ 0.500 │ 82.0% │\n└────┘\n",
        "| Epoch | Loss | Acc |\n|-------|------|-----|\n| 1/2 | 0.523 | 81.2% |\n| 2/2 | 0.500 | 82.0% |\n",
    ],
)
def test_a_rule_is_suggested_that_reads_the_rows_of_a_table(printed: str, tmp_path: Path) -> None:
    assert suggested_rule(printed) is None
    words = ["workload.command=true", f"workload.metrics=[{rule_of_table(printed)}]"]

    (point,) = compose_from_cli(words, project=tmp_path)

    (rule,) = point.run.workload.metrics
    found = [line for line in map(re.compile(rule.pattern).search, printed.splitlines()) if line is not None]
    assert [row.groupdict() for row in found] == [
        {"step": "1", "loss": "0.523", "acc": "81.2%"},
        {"step": "2", "loss": "0.500", "acc": "82.0%"},
    ]


def test_a_column_that_rows_may_lack_ends_what_is_read_of_a_table() -> None:
    printed = (
        "  epoch    train_loss    valid_loss    cp     dur\n-------  ------------  ------------  ----  ------\n"
        "      1        0.6868        0.6742     +  0.0136\n      2        0.6730        0.6836        0.0099\n"
    )

    (rule,) = re.findall(r'pattern: "(.*)"', rule_of_table(printed) or "")

    found = [line.groupdict() for line in map(re.compile(rule).search, printed.splitlines()) if line is not None]
    assert found == [
        {"step": "1", "train_loss": "0.6868", "valid_loss": "0.6742"},
        {"step": "2", "train_loss": "0.6730", "valid_loss": "0.6836"},
    ]


@pytest.mark.parametrize(
    ("printed", "rows"),
    [
        ("epoch 0: 66.7\nepoch 1: 81.2\nepoch 2: 90.0\n", [("0", "66.7"), ("1", "81.2"), ("2", "90.0")]),
        (
            "0 2.5 0.1\n5 2.25 nan\n9 2 0.3\nDone in 3 s\n",
            [("0", "2.5", "0.1"), ("5", "2.25", "nan"), ("9", "2", "0.3")],
        ),
        ("| 1 | 0.5 |\n| 2 | 1e-3 |\n| 3 | -.2 |\n", [("1", "0.5"), ("2", "1e-3"), ("3", "-.2")]),
    ],
)
def test_numbers_without_a_name_are_read_by_their_places(
    printed: str, rows: list[tuple[str, ...]], tmp_path: Path
) -> None:
    words = ["workload.command=true", f"workload.metrics=[{rule_of_numbers(printed)}]"]

    (point,) = compose_from_cli(words, project=tmp_path)

    (rule,) = point.run.workload.metrics
    found = filter(None, map(re.compile(rule.pattern).search, printed.splitlines()))
    assert [row.groups() for row in found] == rows


def test_a_bar_behind_numbers_without_a_name_is_passed_over_in_no_time() -> None:
    (pattern,) = re.findall('"(.*)"', rule_of_numbers("0 2.5\n1 2.25\n2 2.\n") or "")

    assert [re.findall(pattern, line) for line in ("7 0.5 %", "8 1e-3")] == [[("7", "0.5")], [("8", "1e-3")]]
    begun_s = time.process_time()
    assert re.search(pattern, f"1 {'-' * 30_000} x") is None
    assert time.process_time() - begun_s < 2  # it was ten, and four times that for twice as long a bar


@pytest.mark.parametrize(
    "printed",
    [
        "1 2 3\n2 3 4\n3 4 5\n",  # a matrix, say
        "0.5\n0.25\n0.125\n",
        "3 0.5\n2 0.5\n1 0.5\n",
        "1 0.5\n2 0.5\n",
        "1 0.5\n2 0.5 0.5\n3 0.5\n",
        "2026-11-27 20:00:00\n2026-11-27 20:00:01\n2026-11-27 20:00:02\n",
        f"1 {'12345678 ' * 20} x\n" * 3,  # to be answered before the sun burns out
        "",
    ],
)
def test_other_numbers_are_no_metrics(printed: str) -> None:
    assert rule_of_numbers(printed) is None


def test_a_table_by_steps_is_one_of_metrics_whatever_they_are_called() -> None:
    printed = "Step     Temp     E_pair\n   0     1.44     -6.77\n  10     1.30     -6.55\nLoop time 0.5\n"

    assert rule_of_table(printed) == r'{pattern: "^[ |]*(?P<step>\d+)\S*[ |]+(?P<temp>\S+)[ |]+(?P<e_pair>\S+)[ |]*$"}'


def test_a_column_of_a_table_may_have_a_name_of_several_words() -> None:
    printed = (
        "E    #       LOSS TEXTCAT  SCORE \n---  ------  ------------  ------\n  0       0          0.25    0.88\n"
    )

    assert rule_of_table(printed) == (
        r'{pattern: "^[ |]*(?P<e>\S+)[ |]+(?P<step>\d+)\S*[ |]+(?P<loss_textcat>\S+)[ |]+(?P<score>\S+)[ |]*$"}'
    )


def test_a_column_may_hold_durations() -> None:
    printed = "      Iter       Train Loss   Remaining Time \n         1           0.6023            0.80s\n"

    assert (
        rule_of_table(printed)
        == rule_of_table(printed.replace("0.80s", "00:03"))
        == (r'{pattern: "^[ |]*(?P<step>\d+)\S*[ |]+(?P<train_loss>\S+)[ |]+(?P<remaining_time>\S+)[ |]*$"}')
    )


@pytest.mark.parametrize(
    "printed", ["total used free\n1 2 3\n", "epoch loss\n1 2 3\n", "loss loss\n1 2\n", "loss\n1\n", ""]
)
def test_no_rule_is_suggested_for_other_tables(printed: str) -> None:
    assert rule_of_table(printed) is None


@pytest.mark.parametrize(
    ("printed", "name", "values"),
    [
        ("Test set: loss: 0.03, Accuracy: 942/1000 (94%)\n", "accuracy", ["942/1000"]),
        # Haiku's examples, and Transformers' Trainer: a dictionary of texts
        ("{'step': 0, 'accuracy': '0.119'}\n{'step': 9, 'accuracy': '0.326'}\n", "accuracy", ["'0.119'", "'0.326'"]),
        ('{"loss": "0.69", "epoch": "0.5"}\n{"eval_loss": "0.5"}\n', "eval_loss", ['"0.5"']),
        ("Accuracy: 942 / 1000 (94%)\nAccuracy: 950 / 1000 (95%)\n", "accuracy", ["942 / 1000", "950 / 1000"]),
        ("mAP@0.5: 0.634\n", "map_0_5", ["0.634"]),
        (
            IGNITE,
            "validation_avg_loss",
            ["2.27", "2.19"],
        ),
        ("val_loss=0.9\nloss=0.5\nval_loss=0.8\nloss=0.4\n", "val_loss", ["0.9", "0.8"]),
        ("ema_loss=0.9\nloss=0.5\nema_loss=0.8\nloss=0.4\n", "loss", ["0.5", "0.4"]),
        (LLAMA2_C, "val_loss", ["6.2218", "5.7835"]),
        (LLAMA2_C.replace("val", "other"), "loss", ["6.2306", "5.7918"]),
        ("val loss 5.30\nstep 40: train loss 5.29 (took 9.03 ms)\n", "val_loss", ["5.30"]),
        ("epoch 1 loss 0.5\nepoch 2 loss 0.4\n", "loss", ["0.5", "0.4"]),
        ("loss after 5 steps: 0.5\nloss after 10 steps: 0.4\n", "loss_after_steps", ["0.5", "0.4"]),
        (
            "\x1b[2K\x1b[1G1 \x1b[32mloss\x1b[0m: 0.5 acc: 71.0%\x1b[2K\x1b[1G2 \x1b[32mloss\x1b[0m: 0.4 acc: 72.0%\n",
            "acc",
            ["71.0%", "72.0%"],
        ),
        (
            "[0]\teval-error:0.2\ttrain-error:0.1\n[1]\teval-error:0.12\ttrain-error:0.05\n",
            "eval_error",
            ["0.2", "0.12"],
        ),
        (
            2 * "|    ep_rew_mean      | 22.3     |\n|    loss             | 5.1      |\n",
            "ep_rew_mean",
            ["22.3", "22.3"],
        ),
        ("loss: 0.5\nachieved tok/s: 812.5\n", "loss", ["0.5"]),
        ("epoch 1 val/loss: 0.5 val/acc: 0.7\n", "val_acc", ["0.7"]),
        ("Train Epoch: 1 [0/9]\tLoss: 2.3\nTest: Loss: 2.1\n", "test_loss", ["2.1"]),
        (BEST_LAST, "val_acc", ["0.9", "0.85"]),
        ("Epoch 1 val_loss 0.9\nEpoch 2 val_loss 0.8\nBest val_loss 0.8\n", "val_loss", ["0.9", "0.8"]),
        ("Epoch 1 loss 0.9\nBest val_loss 0.8\n", "best_val_loss", ["0.8"]),
        (PYG, "val", ["0.4,", "0.5,"]),  # beside a test, by which no setting is chosen
        ("loss 0.5 | Time train: 1.25 eval: 0.31\n", "loss", ["0.5"]),
        ("loss 0.5 eval: 0.31 s\n", "loss", ["0.5"]),
        ("loss 0.5 eval: 0.31, time: 2.5\n", "eval", ["0.31,"]),
        ("|    AverageEpRet |     22.5 |\n|      LossPi |      0.5 |\n", "averageepret", ["22.5"]),
        ("Loss_D: 1.8 Loss_G: 5.1 D(x): 0.5\n", "loss_g", ["5.1"]),
        ("total_loss: 0.7  loss_cls: 0.2\n", "total_loss", ["0.7"]),
        ("loss: 0.7 loss_scale: 65536.0\n", "loss", ["0.7"]),
        ("loss0.5\n", "loss", ["0.5"]),
        ("loss 0.5\nClass  Images  Box(P  mAP50  mAP50-95)\n", "loss", ["0.5"]),
        ("cross-entropy : 90.1 : new best\nlr 0.1\n", "cross_entropy", ["90.1"]),
        ("loss 0.5\nTotal cost: 3.2 EUR\n", "loss", ["0.5"]),
        ("Epoch 1 loss: tensor(0.75, grad_fn=<MseLossBackward0>)\n", "loss", ["tensor(0.75,"]),
        ("{'time': 0.1, 'logloss': np.float64(0.25)}\n", "logloss", ["np.float64(0.25)"]),
        ("[0]\teval-error:0.2+0.01\n[1]\teval-error:0.1+0.02\n", "eval_error", ["0.2", "0.1"]),  # xgboost.cv
        ("Accuracy: 0.91±0.02\n", "accuracy", ["0.91"]),
        ("loss:0.5|val_acc:0.9\nloss:0.4|val_acc:nan\n", "val_acc", ["0.9", "nan"]),
        ("loss:0.5|lr:0.1\n", "loss", ["0.5"]),
        ("All runs: train 0.5\nFinal Test: 81.46 ± 0.63\n", "test", ["81.46"]),
        ("loss 0.5\n{'lambda_l1': 0.25, 'n_units_l2': 64, 'bitmap': 3}\nstderr: 3\n", "loss", ["0.5"]),
        ("val_l1: 0.25\n", "val_l1", ["0.25"]),
        (
            "┃  Test metric  ┃ DataLoader 0 ┃\n│   test_acc    │     0.552    │\n└───────────────┘\n",
            "test_acc",
            ["0.552"],
        ),
        ("Mop/s total     =    67.12\nMop/s/thread    =    33.56\n", "mop_per_s_total", ["67.12"]),
        ("f1_score: 0.6\nf1_score: 0.7\n", "f1_score", ["0.6", "0.7"]),
        (  # the history at the end begins with the first epoch
            "1/1 - loss: 0.9 - val_mse: 0.8\n1/1 - loss: 0.5 - val_mse: 0.6\n{'a': [0.9, 1], 'val_mse': [0.8, 0.6]}\n",
            "val_mse",
            ["0.8", "0.6"],
        ),
        ("a2c_loss=0.6 top5_acc=0.7\n", "top5_acc", ["0.7"]),
        ("epoch1/v2_loss: 0.6\nepoch2/v2_loss: 0.5\n", "v2_loss", ["0.6", "0.5"]),
        (f"{'very_long_' * 5}loss: 0.6\n", f"{'very_long_' * 5}loss", ["0.6"]),
        (f"{'x' * 70}loss: 0.6\n", "loss", ["0.6"]),
    ],
)
def test_the_suggested_rule_reads_one_kind_of_line(printed: str, name: str, values: list[str], tmp_path: Path) -> None:
    rule_text, called = suggested_rule(printed) or ("", "")

    (point,) = compose_from_cli(["workload.command=true", f"workload.metrics=[{rule_text}]"], project=tmp_path)

    (rule,) = point.run.workload.metrics
    assert rule.name == called == name
    found = [match for line in printed_lines(printed) for match in re.finditer(rule.pattern, line)]
    assert [match["value"] for match in found] == values


@pytest.mark.parametrize(
    ("printed", "steps"),
    [
        (LLAMA2_C, ["0", "20"]),
        ("Epoch 1 step 9: loss 0.5\nEpoch 1 step 19: loss 0.4\n", ["9", "19"]),
        ("Iteration: 100 | loss=0.5\nIteration: 200 | loss=0.4\n", ["100", "200"]),
        ('{"step": 9, "loss": 5.8}\n{"step": 19, "loss": 5.7}\n', ["9", "19"]),
        ("epoch 1/2 loss 0.5\nepoch 2/2 loss 0.4\n", ["1", "2"]),
        ("epoch 1 loss 0.5\nepoch 1 loss 0.4\nepoch 2 loss 0.3\n", []),  # several of one epoch: they are numbered
        ("step 9 loss 0.5\nloss 0.4\n", []),  # one has none
        ("step 500, loss 0.5\nstep 1,000, loss 0.4\n", ["500", "1,000"]),
        ("step 20 loss 0.5\nstep 10 loss 0.4\n", []),  # begun anew
        ("[5]\ttrain-error:0.1\teval-error:0.2\n[10]\ttrain-error:0.1\teval-error:0.2\n", ["5", "10"]),  # XGBoost
        ("[10/30] loss=0.5\n[20/30] loss=0.4\n", ["10", "20"]),
        ("[1/2][1/9] Loss_D: 0.5\n[1/2][2/9] Loss_D: 0.4\n", []),  # batches of one epoch
        (LIGHTGBM, ["1", "2", "3", "2"]),
        (LIGHTGBM.replace("0.4\n", "0.6\n", 1), []),
        ("[1, 2000] loss: 0.5\n[2, 2000] loss: 0.4\n", []),
        ("loss 0.5 at step 9\nloss 0.4 at step 19\n", []),
        ("0:\tlearn: 0.7\ttest: 0.8\tbest: 0.8 (0)\n100:\tlearn: 0.5\ttest: 0.6\tbest: 0.6 (99)\n", ["0", "100"]),
        ("Episode 10\tLast reward: 12.0\nEpisode 20\tLast reward: 22.0\n", ["10", "20"]),
        ("Epoch 1 val_loss 0.9\nEpoch 2 val_loss 0.8\nBest val_loss 0.8\n", ["1", "2"]),
    ],
)
def test_the_suggested_rule_reads_the_step_that_stands_before_each_value(
    printed: str, steps: list[str], tmp_path: Path
) -> None:
    rule_text, _ = suggested_rule(printed) or ("", "")

    (point,) = compose_from_cli(["workload.command=true", f"workload.metrics=[{rule_text}]"], project=tmp_path)

    (rule,) = point.run.workload.metrics
    found = [match.groupdict() for line in printed_lines(printed) for match in re.finditer(rule.pattern, line)]
    assert [match["step"] for match in found if "step" in match] == steps
    assert all(match["value"] for match in found)


@pytest.mark.parametrize(
    ("printed", "names"),
    [
        ("epoch 1: loss 0.5, val_acc 0.75\n", ["val_acc", "loss"]),
        ("episodic_return=16.0\npolicy loss: 0.25\n", ["episodic_return", "policy_loss"]),
        ("epoch 1: train loss 0.5, val loss 0.75\n", ["val_loss"]),
        ("accuracy 0.75\n", ["accuracy"]),
    ],
)
def test_a_loss_is_advised_beside_another_metric(printed: str, names: list[str], tmp_path: Path) -> None:
    rules = suggested_rules(printed)

    assert [name for _, name in rules] == names
    words = f"workload.metrics=[{', '.join(rule for rule, _ in rules)}]"
    (point,) = compose_from_cli(["workload.command=true", words], project=tmp_path)
    for rule in point.run.workload.metrics:
        assert re.search(rule.pattern, printed)


OPTUNA = """Epoch 1 val_loss 0.7
[I 20:45:54,520] Trial 0 finished with value: -1.5 and parameters: {'drop_l1': 0.3}. Best is trial 0 with value: -1.5.
[I 20:45:55,205] Trial 1 finished with value: 2e-05 and parameters: {'lr': 0.2}. Best is trial 0 with value: -1.5.
[I 20:45:56,205] Trial 2 pruned.
[I 20:45:57,205] Trial 3 finished with value: -2.0 and parameters: {'lr': 0.3}. Best is trial 3 with value: -2.0.
"""


def test_a_study_of_trials_is_judged_by_the_best_of_them(tmp_path: Path) -> None:
    ((rule_text, name),) = suggested_rules(OPTUNA)

    (point,) = compose_from_cli(["workload.command=true", f"workload.metrics=[{rule_text}]"], project=tmp_path)

    (rule,) = point.run.workload.metrics
    assert name == "best_value"
    assert [match.groups() for match in re.finditer(rule.pattern, OPTUNA)] == [
        ("0", "-1.5", "-1.5"),
        ("1", "2e-05", "-1.5"),
        ("3", "-2.0", "-2.0"),
    ]


OPENFOAM = """Time = 0.5

Courant Number mean: 0.222158 max: 0.852134
smoothSolver:  Solving for Ux, Initial residual = 2.3e-07, Final residual = 2.3e-07, No Iterations 0
smoothSolver:  Solving for Uy, Initial residual = 5.1e-07, Final residual = 5.1e-07, No Iterations 0
DICPCG:  Solving for p, Initial residual = 1.07e-06, Final residual = 1.07e-06, No Iterations 0
time step continuity errors : sum local = 8.8e-09, global = 4.9e-19, cumulative = -1.0e-17
ExecutionTime = 0.16 s  ClockTime = 0 s
"""


def test_residuals_of_fields_are_advised_by_one_rule_that_names_each(tmp_path: Path) -> None:
    ((rule_text, name),) = suggested_rules(OPENFOAM)
    words = ["workload.command=true", f"workload.metrics=[{rule_text}]"]

    (point,) = compose_from_cli(words, project=tmp_path)

    (rule,) = point.run.workload.metrics
    found = [(each["name"], each["value"]) for each in re.finditer(rule.pattern, OPENFOAM)]
    assert (name, found) == ("p", [("Ux", "2.3e-07"), ("Uy", "5.1e-07"), ("p", "1.07e-06")])


@pytest.mark.parametrize(
    ("printed", "value"),
    [
        ("Final Resid Norm: 2.1e-15\n", "2.1e-15"),
        ("  0 KSP Residual norm 1.2e+01\n  1 KSP Residual norm 3.4e-02\n", "3.4e-02"),
        ("residual = 1e-05\nFOM: 3.5\n", "3.5"),
    ],
)
def test_a_residual_is_advised_where_nothing_else_is(printed: str, value: str) -> None:
    ((rule, _),) = suggested_rules(printed)
    pattern = rule.partition('"')[2].rpartition('"')[0]

    assert [each["value"] for each in re.finditer(pattern, printed)][-1] == value


STREAM = """-------------------------------------------------------------
Function    Best Rate MB/s  Avg time     Min time     Max time
Copy:           18549.5     0.008656     0.008626     0.008702
Triad:          20301.1     0.011856     0.011822     0.011902
-------------------------------------------------------------
Solution Validates: avg error less than 1.000000e-13 on all three arrays
"""
HPL = """================================================================================
T/V                N    NB     P     Q               Time                 Gflops
--------------------------------------------------------------------------------
WR11C2R4        1000   192     1     2               0.53             1.2605e+00
HPL_pdgesv() start time Fri Nov 27 12:55:58 2026
"""


@pytest.mark.parametrize(
    ("printed", "name", "values"),
    [
        (STREAM, "Triad", {"Copy": "18549.5", "Triad": "20301.1"}),
        (HPL, "gflops", {"gflops": "1.2605e+00"}),
    ],
)
def test_rows_of_a_benchmark_that_begin_with_a_word_are_read(
    printed: str, name: str, values: dict[str, str], tmp_path: Path
) -> None:
    ((rule_text, called),) = suggested_rules(printed)
    words = ["workload.command=true", f"workload.metrics=[{rule_text}]"]

    (point,) = compose_from_cli(words, project=tmp_path)

    (rule,) = point.run.workload.metrics
    found = [each.groupdict() for line in printed.splitlines() for each in re.finditer(rule.pattern, line)]
    assert called == name
    assert {each.get("name", rule.name): each["value"] for each in found} == values


@pytest.mark.parametrize(
    "printed",
    [
        "Name   Size   Score of\nconv1  3 x 3  10\n",
        "Layer  Params  Output\nconv1  320  26\n",
        "total  error  rate\nabc def ghi\n",
        "Copy: 3 4\n",
    ],
)
def test_rows_that_measure_nothing_are_none(printed: str) -> None:
    assert rule_of_rows(printed) is None


COMD = """\
#                                                                          Performance
#  Loop   Time(fs)       Total Energy    Temperature   (us/atom)     # Atoms
      0       0.00    -1.166063303478       600.0000     0.0000         4000
     10      10.00    -1.166059664379       519.3136     5.4959         4000
Ending simulation
"""


def test_a_comment_may_name_the_columns_that_are_printed() -> None:
    found = re.findall((rule_of_table(COMD) or "").partition('"')[2].rpartition('"')[0], COMD, re.MULTILINE)

    assert found == [
        ("0", "0.00", "-1.166063303478", "600.0000", "0.0000", "4000"),
        ("10", "10.00", "-1.166059664379", "519.3136", "5.4959", "4000"),
    ]


def test_the_work_of_a_model_is_no_rate() -> None:
    printed = "┃ Name ┃ Params ┃ FLOPs ┃\nTotal FLOPs: 0   \nGFLOPs: 4\nflops = 12\n"

    assert suggested_rules(printed) == []
    assert rule_of_name("Total FLOPs: 1.5 M\nTotal params: 0.5 M\n") is None
    assert suggested_rules(f"{printed}loss: 0.5\n")[0][1] == "loss"
    assert suggested_rules(f"{printed}FLOPs/s: 12\n")[0][1] == "flops_per_s"
    assert suggested_rules(f"{printed}gflops: 12\n")[0][1] == "gflops"


NPB = """ Error is    0.1659688947021E-12
 CG Benchmark Completed.
 Time in seconds =                     0.04
 Mop/s total     =                  1653.70
 Mop/s/thread    =                   826.85
 Version         =                    3.3.1
"""


@pytest.mark.parametrize(
    ("printed", "name", "value"),
    [
        (NPB, "mop_per_s_total", "1653.70"),
        (NPB.replace("Mop/s total", "Cells      "), "mop_per_s_per_thread", "826.85"),
        ("error: 0.3\nerror: 0.2\nFLOPS = 3.5\n", "error", "0.2"),  # of a training
        ("validation error: 0.2\nTFLOPS = 3.5\n", "validation_error", "0.2"),
        (" it=   1 resid=  0.100000D+00 energy= -0.1D-02\n it=   2 resid=  0.100000D-01\n", "resid", "0.100000D-01"),
    ],
)
def test_a_benchmark_is_read_by_its_rate_and_fortran_by_its_exponents(printed: str, name: str, value: str) -> None:
    ((rule, named), *_) = suggested_rules(printed)
    pattern = rule.partition('"')[2].rpartition('"')[0]

    assert (named, [each["value"] for each in re.finditer(pattern, printed)][-1]) == (name, value)


@pytest.mark.parametrize(
    ("printed", "name", "value"),
    [
        ("n = 100000\npi estimate: 3.14156\nElapsed time: 0.021 s\n", "pi_estimate", "3.14156"),
        ("using 8 threads\nElapsed time         =       0.14 (s)\n", "elapsed_time", "0.14"),
        (" Total energy =   -1.2345678000000001     \n", "total_energy", "-1.2345678000000001"),
        ("step 10: magnetization = 0.512\nstep 20: magnetization = 0.498\n", "magnetization", "0.498"),
        (" norm= 1.D-03\n", "norm", "1.D-03"),
        ("Total energy (Hartree) = -76.0268\n", "total_energy_hartree", "-76.0268"),
        ("E(eV)    -3.5\nE(eV) : -3.512\n", "e_ev", "-3.512"),
        ("f(x = 1.5\nspeed) = 2.5\n", "speed", "2.5"),
        ("f(x = 1.5\n", "f_x", "1.5"),
        (" ENERGY| Total FORCE_EVAL ( QS ) energy [a.u.]:    -17.1643\n", "energy_a_u", "-17.1643"),
    ],
)
def test_any_name_with_a_fraction_is_advised_where_nothing_else_is(
    printed: str, name: str, value: str, tmp_path: Path
) -> None:
    assert suggested_rules(printed) == []
    rule_text, named = rule_of_name(printed) or ("", "")
    (point,) = compose_from_cli(["workload.command=true", f"workload.metrics=[{rule_text}]"], project=tmp_path)

    (rule,) = point.run.workload.metrics
    assert (named, [each["value"] for each in re.finditer(rule.pattern, printed)][-1]) == (name, value)


@pytest.mark.parametrize(
    "printed",
    [
        "",
        "pid 12",
        "threads: 4",
        "version: 3.3.1",
        "tolerance = 1e-6\ndt = 0.01\nlr: 0.1",
        "http://x:80.html",
        "10:32:11.5 start",
        "||u - u_h||_2 = 0.0012",
    ],
)
def test_settings_and_counts_are_no_results(printed: str) -> None:
    assert rule_of_name(printed) is None


@pytest.mark.parametrize(
    "printed",
    [
        *("", "done", "loading data 100%", "loss", "no error 404.html was lost", "pid 12", "test: 100%", "test: 3"),
        "COMET INFO:     train_loss [10] : (0.5285002167428365, 1.0089024392083714)",  # how many, from, to
    ],
)
def test_nothing_is_suggested_where_no_line_looks_like_a_metric(printed: str) -> None:
    assert suggested_rule(printed) is None


@pytest.mark.parametrize("text", [("loss" * 99 + "0.5\n") * 160, ("a" * 399 + "5\n") * 160], ids=["names", "letters"])
def test_long_words_with_digits_are_looked_at_in_no_time(text: str) -> None:
    rule = r'{pattern: "val_acc=(?P<value>\S+)", name: val_acc}'

    begun_s = time.process_time()
    assert suggested_rules(f"{text}val_acc=0.93\n")[0] == (rule, "val_acc")
    assert time.process_time() - begun_s < 10  # it was a minute


@pytest.mark.parametrize("line", ["word " * 6000, "a" * 30000, "loss " * 6000], ids=["words", "letters", "names"])
def test_a_line_without_end_is_looked_at_in_no_time(line: str) -> None:
    rule = r'{pattern: "val_acc=(?P<value>\S+)", name: val_acc}'

    assert suggested_rule(f"val_acc=0.93\n{line}") == (rule, "val_acc")
    assert rule_of_name(f"energy=0.93\n{line}") == (rule.replace("val_acc", "energy"), "energy")
