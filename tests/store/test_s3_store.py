"""A store in a real object store: the requests of s3fs, answered by the server of moto, conditional puts included."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from stored_groups import by_order, filled, stored_facts, stored_group

from swift_rlx.store import TrajectoryStore
from swift_rlx.store.compaction import compact, sweep
from swift_rlx.store.manifest import ChangeRefused
from swift_rlx.store.verification import take_out, verify

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
WRITERS, ROUNDS = 4, 2


@pytest.fixture(scope="module")
def server():
    """The address of the object store. What it needs is installed for the tests with the newest ms-swift alone."""
    from moto.server import ThreadedMotoServer

    serving = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    serving.start()
    yield "http://{}:{}".format(*serving.get_host_and_port())
    serving.stop()


@pytest.fixture
def bucket(server, monkeypatch, tmp_path):
    """An empty bucket, by boto3; stores are reached by the environment alone, as a user's are."""
    import boto3
    from s3fs import S3FileSystem

    given = {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    S3FileSystem.clear_instance_cache()
    found = boto3.resource("s3").Bucket("bucket")
    found.create()
    yield found
    found.objects.all().delete()
    found.delete()


URL = "s3://bucket/answers"


def facts(store):
    return {order: stored_facts(one) for order, one in by_order(store.snapshot()).items()}


def facts_of(groups):
    return {one.group.order: stored_facts(one) for one in groups}


def test_what_is_written_is_read_elsewhere_compacted_swept_and_verified(bucket, tmp_path):
    store = TrajectoryStore.create(URL)
    groups = [stored_group(number) for number in range(12)]
    for begin in range(0, 12, 4):
        filled(store, groups[begin : begin + 4])
    assert not list((tmp_path / "cache").rglob("*.partial"))
    other = TrajectoryStore.open(URL, cache=tmp_path / "another machine")
    assert facts(other) == facts_of(groups)
    before = other.snapshot()
    compact(store.place, store.log)
    replaced = before.manifest.files() - store.manifest().files()
    assert set(sweep(store.place, store.log, keep_s=0, now_s=2e9)) == replaced != set()
    assert not {f"answers/{name}" for name in replaced} & {one.key for one in bucket.objects.all()}
    assert verify(other.place, other.manifest()).is_sound
    assert facts(TrajectoryStore.open(URL, cache=tmp_path / "a third")) == facts_of(groups)


def test_four_writers_at_once_lose_and_double_nothing(bucket, tmp_path):
    TrajectoryStore.create(URL)
    together = Barrier(WRITERS)

    def write(number):
        store = TrajectoryStore.open(URL, cache=tmp_path / f"machine {number}")
        with store.writer(f"writer-{number}") as writer:
            for round_ in range(ROUNDS):
                writer.add([stored_group(100 * number + round_)])
                together.wait(60)
                writer.seal()

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    store = TrajectoryStore.open(URL)
    wanted = [stored_group(100 * number + round_) for number in range(WRITERS) for round_ in range(ROUNDS)]
    assert facts(store) == facts_of(wanted)
    manifest = store.manifest()
    assert dict(manifest.sealed) == {f"writer-{number}": ROUNDS - 1 for number in range(WRITERS)}
    assert manifest.generation == WRITERS * ROUNDS, "each round took a name that nobody else had"
    assert verify(store.place, manifest).is_sound


class Overtaken:
    """The file system of a writer that another one overtakes between its look at a generation's name and its put."""

    def __init__(self, files, overtake):
        self.files, self.overtake = files, overtake
        self.puts = []

    def __getattr__(self, name):
        return getattr(self.files, name)

    def exists(self, path, **options):
        found = self.files.exists(path, **options)
        if "/manifest/" in path and self.overtake is not None:
            overtake, self.overtake = self.overtake, None
            overtake()
        return found

    def pipe_file(self, path, value, mode="overwrite", **options):
        try:
            self.files.pipe_file(path, value, mode=mode, **options)
        except FileExistsError:
            self.puts.append((path.rsplit("/", 1)[-1], "refused"))
            raise
        self.puts.append((path.rsplit("/", 1)[-1], "taken"))


def test_a_put_that_loses_the_race_is_refused_by_the_object_store_and_tried_under_the_next_name(
    bucket, tmp_path
):
    TrajectoryStore.create(URL)
    first, second = (TrajectoryStore.open(URL, cache=tmp_path / name) for name in ("first", "second"))
    files = second.place._fs = Overtaken(
        second.place._fs, lambda: filled(first, [stored_group(1)], name="first")
    )
    filled(second, [stored_group(2)], name="second")
    assert files.puts == [("00000001.json", "refused"), ("00000002.json", "taken")]
    assert facts(TrajectoryStore.open(URL)) == facts_of([stored_group(1), stored_group(2)])


def test_the_same_round_is_not_sealed_twice_by_two_processes_of_one_name(bucket, tmp_path):
    TrajectoryStore.create(URL)
    one, other = (TrajectoryStore.open(URL, cache=tmp_path / name).writer("same") for name in "ab")
    one.add([stored_group(1)])
    other.add([stored_group(2)])
    one.seal()
    with pytest.raises(ChangeRefused):
        other.seal()
    assert facts(TrajectoryStore.open(URL)) == facts_of([stored_group(1)])


def test_an_object_that_was_altered_is_found_and_the_rest_is_kept(bucket, tmp_path):
    store = TrajectoryStore.create(URL, buckets=1)
    for number in range(3):
        filled(store, [stored_group(number)])
    victim = next(one for one in bucket.objects.all() if one.key.endswith(".rows.arrow"))
    data = bytearray(victim.get()["Body"].read())
    data[len(data) // 2] ^= 1
    victim.put(Body=bytes(data))
    found = verify(store.place, store.manifest())
    assert [damage.shard.part("rows").file for damage in found.damaged] == [
        victim.key.removeprefix("answers/")
    ]
    take_out(store.log, found.damaged)
    rest = TrajectoryStore.open(URL, cache=tmp_path / "another machine")
    assert verify(rest.place, rest.manifest()).is_sound
    assert len(facts(rest)) == 2
