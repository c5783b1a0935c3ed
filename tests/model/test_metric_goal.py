from __future__ import annotations

import pytest

from hpcml.model.metric_goal import goal_by_name, is_loss, most_telling


@pytest.mark.parametrize(
    ("way", "names"),
    [
        ("min", "val_loss valid_ppl nll top1_error error_rate word_error_rate fid ece step_time_s latency_p99 kl_div"),
        ("min", "neg_log_likelihood negative_log_likelihood brier_score wall_seconds gpu_hours peak_memory_mb"),
        (
            "min",
            "time_to_accuracy seconds_to_target epochs_to_converge steps_to_0.9 text_to_image_fid speech_to_text_wer",
        ),
        ("max", "val/acc topk_acc mAP50 f1_score inception_score tokens_per_second samples/sec images_per_hour tflops"),
        (
            "max",
            "tokens/s/gpu samples_per_second_per_gpu TFLOP/s/GPU tok_s_per_gpu tflops_per_device images/sec/node",
        ),
        ("max", "mop_per_s_total tok/s_mean ns_day ns/day tau_per_day mlups gups qps performance"),
        ("min", "final_resid_norm resid total_time time_s_mean step_time_s_avg hour_per_ns"),
        ("max", "gflops_per_w samples_per_kJ images_per_joule"),
        ("min", "seconds_per_step ms/step step_time_per_gpu"),
        ("max", "bbox_mAP_s coco/segm_mAP_m AP_s AR_l"),  # of small objects, as COCO and mmdetection have it
        ("min", "loss/min val_loss/min"),  # the least, and nothing per minute
        ("min", "lpips minADE min_ade bits_per_dim val/bpd p99 latency_p99 tpot ttft_ms wall_clock energy_j"),
        ("max", "power_efficiency memory_efficiency energy_saving loss_reduction throughput_p99 bits_per_second"),
        ("max", "neg_log_loss neg_mean_squared_error neg_root_mean_squared_error neg_brier_score text_to_image_score"),
    ],
)
def test_the_words_of_a_name_tell_which_way_it_is_better(way: str, names: str) -> None:
    assert {name: told.name for name in names.split() if (told := goal_by_name(name))} == dict.fromkeys(
        names.split(), way
    )


@pytest.mark.parametrize("name", ["depth", "elo", "metric", "neg_depth", "to"])
def test_other_names_tell_nothing(name: str) -> None:
    assert goal_by_name(name) is None


@pytest.mark.parametrize(
    "names",
    [
        "charts/episodic_return losses/value_loss losses/policy_loss charts/SPS losses/entropy",
        "eval/mean_reward rollout/ep_rew_mean train/loss train/n_updates",
        "val_loss loss train_loss val_acc train_acc time_s epoch",
    ],
)
def test_what_tells_most_of_a_training_comes_first(names: str) -> None:
    assert most_telling(sorted(names.split())) == names.split()


@pytest.mark.parametrize(
    "names",
    [
        "loss_ms loss_time loss_seconds loss_ratio loss_scale loss_weight loss/grad_norm loss_per_s lossless",
        "loss_reduction packet_loss packet_loss_percent network/packet_loss path_loss_db",
        "losses/entropy losses/explained_variance losses/clipfrac losses/approx_kl losses/old_approx_kl loss/lr",
        "val_acc precision lambda loss/accuracy",
    ],
)
def test_what_only_has_the_word_in_it_is_no_loss(names: str) -> None:
    assert list(filter(is_loss, names.split())) == []


@pytest.mark.parametrize(
    "names",
    [
        "loss train_loss Loss/train loss/val Loss/G losses/policy lossD loss1 train/loss_epoch loss_s xent",
        "losses/value_loss multi_scale_loss gradient_loss class_weight_loss time_loss val/nll eval_loss loss_cls",
    ],
)
def test_what_a_training_makes_small_is_a_loss(names: str) -> None:
    assert list(filter(is_loss, names.split())) == names.split()


def test_the_time_that_a_loss_takes_tells_least_of_a_training() -> None:
    assert most_telling(["loss_ms", "loss_scale", "val_acc"])[0] == "val_acc"
