"""Simulated devices: how they are configured, marked, and found by name."""

import json
import math

import pytest

from kernels.backends import registry
from kernels.backends.base import FmaKernel, FmaProblem
from kernels.backends.simulated import SimulatedBackend, SimulatedDevice
from kernels.backends.truth import Truth, TruthError, parse_truth, read_truths
from kernels.calibration import calibrate
from kernels.device import DeviceDescription, Discovery, UnusableBackend
from kernels.errors import NoDeviceError
from kernels.host import host_id
from kernels.parameters import DeviceLimits


def test_without_a_setting_there_is_no_simulated_device_and_nothing_to_say(monkeypatch):
    monkeypatch.delenv("CALIBRATE_SIMULATED", raising=False)
    assert SimulatedBackend().discover() == Discovery()


def test_a_simulated_device_is_marked_wherever_it_shows(simulated):
    device = simulated("h200")
    assert device.simulated
    assert device.kind == device.backend == device.limits.backend == "simulated"
    assert device.name == "h200 (simulated)"
    assert device.facts["simulated"] is True
    with SimulatedBackend().open(device.key) as opened:
        assert opened.provenance()["simulated"] is True
        assert set(opened.conditions().unknown.values()) == {"the device is simulated"}


def test_the_key_follows_from_host_and_name_and_not_from_the_planted_constants(simulated, monkeypatch):
    key = simulated("a", seed=1).key
    assert key.startswith("sim-")
    assert len(key) == 20
    assert simulated("a", seed=2, peak_flops=1e12).key == key
    assert simulated("b").key != key
    monkeypatch.setenv("CALIBRATE_HOST_ID", "another-host")
    assert simulated("a").key != key


def test_a_file_may_hold_the_devices(tmp_path):
    path = tmp_path / "devices.json"
    path.write_text('[{"name": "a"}, {"name": "b"}]')
    assert [truth.name for truth in read_truths(str(path))] == ["a", "b"]


@pytest.mark.parametrize(
    ("setting", "rule"),
    [
        ("/nowhere/at/all.json", "neither a JSON list nor a readable file"),
        ("[", "not JSON"),
        ("[]", "1 to 16 devices"),
        (json.dumps([{"name": str(n)} for n in range(17)]), "1 to 16 devices"),
        ('[{"name": "a"}, {"name": "a"}]', "same name"),
        ("[7]", "an object"),
        ("[{}]", "name must be"),
        ('[{"name": ""}]', "name must be"),
        ('[{"name": "a", "speed": 1}]', "unknown field 'speed'"),
        ('[{"name": "a", "noise": NaN}]', "noise must be a finite number"),
        ('[{"name": "a", "noise": 2}]', "noise must be from 0 to 1"),
        ('[{"name": "a", "peak_flops": true}]', "peak_flops must be a finite number"),
        ('[{"name": "a", "peak_memory_bandwidth": 0}]', "peak_memory_bandwidth must be from 1"),
        ('[{"name": "a", "multiprocessors": 1}]', "peak_memory_bandwidth is over 1e+12 a multiprocessor"),
        ('[{"name": "a", "multiprocessors": 1.5}]', "multiprocessors must be an integer"),
        ('[{"name": "a", "cache_capacity": 0}]', "cache_capacity must be an integer"),
        ('[{"name": "a", "geometry_factors": {"32": 1}}]', "not a geometry"),
        ('[{"name": "a", "geometry_factors": {}}]', "1 to 16 geometries"),
        ('[{"name": "a", "sweeps": ["walk"]}]', "sweeps must be of"),
        ('[{"name": "a", "throttle": "hot"}]', "throttle must be a list"),
        ('[{"name": "a", "failures": [{"mode": "smoke"}]}]', "failure mode"),
        ('[{"name": "a", "failures": [{"mode": "hang", "kernel": "warp"}]}]', "not a geometry"),
        ('[{"name": "a", "failures": [{"mode": "hang", "times": 2}]}]', "counter file"),
    ],
)
def test_a_setting_that_cannot_be_used_is_an_unusable_reason_and_no_exception(monkeypatch, setting, rule):
    monkeypatch.setenv("CALIBRATE_SIMULATED", setting)
    found = SimulatedBackend().discover()
    assert found.devices == ()
    (unusable,) = found.unusable
    assert unusable.backend == "simulated"
    assert rule in unusable.reason
    with pytest.raises(NoDeviceError, match="CALIBRATE_SIMULATED"), SimulatedBackend().open("sim-0"):
        pass


@pytest.fixture
def nameless_host(simulated, monkeypatch, tmp_path):
    """A host that has no identity and can't keep one."""
    device = simulated("a")
    monkeypatch.delenv("CALIBRATE_HOST_ID")
    monkeypatch.setattr(host_id, "__defaults__", (tmp_path,))
    (tmp_path / "file").touch()
    monkeypatch.setenv("CALIBRATE_DATA_DIR", str(tmp_path / "file" / "data"))
    return device


