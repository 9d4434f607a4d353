"""The dry run of an attack on a judge.

plan_attack  the calls, tokens and dollars that it takes at most, after one call
"""

from nip_judges.documents.gallery import MOST_TEXTS
from nip_judges.documents.screen import PlanDocument
from nip_judges.figures.bars import refuse_bar
from nip_judges.play.asking import Asker, open_journal
from nip_judges.play.attack import ASKINGS, PreparedAttack, claim_folder, show_opponent, try_judge
from nip_judges.play.course import count_calls
from nip_judges.play.judged_texts import show_text

_CHARACTERS_PER_TOKEN = 4


async def plan_attack(prepared: PreparedAttack) -> PlanDocument:
    """Plan an attack: its calls, tokens and dollars at most, and how much such rows can show.

    One call is made, whose answer is kept, so that key, model and form are known to be right.
    """
    claim_folder(prepared)
    rows, parts, caps = prepared.rows, prepared.parts, prepared.caps
    async with open_journal(prepared.folder / "calls.journal") as journal:
        asker = Asker(journal, caps, concurrency=1, seed=prepared.file.seed)
        answer = await try_judge(prepared, asker)
    courses = 1 if prepared.against is None else 2
    calls = {
        part: courses * count * (2 if parts.compares_pairs else 1)
        for part, count in count_calls(
            rows,
            parts.wordings,
            len(parts.edits),
            needs_threshold=answer.verdict == "none" and answer.score is not None,
        ).items()
    }
    if prepared.options.by is None:
        calls["shown texts again"] = MOST_TEXTS * len(ASKINGS) * (2 if parts.compares_pairs else 1)
    kinds = len({wording.kind for wording in parts.wordings})
    questions = len({row.question_id for row in rows.wrong_test})
    bar = prepared.options.max_fooled
    plan = PlanDocument(
        judge=parts.judge.name,
        wrong_questions=questions,
        right_questions=len({row.question_id for row in rows.right_test}),
        kinds=kinds,
        calls=calls,
        answer=answer.words or answer.reason or "",
        verdict=answer.verdict,
        refused_bar=None if bar is None else refuse_bar(bar / 100, questions, kinds),
        notes=list(prepared.notes),
    )
    if parts.judge.is_paid:
        total = sum(calls.values())
        row = rows.wrong_test[0]
        filled_prompt = parts.judge.compose(show_text(row, row.response, show_opponent(prepared)))
        prompt = answer.prompt_tokens or len(filled_prompt) // _CHARACTERS_PER_TOKEN
        plan["prompt_tokens"] = total * prompt
        plan["completion_tokens"] = total * answer.completion_tokens
        if caps.prompt_usd is not None and caps.completion_usd is not None:
            plan["usd"] = (
                plan["prompt_tokens"] * caps.prompt_usd
                + plan["completion_tokens"] * caps.completion_usd
            ) / 1e6
    return plan
