"""A second look at an answer whose verdict is not clear: the same answer in plainer words.

It knows general forms, not sentences, and writes only what it is sure of as "Decision: ...":

1. An object in JSON with one decision at its top, or a table or ticked boxes that have one.
2. A line with a label in another language, with words between a label and its colon, or with a
   polite word or a reason before "my decision is".
3. A word of emphasis before the verdict ("hard reject"), or a sentence behind a label ("the
   solution should be rejected").
4. A last sentence, or one behind a label, that concludes: "I see no bug, so I accept."

Asides that only seem to name the other verdict are left out: "accept, not reject", "I see no reason
to reject", "the code rejects negative numbers". The rest is read by the same rules as every answer,
so that a question, a doubt, a condition or a retraction is no verdict here either. Only scales of
accept and reject are read so.
"""

import json
import re

from nip_core.game.answers.answer_lines import AnswerLines, begins_question
from nip_core.game.answers.decisions import any_case, strip_decoration

_LONGEST = 2000  # characters of a line that is looked at
_ROWS = 9  # of a table
_MARKS = r"[*_`\"' ]{0,6}"
_BULLETS = r"[ *_#`-]{0,9}"
_VERDICT = rf"{_MARKS}(?P<verdict>accept|reject)(?:ed)?{_MARKS}"
_LABEL = r"(?:decision|verdict|judge?ment|conclusion|ruling)"
_OWN_LABEL = rf"(?:my|the|our) (?:final |overall )?{_LABEL}"
_SOLUTION = (
    r"(?:the|this) (?:(?:proposed|given|submitted) )?(?:solution|code|program|implementation"
    r"|submission|function)"
)
_OTHER = {"accept": "reject", "reject": "accept"}

# Words with which a sentence is not, or not surely, the agent's own verdict on the solution.
_UNSURE = any_case(
    r"\b(?:if|unless|suppos\w*|assum\w*|imagine|provided|were|would|could|should|might|may|can"
    r"|perhaps|maybe|probably|possibly|likely|almost|nearly|hardly|when|once|until|whether|either"
    r"|neither|lean\w*|tempted|tentative\w*|preliminary|previous|earlier|want\w*|example|form"
    r"|forms|format|instruct\w*|option\w*|writ\w*|wrote|quot\w*|sa(?:y|ys|id)|claim\w*|argu\w*"
    r"|told|tells?|explanation|answer\w*|proof|idea|point|sure|unsure|fix\w*"
    r"|repair\w*|corrected|corrections?|your?|they|he|she|his|her|their|somebody"
    r"|someone|everybody|everyone|nobody|(?:expert|prover|opponent|simulator|user|human)\w*)\b"
    r"|[\"“”?<>]"
)
_BAD = any_case(
    r"\b(?:wrong|incorrect|buggy|bugs?|errors?|mistakes?|fail\w*|crash\w*|miss\w*|off[ -]by[ -]one"
    r"|counterexamples?|unsound|broken)\b"
)
_GOOD = any_case(r"\b(?:right|correct|holds?|pass\w*|fine|works?|sound|valid|checks? out)\b")
_NEGATION = any_case(r"\b(?:not|never|no|none|nor|cannot|without|refuse\w*|[a-z]+n't)\b")


def put_plainly(text: str) -> str | None:
    """The answer with its verdict in plain words; None where there is nothing to be made plainer.

    `text` is without thoughts. Its decision is still to be read. A text that asks gives nothing.
    """
    lines = AnswerLines(text)
    if "?" in text or any(begins_question(line) for _, line in lines.free_with("question")):
        return None
    whole = "\n".join(lines.read).strip()
    for as_line in (_from_json, _from_boxes, _from_table):
        if plain_line := as_line(whole):
            return plain_line
    result = list(lines.raw)
    is_changed = False
    for i, line in lines.free_with("decision", "verdict"):
        if _ANNOUNCED.fullmatch(line):
            result[i], is_changed = "", True
    for i, line in lines.free_with("accept", "reject"):
        if len(line) > _LONGEST:
            return None
        index = next(lines.filled_above(i), None)
        line_above = "" if index is None else strip_decoration(lines.read[index])
        new = line
        for pattern, shorter in _SHORTER:
            new = pattern.sub(shorter, new)
        for rule in (_without_the_other, _introduced, _sentence_behind_label, _without_asides):
            new = rule(new)
        if _HEADING.fullmatch(line_above):
            new = _verdict_of_sentence(new) or new
        elif i == lines.filled[-1] and (verdict := _conclusion(new)):
            new = f"Decision: {verdict}"
        if new != line:
            result[i], is_changed = new, True
    return "\n".join(result) if is_changed else None


