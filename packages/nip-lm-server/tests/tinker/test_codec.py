"""nip's codec and Google's library read and write the same messages, by the SDK's own schema."""

import sys
from pathlib import Path

import numpy as np

sys.path += [str(Path(__file__).parents[3] / name) for name in ("nip-lm-server", "nip-base")]

from tinker.proto import response_conv
from tinker.proto import tinker_public_pb2 as pb

from nip_lm_server.tinker import tinker_messages as messages
from nip_lm_server.training.resident.types import Output, SparseRows


def test_a_request_of_the_sdk_is_read_whole() -> None:
    request = pb.ForwardBackwardRequest(model_id="s:train:0", seq_id=3, loss_fn="ppo")
    request.loss_fn_config["clip_low_threshold"] = 0.5
    datum = request.data.add()
    for chunk in ([1, 2], [3]):
        tokens = np.asarray(chunk, np.int32).tobytes()
        datum.model_input.add().encoded_text.tokens = tokens
    dense = datum.loss_fn_inputs["advantages"]
    dense.dense, dense.dtype = np.asarray([1, 0, -1], np.float32).tobytes(), pb.DTYPE_FLOAT32
    dense.shape.append(3)
    sparse = datum.loss_fn_inputs["weights"]
    sparse.dtype = pb.DTYPE_FLOAT32
    sparse.shape.extend([3, 2])
    sparse.sparse_csr.values = np.asarray([0.5], np.float32).tobytes()
    sparse.sparse_csr.crow_indices = np.asarray([0, 0, 1, 1], np.int64).tobytes()
    sparse.sparse_csr.col_indices = np.asarray([1], np.int64).tobytes()
    read = messages.decode_forward_backward(request.SerializeToString())
    assert (read.model_id, read.seq_id, read.loss_fn) == ("s:train:0", 3, "ppo")
    assert read.config == {"clip_low_threshold": 0.5}
    assert read.data[0].tokens.tolist() == [1, 2, 3]
    assert np.asarray(read.data[0].inputs["advantages"]).tolist() == [1, 0, -1]
    weights = read.data[0].inputs["weights"]
    assert isinstance(weights, SparseRows) and weights.col_indices.tolist() == [1]


def test_answers_are_read_by_the_sdk() -> None:
    arrays = (np.arange(3), np.arange(4).reshape(2, 2))
    output = Output(tuple(a.astype(np.float32) for a in arrays), {"loss:sum": 1.5})
    read = response_conv.deserialize_forward_backward_output(messages.encode_output(output))
    assert read.metrics == {"loss:sum": 1.5}
    shapes = [one["logprobs"].shape for one in read.loss_fn_outputs]
    assert shapes == [[3], [2, 2]]
    sequence = messages.SampledSequence([7, 8], [-1.0, -2.0], True, [[(7, -1.0)], []])
    samples = messages.Samples([sequence], [None, -0.5], [(), [(4, -0.5)]], 2, 1)
    answer = response_conv.deserialize_sample_response(messages.encode_samples(samples))
    assert answer.sequences[0].tokens == [7, 8]
    assert answer.sequences[0].stop_reason == "stop"
    assert answer.prompt_logprobs == [None, -0.5]
    assert answer.topk_prompt_logprobs == [None, [(4, -0.5)]]
