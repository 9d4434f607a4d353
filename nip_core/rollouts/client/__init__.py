"""A request to a model and its answer.

chat_client   the client of one endpoint
answer_parts  the parts of an answer, read strictly; thoughts: those beside the text
joined_calls  calls that live on at a server of ours
call_limit    how many calls are in flight
"""
