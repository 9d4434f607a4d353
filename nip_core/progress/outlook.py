"""The state of a run at one moment, for views: the present work, its speed, and the time left.

observe_run   the `State` of a run now
propose_guide the setting that helps where MANY_INVALID of an agent's first answers are
State   work going on, the whole run, and the counters
Doing   one piece of work going on
Whole   the whole run: its share that is done, and the time left

Times are measured. An episode is taken to last as long as others of this run (of the same kind
where there were some, of any kind otherwise), a training as long as the trainings before, the
present job as long as its server says. Until enough episodes have ended, the answers that came tell
how long the expected ones take. Before anything of a kind was measured, the speed of the run's own
server, as it was at the start, gives a guess, and `Whole` says that it is one. Where there is no
such server either, the time of the whole is unknown and `Whole` says None, except for choosing
examples and for swapping, which are short beside the others and count as nothing before they are
known.
"""

from dataclasses import dataclass
from statistics import median

from nip_core.parameters import HyperParameters
from nip_core.parameters.derived.prices import price_calls
from nip_core.progress.board import Activity, Progress, Stage
from nip_core.progress.slowness import describe_slowness

_SHORT = ("dataset", "swap")
_PLAYING = ("test", "play", "gate", "attack")
_TRAINING = "train"
MANY_INVALID = 1 / 3
"""Share of an agent's first answers, from which on something should be done."""
_ENOUGH = 9
"""First answers of an agent before something is made of the share that is invalid."""
EPISODES = "episodes"
STEPS = "steps"


@dataclass(frozen=True)
class Doing:
    """One piece of work going on."""

    what: str
    elapsed_s: float
    unit: str = ""
    done: int = 0
    total: int = 0  # 0: not known
    per_s: float | None = None
    left_s: float | None = None
    group: str | None = None
    job: str | None = None
    status: str = ""
    loss: float | None = None
    tokens_per_s: float | None = None


@dataclass(frozen=True)
class Whole:
    """The whole run. A figure that is not known yet is None."""

    share: float | None
    """In [0, 1], by time."""
    left_s: float | None
    stages_done: int
    stages: int
    is_guess: bool = False
    """Whether something to come goes by a guess from the server's speed."""


@dataclass(frozen=True)
class Counts:
    """Counts since the process started; of failed episodes, the ones of the split."""

    in_flight: int
    failed: int
    calls: int
    calls_reused: int
    completion_tokens: int
    invalid_answers: int
    proposal: str
    """A setting that helps where many answers are invalid; "" where few are, or none does."""
    retries: int
    last_trouble: str
    usd: float | None
    """For calls; None: nothing has a price, or not everything has."""


@dataclass(frozen=True)
class State:
    """A run at one moment."""

    run: str
    elapsed_s: float
    """Since the process began."""
    iteration: int | None
    """None outside of iterations."""
    iterations: int
    stage: str | None
    """One of `board.STAGES`."""
    stage_s: float
    """Since it was begun, or since the last one was over."""
    doing: tuple[Doing, ...]
    whole: Whole | None
    counts: Counts
    slow: str = ""
    """The slow part and the help against it; "": nothing is slow."""


def observe_run(progress: Progress, parameters: HyperParameters) -> State:
    """Take the state of the run now. Any number of views may do so.

    Nothing is changed but the highest share that was shown.
    """
    now_s, stage = progress.clock(), progress.stage
    doing = [_of_activity(activity, now_s, progress) for activity in [*progress.activities]]
    if progress.episodes_total:
        doing.insert(0, _episodes(progress, now_s))
    return State(
        run=parameters.run_name,
        elapsed_s=now_s - progress.began_s,
        iteration=None if stage is None else stage.iteration,
        iterations=parameters.rl.num_iterations,
        stage=None if stage is None else stage.name,
        stage_s=now_s - progress.stage_began_s,
        doing=tuple(doing),
        whole=_whole(progress, stage, doing, now_s) if progress.plan else None,
        counts=Counts(
            in_flight=progress.episodes_in_flight,
            failed=progress.episodes_failed,
            calls=progress.calls,
            calls_reused=progress.calls_reused,
            completion_tokens=progress.completion_tokens,
            invalid_answers=progress.invalid_answers,
            proposal=_propose(progress, parameters),
            retries=progress.retries,
            last_trouble=progress.last_trouble,
            usd=price_calls(parameters, progress.tokens_by_agent) if parameters.prices else None,
        ),
        slow=describe_slowness(progress),
    )