# Single lines. Each function returns the line, or the same in plainer words.

_HEADING = any_case(rf"{_BULLETS}(?:(?:my|the|our) )?(?:final )?{_LABEL}[ *_:]{{0,6}}")
_SENTENCE = any_case(
    r"[*_ ]{0,4}(?:(?:as|since|because|given that) (?P<because>[^.;:]{1,200}), )?"
    rf"{_SOLUTION} (?:is|must be|should be|has to be|needs to be)"
    r" (?:(?:therefore|thus|hereby|clearly) )?(?P<verdict>accept|reject)ed"
    r"(?:,? (?:as|since|because) (?P<reason>[^.;:]{1,200}))?[ .!*_]{0,6}"
)
_LABELLED_SENTENCE = any_case(
    rf"{_BULLETS}(?:my |the )?(?:final )?{_LABEL}(?:[*_ ]{{0,4}}:[*_ ]{{0,4}}|[*_]{{2,4}} )(?=\S)"
)
_OF_OTHER_LANGUAGES = any_case(
    r"^(?P<lead>[ *_#-]{0,9})(?:(?:meine|ma|mi|minha|la mia|moja|мое|моё) |我的)?"
    r"(?:(?:entscheidung|urteil|décision|decisión|decisione|decisão"
    r"|veredicto|verdetto|beslissing|beslut|decyzja|rozhodnutí|karar|keputusan|решение|рішення"
    r"|вердикт|决定|决策|判定|判断|裁决|結論|结论|判決|결정|판정|القرار|निर्णय)"
    r"(?: final\w*)?|(?:endgültige|décision finale)(?: entscheidung)?)[*_ ]{0,4}:"
)
_QUALIFIED = any_case(
    rf"^(?P<label>{_BULLETS}(?:(?:my|the|our) )?(?:final )?{_LABEL})"
    r" (?:\(final\)|\(after (?:all )?[a-z]+ ?(?:questions)?\)|[(\[]accept ?(?:/|or) ?reject[)\]]"
    rf"|(?:for|on|about|regarding) {_SOLUTION})(?=[*_ ]{{0,4}}(?::|is\b))"
)
_EMPHASISED = any_case(
    rf"^(?P<label>{_BULLETS}(?:(?:my|the|our) )?(?:final )?{_LABEL}[*_ ]{{0,4}}(?::|is\b)"
    r"[*_`\"' ]{0,6})(?:(?:an? )?(?:strong|hard|clear|firm|definite|full|(?:i )?(?:strongly"
    r"|definitely|clearly|certainly|absolutely|firmly|fully|must|have to)) "
    r"(?=[*_]{0,3}(?:accept|reject)\b)"
    r"|(?:yes|ok|okay|correct), (?=[*_]{0,3}accept\b)"
    r"|(?:no|wrong|incorrect), (?=[*_]{0,3}reject\b))"
)
_SHORTER = (
    (_OF_OTHER_LANGUAGES, r"\g<lead>Decision:"),
    (_QUALIFIED, r"\g<label>"),
    (_EMPHASISED, r"\g<label>"),
)
_INTRODUCED = any_case(
    r"[*_# ]{0,6}(?:(?:sure|certainly|of course|ok|okay|alright|all right|thanks|thank you|so"
    r"|as the verifier|(?:after [a-z]+ing|after all|based on|considering|having|given (?:the|this"
    r"|these|that|all))\b(?P<reason>[^:;.!?]{0,200}))[,.!:]? )?"
    rf"(?:(?:here is|here's|this is) )?(?:i have reached )?{_OWN_LABEL}"
    rf"(?: (?:you|that you) (?:asked|requested|wanted)(?: for)?)?(?: is)?[*_ ]{{0,4}}:?{_MARKS}"
    rf"(?:to )?{_VERDICT}[.! *_]{{0,4}}"
)
_NOT_THE_OTHER = any_case(
    r"\b(?P<verdict>accept|reject)(?P<marks>(?:ed)?[*_`\"]{0,3})"
    rf"(?: it| {_SOLUTION})?(?:, | | - | \()"
    r"(?:and )?(?:not|rather than|instead of|as opposed to) (?:to )?\"?(?P<other>accept|reject)"
    r"(?:ing|ed|ion)?(?: it)?[*_`)\"]{0,4}(?=[.,;! ]{0,2}$|[.;!] )"
)


