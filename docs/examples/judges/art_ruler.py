"""RULER of OpenPipe ART as a judge of pairs: accept if the first response is scored higher."""

from art.rewards.ruler import ruler


async def judge(question, response_a, response_b, reference=None, **columns):
    asked = {"role": "user", "content": question}
    texts = response_a, response_b
    chats = [[asked, {"role": "assistant", "content": text}] for text in texts]
    a, b = await ruler(chats, "openai/gpt-6-luna")
    return None if a.score == b.score else a.score > b.score
