"""Both directions of a turn: from the record to a chat, from an answer to a move.

render   an agent's chat, from the rows of an episode, for playing and for training alike
         (chat_format: the roles of its messages; retry_hints: the answer that could not be read)
rules    the form that an answer must have
answers  from the text that a model wrote to a message or a decision, in that form
"""
