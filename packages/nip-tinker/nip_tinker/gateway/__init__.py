"""A gateway for playing by tokens: OpenAI's chat completions over samples of Tinker's API.

For services whose own endpoint gives no token ids, which policy gradient trains on. Chats become
prompts here, by the model's chat template; a model is asked through `asample`, and the answer has
its ids and log-probabilities. All else is passed on, so a run needs this address alone.

command    the command `nip gateway`
checks     ask before it starts whether it can work
app        serves it
gateway    answers chats
chats      reads them
samples    asks for samples

Not covered: thoughts apart from the text, grammars, tools, streams, stops as texts.
"""
