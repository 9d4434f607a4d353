"""From the text that a model wrote to a message or a decision.

parsing         the move in a text, or why there is none
answer_lines    lines, and parts for channels
verdict_labels  lines that begin with a label
decisions       the verdict in a line
other_words     verdicts elsewhere
plainer         unclear lines in other words
reasons         kinds of invalid answers
"""
