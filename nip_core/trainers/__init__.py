"""Trainers: pure functions from rollouts to training examples, see `base`.

expert_iteration   conversations that went well for an agent, to imitate
malt               pairs of better and worse answers from trees of responses
grpo               an agent's own tokens with group-relative advantages
curriculum         which problems are used, for any of them
"""
