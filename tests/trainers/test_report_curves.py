"""Which curves a log has."""

from trainers.report_curves import run_curves

TRAINING = {"step": 10, "loss": 4.0, "learning_rate": 0.001, "gradient_norm": 1.0}
VALIDATION = {"step": 10, "val_loss": 3.0, "val_perplexity": 9.0, "val_bleu": 5.0, "val_chrf": 20.0}


def test_each_figure_of_the_log_is_a_curve():
    norms = {"target_embedding": 0.5, "encoder/layer_0": 0.0, "decoder/layer_0": 2.0}
    charts = {
        chart.name: chart.figure
        for chart in run_curves([{**TRAINING, "layer_gradient_norms": norms}, VALIDATION])
    }
    assert list(charts) == ["loss", "bleu", "perplexity", "rate", "gradient", "layers"]
    assert [trace.name for trace in charts["loss"].data] == ["training", "validation"]
    assert [trace.y for trace in charts["bleu"].data] == [(5.0,), (20.0,)]
    layers = {trace.name: trace.y for trace in charts["layers"].data}
    # 0 has no place on a logarithmic axis.
    assert layers == {
        "target embedding": (0.5,),
        "encoder/layer 0": (None,),
        "decoder/layer 0": (2.0,),
    }


def test_what_the_log_does_not_have_is_left_out():
    assert run_curves([]) == []
    assert [chart.name for chart in run_curves([TRAINING])] == ["loss", "rate", "gradient"]
    without_bleu = [{"step": 1, "val_loss": 2.0, "val_perplexity": None}]
    assert [chart.name for chart in run_curves(without_bleu)] == ["loss", "perplexity"]


def test_layers_grow_darker_upwards():
    norms = {f"encoder/layer_{number}": 1.0 for number in range(3)}
    (chart,) = run_curves([{"step": 1, "layer_gradient_norms": norms}])
    light = [
        sum(int(trace.line.color[i : i + 2], 16) for i in (1, 3, 5)) for trace in chart.figure.data
    ]
    assert light == sorted(light, reverse=True) and len(set(light)) == 3
