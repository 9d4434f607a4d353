"""The cookbook's recipes run on nip's server as they are published, without a network."""

from recipes import Place


def test_sl_loop_lowers_the_likelihoods_negative_logarithm(place: Place) -> None:
    rows = place.run("sl_loop", batch_size=32, learning_rate=1e-3, max_steps=8, save_every=4)
    losses = [row["train_mean_nll"] for row in rows if "train_mean_nll" in row]
    assert len(losses) == 8 and losses[-1] < 0.9 * losses[0]


def test_chat_sl_trains_and_evaluates(place: Place) -> None:
    rows = place.run(
        "chat_sl.train", dataset="no_robots", model_name="Qwen/Qwen3.5-9B-Base", batch_size=16,
        max_steps=3, learning_rate=1e-3, behavior_if_log_dir_exists="delete",
    )  # fmt: skip
    losses = [row["train_mean_nll"] for row in rows if "train_mean_nll" in row]
    assert len(losses) == 3 and losses[-1] < losses[0]


def test_rl_loop_samples_from_the_weights_of_each_step(place: Place) -> None:
    rows = place.run(
        "rl_loop", batch_size=4, group_size=4, max_tokens=16, max_steps=2, save_every=2,
        loss_fn="importance_sampling",
    )  # fmt: skip
    assert [row["progress/batch"] for row in rows] == [0, 1]


def test_arithmetic_is_trained_by_its_reward(place: Place) -> None:
    rows = place.run(
        "math_rl.train", env="arithmetic", model_name="Qwen/Qwen3.5-9B-Base", max_steps=2,
        groups_per_batch=4, group_size=4, max_tokens=5, loss_fn="importance_sampling",
        behavior_if_log_dir_exists="delete",
    )  # fmt: skip
    assert any("optim/lr" in row or "env/all/reward/total" in row for row in rows)
