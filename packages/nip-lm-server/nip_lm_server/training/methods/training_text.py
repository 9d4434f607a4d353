"""The tokens of training examples, for a client that trains elsewhere: this module, as one name."""

import sys

from nip_lm_server.chats.chat_template import encode_prompt, load_tokenizer, stop_token_ids
from nip_lm_server.training.job import TrainingError
from nip_lm_server.training.methods.encoding import encode_example, encode_file, encode_turn
from nip_lm_server.training.methods.rl import encode_episode
from nip_lm_server.training.model.loading import Text

# fmt: off
__all__ = [
    "Text",
    "TrainingError",
    "encode_episode",
    "encode_example",
    "encode_file",
    "encode_prompt",
    "encode_turn",
    "load_tokenizer",
    "stop_token_ids",
]
# fmt: on
training_text = sys.modules[__name__]