def test_without_an_identity_of_the_host_there_is_a_reason_and_no_device(nameless_host):
    (unusable,) = SimulatedBackend().discover().unusable
    assert "set CALIBRATE_HOST_ID" in unusable.reason


def test_a_calibration_that_could_not_name_its_host_ends_before_it_measures(nameless_host, monkeypatch):
    monkeypatch.setattr("kernels.backends.simulated.host_id", lambda: "test-host")  # as a GPU's key needs none
    events = []
    with pytest.raises(NoDeviceError, match="set CALIBRATE_HOST_ID"):
        calibrate(nameless_host.key, on_event=lambda sweep, event: events.append(event), in_process=True)
    assert events == []


def test_a_large_file_is_refused_unread(tmp_path):
    path = tmp_path / "devices.json"
    path.write_text(" " * (1 << 20) + "[]")
    with pytest.raises(TruthError, match="over 1048576 bytes"):
        read_truths(str(path))


def test_every_parameter_may_be_planted():
    truth = parse_truth(
        {
            "name": "all",
            "memory_bytes": 1 << 30,
            "last_level_cache_bytes": 1 << 20,
            "multiprocessors": 4,
            "peak_memory_bandwidth": 1e10,
            "cache_capacity": None,
            "cache_bandwidth": 1e11,
            "issue_rate": 1e11,
            "geometry_factors": {"32x32x8/4x4": 1},
            "peak_flops": 2e11,
            "fill_threads": 128,
            "launch_latency_ms": 0,
            "noise": 0,
            "contention": 0.5,
            "throttle": ["hw_slowdown"],
            "seed": 3,
            "delay_s": 0.1,
            "sweeps": ["stream"],
            "failures": [{"mode": "hang", "kernel": "32x32x8/4x4", "at": 2, "times": 1, "counter": "starts"}],
        }
    )
    assert truth.sweeps == ("stream",)
    assert truth.failures[0].at == 2


def test_the_same_seed_gives_the_same_times_and_noise_only_slows():
    def samples(seed):
        device = SimulatedDevice(Truth("a", noise=0.5, seed=seed))
        with device.open_workload(FmaProblem()) as workload:
            kernel = workload.prepare(FmaKernel(1 << 16))
            return [kernel.sample().device_ms for _ in range(50)], kernel.facts.flops / 1.9e13 * 1e3

    (first, true_ms), (again, _), (other, _) = samples(1), samples(1), samples(2)
    assert first == again != other
    assert all(true_ms <= sample <= 1.5 * true_ms for sample in first)


def test_contention_slows_its_share_of_the_samples_threefold():
    device = SimulatedDevice(Truth("a", noise=0.0, contention=0.25))
    slowed = [device.slowdown() for _ in range(4000)]
    assert set(slowed) == {1.0, 3.0}
    assert math.isclose(slowed.count(3.0) / 4000, 0.25, abs_tol=0.03)


def _device(key, name, backend="simulated", kind="simulated"):
    limits = DeviceLimits(backend, 1, 1, 1, ("stream",), ())
    return DeviceDescription(key, backend, kind, name, kind == "simulated", limits)


CPU = _device("cpu-0123456789abcdef", "AMD EPYC", "cc", "cpu")
GPUS = (_device("GPU-a", "NVIDIA H200", "cuda", "gpu"), _device("GPU-b", "NVIDIA H200", "cuda", "gpu"))
HOST = Discovery(devices=(*GPUS, CPU), unusable=(UnusableBackend("simulated", "not configured"),))


@pytest.mark.parametrize(("name", "device"), [("GPU-b", GPUS[1]), ("cpu", CPU), ("cc", CPU), ("amd epyc", CPU)])
def test_a_device_is_found_by_key_kind_backend_or_name(name, device):
    assert registry.find(name, HOST) == device


@pytest.mark.parametrize("name", ["gpu", "cuda", "NVIDIA H200"])
def test_a_name_that_several_devices_have_is_refused_with_the_choices(name):
    with pytest.raises(NoDeviceError, match=r"several devices; choose one of: GPU-a \(NVIDIA H200\); GPU-b"):
        registry.find(name, HOST)


def test_no_name_means_the_only_device():
    assert registry.find(None, Discovery(devices=(CPU,))) == CPU
    with pytest.raises(NoDeviceError, match="several devices are usable"):
        registry.find(None, HOST)


def test_an_unknown_device_is_never_silently_another():
    with pytest.raises(NoDeviceError, match=r"no device 'GPU-c' on this host; usable: GPU-a"):
        registry.find("GPU-c", HOST)


def test_where_there_is_no_device_the_reasons_are_told():
    with pytest.raises(NoDeviceError, match="cuda: no driver"):
        registry.find(None, Discovery(unusable=(UnusableBackend("cuda", "no driver"),)))


def test_a_key_opens_on_its_own_backend(simulated):
    device = simulated("a")
    with registry.open_device(device.key) as opened:
        assert opened.description == device
    with pytest.raises(NoDeviceError, match="no simulated device"), registry.open_device("sim-0000000000000000"):
        pass