def _verdict_of(pattern: re.Pattern[str], line: str) -> str | None:
    """Read the verdict of a line of this form, unless it sounds unsure."""
    match = pattern.fullmatch(line)
    if match is None:
        return None
    groups = match.groupdict()
    reason = " ".join(groups.get(name) or "" for name in ("because", "reason"))
    verdict = str(match["verdict"]).lower()
    is_sure = not _UNSURE.search(reason) and not _mentions(reason) and _agrees(reason, verdict)
    return verdict if is_sure else None


def _agrees(reason: str, verdict: str) -> bool:
    """Tell whether the `reason` before a verdict speaks for it, as far as words show."""
    is_denied = _NEGATION.search(reason) is not None
    if _BAD.search(reason):
        return (verdict == "reject") != is_denied
    return _GOOD.search(reason) is None or (verdict == "accept") != is_denied


def _mentions(text: str) -> list[str]:
    """List the verdicts in a text, in any form."""
    return [word.lower() for word in re.findall(r"(?i)accept|reject", text)]


def _introduced(line: str) -> str:
    verdict = _verdict_of(_INTRODUCED, line)
    if verdict is None:
        return line
    reason = _INTRODUCED.fullmatch(line)
    if reason and reason["reason"] and _NEGATION.search(reason["reason"]):
        return line
    return f"Decision: {verdict}"


def _sentence_behind_label(line: str) -> str:
    label = _LABELLED_SENTENCE.match(line)
    verdict = None if label is None else _verdict_of_sentence(line[label.end() :])
    return line if verdict is None else f"Decision: {verdict}"


def _verdict_of_sentence(text: str) -> str | None:
    """Read the decision of a sentence in the place of a verdict."""
    return _verdict_of(_SENTENCE, text) or _conclusion(text)


def _without_the_other(line: str) -> str:
    def kept(match: re.Match[str]) -> str:
        verdict, second = match["verdict"].lower(), match["other"].lower()
        return match[0] if verdict == second else f"{match['verdict']}{match['marks']}"

    return _NOT_THE_OTHER.sub(kept, line)


# Sentences behind a verdict that name the other one and say nothing against it.

