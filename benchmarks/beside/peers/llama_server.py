"""llama.cpp's server as its wheel has it, in an environment of its own, with adapters that are off.

python llama_server.py SETTINGS     JSON with model, adapters, port, slots, context
"""

import json
import signal
import sys

import xllamacpp

settings = json.loads(sys.argv[1])
options = xllamacpp.CommonParams()
options.model.path, options.port = settings["model"], settings["port"]
options.n_parallel, options.n_ctx = settings["slots"], settings["slots"] * settings["context"]
options.cache_ram_mib = 0  # no two prompts are alike, so kept ones only take time
adapters = settings["adapters"]
options.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(path, 0.0) for path in adapters]
server = xllamacpp.Server(options)
signal.pause()
