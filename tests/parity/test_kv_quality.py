"""What a quantised KV cache costs on the real model: `kvmesh bench quant`, much shorter."""

from bench import quant


def test_quantised_keys_and_values_keep_to_their_goals(smollm2, monkeypatch):
    less = {"WINDOW": 512, "NEEDLE_CONTEXT": 512, "CONTEXT": 64, "DECODE_STEPS": 2}
    for name, amount in less.items():
        monkeypatch.setattr(quant, name, amount)
    amount = quant.Amount(windows=4, prompts=2, needles=1, repetitions=1)
    said: list[str] = []
    result = quant.measure_quant(smollm2, quant.licence_text(), amount, said.append)
    auto, *quantised = result.rows
    assert [row.dtype for row in quantised] == ["fp8", "int8", "int4"]
    assert (auto.change.value, auto.agreement, auto.needles) == (0.0, 1.0, 1)
    for row in quantised:
        perplexity, capacity, _decode_time = row.goals
        # So little text says no more than that the goal is within its interval; int4 misses it.
        assert row.change.low <= (0.06 if row.dtype == "int4" else perplexity.limit), perplexity
        assert capacity.met, capacity
        assert row.needles == 1
    assert len(said) == 2 * len(result.rows) + 1