_DECIDED = any_case(rf"{_BULLETS}(?:(?:my|the|our) )?(?:final )?{_LABEL}[*_ ]{{0,4}}:{_VERDICT}")
_ASIDES = (
    any_case(  # "I reject the idea that the loop is off by one"
        r"I (?:also )?reject (?:the|any|every) (?:idea|claim|notion|suggestion|objection|concern"
        r"|hypothesis) (?:that|of) "
        r"(?!.*\b(?:right|correct|valid|sound|works?|fine|pass\w*|holds?)\b).*"
    ),
    any_case(  # "I see no reason to reject it", "all cases hold and there is nothing to reject"
        r"(?:(?:[^,]{1,200} )?(?:and|as|since|because) )?"
        r"(?:(?:I|we) (?:see|find|found|have|saw|could find)|there (?:is|was|are)|with)?(?:^| )"
        r"(?:no|nothing|(?:not|n't) (?:find|see|have) (?:a|any))"
        r"(?: (?:[a-z]+ )?(?:reasons?|grounds?|evidence|need|cause|basis|cases?|inputs?))?"
        r"(?: (?:to|for)| (?:in|for) which (?:to|I (?:would|should)|one (?:would|should))"
        r"| that (?:would )?makes? me) (?:accept|reject)(?:ing)?"
        rf"(?: (?:it|this|{_SOLUTION}))?"
    ),
    any_case(  # "The code rejects negative numbers"
        r"(?:it|(?:the|this) (?:code|solution|function|program|parser|loop|check|test)) "
        r"(?:[a-z]+ly )?(?:accepts|rejects) (?!(?:it|this|that|them|the (?:solution|code))\b)[^,]*"
        r"(?:, which the (?:problem|task) (?:asks|allows|forbids|demands|requires)[a-z ]*)?"
    ),
)


def _without_asides(line: str) -> str:
    decided = _DECIDED.match(line)
    if decided is None:
        return line
    verdict, remainder = decided["verdict"].lower(), line[decided.end() :]
    parts = [part for part in re.split(r"(?<=[.;!,]) ", remainder) if not _is_aside(part, verdict)]
    return line[: decided.end()] + " ".join(parts)


def _is_aside(sentence: str, verdict: str) -> bool:
    text = sentence.strip(" .;!,-()")
    if _mentions(text) != [_OTHER[verdict]]:
        return False
    if any(form.fullmatch(text) for form in _ASIDES[1:]):
        return True
    return verdict == "accept" and _ASIDES[0].fullmatch(text) is not None


# A last sentence that concludes.

_THUS = r"(?:so|therefore|thus|hence)"
_LAST = any_case(
    rf"(?:(?P<before>[^:]{{1,400}}?)(?:, (?:and )?|[;.!] ){_THUS},? "
    # "It is off by one. I accept it": without a "so", it may accept the remark.
    r"|(?P<lead>(?:after|based on|considering|having|given (?:the|this|these|that|all))"
    rf" [^:;.!]{{1,200}}, )(?=I [a-z ]{{1,40}} {_SOLUTION}[ .!*_]{{0,6}}$)"
    r"|(?=I (?:decide|choose|vote)\b))"
    r"I (?:therefore |thus |hereby |must |have to |will ){0,2}"
    r"(?:(?:decide|choose|vote)(?: to|:)? )?"
    rf"(?P<verdict>accept|reject)(?: it| {_SOLUTION})?[ .!*_]{{0,6}}"
)
_DENIED = any_case(
    rf"\bI (?:can't|cannot|can not|do not|don't|will not|won't) (?P<other>accept|reject) "
    rf"(?:it|this|{_SOLUTION})\b"
)


def _conclusion(text: str) -> str | None:
    """Read the decision of a text with an end like "so I accept", said for itself."""
    sentence = _LAST.fullmatch(text)
    if sentence is None:
        return None
    verdict = sentence["verdict"].lower()

    def left(denied: re.Match[str]) -> str:
        return "" if denied["other"].lower() != verdict else denied[0]

    reason = _DENIED.sub(left, sentence["before"] or sentence["lead"] or "")
    if _UNSURE.search(reason) or _mentions(reason) or not _agrees(reason, verdict):
        return None
    return None if sentence["lead"] and _NEGATION.search(reason) else verdict


# Objects, boxes and tables.

