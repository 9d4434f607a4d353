"""The episodes that loops of others are compared with are those of `play`."""

import json
import os

import seat_games


async def test_the_episodes_on_record_are_those_of_play():
    played = {protocol: await seat_games.play_it(protocol) for protocol in seat_games.PROTOCOLS}
    if os.environ.get("NIP_RECORD") == "1":
        firsts = {protocol: episodes[:: seat_games.GROUP] for protocol, episodes in played.items()}
        seat_games.FILE.write_text(json.dumps(firsts, indent=1) + "\n", encoding="utf-8")
    assert {protocol: seat_games.expect(protocol) for protocol in played} == played
    # What makes a comparison worth while is in them.
    for protocol, episodes in played.items():
        calls = [call for episode in episodes for call in episode["calls"]]
        assert {call["is_valid"] for call in calls} == {True, False}, protocol
        assert {*episodes[0]["rewards"]} == {call["agent"] for call in calls}
        assert len({str(episode["rewards"]) for episode in episodes}) > 1
    episodes = [episode for every in played.values() for episode in every]
    assert {episode["failed"] for episode in episodes} == {True, False}
    asked = {agent for episode in episodes for agent in episode["rewards"]}
    assert any(not seat_games.list_calls(e, agent) for e in episodes for agent in asked)
    assert any(len(seat_games.list_calls(e, "verifier")) > 2 for e in episodes)
