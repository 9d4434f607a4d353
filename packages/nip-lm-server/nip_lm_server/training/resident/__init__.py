"""Models in training that stay: one base model, many adapters with gradients and optimizer state.

types             requests and answers: numpy alone, no torch
trainer           ResidentTrainer, in this process
resident_client   ResidentClient, the same methods over a process of its own
checks            bad input is refused before anything is computed
losses            the six losses                  token_scores  hidden states -> log-probabilities
adapters          LoRA layers over a model        saved_adapters   on disk, as PEFT has them
framing           messages over the socket        __main__   the process

A job of `training.main` is one file of examples and a number of epochs. Here each call of the
caller's has the data of a step. No module here knows sessions, sequence numbers or names of
checkpoints.
"""
