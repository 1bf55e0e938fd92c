"""Answers of Prometheus' API, whole, doubtful and nonsensical: a doubt is never a healthy page."""

import contextlib
import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.adapters.prometheus import PrometheusPages, Queries
from sickbay.errors import UsageError
from sickbay.readers.exposition import PageReader
from sickbay.readers.prometheus import LabelMap, parse_answer
from sickbay.settings import load_settings
from workers.sources import prometheus_client

TEMP = "DCGM_FI_DEV_GPU_TEMP"
NOW_S = 1_800_000_000.0


def vector(*rows, **more):
    result = [{"metric": labels, "value": [NOW_S, value]} for labels, value in rows]
    return {"status": "success", "data": {"resultType": "vector", "result": result}, **more}


def gpu(uuid="GPU-a", node="n1", **more):
    return {"__name__": TEMP, "UUID": uuid, "gpu": "0", "Hostname": node, **more}


class Server:
    """Answers queries from a table; what is not in it has no series."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        query = request.url.params["query"]
        self.asked.append(query)
        name = query.partition("{")[0].replace("timestamp(", "age_").rstrip(")")
        answer = self.answers.get(name, vector())
        if isinstance(answer, httpx.Response):
            return answer
        return httpx.Response(200, text=answer if isinstance(answer, str) else json.dumps(answer))


def pages(server, **options):
    http = httpx.AsyncClient(transport=httpx.MockTransport(server))
    return PrometheusPages(Queries("http://p:9090/prefix/", client=http), metrics=[TEMP], **options)


def with_age(rows, *, age_s=1.0, **more):
    ages = [({k: v for k, v in labels.items() if k != "__name__"}, str(NOW_S - age_s))
            for labels, _ in rows]  # fmt: skip
    return Server(**{TEMP: vector(*rows), f"age_{TEMP}": vector(*ages), **more})


async def values(server, node="n1", **options):
    (page,) = await pages(server, **options).read([node])
    if page.text is None:
        return page.error
    return {p.uuid: p.values.get(TEMP) for p in PageReader(frozenset({TEMP})).read(page.text)}


async def test_a_whole_answer_is_a_page():
    server = with_age([(gpu(), "61"), (gpu("GPU-b"), "62.5"), (gpu("GPU-c", "n2"), "1")])
    assert await values(server) == {"GPU-a": 61.0, "GPU-b": 62.5}


@pytest.mark.parametrize(
    "doubtful",
    [
        vector((gpu(), "61"), warnings=["a store did not answer"]),
        {"status": "error", "errorType": "timeout", "error": "query timed out"},
        {"status": "success", "data": {"resultType": "vector", "result": [{"metric": 3}]}},
        {"status": "success", "data": None},
        [],
        "<html>log in</html>",
        httpx.Response(302, headers={"Location": "http://login/"}),
        httpx.Response(503, text="{}"),
        httpx.Response(401, text="no"),
    ],
)
@pytest.mark.parametrize("where", [TEMP, f"age_{TEMP}", "up"])
async def test_a_doubtful_answer_to_any_query_makes_every_node_silent(doubtful, where):
    server = with_age([(gpu(), "61")], **{where: doubtful})
    error = await values(server)
    assert isinstance(error, str)
    assert error.startswith("prometheus: ")


async def test_a_connection_that_breaks_is_silence_with_its_reason():
    def broken(request):
        raise httpx.ReadError("reset by peer")

    assert "reset by peer" in await values(broken)


async def test_an_old_sample_of_one_gpu_is_missing_and_the_gpu_is_not_lost():
    young, old = gpu("GPU-a"), gpu("GPU-b")
    ages = [({**young}, str(NOW_S - 5)), ({**old}, str(NOW_S - 500))]
    server = Server(**{TEMP: vector((young, "61"), (old, "62")), f"age_{TEMP}": vector(*ages)})
    assert await values(server) == {"GPU-a": 61.0, "GPU-b": None}


async def test_a_sample_without_a_known_age_is_no_number():
    server = Server(**{TEMP: vector((gpu(), "61"))})
    assert "s old" in await values(server)


async def test_blank_values_stay_blank():
    server = with_age([(gpu(), "9.223372036854776e+18"), (gpu("GPU-b"), "NaN")])
    assert await values(server) == {"GPU-a": None, "GPU-b": None}


async def test_of_one_gpu_told_twice_the_younger_sample_counts():
    one, two = gpu(replica="1"), gpu(replica="2")
    ages = [(one, str(NOW_S - 30)), (two, str(NOW_S - 2))]
    for order in ([one, two], [two, one]):
        rows = [(labels, "50" if labels is one else "70") for labels in order]
        server = Server(**{TEMP: vector(*rows), f"age_{TEMP}": vector(*ages)})
        assert await values(server) == {"GPU-a": 70.0}


async def test_why_a_node_has_no_page():
    server = with_age([], up=vector(({"instance": "n1:9400"}, "0"), ({"instance": "n2"}, "1")))
    assert "up is 0" in await values(server, "n1")
    assert "no GPU" in await values(server, "n2")
    assert "no target" in await values(server, "n3")


async def test_other_labels_and_names_are_mapped():
    labels = LabelMap(node=("kubernetes_node",), uuid=("gpu_uuid",))
    row = {"kubernetes_node": "n1:9400", "gpu_uuid": 'GPU-"a"', "gpu": "0"}
    server = Server(temp=vector((row, "61")), age_temp=vector((row, str(NOW_S))))
    found = await values(server, labels=labels, named={TEMP: "temp"}, matcher='job="dcgm"')
    assert list(found.values()) == [61.0]
    assert server.asked[:2] == ['temp{job="dcgm"}', 'timestamp(temp{job="dcgm"})']


@given(st.binary(max_size=300) | st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["status", "data", "result", "resultType", "metric", "value"]), inner
    ), max_leaves=12,
).map(lambda v: json.dumps(v).encode()))  # fmt: skip
def test_no_answer_makes_the_reader_stumble(body):
    with contextlib.suppress(ValueError):
        assert all(isinstance(row.labels, dict) for row in parse_answer(body))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"url": "http://u:secret@p"}, "prometheus.url"),
        ({"url": "p:9090"}, "prometheus.url"),
        ({"node_pattern": "("}, "prometheus.node_pattern"),
        ({"node_pattern": "n.*"}, "prometheus.node_pattern"),
        ({"metrics": {TEMP: "rate(x[1m])"}}, "prometheus.metrics"),
        ({"matcher": 'job="a"}'}, "prometheus.matcher"),
        ({"cert_file": "c.pem"}, "prometheus"),
    ],
)
def test_settings_that_cannot_work_are_one_clear_line(options, field):
    given_ = {f"prometheus__{k}": v for k, v in options.items()}
    with pytest.raises(UsageError) as raised:
        load_settings(None, environ={}, **given_)
    assert raised.value.field == field
    assert "secret" not in raised.value.message


async def test_a_secret_is_sent_by_reference_and_never_in_the_clear(tmp_path):
    token = tmp_path / "token"
    token.write_text("s3cr3t-token\n")
    chosen = {"prometheus__token_file": str(token)}
    far = load_settings(None, environ={}, prometheus__url="http://p.example:9090", **chosen)
    with pytest.raises(UsageError, match="in the clear"):
        prometheus_client(far.prometheus)
    safe = load_settings(None, environ={}, prometheus__url="https://p.example", **chosen)
    async with prometheus_client(safe.prometheus) as client:
        assert client.headers["Authorization"] == "Bearer s3cr3t-token"
    alone = load_settings(None, environ={}, prometheus__url="https://p", prometheus__user="me")
    with pytest.raises(UsageError, match="go together"):
        prometheus_client(alone.prometheus)