def _propose(progress: Progress, parameters: HyperParameters) -> str:
    """Propose that an agent is guided where a third of its first answers or more were invalid."""
    for agent, (answers, invalid) in sorted(progress.first_answers.items()):
        is_many = answers >= _ENOUGH and invalid >= MANY_INVALID * answers
        if is_many and agent in parameters.model_agents and parameters.could_be_guided(agent):
            return propose_guide(agent)
    return ""


def propose_guide(agent: str) -> str:
    """Name the setting by which the engine holds an agent's answers to their form."""
    return f"agents.{agent}.guided_decoding: true"


def _episodes(progress: Progress, now_s: float) -> Doing:
    # Episodes that were committed before the stage began say nothing of its speed.
    elapsed_s = now_s - progress.episodes_began_s
    ended_episodes = progress.episodes_done - progress.episodes_before
    open_episodes = max(progress.episodes_total - progress.episodes_done, 0)
    is_known = ended_episodes > 0 and elapsed_s > 0
    # Those in flight are half played: the first that end would else speak for too few.
    half = min(progress.episodes_in_flight, open_episodes) / 2
    left_s = elapsed_s / (ended_episodes + half) * (open_episodes - half) if is_known else None
    # As long as most are at play, the answers that came say more: half may be far from it.
    by_turns_s = _left_by_turns(progress, ended_episodes, open_episodes, elapsed_s)
    if by_turns_s is not None and ended_episodes < max(progress.episodes_in_flight, 1):
        left_s = by_turns_s
    tokens = progress.completion_tokens - progress.tokens_before
    return Doing(
        f"{progress.split} problems",
        elapsed_s,
        EPISODES,
        progress.episodes_done,
        progress.episodes_total,
        per_s=ended_episodes / elapsed_s if is_known and open_episodes else None,
        left_s=left_s,
        tokens_per_s=tokens / elapsed_s if is_known and open_episodes else None,
    )


def _left_by_turns(
    progress: Progress, ended_episodes: int, open_episodes: int, elapsed_s: float
) -> float | None:
    """Estimate the seconds for so many episodes by the valid answers so far; None without any."""
    turns, expected = progress.turns - progress.turns_before, progress.turns_per_episode
    # The first answers wait for many prompts to be read, and would tell of too slow a server.
    has_some = turns > 0 and 2 * turns >= progress.traffic.in_flight
    if expected is None or not has_some or elapsed_s <= 0:
        return None
    # Of episodes at play some turns are over; each that is left has one to come at least.
    at_play = max(turns - ended_episodes * expected, 0.0)
    return elapsed_s / turns * max(open_episodes * expected - at_play, open_episodes)


def _of_activity(activity: Activity, now_s: float, progress: Progress) -> Doing:
    left_s, tokens = activity.left_s, activity.tokens_total
    if left_s is not None:
        left_s = max(0.0, left_s - (now_s - activity.told_s))
    elif tokens and not activity.done and progress.training_tokens_per_s:
        # One that waits for its turn takes as long as its tokens do at the pace of the one before.
        left_s = tokens / progress.training_tokens_per_s
    return Doing(
        activity.what,
        now_s - activity.began_s,
        activity.unit,
        activity.done,
        activity.total,
        left_s=left_s,
        group=activity.group,
        job=activity.job,
        status=activity.status,
        loss=activity.loss,
        tokens_per_s=activity.tokens_per_s,
    )


