"""Both directions of a turn: from the record to a chat, from an answer to a move.

render          what an agent sees: its chat, from the rows of an episode, for playing and for
                training alike (chat_format: the roles of its messages; retry_hints: what it is
                told of an answer that could not be read)
rules           the form that an answer must have
parsing         from what a model wrote to a message or a decision, in that form
                (answer_lines, decisions, verdict_labels, plainer, other_words, reasons)
"""