_KEY = rf"(?:final_?)?{_LABEL}"
_LOOSE = any_case(
    rf"\{{\s*(?P<mark>['\"]?){_KEY}(?P=mark)\s*:\s*(?P<quote>['\"]?)(?P<verdict>accept|reject)"
    r"(?P=quote)\s*,?\s*\}"
)
_ANNOUNCED = any_case(
    r"(?:(?:sure|certainly|of course|okay|ok)[,.!] )?(?:here is |here's )?(?:my|the) (?:final )?"
    rf"{_LABEL}(?: (?:that )?you (?:asked|requested)(?: for)?)?"
    r"(?: (?:in|as)(?: a)? json(?: object| format)?)?[*_ ]{0,4}:\s*"
)
_TRUTHS = {"correct": "accept", "is_correct": "accept", "valid": "accept", "is_valid": "accept"}


def _from_json(whole: str) -> str | None:
    """Make the decision line of an object in JSON, announced or not."""
    if not whole.endswith("}"):
        return None
    announced = _ANNOUNCED.match(whole)
    text = whole[announced.end() :] if announced else whole
    if loose := _LOOSE.fullmatch(text):
        return f"Decision: {loose['verdict'].lower()}"
    try:
        pairs = json.loads(text, object_pairs_hook=list) if text.startswith("{") else []
    except (ValueError, RecursionError):
        return None
    verdicts, reasons = [], []
    for key, value in pairs:
        if re.fullmatch(_KEY, key, re.IGNORECASE):
            verdicts.append(value.strip().lower() if isinstance(value, str) else value)
        elif isinstance(value, str) and re.search(_LABEL, key, re.IGNORECASE) is None:
            reasons.append(" ".join(value.split()))
        elif not (isinstance(value, bool) and key.lower() in _TRUTHS) and (
            isinstance(value, bool) or not isinstance(value, int | float)
        ):
            return None  # a list, an object, another's decision, or a "confident": false
    if len(verdicts) != 1 or verdicts[0] not in ("accept", "reject"):
        return None
    verdict = str(verdicts[0])
    if any(isinstance(v, bool) and v != (verdict == "accept") for k, v in pairs):
        return None
    return _without_asides(". ".join([f"Decision: {verdict}", *reasons]))


_BOX = r"(?:\[[x ]?\]|\([x ]\)|[☐☑☒])"
_BOXES = any_case(
    rf"(?:{_LABEL}[ *_]{{0,4}}:\s*)?"
    rf"(?:[-*] )?(?P<first>{_BOX}) ?(?P<word>accept|reject)[.,;]?(?:\s+| / )(?:[-*] )?"
    rf"(?P<second>{_BOX}) ?(?P<other>accept|reject)[.]?"
)


def _from_boxes(whole: str) -> str | None:
    """Make the decision line of two boxes, one for each verdict, one of them ticked."""
    boxes = _BOXES.fullmatch(whole)
    if boxes is None or boxes["word"].lower() == boxes["other"].lower():
        return None
    empty = {"[ ]", "[]", "( )", "☐"}
    ticked = [
        word for box, word in (("first", "word"), ("second", "other")) if boxes[box] not in empty
    ]
    return f"Decision: {boxes[ticked[0]].lower()}" if len(ticked) == 1 else None


def _from_table(whole: str) -> str | None:
    """Make the decision line of a table with one row, or column, for the decision."""
    rows = [
        [
            cell.strip("*_` ").lower()
            for cell in strip_decoration(line).strip().strip("|").split("|")
        ]
        for line in whole.split("\n")
        if line.strip() and not set(line.strip()) <= set("|-: ")
    ]
    cells = " | ".join(cell for row in rows for cell in row)
    if not whole.startswith("|") or len(rows) > _ROWS or len(_mentions(cells)) != 1:
        return None
    if len({len(row) for row in rows}) != 1 or _UNSURE.search(cells):
        return None
    verdict = _mentions(cells)[0]
    row = next((i for i, cells in enumerate(rows) if verdict in cells), None)
    if row is None:
        return None  # it is no cell of its own
    column = rows[row].index(verdict)
    is_below = row == 1 and len(rows) == 2 and _HEADING.fullmatch(rows[0][column])
    is_beside = column == 1 and len(rows[row]) == 2 and _HEADING.fullmatch(rows[row][0])
    return f"Decision: {verdict}" if is_below or is_beside else None
