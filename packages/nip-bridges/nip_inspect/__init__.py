"""nip and inspect_ai: its protocols as a task there, its runs as logs there.

registry     what Inspect finds by the entry point: the task `nip_inspect/play`
play         that task, with its dataset and its solver
settings     its parameters -> the settings of a game and the episodes that are played
model_calls  the one thing that differs from `nip play`: a call goes over Inspect's models
transcript   what stands of an episode in a log, beside the calls
scoring      verdicts and rewards as scores, with nip's statistics
export       a run's rollouts -> `.eval` logs; export_sample, one episode
judge        a scorer -> the function of a judge that nip attacks

`registry` is for Inspect alone, `export` for `nip export --to inspect`; all but `settings` need the
package inspect_ai, which is an extra. The game is nip's own: prompts, rules, rewards, seeds.
"""