def _whole(progress: Progress, now: Stage | None, doing: list[Doing], now_s: float) -> Whole:
    # 1. The stages before the present one are over, whether they were gone through here or not.
    plan, took_s = progress.plan, dict(progress.took_s)
    measured_paces = progress.paces
    over = [i for i, stage in enumerate(plan) if stage in took_s]
    place = plan.index(now) if now in plan else max(over, default=-1) + 1
    # 2. The present one: the time that it takes still, and, as nothing may be known better, in all.
    paces = _with_guesses(progress)
    current_s = now_s - progress.stage_began_s if now in plan else 0.0
    left_s = [_left_of(doing, plan[place], current_s, paces)] if now in plan else []
    if left_s and left_s[0] is not None and plan[place].name not in measured_paces:
        size = plan[place].episodes or 1
        paces[plan[place].name] = [(current_s + left_s[0]) / size]
        paces = {**paces, **_instead_of_guesses(plan[place], paces, measured_paces)}
    # 3. Those to come.
    left_s += [_expected(stage, paces) for stage in plan[place + len(left_s) :]]
    known_s = [seconds for seconds in left_s if seconds is not None]
    if len(known_s) < len(left_s):
        return Whole(None, None, place, len(plan))
    over_s = sum(took_s.get(stage, _expected(stage, paces) or 0.0) for stage in plan[:place])
    spent_s = over_s + current_s
    total_s = spent_s + sum(known_s)
    # 4. Where what is left turns out to take longer, the share waits until it is reached again.
    share = spent_s / total_s if total_s else 1.0
    share = progress.share = max(share, progress.share)
    guessed = {stage.name for stage in plan[place + 1 :]} - {*measured_paces, *_SHORT}
    is_guess = bool(guessed & progress.guesses.keys())
    return Whole(share, sum(known_s), place, len(plan), is_guess)


def _with_guesses(progress: Progress) -> dict[str, list[float]]:
    """Return the measured paces, and guesses of the paces that were not measured."""
    paces = {name: [*seconds] for name, seconds in [*progress.paces.items()]}
    has_played = any(name in paces for name in _PLAYING)
    for name, pace in progress.guesses.items():
        # The pace of any episodes says more of the others than a guess does.
        if name not in paces and not (has_played and name in _PLAYING):
            paces[name] = [pace]
    return paces


def _instead_of_guesses(
    stage: Stage, paces: dict[str, list[float]], measured_paces: dict[str, list[float]]
) -> dict[str, list[float]]:
    """Return the pace of the stage that goes on for all that plays and was only guessed."""
    if stage.name not in _PLAYING or any(name in measured_paces for name in _PLAYING):
        return {}
    return {name: paces[stage.name] for name in _PLAYING if name in paces}


def _left_of(
    doing: list[Doing], stage: Stage, elapsed_s: float, paces: dict[str, list[float]]
) -> float | None:
    """Estimate the seconds left of the present stage; None where nothing was measured."""
    expected = _expected(stage, paces)
    left_s = None if expected is None else max(expected - elapsed_s, 0.0)
    if stage.episodes:
        playing = next((each for each in doing if each.unit == EPISODES), None)
        if playing is None or playing.left_s is None:
            return left_s
        more = max(stage.episodes - playing.total, 0)  # of the gate's other side
        return playing.left_s + (more / playing.per_s if playing.per_s else 0.0)
    jobs = [each for each in doing if each.job is not None]
    if stage.name != _TRAINING or not jobs:
        return left_s
    lefts = [job.left_s for job in jobs]
    if None in lefts:
        return left_s
    known_s = [seconds for seconds in lefts if seconds is not None]
    # Jobs that wait for each other take their times one after the other.
    return sum(known_s) if any(job.status == "queued" for job in jobs) else max(known_s)


def _expected(stage: Stage, paces: dict[str, list[float]]) -> float | None:
    """Estimate the seconds of a whole stage from measured ones of its kind; None without any."""
    measured_s = paces.get(stage.name)
    if stage.episodes:
        of_any = [s for name in _PLAYING for s in paces.get(name, ())]
        pace = measured_s or of_any
        return median(pace) * stage.episodes if pace else None
    if measured_s:
        return median(measured_s)
    return 0.0 if stage.name in _SHORT else None
